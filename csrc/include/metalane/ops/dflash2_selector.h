// DFlash2 speculative-decoding selector: top-16 candidates, pairwise edge scores, one coherent path a lane,
// and how many rows of it to verify.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/ops/dflash2_selector_params.h>

#include <array>
#include <cstdint>

namespace metalane {

// All buffers of one selector step. L lanes, R rows a lane, P = R - 1 positions, V vocabulary.
struct DFlash2SelectorBuffers {
  Buffer logits;                  // f32 [L, R, V]            read
  Buffer selector_hidden;         // bf16 [L, R, 256]         read
  Buffer predecessor_codebook;    // bf16 [V, 256]            read
  Buffer successor_codebook;      // bf16 [V, 256]            read
  Buffer uniforms;                // f32 [L, P]               read
  Buffer partial_ids;             // u32 [L, P, 8, 16]        written
  Buffer partial_values;          // f32 [L, P, 8, 16]        written
  Buffer candidates;              // u32 [L, P, 16]           written
  Buffer unary;                   // f32 [L, P, 16]           written
  Buffer edges;                   // f32 [L, P, 16, 16]       written
  Buffer tokens;                  // u32 [L, P]               written
  Buffer proposal_probabilities;  // f32 [L, P, 16]           written
  Buffer confidence;              // f32 [L, P]               written

  // Thirteen zero-filled buffers for these sizes.
  METALANE_API static DFlash2SelectorBuffers alloc(const Device& device, std::uint64_t lanes,
                                                   std::uint64_t rows_per_lane, std::uint64_t vocabulary);
};

// Encodes the three launches of one selector step. Throws ArgumentError or DTypeError (geometry, anchors,
// temperatures, dtype or exact shape of a buffer, aliasing) before anything is encoded. Allocates nothing.
METALANE_API void dispatch_dflash2_selector(CommandEncoder& encoder, const DFlash2SelectorBuffers& buffers,
                                            const DFlash2SelectorParams& params);

// Encodes the choice of verification rows: confidence f32 [L, P] -> verify_rows u32 [L].
METALANE_API void dispatch_dflash2_verify_rows(CommandEncoder& encoder, const Buffer& confidence,
                                               const Buffer& verify_rows,
                                               const DFlash2VerifyRowsParams& params);

}  // namespace metalane
