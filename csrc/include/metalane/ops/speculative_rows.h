// A target model's share of a verification, sized on the device: rows packed one behind another, grids
// counted from them, results put back.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/ops/quantized_matmul_policy.h>
#include <metalane/params/speculative_rows.h>

#include <cstdint>

namespace metalane {

// What a grid of threadgroups [tiles of weight rows, tiles of input rows, 1] is made of.
struct RowGrid {
  std::uint32_t weight_tiles = 0;
  std::uint32_t input_rows = 0;  // that one threadgroup takes
};

// Of a quantized_matmul_ggml call with `grid`, whose params.m is the most rows that there can be.
METALANE_API RowGrid row_grid(const GgmlQuantizedMatmulParams& params,
                              GgmlAlgorithm algorithm = GgmlAlgorithm::automatic,
                              const GgmlPolicy& policy = default_ggml_policy());
// Of scatter_rows.
METALANE_API RowGrid scatter_grid(std::uint32_t row_length);

// L lanes, R rows a lane; lane l has min(verify_rows[l], R) rows: its anchor's, then those of its first
// drafted tokens. Lane after lane, row_tokens gets the token of each, row_places its place in [L, R], and
// both are filled up with 0 and SPECULATIVE_ROWS_NOWHERE. grids[g] gets the threadgroup counts of params'
// g-th grid for that many rows; with no rows at all they run nothing.
//   verify_rows, anchors u32 [L] | tokens u32 [L, R - 1] | row_tokens, row_places u32 [L * R] |
//   grids u32 [n_grids, 3]
// Each at least that long, in any shape. Throws ArgumentError or DTypeError before anything is encoded.
METALANE_API void dispatch_speculative_rows(CommandEncoder& encoder, const Buffer& verify_rows,
                                            const Buffer& anchors, const Buffer& tokens,
                                            const Buffer& row_tokens, const Buffer& row_places,
                                            const Buffer& grids, const SpeculativeRowsParams& params);

// output[places[i]] = input[i] for rows of params.row_length floats; places past params.rows are left out.
// `grid`: threadgroup counts of scatter_grid, read when the launch starts; without one all params.rows rows
// of input are moved.
METALANE_API void scatter_rows(CommandEncoder& encoder, const Buffer& input, const Buffer& places,
                               const Buffer& output, const ScatterRowsParams& params,
                               const Buffer& grid = {});

}  // namespace metalane
