// The rows that a verification reads, packed: a target model then multiplies as many rows as there are, and its grids
// are counted here.
#include <metalane/params/speculative_rows.h>

#include <metal_stdlib>
using namespace metal;

// One threadgroup. Lane l has min(verify_rows[l], R) rows: its anchor's and those of its first drafted tokens.
//   verify_rows, anchors u32 [L] | tokens u32 [L, R - 1] | row_tokens, row_places u32 [L * R] | grids u32 [n_grids, 3]
kernel void speculative_rows(device const uint* verify_rows [[buffer(0)]], device const uint* anchors [[buffer(1)]],
                             device const uint* tokens [[buffer(2)]], device uint* row_tokens [[buffer(3)]],
                             device uint* row_places [[buffer(4)]], device uint* grids [[buffer(5)]],
                             constant SpeculativeRowsParams& params [[buffer(6)]],
                             uint t [[thread_index_in_threadgroup]]) {
  const uint rows = params.rows_per_lane;
  uint total = 0;
  for (uint lane = 0; lane < params.lanes; ++lane) total += min(verify_rows[lane], rows);
  for (uint place = t; place < params.lanes * rows; place += SPECULATIVE_ROWS_THREADS) {
    const uint lane = place / rows, row = place % rows;
    if (row < min(verify_rows[lane], rows)) {
      uint at = row;
      for (uint before = 0; before < lane; ++before) at += min(verify_rows[before], rows);
      row_tokens[at] = row == 0 ? anchors[lane] : tokens[lane * (rows - 1) + row - 1];
      row_places[at] = place;
    }
    if (place >= total) {
      row_tokens[place] = 0;
      row_places[place] = SPECULATIVE_ROWS_NOWHERE;
    }
  }
  if (t < params.n_grids) {
    grids[3 * t] = params.weight_tiles[t];
    grids[3 * t + 1] = total / params.input_rows[t] + (total % params.input_rows[t] != 0);
    grids[3 * t + 2] = 1;
  }
}

// output[places[i]] = input[i]: threadgroups [row_length / SCATTER_ROWS_ELEMENTS, rows of input].
//   input f32 [rows, row_length] | places u32 [rows] | output f32 [params.rows, row_length]
kernel void scatter_rows(device const float* input [[buffer(0)]], device const uint* places [[buffer(1)]],
                         device float* output [[buffer(2)]], constant ScatterRowsParams& params [[buffer(3)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint t [[thread_index_in_threadgroup]]) {
  if (group.y >= params.rows) return;
  const uint place = places[group.y];
  if (place >= params.rows) return;
  device const float* from = input + ulong(group.y) * params.row_length;
  device float* to = output + ulong(place) * params.row_length;
  const uint begin = group.x * SCATTER_ROWS_ELEMENTS;
  const uint end = min(begin + SCATTER_ROWS_ELEMENTS, params.row_length);
  for (uint i = begin + t; i < end; i += SPECULATIVE_ROWS_THREADS) to[i] = from[i];
}
