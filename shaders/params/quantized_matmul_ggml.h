// GGML-quantized products: parameter structs and tile sizes. Included by the shaders and by C++; Python's
// dataclasses are compared with it field by field.
#ifndef METALANE_PARAMS_QUANTIZED_MATMUL_GGML_H
#define METALANE_PARAMS_QUANTIZED_MATMUL_GGML_H

#include <metalane/params_abi.h>

#define GGML_MM_ROWS 64
#define GGML_MM_INPUTS 32
#define GGML_MM_THREADS 128
#define GGML_MV_SIMDGROUPS 4
#define GGML_MV_MAX_INPUTS 8

METALANE_PARAMS_BEGIN

struct GgmlQuantizedMatmulParams {
  uint32_t m;
  uint32_t n;
  uint32_t k;
  uint32_t ggml_type;
};

METALANE_PARAMS_END

#endif
