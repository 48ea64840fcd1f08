// Values taken from lanes that are not active or do not exist.
#include <metal_stdlib>
using namespace metal;

// The right neighbour of lane 31.
kernel void past_the_end_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                               ushort lane [[thread_index_in_simdgroup]]) {
  out[i] = simd_shuffle(x[i], ushort(lane + 1));  // FAULT
}

kernel void past_the_end_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                                  ushort lane [[thread_index_in_simdgroup]]) {
  out[i] = simd_shuffle(x[i], ushort((lane + 1) % 32));
}

// The upper half asks lane 0, which is elsewhere.
kernel void other_branch_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                               ushort lane [[thread_index_in_simdgroup]]) {
  float first = 0.0f;
  if (lane >= 16) first = simd_shuffle(x[i], ushort(0));  // FAULT
  out[i] = first;
}

kernel void other_branch_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                                  ushort lane [[thread_index_in_simdgroup]]) {
  float first = simd_shuffle(x[i], ushort(0));
  out[i] = lane >= 16 ? first : 0.0f;
}

// A simdgroup of 64, as other hardware has them.
kernel void wide_broadcast_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = simd_broadcast(x[i], ushort(40));  // FAULT
}

kernel void wide_broadcast_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = simd_broadcast(x[i], ushort(8));
}

// A place in a quad that the data choose.
kernel void quad_index_fault(device const float* x, device const ushort* from, device float* out,
                             uint i [[thread_position_in_grid]]) {
  out[i] = quad_shuffle(x[i], from[i]);  // FAULT
}

kernel void quad_index_repaired(device const float* x, device const ushort* from, device float* out,
                                uint i [[thread_position_in_grid]]) {
  out[i] = quad_shuffle(x[i], ushort(from[i] & 3));
}

// A butterfly over 32 lanes in a simdgroup of which the threadgroup fills eight.
kernel void short_simdgroup_fault(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  float sum = x[i];
  for (ushort d = 16; d > 0; d /= 2) sum += simd_shuffle_xor(sum, d);  // FAULT
  out[i] = sum;
}

kernel void short_simdgroup_repaired(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = simd_sum(x[i]);
}

// Lanes without data have returned; the others ask the last of them.
kernel void returned_lane_fault(device const float* x, device float* out, constant uint& n,
                                uint i [[thread_position_in_grid]]) {
  if (i >= n) return;
  out[i] = x[i] - simd_shuffle(x[i], ushort(31));  // FAULT
}

kernel void returned_lane_repaired(device const float* x, device float* out, constant uint& n,
                                   uint i [[thread_position_in_grid]]) {
  if (i >= n) return;
  out[i] = x[i] - simd_shuffle(x[i], ushort(n - 1));
}

// A lane that has left a loop is asked by those that go on.
kernel void left_loop_fault(device const float* x, device float* out, ushort lane [[thread_index_in_simdgroup]]) {
  float sum = 0.0f;
  for (ushort turn = 0; turn < lane / 8 + 1; ++turn) sum += simd_broadcast(x[lane], ushort(turn));  // FAULT
  out[lane] = sum;
}

kernel void left_loop_repaired(device const float* x, device float* out, ushort lane [[thread_index_in_simdgroup]]) {
  float sum = 0.0f;
  for (ushort turn = 0; turn < 4; ++turn) {
    float value = simd_broadcast(x[lane], turn);
    if (turn < lane / 8 + 1) sum += value;
  }
  out[lane] = sum;
}
