// The GGML operators' list of native kernels, and the two that need no vectors: routes counted and listed by
// expert.
#include "backends/cpu/native_ggml.h"

#include <metalane/params/quantized_matmul_ggml.h>
#include <metalane/params/quantized_matmul_id_ggml.h>

#include <algorithm>
#include <vector>

namespace metalane::cpu {

namespace {

// A schedule's parts: see quantized_matmul_id_ggml.metal.
struct Schedule {
  std::uint32_t n_experts;
  std::uint64_t routes;
  std::uint32_t *counts, *first_route, *first_tile, *listed;

  Schedule(const NativeLaunch& launch, int params_slot) {
    const auto& params = launch.params<GgmlQuantizedMatmulIdParams>(params_slot);
    n_experts = params.n_experts;
    routes = std::uint64_t{params.n_tokens} * params.top_k;
    auto* const words = launch.buffer<std::uint32_t>(1);
    counts = words + 1;
    first_route = counts + n_experts + 1;
    first_tile = first_route + n_experts + 2;
    listed = first_tile + n_experts + 2;
  }
  std::uint64_t words() const { return 6 + 3 * std::uint64_t{n_experts} + routes; }
};

// Nothing where less is bound than the parameters say. The experts' groups are launched as one.
std::uint32_t schedule_tasks(const NativeLaunch& launch, int params_slot) {
  const Schedule schedule(launch, params_slot);
  const bool bound = launch.sizes[0] / sizeof(std::uint32_t) >= schedule.routes &&
                     launch.sizes[1] / sizeof(std::uint32_t) >= schedule.words();
  return bound && launch.grid[0] > schedule.n_experts ? 1 : 0;
}
std::uint32_t count_tasks(const NativeLaunch& launch) { return schedule_tasks(launch, 3); }
std::uint32_t route_tasks(const NativeLaunch& launch) { return schedule_tasks(launch, 2); }

void count_routes(const NativeLaunch& launch, std::uint32_t) {
  const Schedule schedule(launch, 3);
  const auto* const ids = launch.buffer<const std::uint32_t>(0);
  std::fill_n(schedule.counts, schedule.n_experts + 1, 0u);
  for (std::uint64_t route = 0; route < schedule.routes; ++route)
    ++schedule.counts[std::min(ids[route], schedule.n_experts)];
  const std::uint32_t out_of_range = schedule.counts[schedule.n_experts];
  launch.buffer<std::uint32_t>(1)[0] = out_of_range;
  if (out_of_range != 0) __atomic_fetch_add(launch.buffer<std::uint32_t>(2), out_of_range, __ATOMIC_RELAXED);
}

void list_routes(const NativeLaunch& launch, std::uint32_t) {
  const Schedule schedule(launch, 2);
  const auto* const ids = launch.buffer<const std::uint32_t>(0);
  std::uint32_t routes = 0, tiles = 0;
  for (std::uint32_t expert = 0; expert <= schedule.n_experts; ++expert) {
    schedule.first_route[expert] = routes;
    schedule.first_tile[expert] = tiles;
    routes += schedule.counts[expert];
    tiles += (schedule.counts[expert] + GGML_MM_INPUTS - 1) / GGML_MM_INPUTS;
  }
  schedule.first_route[schedule.n_experts + 1] = routes;
  schedule.first_tile[schedule.n_experts + 1] = tiles;
  // Each expert's first route stands for the next place while its routes are listed.
  for (std::uint64_t route = 0; route < schedule.routes; ++route) {
    const std::uint32_t place = schedule.first_route[std::min(ids[route], schedule.n_experts)]++;
    if (place < schedule.routes) schedule.listed[place] = static_cast<std::uint32_t>(route);
  }
  for (std::uint32_t expert = 0; expert <= schedule.n_experts; ++expert)
    schedule.first_route[expert] -= schedule.counts[expert];
}

constexpr NativeKernel scheduling[] = {
    {"quantized_matmul_id_count", Isa::baseline, &count_tasks, &count_routes},
    {"quantized_matmul_id_route", Isa::baseline, &route_tasks, &list_routes},
};

}  // namespace

std::span<const NativeKernel> ggml_native_kernels() {
  static const std::vector<NativeKernel> all = [] {
    std::vector<NativeKernel> result(std::begin(scheduling), std::end(scheduling));
    for (const auto list : {
#if defined(__x86_64__)
             ggml_native_kernels_avx512(),
             ggml_native_kernels_avx2(),
#elif defined(__aarch64__)
             ggml_native_kernels_neon(),
#endif
             ggml_native_kernels_portable(),
         }) {
      result.insert(result.end(), list.begin(), list.end());
    }
    return result;
  }();
  return all;
}

}  // namespace metalane::cpu
