// Values handed from lane to lane of one simdgroup through memory with no barrier: right only where lanes run in step.
#include <metal_stdlib>
using namespace metal;

// The last levels of a tree, as older GPU code leaves them.
kernel void last_levels_fault(device const float* x, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float s[32];
  s[lane] = x[lane];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane < 16) s[lane] += s[lane + 16];  // FAULT
  if (lane < 8) s[lane] += s[lane + 8];    // FAULT
  if (lane == 0) out[0] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];  // FAULT
}

kernel void last_levels_repaired(device const float* x, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float s[32];
  s[lane] = x[lane];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane < 16) s[lane] += s[lane + 16];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane < 8) s[lane] += s[lane + 8];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) out[0] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

// Lane 0 shares its threshold, and a sum stands where the barrier should.
kernel void after_a_sum_fault(device const float* x, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float threshold;
  if (lane == 0) threshold = x[0];  // FAULT
  float sum = simd_sum(x[lane]);
  out[lane] = sum > threshold ? sum : 0.0f;  // FAULT
}

kernel void after_a_sum_repaired(device const float* x, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float threshold;
  if (lane == 0) threshold = x[0];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float sum = simd_sum(x[lane]);
  out[lane] = sum > threshold ? sum : 0.0f;
}

// A scan within the simdgroup: all lanes read, then all lanes write.
kernel void lane_scan_fault(device const uint* x, device uint* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint s[32];
  s[lane] = x[lane];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  uint left = lane >= 1 ? s[lane - 1] : 0u;  // FAULT
  s[lane] += left;                           // FAULT
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[lane] = s[lane];
}

kernel void lane_scan_repaired(device const uint* x, device uint* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint s[32];
  s[lane] = x[lane];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  uint left = lane >= 1 ? s[lane - 1] : 0u;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  s[lane] += left;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[lane] = s[lane];
}

// The same through device memory.
kernel void device_turn_fault(device const float* x, device float* scratch, device float* out,
                              uint lane [[thread_index_in_simdgroup]]) {
  scratch[lane] = x[lane] * x[lane];    // FAULT
  float all = simd_sum(x[lane]);
  out[lane] = scratch[31 - lane] / all;  // FAULT
}

kernel void device_turn_repaired(device const float* x, device float* scratch, device float* out,
                                 uint lane [[thread_index_in_simdgroup]]) {
  scratch[lane] = x[lane] * x[lane];
  simdgroup_barrier(mem_flags::mem_device);
  float all = simd_sum(x[lane]);
  out[lane] = scratch[31 - lane] / all;
}

// A tile stored as a matrix and read element by element.
kernel void tile_elements_fault(device const float* a, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 m;
  simdgroup_load(m, a, 8);
  simdgroup_store(m, tile, 8);               // FAULT
  out[lane] = tile[lane] + tile[lane + 32];  // FAULT
}

kernel void tile_elements_repaired(device const float* a, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 m;
  simdgroup_load(m, a, 8);
  simdgroup_store(m, tile, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[lane] = tile[lane] + tile[lane + 32];
}

// A queue head that lane 0 moves while the others still read it.
kernel void moved_head_fault(device const uint* x, device uint* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint head;
  if (lane == 0) head = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint turn = 0; turn < 4; ++turn) {
    uint place = head + lane;  // FAULT
    out[place] = x[place];
    if (lane == 0) head += 32;  // FAULT
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

kernel void moved_head_repaired(device const uint* x, device uint* out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint head;
  if (lane == 0) head = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint turn = 0; turn < 4; ++turn) {
    uint place = head + lane;
    out[place] = x[place];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) head += 32;
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
