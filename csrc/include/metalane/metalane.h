// Everything a C++ program needs.
#pragma once

#include <metalane/buffer.h>
#include <metalane/check.h>
#include <metalane/cpu.h>
#include <metalane/device.h>
#include <metalane/dtype.h>
#include <metalane/encoder.h>
#include <metalane/error.h>
#include <metalane/ggml_type.h>
#include <metalane/gguf.h>
#include <metalane/graph.h>
#include <metalane/kernel.h>
#include <metalane/launch.h>
#include <metalane/metal.h>
#include <metalane/ops/acceptance_model.h>
#include <metalane/ops/dequantize.h>
#include <metalane/ops/dflash2_selector.h>
#include <metalane/ops/embedding_ggml.h>
#include <metalane/ops/graph_fusion.h>
#include <metalane/ops/quantized_matmul_ggml.h>
#include <metalane/ops/quantized_matmul_id_ggml.h>
#include <metalane/ops/speculative_rows.h>
#include <metalane/ops/speculative_verify.h>
#include <metalane/ticket.h>
#include <metalane/version.h>
