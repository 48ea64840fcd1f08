// Two launches without a barrier between them touch one location. The kernels are right; the way they are launched is
// the fault, so each is launched twice by the test, wrongly and rightly.
#include <metal_stdlib>
using namespace metal;

kernel void scale(device const float* x, device float* out, constant float& by, uint i [[thread_position_in_grid]]) {
  out[i] = x[i] * by;  // FAULT
}

kernel void shift(device const float* x, device float* out, uint i [[thread_position_in_grid]],
                  uint n [[threads_per_grid]]) {
  out[i] = x[(i + 1) % n];  // FAULT
}

kernel void count_above(device const float* x, device atomic_uint* count, constant float& bound,
                        uint i [[thread_position_in_grid]]) {
  if (x[i] > bound) atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);  // FAULT
}

kernel void halve_count(device const uint* count, device uint* out, uint i [[thread_position_in_grid]]) {
  out[i] = count[i] / 2;  // FAULT
}

kernel void accumulate(device const float* x, device float* sum, uint i [[thread_position_in_grid]]) {
  sum[i] += x[i];  // FAULT
}
