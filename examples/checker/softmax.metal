// Softmax of each row of a matrix, a threadgroup a row. There is a race in it: see find_a_race.py.
#include <metal_stdlib>
using namespace metal;

struct SoftmaxParams {
  uint columns;
  float scale;
};

// The maximum of all threads' values, for all threads.
float block_max(float value, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  value = simd_max(value);
  if (lane == 0) partial[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float all = partial[0];
  for (uint i = 1; i < simdgroups; ++i) all = max(all, partial[i]);
  return all;
}

// Their sum.
float block_sum(float value, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) partial[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float all = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) all += partial[i];
  return all;
}

kernel void softmax(device const float* x, device float* y, constant SoftmaxParams& params,
                    uint row [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  device const float* in = x + row * params.columns;
  device float* out = y + row * params.columns;

  float largest = -INFINITY;
  for (uint i = t; i < params.columns; i += threads) largest = max(largest, params.scale * in[i]);
  largest = block_max(largest, partial, lane, simdgroup, simdgroups);

  float sum = 0.0f;
  for (uint i = t; i < params.columns; i += threads) {
    out[i] = exp(params.scale * in[i] - largest);
    sum += out[i];
  }
  sum = block_sum(sum, partial, lane, simdgroup, simdgroups);

  for (uint i = t; i < params.columns; i += threads) out[i] /= sum;
}
