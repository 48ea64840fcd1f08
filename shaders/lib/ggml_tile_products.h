// Products of a tile of GGML weight rows with a tile of float input rows, by one threadgroup: mat-mat.
//
//   weights  [64 rows, k]   --unpacked once, 32 columns a step-->  threadgroup float [64, 32]
//   inputs   [32 rows, k]   ------------------------------------>  threadgroup float [32, 32]
//   output   [32 inputs, 64 rows], through the same threadgroup memory
#ifndef METALANE_LIB_GGML_TILE_PRODUCTS_H
#define METALANE_LIB_GGML_TILE_PRODUCTS_H

#include <metalane/lib/ggml_row_products.h>
#include <metalane/params/quantized_matmul_ggml.h>

constexpr constant ushort ggml_tile_k = 32;
// Rows of a tile lie apart by more than their 32 floats, so that a column's elements lie in different banks.
constexpr constant ushort ggml_tile_stride = 36;
constexpr constant ushort ggml_tile_floats = (GGML_MM_ROWS + GGML_MM_INPUTS) * ggml_tile_stride;

// What one thread of the threadgroup has to do with memory: thread t unpacks half of weight row t / 2, and
// carries a quarter of input row t / 4 in and of output row t / 4 out. `input_row` and `output_row` are those
// rows, null where there are none.
struct GgmlTileRows {
  device const uchar* weight;  // the tile's first row
  ushort n_rows;               // how many rows the tile has, 1 to 64
  device const float* input_row;
  device float* output_row;
};

// Unpacks weights [k0, k0 + 32) of the tile's rows; zeros for rows that do not exist and behind the end of k.
template <typename Block>
inline void ggml_stage_weights(GgmlTileRows rows, uint k0, uint k, ushort t, threadgroup float* tile) {
  const ushort row = t / 2;
  const uint chunk = k0 / 16 + t % 2;
  GgmlChunk w = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
  if (row < rows.n_rows && 16 * chunk < k) {
    Block::unpack(rows.weight + row * ggml_row_bytes<Block>(k), chunk, k, w);
  }
  threadgroup float4* to = (threadgroup float4*)(tile + row * ggml_tile_stride + 16 * (t % 2));
  for (ushort i = 0; i < 4; ++i) to[i] = w[i];
}

inline void ggml_stage_inputs(GgmlTileRows rows, uint k0, uint k, ushort t, threadgroup float* tile) {
  const uint first = k0 + 8 * (t % 4);
  threadgroup float* to = tile + t / 4 * ggml_tile_stride + 8 * (t % 4);
  for (ushort i = 0; i < 8; ++i) {
    to[i] = rows.input_row != nullptr && first + i < k ? rows.input_row[first + i] : 0.0f;
  }
}

// Each thread writes 16 columns of its output row from the tile [32 inputs, 64 rows].
inline void ggml_write_outputs(GgmlTileRows rows, ushort t, threadgroup const float* tile) {
  if (rows.output_row == nullptr) return;
  for (ushort i = t % 4; i < rows.n_rows; i += 4) rows.output_row[i] = tile[t / 4 * GGML_MM_ROWS + i];
}

// By 8x8 matrices: simdgroup s takes inputs [16 * (s / 2), +16) and rows [32 * (s % 2), +32).
template <typename Block>
inline void ggml_tile_products_by_matrices(GgmlTileRows rows, uint k, ushort t, ushort simdgroup,
                                           threadgroup float* memory) {
  threadgroup float* weights = memory;
  threadgroup float* inputs = memory + GGML_MM_ROWS * ggml_tile_stride;
  const ushort first_input = 16 * (simdgroup / 2), first_row = 32 * (simdgroup % 2);
  simdgroup_float8x8 sum[2][4];
  for (ushort i = 0; i < 2; ++i) {
    for (ushort r = 0; r < 4; ++r) sum[i][r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint k0 = 0; k0 < k; k0 += ggml_tile_k) {
    ggml_stage_weights<Block>(rows, k0, k, t, weights);
    ggml_stage_inputs(rows, k0, k, t, inputs);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort column = 0; column < ggml_tile_k; column += 8) {
      simdgroup_float8x8 x[2], w[4];
      for (ushort i = 0; i < 2; ++i) {
        simdgroup_load(x[i], inputs + (first_input + 8 * i) * ggml_tile_stride + column, ggml_tile_stride);
      }
      for (ushort r = 0; r < 4; ++r) {
        simdgroup_load(w[r], weights + (first_row + 8 * r) * ggml_tile_stride + column, ggml_tile_stride,
                       ulong2(0, 0), true);
      }
      for (ushort i = 0; i < 2; ++i) {
        for (ushort r = 0; r < 4; ++r) simdgroup_multiply_accumulate(sum[i][r], x[i], w[r], sum[i][r]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (ushort i = 0; i < 2; ++i) {
    for (ushort r = 0; r < 4; ++r) {
      simdgroup_store(sum[i][r], memory + (first_input + 8 * i) * GGML_MM_ROWS + first_row + 8 * r,
                      GGML_MM_ROWS);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ggml_write_outputs(rows, t, memory);
}

// By scalars, for GPUs without matrices: thread t takes inputs [4 * (t / 16), +4) and rows t % 16, t % 16 +
// 16, ...
template <typename Block>
inline void ggml_tile_products(GgmlTileRows rows, uint k, ushort t, threadgroup float* memory) {
  threadgroup float* weights = memory;
  threadgroup float* inputs = memory + GGML_MM_ROWS * ggml_tile_stride;
  const ushort first_input = 4 * (t / 16), first_row = t % 16;
  float sum[4][4] = {};
  for (uint k0 = 0; k0 < k; k0 += ggml_tile_k) {
    ggml_stage_weights<Block>(rows, k0, k, t, weights);
    ggml_stage_inputs(rows, k0, k, t, inputs);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort column = 0; column < ggml_tile_k; ++column) {
      float x[4], w[4];
      for (ushort i = 0; i < 4; ++i) x[i] = inputs[(first_input + i) * ggml_tile_stride + column];
      for (ushort r = 0; r < 4; ++r) w[r] = weights[(first_row + 16 * r) * ggml_tile_stride + column];
      for (ushort i = 0; i < 4; ++i) {
        for (ushort r = 0; r < 4; ++r) sum[i][r] = fma(x[i], w[r], sum[i][r]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (ushort i = 0; i < 4; ++i) {
    for (ushort r = 0; r < 4; ++r) memory[(first_input + i) * GGML_MM_ROWS + first_row + 16 * r] = sum[i][r];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ggml_write_outputs(rows, t, memory);
}

#endif
