// Two threadgroups of one launch touch one location, and at least one of them writes it without an atomic.
#include <metal_stdlib>
using namespace metal;

// One running total for all groups.
kernel void total_fault(device const float* x, device float* total, uint i [[thread_position_in_grid]],
                        uint t [[thread_position_in_threadgroup]]) {
  float sum = simd_sum(x[i]);
  if (t == 0) total[0] += sum;  // FAULT
}

kernel void total_repaired(device const float* x, device atomic_float* total, uint i [[thread_position_in_grid]],
                           uint t [[thread_position_in_threadgroup]]) {
  float sum = simd_sum(x[i]);
  if (t == 0) atomic_fetch_add_explicit(total, sum, memory_order_relaxed);
}

// Each group also writes the element behind its block.
kernel void overlapping_blocks_fault(device const float* x, device float* out, uint group [[threadgroup_position_in_grid]],
                                     uint t [[thread_position_in_threadgroup]],
                                     uint n [[threads_per_threadgroup]]) {
  uint block = n - 1;
  out[group * block + t] = x[group * block + t] + float(group);  // FAULT
}

kernel void overlapping_blocks_repaired(device const float* x, device float* out,
                                        uint group [[threadgroup_position_in_grid]],
                                        uint t [[thread_position_in_threadgroup]],
                                        uint n [[threads_per_threadgroup]]) {
  uint block = n - 1;
  if (t < block) out[group * block + t] = x[group * block + t] + float(group);
}

// The last group to arrive adds what the others stored plainly: nothing orders their stores before its loads.
kernel void last_arrival_fault(device const float* x, device uint* partial, device atomic_uint* arrived,
                               device uint* out, uint i [[thread_position_in_grid]],
                               uint group [[threadgroup_position_in_grid]],
                               uint groups [[threadgroups_per_grid]], uint t [[thread_position_in_threadgroup]]) {
  uint positive = simd_sum(x[i] > 0.0f ? 1u : 0u);
  if (t != 0) return;
  partial[group] = positive;  // FAULT
  if (atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed) + 1 == groups) {
    uint sum = 0;
    for (uint g = 0; g < groups; ++g) sum += partial[g];  // FAULT
    out[0] = sum;
  }
}

kernel void last_arrival_repaired(device const float* x, device atomic_uint* partial, device atomic_uint* arrived,
                                  device uint* out, uint i [[thread_position_in_grid]],
                                  uint group [[threadgroup_position_in_grid]],
                                  uint groups [[threadgroups_per_grid]],
                                  uint t [[thread_position_in_threadgroup]]) {
  uint positive = simd_sum(x[i] > 0.0f ? 1u : 0u);
  if (t != 0) return;
  atomic_fetch_add_explicit(&partial[0], positive, memory_order_relaxed);
  if (atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed) + 1 == groups) {
    out[0] = atomic_load_explicit(&partial[0], memory_order_relaxed);
  }
}

// Transpose in place, tile by tile: two groups own each pair of tiles.
kernel void transpose_fault(device float* a, constant uint& n, uint2 p [[thread_position_in_grid]]) {
  float mine = a[p.y * n + p.x];    // FAULT
  threadgroup_barrier(mem_flags::mem_device);
  a[p.x * n + p.y] = mine;          // FAULT
}

kernel void transpose_repaired(device float* a, constant uint& n, uint2 p [[thread_position_in_grid]]) {
  if (p.x <= p.y) return;
  float upper = a[p.y * n + p.x], lower = a[p.x * n + p.y];
  a[p.y * n + p.x] = lower;
  a[p.x * n + p.y] = upper;
}

// Smoothing in place: a group stages its block, but reads its neighbours' edges from what they are writing.
kernel void smooth_fault(device float* x, uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  float left = i > 0 ? x[i - 1] : 0.0f;       // FAULT
  float right = i + 1 < n ? x[i + 1] : 0.0f;  // FAULT
  threadgroup_barrier(mem_flags::mem_device);
  x[i] = 0.5f * (left + right);               // FAULT
}

kernel void smooth_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                            uint n [[threads_per_grid]]) {
  float left = i > 0 ? x[i - 1] : 0.0f;
  float right = i + 1 < n ? x[i + 1] : 0.0f;
  out[i] = 0.5f * (left + right);
}

// The position in the threadgroup taken for that in the grid.
kernel void wrong_position_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                                 uint t [[thread_position_in_threadgroup]]) {
  out[t] = exp(x[i]);  // FAULT
}

kernel void wrong_position_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = exp(x[i]);
}

// A grid-stride loop with the stride of one group.
kernel void wrong_stride_fault(device float* x, constant uint& n, uint i [[thread_position_in_grid]],
                               uint stride [[threads_per_threadgroup]]) {
  for (uint j = i; j < n; j += stride) x[j] *= 2.0f;  // FAULT
}

kernel void wrong_stride_repaired(device float* x, constant uint& n, uint i [[thread_position_in_grid]],
                                  uint stride [[threads_per_grid]]) {
  for (uint j = i; j < n; j += stride) x[j] *= 2.0f;
}
