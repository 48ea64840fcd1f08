// Products of routed float inputs with the GGML-quantized weights of the expert that each route names.
//
//   input f32 [n_tokens, k], or [n_tokens, top_k, k] slotted | weight [n_experts] of [n, k] packed, expert_stride bytes
//   apart | ids u32 [n_tokens, top_k] | output f32 [n_tokens * top_k, n]
//
// Route r = token * top_k + slot goes to expert ids[r]; one past the experts gives a row of zeros. Mat-mat first sorts
// the routes by expert:
//
//   schedule u32: ids out of range [1] | counts [n_experts + 1] | first route [n_experts + 2] |
//                 first tile [n_experts + 2] | routes by expert [n_tokens * top_k]
//
// where "expert" n_experts stands for routes past the experts, and entry n_experts + 1 is the total.
#include <metalane/lib/ggml_tile_products.h>
#include <metalane/params/quantized_matmul_id_ggml.h>

#include <metal_stdlib>
using namespace metal;

// Of a schedule, where its parts begin.
struct Schedule {
  uint count;
  uint first_route;
  uint first_tile;
  uint routes;
};

static Schedule schedule_of(uint n_experts) {
  Schedule at;
  at.count = 1;
  at.first_route = at.count + n_experts + 1;
  at.first_tile = at.first_route + n_experts + 2;
  at.routes = at.first_tile + n_experts + 2;
  return at;
}

static uint expert_of(device const uint* ids, uint route, uint n_experts) { return min(ids[route], n_experts); }

// The sum of `value` over a threadgroup of up to 32 simdgroups, in every thread.
static uint threadgroup_sum(uint value, threadgroup uint* partial, ushort lane, ushort simdgroup,
                            ushort simdgroups) {
  const uint sum = simd_sum(value);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint total = simd_sum(lane < simdgroups ? partial[lane] : 0u);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return total;
}

// Threadgroup e counts the routes of expert e. [n_experts + 1] threadgroups.
kernel void quantized_matmul_id_count(device const uint* ids [[buffer(0)]], device uint* schedule [[buffer(1)]],
                                      device atomic_uint* status_ids_out_of_range [[buffer(2)]],
                                      constant GgmlQuantizedMatmulIdParams& params [[buffer(3)]],
                                      uint expert [[threadgroup_position_in_grid]],
                                      ushort t [[thread_index_in_threadgroup]],
                                      ushort lane [[thread_index_in_simdgroup]],
                                      ushort simdgroup [[simdgroup_index_in_threadgroup]],
                                      ushort simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup uint partial[32];
  uint mine = 0;
  for (uint route = t; route < params.n_tokens * params.top_k; route += GGML_ROUTE_THREADS) {
    mine += expert_of(ids, route, params.n_experts) == expert ? 1 : 0;
  }
  const uint count = threadgroup_sum(mine, partial, lane, simdgroup, simdgroups);
  if (t != 0) return;
  schedule[schedule_of(params.n_experts).count + expert] = count;
  if (expert == params.n_experts) {
    schedule[0] = count;
    if (count != 0) atomic_fetch_add_explicit(status_ids_out_of_range, count, memory_order_relaxed);
  }
}

