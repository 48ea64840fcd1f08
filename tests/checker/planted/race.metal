// Two threads of one threadgroup touch one location with no barrier between them. Lines of the fault are marked.
#include <metal_stdlib>
using namespace metal;

// Tree reduction: level d reads what other simdgroups wrote at level 2d.
kernel void tree_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                       uint n [[threads_per_threadgroup]]) {
  threadgroup float partial[256];
  partial[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint d = n / 2; d > 0; d /= 2) {
    if (t < d) partial[t] += partial[t + d];  // FAULT
  }
  if (t == 0) out[0] = partial[0];
}

kernel void tree_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                          uint n [[threads_per_threadgroup]]) {
  threadgroup float partial[256];
  partial[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint d = n / 2; d > 0; d /= 2) {
    if (t < d) partial[t] += partial[t + d];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) out[0] = partial[0];
}

// Inclusive scan by doubling: reads and writes of one step share one array.
kernel void scan_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                       uint n [[threads_per_threadgroup]]) {
  threadgroup float s[128];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint d = 1; d < n; d *= 2) {
    float left = t >= d ? s[t - d] : 0.0f;  // FAULT
    s[t] += left;                           // FAULT
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = s[t];
}

kernel void scan_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                          uint n [[threads_per_threadgroup]]) {
  threadgroup float s[128];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint d = 1; d < n; d *= 2) {
    float left = t >= d ? s[t - d] : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s[t] += left;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = s[t];
}

// Counts per value without atomics.
kernel void histogram_fault(device const uint* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint bins[8];
  if (t < 8) bins[t] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bins[x[t] % 8] += 1;  // FAULT
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 8) out[t] = bins[t];
}

kernel void histogram_repaired(device const uint* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint bins[8];
  if (t < 8) atomic_store_explicit(&bins[t], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&bins[x[t] % 8], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 8) out[t] = atomic_load_explicit(&bins[t], memory_order_relaxed);
}

// Device memory handed from thread to thread over a barrier that orders threadgroup memory alone.
kernel void device_exchange_fault(device const float* x, device float* scratch, device float* out,
                                  uint t [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  scratch[t] = x[t] * 2.0f;  // FAULT
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = scratch[n - 1 - t];  // FAULT
}

kernel void device_exchange_repaired(device const float* x, device float* scratch, device float* out,
                                     uint t [[thread_position_in_threadgroup]],
                                     uint n [[threads_per_threadgroup]]) {
  scratch[t] = x[t] * 2.0f;
  threadgroup_barrier(mem_flags::mem_device);
  out[t] = scratch[n - 1 - t];
}

// Two block reductions through one scratch array: the second overwrites what slow readers of the first still read.
static float block_sum_unfenced(float value, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) partial[simdgroup] = value;  // FAULT
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) sum += partial[i];  // FAULT
  return sum;
}

kernel void reused_scratch_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                                 uint lane [[thread_index_in_simdgroup]],
                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                 uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  float mean = block_sum_unfenced(x[t], partial, lane, simdgroup, simdgroups) / 128.0f;
  float centred = x[t] - mean;
  float variance = block_sum_unfenced(centred * centred, partial, lane, simdgroup, simdgroups) / 128.0f;
  out[t] = centred * rsqrt(variance + 1e-5f);
}

static float block_sum(float value, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  value = simd_sum(value);
  if (lane == 0) partial[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) sum += partial[i];
  return sum;
}

kernel void reused_scratch_repaired(device const float* x, device float* out,
                                    uint t [[thread_position_in_threadgroup]],
                                    uint lane [[thread_index_in_simdgroup]],
                                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                                    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  float mean = block_sum(x[t], partial, lane, simdgroup, simdgroups) / 128.0f;
  float centred = x[t] - mean;
  float variance = block_sum(centred * centred, partial, lane, simdgroup, simdgroups) / 128.0f;
  out[t] = centred * rsqrt(variance + 1e-5f);
}

// An atomic counter that one thread reads as a plain number.
kernel void counted_plainly_fault(device const float* x, device atomic_uint* count, device uint* out,
                                  uint t [[thread_position_in_threadgroup]]) {
  if (x[t] > 0.0f) atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);  // FAULT
  if (t == 0) out[0] = *(device const uint*)count;                              // FAULT
}

kernel void counted_plainly_repaired(device const float* x, device atomic_uint* count, device uint* out,
                                     uint t [[thread_position_in_threadgroup]]) {
  if (x[t] > 0.0f) atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_device);
  if (t == 0) out[0] = *(device const uint*)count;
}

// Pairs of bytes at a stride of one byte: each byte but the first is stored by two threads.
kernel void byte_pairs_fault(device const uchar* x, device uchar* out, uint t [[thread_position_in_threadgroup]]) {
  device packed_uchar2* pair = (device packed_uchar2*)(out + t);
  *pair = packed_uchar2(x[t], x[t] + 1);  // FAULT
}

kernel void byte_pairs_repaired(device const uchar* x, device uchar* out,
                                uint t [[thread_position_in_threadgroup]]) {
  device packed_uchar2* pair = (device packed_uchar2*)(out + 2 * t);
  *pair = packed_uchar2(x[t], x[t] + 1);
}

// A tile that one simdgroup loads for its neighbour, behind the neighbour's own barrier.
kernel void foreign_tile_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float tile[2][32];
  tile[simdgroup][lane] = x[t];  // FAULT
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = tile[1 - simdgroup][lane];  // FAULT
}

kernel void foreign_tile_repaired(device const float* x, device float* out,
                                  uint t [[thread_position_in_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]],
                                  uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float tile[2][32];
  tile[simdgroup][lane] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = tile[1 - simdgroup][lane];
}
