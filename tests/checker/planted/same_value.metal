// Unordered stores to one location that happen to store the same value: a race to MSL, harmless on known hardware.
#include <metal_stdlib>
using namespace metal;

// A flag that whoever finds something raises.
kernel void found_flag_fault(device const float* x, device uint* found, uint i [[thread_position_in_grid]]) {
  if (x[i] > 0.0f) found[0] = 1;  // FAULT
}

kernel void found_flag_repaired(device const float* x, device atomic_uint* found, uint i [[thread_position_in_grid]]) {
  if (x[i] > 0.0f) atomic_store_explicit(found, 1u, memory_order_relaxed);
}

// Every thread sets the shared length.
kernel void shared_length_fault(device const uint* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint length;
  length = x[0];  // FAULT
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = length + t;
}

kernel void shared_length_repaired(device const uint* x, device uint* out,
                                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint length;
  if (t == 0) length = x[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = length + t;
}

// All lanes store the sum that all of them have.
kernel void sum_by_all_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                             uint group [[threadgroup_position_in_grid]]) {
  out[group] = simd_sum(x[i]);  // FAULT
}

kernel void sum_by_all_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                                uint group [[threadgroup_position_in_grid]],
                                uint lane [[thread_index_in_simdgroup]]) {
  float sum = simd_sum(x[i]);
  if (lane == 0) out[group] = sum;
}

// Ranges of eight zeros at a stride of four.
kernel void overlapping_clear_fault(device float* out, uint t [[thread_position_in_threadgroup]]) {
  for (uint j = 0; j < 8; ++j) out[4 * t + j] = 0.0f;  // FAULT
}

kernel void overlapping_clear_repaired(device float* out, uint t [[thread_position_in_threadgroup]]) {
  for (uint j = 0; j < 8; ++j) out[8 * t + j] = 0.0f;
}

// A mask of ids among which there are duplicates.
kernel void mark_ids_fault(device const uint* ids, device uchar* mask, uint i [[thread_position_in_grid]]) {
  mask[ids[i]] = 255;  // FAULT
}

kernel void mark_ids_repaired(device const uint* ids, device uchar* mask, constant uint& n,
                              uint place [[thread_position_in_grid]]) {
  uchar marked = 0;
  for (uint i = 0; i < n; ++i) {
    if (ids[i] == place) marked = 255;
  }
  mask[place] = marked;
}

// The header of an output, by one thread of each threadgroup.
kernel void header_by_groups_fault(device const float* x, device uint* header, device float* out,
                                   uint i [[thread_position_in_grid]], uint n [[threads_per_grid]],
                                   uint t [[thread_position_in_threadgroup]]) {
  if (t == 0) header[0] = n;  // FAULT
  out[i] = x[i];
}

kernel void header_by_groups_repaired(device const float* x, device uint* header, device float* out,
                                      uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  if (i == 0) header[0] = n;
  out[i] = x[i];
}
