// Native DFlash2 kernels of every instruction set against sorting and double sums. Python's tests reach only
// the set that the device picks.
#include <metalane/ops/dflash2_selector_params.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/native_dflash2_selector.h"
#include "check.h"

namespace {

using metalane::DFlash2SelectorParams;
using metalane::cpu::Isa;
using metalane::cpu::NativeKernel;
using metalane::cpu::NativeLaunch;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kPoison = 0xdeadbeefu;

bool cpu_has(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == Isa::baseline;
}

std::vector<NativeKernel> variants(const std::string& name) {
  std::vector<NativeKernel> result;
  for (const NativeKernel& kernel : metalane::cpu::dflash2_selector_native_kernels()) {
    if (kernel.name == name && cpu_has(kernel.isa)) result.push_back(kernel);
  }
  return result;
}

void run(const NativeKernel& kernel, const NativeLaunch& launch) {
  const std::uint32_t tasks = kernel.tasks(launch);
  for (std::uint32_t task = tasks; task-- > 0;) kernel.run(launch, task);
}

// Memory of n elements with guards on both sides.
template <typename T>
struct Guarded {
  explicit Guarded(std::size_t n) : words(n + 16) {
    static_assert(sizeof(T) == 4);
    std::fill(words.begin(), words.end(), kPoison);
  }
  T* data() { return reinterpret_cast<T*>(words.data() + 8); }
  bool intact() const {
    const auto poisoned = [](std::uint32_t word) { return word == kPoison; };
    return std::all_of(words.begin(), words.begin() + 8, poisoned) &&
           std::all_of(words.end() - 8, words.end(), poisoned);
  }
  std::vector<std::uint32_t> words;
};

std::vector<float> row_of_kind(int kind, std::uint32_t vocabulary, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> small(0, 5);
  std::vector<float> row(vocabulary);
  for (std::uint32_t i = 0; i < vocabulary; ++i) {
    const float noise = normal(random);
    const float values[] = {
        noise,                                              // all different
        static_cast<float>(small(random)),                  // ties everywhere
        static_cast<float>(i),                              // ascending
        -static_cast<float>(i),                             // descending
        1.5f,                                               // constant
        kNan,                                               // no number at all
        i % 3 == 0 ? -0.0f : 0.0f,                          // zeros of both signs
        i % 7 == 0 ? noise : -kInfinity,                    // few finite
        small(random) == 0 ? kInfinity : noise,             // several largest
        small(random) == 0 ? kNan : small(random) * -1.0f,  // NaN among ties
        i % 16 == 0 ? -kInfinity : static_cast<float>(i),   // ascending with holes
        -kInfinity,
        std::ldexp(noise, -140),  // subnormal
    };
    row[i] = values[kind];
  }
  return row;
}
constexpr int kKinds = 13;

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE(dflash2_top16_of_every_instruction_set_equals_sorting) {
  std::mt19937 random(7);
  const std::uint32_t vocabularies[] = {16, 17, 31, 127, 128, 1031, 1040, 2049, 16389, 40001};
  for (const std::uint32_t vocabulary : vocabularies) {
    for (int kind = 0; kind < kKinds; ++kind) {
      DFlash2SelectorParams params{};
      params.lanes = 1;
      params.rows_per_lane = 2;
      params.vocabulary = vocabulary;
      std::vector<float> logits(vocabulary, kInfinity);
      const std::vector<float> row = row_of_kind(kind, vocabulary, random);
      logits.insert(logits.end(), row.begin(), row.end());
      const auto number = [&](std::uint32_t i) { return std::isnan(row[i]) ? -kInfinity : row[i]; };
      for (const NativeKernel& kernel : variants("dflash2_select_top16")) {
        Guarded<std::uint32_t> ids(8 * 16);
        Guarded<float> values(8 * 16);
        void* buffers[] = {logits.data(), ids.data(), values.data(), &params};
        NativeLaunch launch;
        launch.buffers = buffers;
        launch.grid[0] = 8;
        run(kernel, launch);
        bool equal = true;
        for (std::uint32_t shard = 0; shard < 8; ++shard) {
          const std::uint32_t begin = shard * (vocabulary / 8) + std::min(shard, vocabulary % 8);
          const std::uint32_t length = vocabulary / 8 + (shard < vocabulary % 8 ? 1 : 0);
          std::vector<std::uint32_t> order(length);
          std::iota(order.begin(), order.end(), begin);
          std::stable_sort(order.begin(), order.end(),
                           [&](std::uint32_t a, std::uint32_t b) { return number(a) > number(b); });
          for (std::uint32_t i = 0; i < 16; ++i) {
            const std::uint32_t id = i < length ? order[i] : 0xffffffffu;
            const float value = i < length ? number(id) : -kInfinity;
            equal =
                equal && ids.data()[shard * 16 + i] == id && same_bits(values.data()[shard * 16 + i], value);
          }
        }
        check::report(equal, __FILE__, __LINE__,
                      "V=" + std::to_string(vocabulary) + " kind=" + std::to_string(kind) +
                          " isa=" + std::to_string(static_cast<int>(kernel.isa)));
        CHECK(ids.intact() && values.intact());
      }
    }
  }
}

TEST_CASE(dflash2_edges_of_every_instruction_set_equal_double_sums) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  constexpr std::uint32_t vocabulary = 300, rows = 3, positions = 2, rank = 256;
  const auto bf16 = [](float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<std::uint16_t>(bits >> 16);
  };
  const auto number = [](std::uint16_t x) {
    const std::uint32_t bits = std::uint32_t{x} << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return static_cast<double>(value);
  };
  std::vector<std::uint16_t> hidden(rows * rank), from(vocabulary * rank), to(vocabulary * rank);
  for (auto* values : {&hidden, &from, &to}) {
    for (auto& value : *values) value = bf16(normal(random));
  }
  std::vector<float> logits(rows * vocabulary);
  for (auto& value : logits) value = normal(random);
  DFlash2SelectorParams params{};
  params.anchor[0] = 299;
  params.lanes = 1;
  params.rows_per_lane = rows;
  params.vocabulary = vocabulary;
  std::vector<std::uint32_t> partial_ids(positions * 128);
  std::vector<float> partial_values(positions * 128);
  void* top_buffers[] = {logits.data(), partial_ids.data(), partial_values.data(), &params};
  NativeLaunch top;
  top.buffers = top_buffers;
  top.grid[0] = positions * 8;
  run(variants("dflash2_select_top16").front(), top);

