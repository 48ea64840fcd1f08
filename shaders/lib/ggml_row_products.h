// Products of a few rows of GGML weights with a few rows of float inputs, by one simdgroup: mat-vec.
#ifndef METALANE_LIB_GGML_ROW_PRODUCTS_H
#define METALANE_LIB_GGML_ROW_PRODUCTS_H

#include <metalane/lib/ggml_blocks.h>

template <typename Block>
inline ulong ggml_row_bytes(uint k) {
  return ulong(k / Block::block_length) * Block::block_bytes;
}

// Inputs 16 * chunk to 16 * chunk + 15 of a row of k, 0 behind its end. Rows start at any float.
inline void ggml_load_inputs(device const float* row, uint chunk, uint k, thread GgmlChunk& x) {
  device const float* first = row + 16 * chunk;
  if (16 * chunk + 16 <= k) {
    for (ushort i = 0; i < 4; ++i) x[i] = float4(((device const packed_float4*)first)[i]);
  } else {
    for (ushort i = 0; i < 16; ++i) x[i / 4][i % 4] = 16 * chunk + i < k ? first[i] : 0.0f;
  }
}

// sum[i][r] = input row i times weight row r, in every lane. Lane l takes chunks l, l + 32, ...: which
// products meet in which order depends on k alone, so that a row has the same bits whatever stands beside it.
// Rows past the `n_rows` and `n_inputs` that exist repeat the last one.
template <typename Block, ushort rows, ushort inputs>
inline void ggml_row_products(device const uchar* weight, ushort n_rows, device const float* input,
                              ushort n_inputs, uint k, ushort lane, thread float (&sum)[inputs][rows]) {
  const ulong row_bytes = ggml_row_bytes<Block>(k);
  float4 partial[inputs][rows];
  for (ushort i = 0; i < inputs; ++i) {
    for (ushort r = 0; r < rows; ++r) partial[i][r] = float4(0.0f);
  }
  const uint chunks = (k + 15) / 16;
  for (uint chunk = lane; chunk < chunks; chunk += 32) {
    GgmlChunk w[rows];
    for (ushort r = 0; r < rows; ++r) {
      Block::unpack(weight + min(r, ushort(n_rows - 1)) * row_bytes, chunk, k, w[r]);
    }
    for (ushort i = 0; i < inputs; ++i) {
      GgmlChunk x;
      ggml_load_inputs(input + ulong(min(i, ushort(n_inputs - 1))) * k, chunk, k, x);
      for (ushort r = 0; r < rows; ++r) {
        for (ushort j = 0; j < 4; ++j) partial[i][r] = fma(w[r][j], x[j], partial[i][r]);
      }
    }
  }
  for (ushort i = 0; i < inputs; ++i) {
    for (ushort r = 0; r < rows; ++r) {
      const float4 p = partial[i][r];
      sum[i][r] = simd_sum((p.x + p.y) + (p.z + p.w));
    }
  }
}

#endif