// Threadgroup e lists the routes of expert e in their order, behind those of the experts before it.
kernel void quantized_matmul_id_route(device const uint* ids [[buffer(0)]], device uint* schedule [[buffer(1)]],
                                      constant GgmlQuantizedMatmulIdParams& params [[buffer(2)]],
                                      uint expert [[threadgroup_position_in_grid]],
                                      ushort t [[thread_index_in_threadgroup]],
                                      ushort lane [[thread_index_in_simdgroup]],
                                      ushort simdgroup [[simdgroup_index_in_threadgroup]],
                                      ushort simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup uint partial[32];
  const Schedule at = schedule_of(params.n_experts);
  uint routes_before = 0, tiles_before = 0;
  for (uint other = t; other < expert; other += GGML_ROUTE_THREADS) {
    const uint count = schedule[at.count + other];
    routes_before += count;
    tiles_before += (count + GGML_MM_INPUTS - 1) / GGML_MM_INPUTS;
  }
  routes_before = threadgroup_sum(routes_before, partial, lane, simdgroup, simdgroups);
  tiles_before = threadgroup_sum(tiles_before, partial, lane, simdgroup, simdgroups);
  if (t == 0) {
    const uint count = schedule[at.count + expert];
    schedule[at.first_route + expert] = routes_before;
    schedule[at.first_tile + expert] = tiles_before;
    if (expert == params.n_experts) {
      schedule[at.first_route + expert + 1] = routes_before + count;
      schedule[at.first_tile + expert + 1] = tiles_before + (count + GGML_MM_INPUTS - 1) / GGML_MM_INPUTS;
    }
  }
  uint place = at.routes + routes_before;
  const uint n_routes = params.n_tokens * params.top_k;
  for (uint base = 0; base < n_routes; base += GGML_ROUTE_THREADS) {
    const uint route = base + t;
    const bool mine = route < n_routes && expert_of(ids, route, params.n_experts) == expert;
    const uint before = simd_prefix_exclusive_sum(mine ? 1u : 0u);
    const uint here = simd_sum(mine ? 1u : 0u);
    if (lane == 0) partial[simdgroup] = here;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint simdgroup_count = lane < simdgroups ? partial[lane] : 0u;
    const uint simdgroups_before = simd_sum(lane < simdgroup ? simdgroup_count : 0u);
    if (mine) schedule[place + simdgroups_before + before] = route;
    place += simd_sum(simdgroup_count);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Mat-vec, a route at a time. Threadgroups [n / 16, n_tokens * top_k] of 4 simdgroups, each with 4 weight rows. Routes
// past the experts count in `status_ids_out_of_range`.
template <typename Block>
kernel void quantized_matmul_id_mv(device const float* input [[buffer(0)]], device const uchar* weight [[buffer(1)]],
                                   device const uint* ids [[buffer(2)]], device float* output [[buffer(3)]],
                                   device atomic_uint* status_ids_out_of_range [[buffer(4)]],
                                   constant GgmlQuantizedMatmulIdParams& params [[buffer(5)]],
                                   uint2 group [[threadgroup_position_in_grid]],
                                   ushort simdgroup [[simdgroup_index_in_threadgroup]],
                                   ushort lane [[thread_index_in_simdgroup]]) {
  const uint route = group.y, expert = ids[route];
  const uint first_row = (group.x * GGML_MV_SIMDGROUPS + simdgroup) * 4;
  if (first_row >= params.n) return;
  const ushort n_rows = ushort(min(4u, params.n - first_row));
  float sum[1][4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
  if (expert < params.n_experts) {
    ggml_row_products<Block, 4, 1>(
        weight + expert * params.expert_stride + first_row * ggml_row_bytes<Block>(params.k), n_rows,
        input + ulong(route / params.top_k) * params.k, 1, params.k, lane, sum);
  } else if (first_row == 0 && lane == 0) {
    atomic_fetch_add_explicit(status_ids_out_of_range, 1u, memory_order_relaxed);
  }
  if (lane != 0) return;
  for (ushort r = 0; r < n_rows; ++r) output[ulong(route) * params.n + first_row + r] = sum[0][r];
}

// The expert whose tiles include `tile`, by bisection of its first tiles; `tile` is below their total.
static uint expert_of_tile(device const uint* first_tile, uint n_experts, uint tile) {
  uint low = 0, high = n_experts + 1;
  while (high - low > 1) {
    const uint middle = (low + high) / 2;
    if (first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Mat-mat, by 32 routes of one expert: threadgroups [n / 64, tiles] of 128 threads, where `tiles` is at least what the
// schedule has. Where the expert does not exist the tile's weights count as rows of none, which gives zeros.
template <typename Block, bool slotted>
kernel void quantized_matmul_id_mm(device const float* input [[buffer(0)]], device const uchar* weight [[buffer(1)]],
                                   device const uint* schedule [[buffer(2)]], device float* output [[buffer(3)]],
                                   constant GgmlQuantizedMatmulIdParams& params [[buffer(4)]],
                                   uint2 group [[threadgroup_position_in_grid]],
                                   ushort t [[thread_index_in_threadgroup]],
                                   ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float memory[ggml_tile_floats];
  const Schedule at = schedule_of(params.n_experts);
  device const uint* first_tile = schedule + at.first_tile;
  if (group.y >= first_tile[params.n_experts + 1]) return;
  const uint expert = expert_of_tile(first_tile, params.n_experts, group.y);
  const uint place = schedule[at.first_route + expert] + (group.y - first_tile[expert]) * GGML_MM_INPUTS + t / 4;
  const uint first_row = group.x * GGML_MM_ROWS;
  const ushort n_rows = ushort(min(uint(GGML_MM_ROWS), params.n - first_row));

  GgmlTileRows rows;
  rows.n_rows = n_rows;
  rows.input_row = nullptr;
  rows.output_row = nullptr;
  if (place < schedule[at.first_route + expert + 1]) {
    const uint route = schedule[at.routes + place];
    rows.input_row = input + ulong(slotted ? route : route / params.top_k) * params.k;
    rows.output_row = output + ulong(route) * params.n + first_row;
  }
  if (expert == params.n_experts) {
    if (rows.output_row == nullptr) return;
    for (ushort i = t % 4; i < n_rows; i += 4) rows.output_row[i] = 0.0f;
    return;
  }
  rows.weight = weight + expert * params.expert_stride + first_row * ggml_row_bytes<Block>(params.k);
  ggml_tile_products_by_matrices<Block>(rows, params.k, t, simdgroup, memory);
}

#define INSTANTIATE_MM(type, slotted, suffix)                                                                   \
  template [[host_name("quantized_matmul_id_mm_" #type suffix)]] kernel decltype(                               \
      quantized_matmul_id_mm<type, slotted>) quantized_matmul_id_mm<type, slotted>;

#define INSTANTIATE(type, ...)                                                                                  \
  template [[host_name("quantized_matmul_id_mv_" #type)]] kernel decltype(quantized_matmul_id_mv<type>)         \
      quantized_matmul_id_mv<type>;                                                                             \
  INSTANTIATE_MM(type, false, "")                                                                               \
  INSTANTIATE_MM(type, true, "_slotted")

METALANE_GGML_WEIGHT_TYPES(INSTANTIATE)
