// Kernel variants of the GGML products and the sizes that they take.
#pragma once

#include <metalane/ggml_type.h>
#include <metalane/ops/quantized_matmul_policy.h>

#include <cstdint>

#include "ops/ggml_kernels.h"

namespace metalane::ops {

struct GgmlVariant {
  GgmlKernel kernel;
  GgmlAlgorithm algorithm;
  std::uint32_t weight_rows;  // of one threadgroup
  std::uint32_t input_rows;   // of one threadgroup
};

// The variant for `algorithm`, which is not automatic. Throw ArgumentError where there is none.
GgmlVariant dense_variant(const char* op, const GgmlQuantizedMatmulParams& params, GgmlAlgorithm algorithm);
GgmlVariant routed_variant(const char* op, GgmlAlgorithm algorithm, bool slotted);

// Throw ArgumentError for sizes that no kernel takes; give the type.
const GgmlTypeInfo& check_dense(const char* op, const GgmlQuantizedMatmulParams& params);
const GgmlTypeInfo& check_routed(const char* op, const GgmlQuantizedMatmulIdParams& params);

// Threadgroups for `count` rows, `each` at a time.
inline std::uint64_t tiles(std::uint64_t count, std::uint64_t each) { return (count + each - 1) / each; }

inline std::uint32_t routes_of(const GgmlQuantizedMatmulIdParams& params) {
  return params.n_tokens * params.top_k;
}
// Of the schedule that mat-mat sorts routes into (shaders/quantized_matmul_id_ggml.metal).
inline std::uint64_t schedule_words(std::uint64_t n_experts, std::uint64_t routes) {
  return 3 * n_experts + 6 + routes;
}

}  // namespace metalane::ops
