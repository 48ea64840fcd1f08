// Barriers that some threads of the threadgroup do not reach.
#include <metal_stdlib>
using namespace metal;

// Threads beyond the data leave before the barrier.
kernel void early_return_fault(device const float* x, device float* out, constant uint& n,
                               uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t >= n) return;
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  out[t] = s[n - 1 - t];
}

kernel void early_return_repaired(device const float* x, device float* out, constant uint& n,
                                  uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t < n) s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < n) out[t] = s[n - 1 - t];
}

// The barrier stands inside the branch that needs it.
kernel void inside_branch_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  if (t < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
    out[t] = s[t + 32];
  }
}

kernel void inside_branch_repaired(device const float* x, device float* out,
                                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 32) out[t] = s[t + 32];
}

// Each branch has a barrier of its own.
kernel void both_branches_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t % 2 == 0) {
    s[t] = x[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  } else {
    s[t] = -x[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  }
  out[t] = s[t ^ 1];
}

kernel void both_branches_repaired(device const float* x, device float* out,
                                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t % 2 == 0) {
    s[t] = x[t];
  } else {
    s[t] = -x[t];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[t ^ 1];
}

// A loop of which each thread makes as many turns as it has work.
kernel void uneven_loop_fault(device const float* x, device float* out, constant uint& n,
                              uint t [[thread_position_in_threadgroup]], uint step [[threads_per_threadgroup]]) {
  threadgroup float s[64];
  float sum = 0.0f;
  for (uint i = t; i < n; i += step) {
    s[t] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
    sum += s[t];
  }
  out[t] = sum;
}

kernel void uneven_loop_repaired(device const float* x, device float* out, constant uint& n,
                                 uint t [[thread_position_in_threadgroup]], uint step [[threads_per_threadgroup]]) {
  threadgroup float s[64];
  float sum = 0.0f;
  for (uint base = 0; base < n; base += step) {
    s[t] = base + t < n ? x[base + t] : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum += s[t];
  }
  out[t] = sum;
}

// A search that its finder leaves.
kernel void found_break_fault(device const float* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  uint round = 0;
  for (; round < 4; ++round) {
    if (x[round * 64 + t] > 2.0f) break;
    threadgroup_barrier(mem_flags::mem_none);  // FAULT
  }
  out[t] = round;
}

kernel void found_break_repaired(device const float* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  uint found = 4;
  for (uint round = 0; round < 4; ++round) {
    if (found == 4 && x[round * 64 + t] > 2.0f) found = round;
    threadgroup_barrier(mem_flags::mem_none);
  }
  out[t] = found;
}

// A helper with a barrier inside, called by one simdgroup.
static float staged(threadgroup float* s, uint t, float value) {
  s[t] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
  return s[t ^ 1];
}

kernel void one_simdgroup_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float s[64];
  out[t] = simdgroup == 0 ? staged(s, t, x[t]) : x[t];
}

kernel void one_simdgroup_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float s[64];
  float swapped = staged(s, t, x[t]);
  out[t] = simdgroup == 0 ? swapped : x[t];
}

// A case of a switch over the lane.
kernel void switch_case_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  switch (t % 4) {
    case 0:
      out[t] = 0.0f;
      break;
    default:
      threadgroup_barrier(mem_flags::mem_threadgroup);  // FAULT
      out[t] = s[t - 1];
  }
}

kernel void switch_case_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  switch (t % 4) {
    case 0:
      out[t] = 0.0f;
      break;
    default:
      out[t] = s[t - 1];
  }
}
