// Products of float inputs with GGML-quantized weights: output[i, r] = sum over j of input[i, j] * weight[r, j].
//
//   input f32 [m, k] | weight [n, k] packed, row after row | output f32 [m, n]; batches lie one after another.
#include <metalane/lib/ggml_tile_products.h>

#include <metal_stdlib>
using namespace metal;

// Mat-vec: each simdgroup takes `rows` weight rows and reads them once for `inputs` input rows.
// Threadgroups [n / (4 * rows), m / inputs, batches] of 4 simdgroups.
template <typename Block, ushort rows, ushort inputs>
kernel void quantized_matmul_mv(device const float* input [[buffer(0)]], device const uchar* weight [[buffer(1)]],
                                device float* output [[buffer(2)]],
                                constant GgmlQuantizedMatmulParams& params [[buffer(3)]],
                                uint3 group [[threadgroup_position_in_grid]],
                                ushort simdgroup [[simdgroup_index_in_threadgroup]],
                                ushort lane [[thread_index_in_simdgroup]]) {
  const uint first_row = (group.x * GGML_MV_SIMDGROUPS + simdgroup) * rows;
  const uint first_input = group.y * inputs;
  // A grid that is read from memory may count too many.
  if (first_row >= params.n || group.y > (params.m - 1) / inputs) return;
  const ushort n_rows = ushort(min(uint(rows), params.n - first_row));
  const ushort n_inputs = ushort(min(uint(inputs), params.m - first_input));
  const ulong batch = group.z;

  float sum[inputs][rows];
  ggml_row_products<Block, rows, inputs>(
      weight + (batch * params.n + first_row) * ggml_row_bytes<Block>(params.k), n_rows,
      input + (batch * params.m + first_input) * params.k, n_inputs, params.k, lane, sum);
  if (lane != 0) return;
  device float* out = output + (batch * params.m + first_input) * params.n + first_row;
  for (ushort i = 0; i < n_inputs; ++i) {
    for (ushort r = 0; r < n_rows; ++r) out[ulong(i) * params.n + r] = sum[i][r];
  }
}

// Whether the threadgroup has a tile: a grid that is read from memory may count too many.
static bool has_tile(constant GgmlQuantizedMatmulParams& params, uint2 group) {
  return group.x <= (params.n - 1) / GGML_MM_ROWS && group.y <= (params.m - 1) / GGML_MM_INPUTS;
}

// The rows of a dense product that thread t of threadgroup (tile of weight rows, tile of inputs) handles.
template <typename Block>
static GgmlTileRows dense_rows(device const float* input, device const uchar* weight, device float* output,
                               constant GgmlQuantizedMatmulParams& params, uint2 group, ushort t) {
  const uint first_row = group.x * GGML_MM_ROWS;
  const uint i = group.y * GGML_MM_INPUTS + t / 4;
  GgmlTileRows rows;
  rows.weight = weight + first_row * ggml_row_bytes<Block>(params.k);
  rows.n_rows = ushort(min(uint(GGML_MM_ROWS), params.n - first_row));
  rows.input_row = i < params.m ? input + ulong(i) * params.k : nullptr;
  rows.output_row = i < params.m ? output + ulong(i) * params.n + first_row : nullptr;
  return rows;
}

// Mat-mat: threadgroups [n / 64, m / 32] of 128 threads.
template <typename Block>
kernel void quantized_matmul_mm(device const float* input [[buffer(0)]], device const uchar* weight [[buffer(1)]],
                                device float* output [[buffer(2)]],
                                constant GgmlQuantizedMatmulParams& params [[buffer(3)]],
                                uint2 group [[threadgroup_position_in_grid]],
                                ushort t [[thread_index_in_threadgroup]]) {
  if (!has_tile(params, group)) return;
  threadgroup float memory[ggml_tile_floats];
  ggml_tile_products<Block>(dense_rows<Block>(input, weight, output, params, group, t), params.k, t, memory);
}

template <typename Block>
kernel void quantized_matmul_mm_simd(device const float* input [[buffer(0)]],
                                     device const uchar* weight [[buffer(1)]], device float* output [[buffer(2)]],
                                     constant GgmlQuantizedMatmulParams& params [[buffer(3)]],
                                     uint2 group [[threadgroup_position_in_grid]],
                                     ushort t [[thread_index_in_threadgroup]],
                                     ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  if (!has_tile(params, group)) return;
  threadgroup float memory[ggml_tile_floats];
  ggml_tile_products_by_matrices<Block>(dense_rows<Block>(input, weight, output, params, group, t), params.k, t,
                                        simdgroup, memory);
}

#define INSTANTIATE_MV(type, rows, inputs)                                                              \
  template [[host_name("quantized_matmul_mv_" #type "_" #inputs)]] kernel decltype(                     \
      quantized_matmul_mv<type, rows, inputs>) quantized_matmul_mv<type, rows, inputs>;

#define INSTANTIATE(type, ...)                                                                               \
  INSTANTIATE_MV(type, 4, 1)                                                                            \
  INSTANTIATE_MV(type, 4, 2)                                                                            \
  INSTANTIATE_MV(type, 2, 4)                                                                            \
  INSTANTIATE_MV(type, 2, 8)                                                                            \
  template [[host_name("quantized_matmul_mm_" #type)]] kernel decltype(quantized_matmul_mm<type>)       \
      quantized_matmul_mm<type>;                                                                        \
  template [[host_name("quantized_matmul_mm_simd_" #type)]] kernel decltype(                            \
      quantized_matmul_mm_simd<type>) quantized_matmul_mm_simd<type>;

METALANE_GGML_WEIGHT_TYPES(INSTANTIATE)
