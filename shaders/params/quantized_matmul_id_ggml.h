// Expert-routed GGML-quantized products: parameter struct and the layout of their schedule. Included by the
// shaders and by C++; Python's dataclass is compared with it field by field.
#ifndef METALANE_PARAMS_QUANTIZED_MATMUL_ID_GGML_H
#define METALANE_PARAMS_QUANTIZED_MATMUL_ID_GGML_H

#include <metalane/params_abi.h>

#define GGML_ROUTE_THREADS 256

METALANE_PARAMS_BEGIN

struct GgmlQuantizedMatmulIdParams {
  uint32_t n_tokens;
  uint32_t top_k;
  uint32_t n;
  uint32_t k;
  uint32_t n_experts;
  uint32_t padding;
  uint64_t expert_stride;
  uint32_t ggml_type;
  uint32_t padding_behind;
};

METALANE_PARAMS_END

#endif
