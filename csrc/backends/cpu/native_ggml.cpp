// The GGML operators' list of native kernels, and the two that need no vectors: routes counted and listed by
// expert.
#include "backends/cpu/native_ggml.h"

#include <metalane/params/quantized_matmul_ggml.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/native_ggml_schedule.h"

namespace metalane::cpu {

namespace {

using Params = GgmlQuantizedMatmulIdParams;

// Nothing where less is bound than the parameters say. The experts' groups are launched as one.
std::uint32_t schedule_tasks(const NativeLaunch& launch, int params_slot) {
  const auto& params = launch.params<Params>(params_slot);
  const bool bound =
      launch.sizes[0] / sizeof(std::uint32_t) >= std::uint64_t{params.n_tokens} * params.top_k &&
      launch.sizes[1] / sizeof(std::uint32_t) >= schedule_words(params);
  return bound && launch.grid[0] > params.n_experts ? 1 : 0;
}
std::uint32_t count_tasks(const NativeLaunch& launch) { return schedule_tasks(launch, 3); }
std::uint32_t route_tasks(const NativeLaunch& launch) { return schedule_tasks(launch, 2); }

void count_routes(const NativeLaunch& launch, std::uint32_t) {
  const Schedule schedule(launch.params<Params>(3), launch.buffer<std::uint32_t>(1));
  const auto* const ids = launch.buffer<const std::uint32_t>(0);
  std::fill_n(schedule.counts, schedule.n_experts + 1, 0u);
  for (std::uint64_t route = 0; route < schedule.n_routes; ++route)
    ++schedule.counts[std::min(ids[route], schedule.n_experts)];
  *schedule.out_of_range = schedule.counts[schedule.n_experts];
  if (*schedule.out_of_range != 0)
    __atomic_fetch_add(launch.buffer<std::uint32_t>(2), *schedule.out_of_range, __ATOMIC_RELAXED);
}

void list_routes(const NativeLaunch& launch, std::uint32_t) {
  const Schedule schedule(launch.params<Params>(2), launch.buffer<std::uint32_t>(1));
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
  for (std::uint64_t route = 0; route < schedule.n_routes; ++route) {
    const std::uint32_t place = schedule.first_route[std::min(ids[route], schedule.n_experts)]++;
    if (place < schedule.n_routes) schedule.routes[place] = static_cast<std::uint32_t>(route);
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
