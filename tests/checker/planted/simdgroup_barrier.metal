// Simdgroup barriers that some lanes of the simdgroup do not reach.
#include <metal_stdlib>
using namespace metal;

// The lower half waits, the upper half has gone on to the kernel's end.
kernel void lower_half_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  s[t] = x[t];
  if (t < 16) {
    simdgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
    out[t] = s[t + 16];
  }
}

kernel void lower_half_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  s[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 16) out[t] = s[t + 16];
}

// A loop of which each lane makes as many turns as it has work.
kernel void uneven_turns_fault(device const float* x, device float* out, constant uint& n,
                               uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  float sum = 0.0f;
  for (uint i = t; i < n; i += 32) {
    s[t] = x[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
    sum += s[t];
  }
  out[t] = sum;
}

kernel void uneven_turns_repaired(device const float* x, device float* out, constant uint& n,
                                  uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  float sum = 0.0f;
  for (uint base = 0; base < n; base += 32) {
    s[t] = base + t < n ? x[base + t] : 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    sum += s[t];
  }
  out[t] = sum;
}

// Lanes leave out one turn of a loop, each another one: all come to the barrier equally often.
kernel void left_out_turn_fault(device const uint* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  uint turns = 0;
  for (uint turn = 0; turn < 4; ++turn) {
    if (x[t] % 4 == turn) continue;
    simdgroup_barrier(mem_flags::mem_none);  // FAULT
    turns += turn;
  }
  out[t] = turns;
}

kernel void left_out_turn_repaired(device const uint* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  uint turns = 0;
  for (uint turn = 0; turn < 4; ++turn) {
    simdgroup_barrier(mem_flags::mem_none);
    if (x[t] % 4 == turn) continue;
    turns += turn;
  }
  out[t] = turns;
}

// A barrier for the even lanes and one for the odd ones.
kernel void two_of_them_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  if (t % 2 == 0) {
    s[t] = x[t];
    simdgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  } else {
    s[t] = -x[t];
    simdgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  }
  out[t] = s[t ^ 1];
}

kernel void two_of_them_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  s[t] = t % 2 == 0 ? x[t] : -x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[t ^ 1];
}

// Lanes that wait at the threadgroup's barrier already.
kernel void ahead_of_it_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  float upper = 0.0f;
  if (lane < 16) {
    simdgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
    upper = s[t + 16];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = upper + s[63 - t];
}

kernel void ahead_of_it_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                                 uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float upper = lane < 16 ? s[t + 16] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = upper + s[63 - t];
}

// One helper, called by each branch; the last simdgroup has eight lanes, which all go one way.
static float of_neighbour(threadgroup float* s, uint t, float value) {
  s[t] = value;
  simdgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  return s[t ^ 1];
}

kernel void called_twice_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[40];
  if (t < 8) {
    out[t] = of_neighbour(s, t, x[t]);
  } else {
    out[t] = of_neighbour(s, t, -x[t]);
  }
}

kernel void called_twice_repaired(device const float* x, device float* out,
                                  uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[40];
  out[t] = of_neighbour(s, t, t < 8 ? x[t] : -x[t]);
}

// A search that the lane which finds something leaves.
kernel void finder_leaves_fault(device const float* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  uint round = 0;
  while (round < 4) {
    if (x[round * 32 + t] > 2.0f) break;
    ++round;
    simdgroup_barrier(mem_flags::mem_none);  // FAULT
  }
  out[t] = simd_max(round);
}

kernel void finder_leaves_repaired(device const float* x, device uint* out,
                                   uint t [[thread_position_in_threadgroup]]) {
  uint found = 4;
  for (uint round = 0; round < 4; ++round) {
    if (found == 4 && x[round * 32 + t] > 2.0f) found = round;
    simdgroup_barrier(mem_flags::mem_none);
  }
  out[t] = simd_max(found);
}
