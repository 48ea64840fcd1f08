// Reads of threadgroup memory, or of device memory fresh from `empty`, that nothing has written.
#include <metal_stdlib>
using namespace metal;

// Half of the threads fill the array, all read it.
kernel void half_filled_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                              uint n [[threads_per_threadgroup]]) {
  threadgroup float s[64];
  if (t < n / 2) s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[n - 1 - t];  // FAULT
}

kernel void half_filled_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                                 uint n [[threads_per_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[n - 1 - t];
}

// A sum added to an output that was never set to zero.
kernel void accumulate_fault(device const float* x, device float* fresh, uint i [[thread_position_in_grid]]) {
  fresh[i] += x[i];  // FAULT
}

kernel void accumulate_repaired(device const float* x, device float* fresh, uint i [[thread_position_in_grid]]) {
  fresh[i] = x[i];
}

// A tile whose rim lies outside the image and stays unwritten.
kernel void tile_rim_fault(device const float* x, device float* out, constant uint& n,
                           uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[66];
  tile[t + 1] = x[i];
  if (t == 0 && i > 0) tile[0] = x[i - 1];
  if (t == 63 && i + 1 < n) tile[65] = x[i + 1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[t] + tile[t + 2];  // FAULT
}

kernel void tile_rim_repaired(device const float* x, device float* out, constant uint& n,
                              uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[66];
  tile[t + 1] = x[i];
  if (t == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
  if (t == 63) tile[65] = i + 1 < n ? x[i + 1] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[t] + tile[t + 2];
}

// All 32 lanes gather partial sums, of which there are as many as simdgroups.
kernel void few_partials_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[32];
  float sum = simd_sum(x[t]);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    float total = simd_sum(partial[lane]);  // FAULT
    if (lane == 0) out[0] = total;
  }
}

kernel void few_partials_repaired(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]],
                                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                                  uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  float sum = simd_sum(x[t]);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    float total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) out[0] = total;
  }
}

// An atomic counter in threadgroup memory, which starts with anything.
kernel void unset_counter_fault(device const float* x, device uint* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint count;
  if (x[t] > 0.0f) atomic_fetch_add_explicit(&count, 1u, memory_order_relaxed);  // FAULT
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) out[0] = atomic_load_explicit(&count, memory_order_relaxed);
}

kernel void unset_counter_repaired(device const float* x, device uint* out,
                                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint count;
  if (t == 0) atomic_store_explicit(&count, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (x[t] > 0.0f) atomic_fetch_add_explicit(&count, 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) out[0] = atomic_load_explicit(&count, memory_order_relaxed);
}

// Positions appended where the data say so; a later loop reads the places in between too.
kernel void sparse_list_fault(device const float* x, device uint* fresh, device uint* out,
                              uint t [[thread_position_in_threadgroup]]) {
  if (x[t] > 0.0f) fresh[t] = t;
  threadgroup_barrier(mem_flags::mem_device);
  if (t == 0) {
    uint sum = 0;
    for (uint i = 0; i < 64; ++i) sum += fresh[i];  // FAULT
    out[0] = sum;
  }
}

kernel void sparse_list_repaired(device const float* x, device uint* fresh, device uint* out,
                                 uint t [[thread_position_in_threadgroup]]) {
  fresh[t] = x[t] > 0.0f ? t : 0u;
  threadgroup_barrier(mem_flags::mem_device);
  if (t == 0) {
    uint sum = 0;
    for (uint i = 0; i < 64; ++i) sum += fresh[i];
    out[0] = sum;
  }
}

// The field of a struct that its writer forgot.
struct Candidate {
  float score;
  uint index;
};

kernel void forgotten_field_fault(device const float* x, device Candidate* fresh, device uint* out,
                                  uint i [[thread_position_in_grid]]) {
  fresh[i].score = x[i];
  out[i] = fresh[i].index;  // FAULT
}

kernel void forgotten_field_repaired(device const float* x, device Candidate* fresh, device uint* out,
                                     uint i [[thread_position_in_grid]]) {
  fresh[i].score = x[i];
  fresh[i].index = i;
  out[i] = fresh[i].index;
}

// Bytes written one by one and read as words: of each word one byte is missing.
kernel void missing_byte_fault(device const uchar* x, device uchar* fresh, device uint* out,
                               uint i [[thread_position_in_grid]]) {
  for (uint j = 0; j < 4; ++j) {
    if (j != 1) fresh[4 * i + j] = x[4 * i + j];
  }
  out[i] = *(device const uint*)(fresh + 4 * i);  // FAULT
}

kernel void missing_byte_repaired(device const uchar* x, device uchar* fresh, device uint* out,
                                  uint i [[thread_position_in_grid]]) {
  for (uint j = 0; j < 4; ++j) fresh[4 * i + j] = x[4 * i + j];
  out[i] = *(device const uint*)(fresh + 4 * i);
}

// Pairs of halves in threadgroup memory of which every thread writes the first.
kernel void half_of_pair_fault(device const float* x, device float* out, uint t [[thread_position_in_threadgroup]]) {
  threadgroup half2 s[32];
  s[t].x = half(x[t]);
  if (t < 16) s[t].y = half(x[t]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  half2 pair = s[31 - t];  // FAULT
  out[t] = float(pair.x) + float(pair.y);
}

kernel void half_of_pair_repaired(device const float* x, device float* out,
                                  uint t [[thread_position_in_threadgroup]]) {
  threadgroup half2 s[32];
  s[t] = half2(x[t], x[t]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  half2 pair = s[31 - t];
  out[t] = float(pair.x) + float(pair.y);
}
