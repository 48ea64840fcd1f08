// Reads and writes outside the bound view, outside threadgroup memory, and through null.
#include <metal_stdlib>
using namespace metal;

// The grid is rounded up to whole threadgroups, and nothing stops the last threads.
kernel void grid_tail_fault(device const float* x, device float* out, constant uint& n,
                            uint i [[thread_position_in_grid]]) {
  out[i] = i < n ? x[i] : 0.0f;  // FAULT
}

kernel void grid_tail_repaired(device const float* x, device float* out, constant uint& n,
                               uint i [[thread_position_in_grid]]) {
  if (i < n) out[i] = x[i];
}

// The left neighbour of the first element.
kernel void left_neighbour_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = x[i] - x[int(i) - 1];  // FAULT
}

kernel void left_neighbour_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = i > 0 ? x[i] - x[i - 1] : x[i];
}

// Vectors of four where the length is no multiple of four.
kernel void vector_tail_fault(device const float4* x, device float* out, constant uint& n,
                              uint i [[thread_position_in_grid]]) {
  if (4 * i < n) out[i] = dot(x[i], float4(1.0f));  // FAULT
}

kernel void vector_tail_repaired(device const float* x, device float* out, constant uint& n,
                                 uint i [[thread_position_in_grid]]) {
  float sum = 0.0f;
  for (uint j = 4 * i; j < min(4 * i + 4, n); ++j) sum += x[j];
  if (4 * i < n) out[i] = sum;
}

// A row stride in elements where the rows are counted in bytes.
kernel void byte_stride_fault(device const float* rows, device float* out, constant uint& stride,
                              uint row [[thread_position_in_grid]]) {
  out[row] = rows[row * stride];  // FAULT
}

kernel void byte_stride_repaired(device const float* rows, device float* out, constant uint& stride,
                                 uint row [[thread_position_in_grid]]) {
  out[row] = *(device const float*)((device const char*)rows + row * stride);
}

// One step too many.
kernel void inclusive_loop_fault(device const float* x, device float* out, constant uint& n,
                                 uint i [[thread_position_in_grid]]) {
  float sum = 0.0f;
  for (uint j = 0; j <= n; ++j) sum += x[j];  // FAULT
  out[i] = sum;
}

kernel void inclusive_loop_repaired(device const float* x, device float* out, constant uint& n,
                                    uint i [[thread_position_in_grid]]) {
  float sum = 0.0f;
  for (uint j = 0; j < n; ++j) sum += x[j];
  out[i] = sum;
}

// A bin that the data choose, in an atomic.
kernel void atomic_bin_fault(device const uint* x, device atomic_uint* bins, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[x[i]], 1u, memory_order_relaxed);  // FAULT
}

kernel void atomic_bin_repaired(device const uint* x, device atomic_uint* bins, constant uint& n_bins,
                                uint i [[thread_position_in_grid]]) {
  if (x[i] < n_bins) atomic_fetch_add_explicit(&bins[x[i]], 1u, memory_order_relaxed);
}

// The last element's right neighbour in a threadgroup array.
kernel void threadgroup_array_fault(device const float* x, device float* out,
                                    uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[t + 1];  // FAULT
}

kernel void threadgroup_array_repaired(device const float* x, device float* out,
                                       uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[min(t + 1, 63u)];
}

// More threadgroup memory than the launch gave.
kernel void dynamic_memory_fault(device const float* x, device float* out, threadgroup float* s [[threadgroup(0)]],
                                 uint t [[thread_position_in_threadgroup]]) {
  s[2 * t] = x[t];  // FAULT
  out[t] = s[2 * t] + 1.0f;
}

kernel void dynamic_memory_repaired(device const float* x, device float* out, threadgroup float* s [[threadgroup(0)]],
                                    uint t [[thread_position_in_threadgroup]]) {
  s[t] = x[t];
  out[t] = s[t] + 1.0f;
}

// A pointer that no branch has set.
kernel void unset_pointer_fault(device const float* x, device float* out, constant uint& which,
                                uint i [[thread_position_in_grid]]) {
  device const float* chosen = nullptr;
  if (which == 1) chosen = x;
  out[i] = chosen[i];  // FAULT
}

kernel void unset_pointer_repaired(device const float* x, device float* out, constant uint& which,
                                   uint i [[thread_position_in_grid]]) {
  device const float* chosen = x;
  if (which == 1) chosen = x + 1;
  out[i] = chosen[i];
}

// A tile of eight rows from a matrix that has seven.
kernel void matrix_tile_fault(device const float* a, device float* out) {
  simdgroup_float8x8 tile;
  simdgroup_load(tile, a, 8);  // FAULT
  simdgroup_store(tile, out, 8);
}

kernel void matrix_tile_repaired(device const float* a, device float* out,
                                 uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float padded[64];
  for (uint i = lane; i < 64; i += 32) padded[i] = i < 56 ? a[i] : 0.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 tile;
  simdgroup_load(tile, padded, 8);
  simdgroup_store(tile, out, 8);
}

// An input that is scaled in place behind a cast, though it is declared const.
kernel void cast_input_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  device float* scaled = const_cast<device float*>(x);
  scaled[i] *= 0.5f;  // FAULT
  out[i] = x[i] + 1.0f;
}

kernel void cast_input_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = 0.5f * x[i] + 1.0f;
}

// A count kept where the launch's parameters stand, which are constant.
struct Range {
  uint first;
  uint count;
};

static void take(thread const float& value, constant Range& range) {
  if (value > 0.0f) ((thread Range&)range).count += 1;  // FAULT
}

kernel void count_in_constant_fault(device const float* x, device uint* out, constant Range& range) {
  for (uint i = range.first; i < 32; ++i) take(x[i], range);
  out[0] = range.count;
}

kernel void count_in_constant_repaired(device const float* x, device uint* out, constant Range& range) {
  uint count = range.count;
  for (uint i = range.first; i < 32; ++i) count += x[i] > 0.0f ? 1 : 0;
  out[0] = count;
}
