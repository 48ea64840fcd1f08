// Products of float inputs with GGML-quantized weights.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/ops/quantized_matmul_policy.h>

#include <cstdint>

namespace metalane {

// output[i, r] = sum over j of input[i, j] * weight[r, j]: input f32 [m, k], weight n rows of k packed
// elements (u8, or the type's own dtype), output f32 [m, n]; each at least that long, in any shape. Throws
// ArgumentError or DTypeError before anything is encoded.
// `grid`: three u32 (row_grid in speculative_rows.h says which), read when the launch starts: then m is the
// most rows that there can be, and those past the last tile that it counts are left alone.
METALANE_API void quantized_matmul_ggml(CommandEncoder& encoder, const Buffer& input, const Buffer& weight,
                                        const Buffer& output, const GgmlQuantizedMatmulParams& params,
                                        GgmlAlgorithm algorithm = GgmlAlgorithm::automatic,
                                        const GgmlPolicy& policy = default_ggml_policy(),
                                        const Buffer& grid = {});

// `batches` such products by mat-vec, one behind another in all three buffers; the bits of each are those of
// a call of its own.
METALANE_API void quantized_matmul_batched_mv(CommandEncoder& encoder, const Buffer& input,
                                              const Buffer& weight, const Buffer& output,
                                              std::uint32_t batches, std::uint32_t m, std::uint32_t n,
                                              std::uint32_t k, GgmlType ggml_type);

}  // namespace metalane
