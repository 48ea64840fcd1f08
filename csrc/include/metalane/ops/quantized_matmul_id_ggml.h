// Products of routed float inputs with the GGML-quantized weights of the expert that each route names.
#pragma once

#include <metalane/buffer.h>
#include <metalane/device.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/ops/quantized_matmul_policy.h>

#include <cstdint>
#include <string>

namespace metalane {

// The caller's memory in which mat-mat sorts routes by expert. One can serve any number of calls, one after
// another.
class METALANE_API IdMmScratch {
 public:
  // Room for n_tokens * top_k routes to n_experts experts, however they are distributed. Throws ArgumentError
  // where that is nothing or 2^31 and more, OutOfMemoryError.
  static IdMmScratch alloc(const Device& device, std::uint64_t n_experts, std::uint64_t n_tokens,
                           std::uint64_t top_k = 8);

  // Memory that the caller has, u32, for as many experts and routes. Throws ArgumentError or DTypeError where
  // it is too small.
  static IdMmScratch over(const Buffer& schedule, std::uint64_t n_experts, std::uint64_t routes);

  std::uint32_t n_experts() const noexcept { return n_experts_; }
  std::uint32_t routes() const noexcept { return routes_; }
  const Buffer& schedule() const noexcept {
    return schedule_;
  }  // u32; see shaders/quantized_matmul_id_ggml.metal
  // Of the last call that has used it, once that is done (waits): "done", or how many ids were out of range.
  std::string status() const;

 private:
  IdMmScratch(Buffer schedule, std::uint32_t n_experts, std::uint32_t routes)
      : schedule_(std::move(schedule)), n_experts_(n_experts), routes_(routes) {}

  Buffer schedule_;
  std::uint32_t n_experts_;
  std::uint32_t routes_;
};

// output[r] = weight[ids[r]] * input[r / top_k] for the routes r = token * top_k + slot: input f32 [n_tokens,
// k], weight n_experts times n rows of k packed elements, expert_stride bytes apart, ids u32 [n_tokens,
// top_k], output f32 [n_tokens * top_k, n]; each at least that long, in any shape. Mat-vec, or mat-mat with
// scratch of the device's pool, as the policy says. Throws ArgumentError or DTypeError before anything is
// encoded, also for an id past the experts where the host can see the ids; where it cannot, such a route
// gives a row of zeros and a warning on the ticket.
METALANE_API void quantized_matmul_id_ggml(CommandEncoder& encoder, const Buffer& input, const Buffer& weight,
                                           const Buffer& ids, const Buffer& output,
                                           const GgmlQuantizedMatmulIdParams& params,
                                           GgmlAlgorithm algorithm = GgmlAlgorithm::automatic,
                                           const GgmlPolicy& policy = default_ggml_policy());

// The same by mat-mat, with the caller's scratch.
METALANE_API void quantized_matmul_id_ggml_pooled(CommandEncoder& encoder, const Buffer& input,
                                                  const Buffer& weight, const Buffer& ids,
                                                  const Buffer& output, const IdMmScratch& scratch,
                                                  const GgmlQuantizedMatmulIdParams& params);

// Two weights along one schedule; the bits are those of two single calls.
METALANE_API void quantized_matmul_id_ggml_pooled_pair(CommandEncoder& encoder, const Buffer& input,
                                                       const Buffer& weight_a, const Buffer& weight_b,
                                                       const Buffer& ids, const Buffer& output_a,
                                                       const Buffer& output_b, const IdMmScratch& scratch,
                                                       const GgmlQuantizedMatmulIdParams& params);

// A row of inputs for each route: input f32 [n_tokens, top_k, k].
METALANE_API void quantized_matmul_id_ggml_pooled_slotted(CommandEncoder& encoder, const Buffer& input,
                                                          const Buffer& weight, const Buffer& ids,
                                                          const Buffer& output, const IdMmScratch& scratch,
                                                          const GgmlQuantizedMatmulIdParams& params);

}  // namespace metalane
