// Where the parts of a routed mat-mat's schedule lie: see quantized_matmul_id_ggml.metal. Internal linkage:
// see native_ggml_blocks.h.
#pragma once

#include <metalane/params/quantized_matmul_id_ggml.h>

#include <cstdint>

namespace metalane::cpu {
namespace {

// Over the words of a schedule: `Word` is std::uint32_t, const for those who read it.
template <typename Word>
struct Schedule {
  std::uint32_t n_experts;
  std::uint64_t n_routes;
  Word *out_of_range, *counts, *first_route, *first_tile, *routes;

  Schedule(const GgmlQuantizedMatmulIdParams& params, Word* words)
      : n_experts(params.n_experts),
        n_routes(std::uint64_t{params.n_tokens} * params.top_k),
        out_of_range(words),
        counts(out_of_range + 1),
        first_route(counts + n_experts + 1),
        first_tile(first_route + n_experts + 2),
        routes(first_tile + n_experts + 2) {}
};

inline std::uint64_t schedule_words(const GgmlQuantizedMatmulIdParams& params) {
  return 6 + 3 * std::uint64_t{params.n_experts} + std::uint64_t{params.n_tokens} * params.top_k;
}

}  // namespace
}  // namespace metalane::cpu
