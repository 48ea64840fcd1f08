// Lossless verification of drafted tokens: rejection sampling against the target model's distribution.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/params/speculative_verify.h>

#include <cstdint>

namespace metalane {

// All buffers of one verification. L lanes, R rows a lane, P = R - 1 drafted tokens, V vocabulary,
// K candidates, S = ceil(V / SPECULATIVE_SHARD).
struct SpeculativeVerifyBuffers {
  Buffer logits;       // f32, f16 or bf16 [L, R, V]   read: the target's
  Buffer verify_rows;  // u32 [L]                      read: rows in use, at most R; 0: the lane is idle
  Buffer temperature;  // f32 [L]                      read: not above 0 (or NaN): the lane is greedy
  Buffer tokens;       // u32 [L, P]                   read: drafted
  Buffer candidates;   // u32 [L, P, K]                read: what each could have been, and
  Buffer proposal_probabilities;  // f32 [L, P, K]                read: how probable that was
  Buffer uniforms;      // f32 [L, R]                   read: one a drafted token, the last for the draw
  Buffer partial_ids;   // u32 [L, R, S]                written
  Buffer partial_sums;  // f32 [L, R, S]                written
  Buffer accepted;      // u32 [L]                      written: drafted tokens that stay
  Buffer next_tokens;   // u32 [L]                      written: the one behind them

  // Eleven zero-filled buffers for these sizes.
  METALANE_API static SpeculativeVerifyBuffers alloc(const Device& device, std::uint64_t lanes,
                                                     std::uint64_t rows_per_lane, std::uint64_t vocabulary,
                                                     std::uint64_t candidates = 16,
                                                     DType logits = DType::float32);
};

// Encodes the two launches of one verification. Throws ArgumentError or DTypeError (sizes, dtype or exact
// shape of a buffer, aliasing) before anything is encoded. Allocates nothing. See docs/speculative.md.
METALANE_API void dispatch_speculative_verify(CommandEncoder& encoder,
                                              const SpeculativeVerifyBuffers& buffers,
                                              const SpeculativeVerifyParams& params);

}  // namespace metalane