  for (const NativeKernel& kernel : variants("dflash2_select_edges")) {
    Guarded<std::uint32_t> candidates(positions * 16);
    Guarded<float> unary(positions * 16), edges(positions * 256);
    void* buffers[] = {
        partial_ids.data(), partial_values.data(), candidates.data(), unary.data(), edges.data(),
        hidden.data(),      from.data(),           to.data(),         &params};
    NativeLaunch launch;
    launch.buffers = buffers;
    launch.grid[0] = positions;
    run(kernel, launch);
    for (std::uint32_t p = 0; p < positions; ++p) {
      std::vector<std::uint32_t> order(vocabulary);
      std::iota(order.begin(), order.end(), 0u);
      const float* row = logits.data() + (p + 1) * vocabulary;
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
      for (std::uint32_t b = 0; b < 16; ++b) {
        CHECK_EQ(candidates.data()[p * 16 + b], order[b]);
        CHECK(same_bits(unary.data()[p * 16 + b], row[order[b]]));
        for (std::uint32_t a = 0; a < 16; ++a) {
          const std::uint32_t predecessor = p == 0 ? 299 : candidates.data()[(p - 1) * 16 + a];
          double sum = 0, size = 0;
          for (std::uint32_t r = 0; r < rank; ++r) {
            const double term = number(from[predecessor * rank + r]) * number(hidden[(p + 1) * rank + r]) *
                                number(to[order[b] * rank + r]);
            sum += term;
            size += std::abs(term);
          }
          CHECK(std::abs(edges.data()[(p * 16 + a) * 16 + b] - sum) <= 1e-6 * size);
        }
      }
    }
    CHECK(candidates.intact() && unary.intact() && edges.intact());
  }
}

CHECK_MAIN()
