// The DFlash2 selector's list of native kernels, and the two that need no vectors: path and verify rows.
#include "backends/cpu/native_dflash2_selector.h"

#include <metalane/ops/dflash2_selector_params.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace metalane::cpu {

namespace {

constexpr std::uint32_t kEach = DFLASH2_CANDIDATES;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

std::uint32_t one_task_a_threadgroup(const NativeLaunch& launch) { return launch.grid[0]; }
std::uint32_t one_task_a_lane(const NativeLaunch& launch) {
  const std::uint64_t threads = std::uint64_t{launch.grid[0]} * launch.threads_per_threadgroup[0];
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(threads, launch.params<DFlash2SelectorParams>(7).lanes));
}
std::uint32_t one_task(const NativeLaunch&) { return 1; }

// unary + edges with NaN as -inf, and the first of the largest.
std::uint32_t position_scores(const float* unary, const float* edges, std::array<float, kEach>& scores) {
  std::uint32_t first_largest = 0;
  for (std::uint32_t b = 0; b < kEach; ++b) {
    const float score = unary[b] + edges[b];
    scores[b] = std::isnan(score) ? kNegativeInfinity : score;
    if (scores[b] > scores[first_largest]) first_largest = b;
  }
  return first_largest;
}

// softmax(score / temperature). The largest weigh 1, so that no quotient of zeros or infinities arises.
void softmax(const std::array<float, kEach>& scores, float largest, float temperature,
             std::array<float, kEach>& probabilities) {
  float total = 0;
  for (std::uint32_t b = 0; b < kEach; ++b) {
    probabilities[b] = scores[b] == largest ? 1.0f : std::exp((scores[b] - largest) / temperature);
    total += probabilities[b];
  }
  for (float& probability : probabilities) probability /= total;
}

// The first index whose running sum exceeds `uniform` (NaN and negatives: 0), else the last possible one.
std::uint32_t sample(const std::array<float, kEach>& probabilities, float uniform) {
  const float bound = uniform > 0 ? uniform : 0.0f;
  float running = 0;
  std::uint32_t last_possible = 0;
  for (std::uint32_t b = 0; b < kEach; ++b) {
    running += probabilities[b];
    if (probabilities[b] > 0) last_possible = b;
    if (running > bound) return b;
  }
  return last_possible;
}

// Task (lane): see dflash2_select_path in the shader.
void path(const NativeLaunch& launch, std::uint32_t lane) {
  const auto& params = launch.params<DFlash2SelectorParams>(7);
  const std::uint32_t positions = params.rows_per_lane - 1;
  const bool sampled = (params.sampling_mask >> lane & 1) != 0;
  const float temperature = sampled ? params.temperature[lane] : 1.0f;
  std::uint32_t predecessor = 0;
  for (std::uint32_t position = 0; position < positions; ++position) {
    const std::uint32_t step = lane * positions + position;
    std::array<float, kEach> scores;
    std::array<float, kEach> probabilities;
    std::uint32_t chosen =
        position_scores(launch.buffer<const float>(1) + step * kEach,
                        launch.buffer<const float>(2) + (step * kEach + predecessor) * kEach, scores);
    const bool empty = scores[chosen] == kNegativeInfinity;
    softmax(scores, scores[chosen], temperature, probabilities);
    if (sampled && !empty) chosen = sample(probabilities, launch.buffer<const float>(3)[step]);
    launch.buffer<float>(6)[step] = probabilities[chosen];
    if (!sampled || empty) {
      probabilities.fill(0.0f);
      probabilities[chosen] = 1.0f;
    }
    std::copy(probabilities.begin(), probabilities.end(), launch.buffer<float>(5) + step * kEach);
    launch.buffer<std::uint32_t>(4)[step] = launch.buffer<const std::uint32_t>(0)[step * kEach + chosen];
    predecessor = chosen;
  }
}

double accept_chance(const NativeLaunch& launch, std::uint32_t lane, std::uint32_t position) {
  const auto& params = launch.params<DFlash2VerifyRowsParams>(2);
  const double given = launch.buffer<const float>(0)[lane * (params.rows_per_lane - 1) + position];
  const double c = given > 1e-6 ? std::min(given, 1 - 1e-6) : 1e-6;  // NaN fails the comparison
  const double logit = std::log(c / (1 - c));
  return 1 / (1 + std::exp(-(params.slope * logit + params.intercept[position])));
}

double cost_of(const DFlash2VerifyRowsParams& params, std::uint32_t rows) {
  return rows < DFLASH2_VERIFY_COSTS - 1 ? params.cost[rows] : params.cost_64;
}

// See dflash2_select_verify_rows in the shader; this one computes in double.
void verify_rows(const NativeLaunch& launch, std::uint32_t) {
  const auto& params = launch.params<DFlash2VerifyRowsParams>(2);
  std::array<std::uint32_t, DFLASH2_MAX_LANES> rows{};
  std::array<double, DFLASH2_MAX_LANES> survive{};  // what the lane's next row is worth; below 0: it has none
  for (std::uint32_t lane = 0; lane < params.lanes; ++lane) {
    rows[lane] = params.every_row != 0 ? params.maximum[lane] : 1;
    survive[lane] = rows[lane] < params.maximum[lane] ? accept_chance(launch, lane, 0) : -1;
  }
  std::array<std::uint32_t, DFLASH2_MAX_LANES> best_rows = rows;
  std::uint32_t total = params.lanes;
  double tokens = params.lanes;
  double best_ratio = tokens / cost_of(params, total);
  while (true) {
    const auto next = static_cast<std::uint32_t>(
        std::max_element(survive.begin(), survive.begin() + params.lanes) - survive.begin());
    if (survive[next] < 0) break;
    tokens += survive[next];
    survive[next] = ++rows[next] < params.maximum[next]
                        ? survive[next] * accept_chance(launch, next, rows[next] - 1)
                        : -1;
    const double ratio = tokens / cost_of(params, ++total);
    if (ratio > best_ratio) {
      best_ratio = ratio;
      best_rows = rows;
    }
  }
  std::copy_n(best_rows.begin(), params.lanes, launch.buffer<std::uint32_t>(1));
}

constexpr NativeKernel kernels[] = {
#if defined(__x86_64__)
    {"dflash2_select_top16", Isa::avx512, one_task_a_threadgroup, dflash2_top16_avx512},
    {"dflash2_select_top16", Isa::avx2, one_task_a_threadgroup, dflash2_top16_avx2},
#endif
    {"dflash2_select_top16", Isa::baseline, one_task_a_threadgroup, dflash2_top16_portable},
#if defined(__x86_64__)
    {"dflash2_select_edges", Isa::avx512, one_task_a_threadgroup, dflash2_edges_avx512},
    {"dflash2_select_edges", Isa::avx2, one_task_a_threadgroup, dflash2_edges_avx2},
#endif
    {"dflash2_select_edges", Isa::baseline, one_task_a_threadgroup, dflash2_edges_portable},
    {"dflash2_select_path", Isa::baseline, one_task_a_lane, path},
    {"dflash2_select_verify_rows", Isa::baseline, one_task, verify_rows},
};

}  // namespace

std::span<const NativeKernel> dflash2_selector_native_kernels() { return kernels; }

}  // namespace metalane::cpu
