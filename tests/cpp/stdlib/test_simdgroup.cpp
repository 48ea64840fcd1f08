// Collectives, simdgroup matrices, atomics and threadgroup variables of metal_stdlib, on a stand-in executor.
//
// The stand-in runs each lane on an OS thread, one at a time; all active lanes meet at each collective.
#include <condition_variable>
#include <functional>
#include <metal_stdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"

using namespace metal;

namespace {

constexpr detail::site here{5};

struct Simdgroup {
  uint32_t active = ~0u;
  uint32_t site = 0;
  uint32_t waiting = 0;  // lanes
  uint32_t met = 0;      // collectives
  void* operands[32] = {};
  std::mutex running;  // held by the lane that runs
  std::condition_variable resumed;
};
Simdgroup* simdgroup;

void collective(metalane_group* group, uint32_t site, metalane_combine combine, void* operand) {
  Simdgroup& state = *simdgroup;
  const uint32_t lane = group->current_thread % 32;
  state.site = site;
  state.operands[lane] = operand;
  state.waiting |= 1u << lane;
  std::unique_lock<std::mutex> lock(state.running, std::adopt_lock);
  const uint32_t met = state.met;
  if (state.waiting == state.active) {
    const metalane_lanes lanes = {state.active, 32, state.operands};
    combine(&lanes);
    state.waiting = 0;
    ++state.met;
    state.resumed.notify_all();
  } else {
    state.resumed.wait(lock, [&] { return state.met != met; });
  }
  lock.release();
}

void barrier(metalane_group*, uint32_t site) { simdgroup->site = site; }

const metalane_runtime fake_runtime = {barrier, collective};

// Calls `kernel(lane)` for the active lanes. Lanes 64 to 95 of a threadgroup: a lane is not its thread.
void run(uint32_t active, const std::function<void(uint)>& kernel) {
  Simdgroup state;
  state.active = active;
  simdgroup = &state;
  detail::runtime() = &fake_runtime;
  std::vector<std::thread> lanes;
  for (uint lane = 0; lane < 32; ++lane) {
    if (((active >> lane) & 1u) == 0) continue;
    lanes.emplace_back([&state, &kernel, lane] {
      const std::lock_guard<std::mutex> lock(state.running);
      metalane_group group = {};
      group.current_thread = 64 + lane;
      detail::current_group() = &group;
      kernel(lane);
    });
  }
  for (std::thread& lane : lanes) lane.join();
  CHECK_EQ(state.site, here.index);
}

template <class T, class F>
std::vector<T> results(uint32_t active, F f) {
  std::vector<T> out(32, T(77));
  run(active, [&](uint lane) { out[lane] = f(lane); });
  return out;
}

const uint32_t masks[] = {~0u, 0x1u, 0x80000000u, 0x0000ffffu, 0xaaaaaaaau, 0x00f0000fu, 0x12345678u};

bool is_on(uint32_t mask, uint lane) { return (mask >> lane) & 1u; }

template <class F>
void for_active(uint32_t mask, F f) {
  for (uint lane = 0; lane < 32; ++lane) {
    if (is_on(mask, lane)) f(lane);
  }
}

}  // namespace

TEST_CASE(reductions_take_active_lanes_only) {
  for (const uint32_t mask : masks) {
    uint sum = 0, product = 1, low = ~0u, high = 0, conjunction = ~0u, disjunction = 0, parity = 0;
    auto value = [](uint lane) { return 3 * lane + 5; };
    for_active(mask, [&](uint lane) {
      const uint v = value(lane);
      sum += v;
      product *= v;
      low = v < low ? v : low;
      high = v > high ? v : high;
      conjunction &= v;
      disjunction |= v;
      parity ^= v;
    });
    const auto sums = results<uint>(mask, [&](uint l) { return simd_sum(here, value(l)); });
    const auto products = results<uint>(mask, [&](uint l) { return simd_product(here, value(l)); });
    const auto lows = results<uint>(mask, [&](uint l) { return simd_min(here, value(l)); });
    const auto highs = results<uint>(mask, [&](uint l) { return simd_max(here, value(l)); });
    const auto ands = results<uint>(mask, [&](uint l) { return simd_and(here, value(l)); });
    const auto ors = results<uint>(mask, [&](uint l) { return simd_or(here, value(l)); });
    const auto xors = results<uint>(mask, [&](uint l) { return simd_xor(here, value(l)); });
    const auto floats = results<float>(mask, [&](uint l) { return simd_sum(here, float(value(l))); });
    for_active(mask, [&](uint lane) {
      CHECK_EQ(sums[lane], sum);
      CHECK_EQ(products[lane], product);
      CHECK_EQ(lows[lane], low);
      CHECK_EQ(highs[lane], high);
      CHECK_EQ(ands[lane], conjunction);
      CHECK_EQ(ors[lane], disjunction);
      CHECK_EQ(xors[lane], parity);
      CHECK_EQ(floats[lane], float(sum));
    });
  }
}

TEST_CASE(float_sums_fold_halves) {
  auto value = [](uint lane) { return 1.0f / float(lane + 1); };
  float tree[32];
  for (uint i = 0; i < 32; ++i) tree[i] = value(i);
  for (int stride = 16; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) tree[i] += tree[i + stride];
  }
  const auto given = results<float>(~0u, [&](uint l) { return simd_sum(here, value(l)); });
  for (uint lane = 0; lane < 32; ++lane) CHECK_EQ(given[lane], tree[0]);
  const auto zeros = results<float>(0x5u, [&](uint) { return simd_sum(here, -0.0f); });
  CHECK(signbit(zeros[0]));
}

TEST_CASE(extremes_pass_over_nan) {
  const auto low = results<float>(~0u, [&](uint l) { return simd_min(here, l == 3 ? NAN : float(l + 1)); });
  const auto high = results<float>(~0u, [&](uint l) { return simd_max(here, l == 0 ? NAN : float(l)); });
  const auto none = results<float>(0xffu, [&](uint) { return simd_max(here, NAN); });
  CHECK_EQ(low[3], 1.0f);
  CHECK_EQ(high[0], 31.0f);
  CHECK(isnan(none[0]));
}

TEST_CASE(reductions_of_every_type) {
  CHECK_EQ(float(results<half>(~0u, [](uint l) { return simd_sum(here, half(l)); })[4]), 496.0f);
  CHECK_EQ(float(results<bfloat>(0xfu, [](uint l) { return simd_sum(here, bfloat(l)); })[3]), 6.0f);
  CHECK_EQ(int(results<char>(~0u, [](uint) { return simd_sum(here, char(100)); })[0]), int(char(3200)));
  CHECK_EQ(results<ushort>(~0u, [](uint) { return simd_sum(here, ushort(4096)); })[0], ushort(0));
  CHECK_EQ(results<int>(~0u, [](uint) { return simd_sum(here, 0x7fffffff); })[0], -32);
  CHECK_EQ(results<long>(~0u, [](uint l) { return simd_max(here, long(l) << 33); })[0], 31l << 33);
  const auto vectors =
      results<float4>(0xff00u, [](uint l) { return simd_sum(here, float4(1, float(l), 0, -1)); });
  CHECK(all(vectors[9] == float4(8, 92, 0, -8)));
}

TEST_CASE(quads_reduce_among_four) {
  const uint32_t mask = 0xfffff7f0u;  // quad 0 is absent, lane 11 too
  const auto sums = results<uint>(mask, [](uint l) { return quad_sum(here, l); });
  CHECK_EQ(sums[4], 22u);
  CHECK_EQ(sums[8], 27u);
  CHECK_EQ(sums[31], 118u);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return quad_max(here, l); })[5], 7u);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return quad_broadcast(here, l, 2); })[5], 6u);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return quad_shuffle_xor(here, l, 1); })[6], 7u);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return quad_shuffle_up(here, l, 1); })[4], 4u);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return quad_shuffle_rotate_down(here, l, 1); })[7], 4u);
  CHECK_EQ(results<uint>(0xeeu, [](uint l) { return quad_broadcast_first(here, l); })[7], 5u);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return uint(quad_ballot(here, l == 6)); })[4], 4u);
  CHECK(results<bool>(~0u, [](uint l) { return quad_all(here, l >= 4); })[4]);
  CHECK(!results<bool>(~0u, [](uint l) { return quad_all(here, l > 4); })[7]);
  CHECK_EQ(results<uint>(~0u, [](uint l) { return quad_prefix_inclusive_sum(here, l); })[6], 15u);
}

TEST_CASE(shuffles_read_other_lanes) {
  for (const uint32_t mask : masks) {
    const uint deltas[] = {0, 1, 4, 31, 32, 0xffffu};
    for (const uint delta : deltas) {
      const auto up = results<uint>(mask, [&](uint l) { return simd_shuffle_up(here, l + 100, delta); });
      const auto down = results<uint>(mask, [&](uint l) { return simd_shuffle_down(here, l + 100, delta); });
      const auto crossed =
          results<uint>(mask, [&](uint l) { return simd_shuffle_xor(here, l + 100, delta); });
      const auto direct = results<uint>(mask, [&](uint l) { return simd_shuffle(here, l + 100, delta); });
      const auto rotated_up =
          results<uint>(mask, [&](uint l) { return simd_shuffle_rotate_up(here, l + 100, delta); });
      const auto rotated_down =
          results<uint>(mask, [&](uint l) { return simd_shuffle_rotate_down(here, l + 100, delta); });
      for_active(mask, [&](uint lane) {
        auto from = [&](long source) {
          return source >= 0 && source < 32 && is_on(mask, uint(source)) ? uint(source) + 100 : lane + 100;
        };
        CHECK_EQ(up[lane], from(long(lane) - long(delta)));
        CHECK_EQ(down[lane], from(long(lane) + long(delta)));
        CHECK_EQ(crossed[lane], from(long(lane ^ delta)));
        CHECK_EQ(direct[lane], from(long(delta)));
        CHECK_EQ(rotated_up[lane], from(long((lane - delta) % 32)));
        CHECK_EQ(rotated_down[lane], from(long((lane + delta) % 32)));
      });
    }
  }
  const auto vectors = results<float4>(~0u, [](uint l) { return simd_broadcast(here, float4(float(l)), 7); });
  CHECK(all(vectors[0] == float4(7)));
  const auto negative = results<int>(~0u, [](uint l) { return simd_shuffle(here, int(l), ushort(-1)); });
  CHECK_EQ(negative[4], 4);
}

TEST_CASE(fills_come_from_the_filling) {
  for (const uint modulo : {2u, 8u, 32u}) {
    for (uint delta = 0; delta <= modulo; ++delta) {
      const auto up = results<uint>(
          ~0u, [&](uint l) { return simd_shuffle_and_fill_up(here, l, l + 100, delta, modulo); });
      const auto down = results<uint>(
          ~0u, [&](uint l) { return simd_shuffle_and_fill_down(here, l, l + 100, delta, modulo); });
      for (uint lane = 0; lane < 32; ++lane) {
        const uint at = lane % modulo;
        CHECK_EQ(up[lane], at >= delta ? lane - delta : lane - delta + modulo + 100);
        CHECK_EQ(down[lane], at + delta < modulo ? lane + delta : lane + delta - modulo + 100);
      }
    }
  }
  const auto far =
      results<uint>(~0u, [](uint l) { return simd_shuffle_and_fill_up(here, l, 100u, 0xffffu); });
  for (uint lane = 0; lane < 32; ++lane) CHECK_EQ(far[lane], lane);
}

TEST_CASE(votes) {
  for (const uint32_t mask : masks) {
    const auto ballots = results<uint>(mask, [](uint l) { return uint(simd_ballot(here, l % 3 == 0)); });
    const auto lanes = results<ulong>(mask, [](uint) { return ulong(simd_active_threads_mask(here)); });
    const auto every = results<bool>(mask, [](uint l) { return simd_all(here, l < 31); });
    const auto some = results<bool>(mask, [](uint l) { return simd_any(here, l == 31); });
    const auto first = results<bool>(mask, [](uint) { return simd_is_first(here); });
    const auto lowest = results<uint>(mask, [](uint l) { return simd_broadcast_first(here, l); });
    uint expected = 0, first_lane = 32;
    for_active(mask, [&](uint lane) {
      expected |= uint(lane % 3 == 0) << lane;
      first_lane = lane < first_lane ? lane : first_lane;
    });
    for_active(mask, [&](uint lane) {
      CHECK_EQ(ballots[lane], expected);
      CHECK_EQ(lanes[lane], ulong(mask));
      CHECK_EQ(bool(every[lane]), !is_on(mask, 31));
      CHECK_EQ(bool(some[lane]), is_on(mask, 31));
      CHECK_EQ(bool(first[lane]), lane == first_lane);
      CHECK_EQ(lowest[lane], first_lane);
    });
  }
  CHECK(simd_vote(0xffffffffu).all() && !simd_vote(1).all() && simd_vote(1).any() && !simd_vote().any());
}

TEST_CASE(prefixes_follow_lane_order) {
  for (const uint32_t mask : masks) {
    const auto sums = results<int>(mask, [](uint l) { return simd_prefix_inclusive_sum(here, int(l) + 1); });
    const auto before =
        results<int>(mask, [](uint l) { return simd_prefix_exclusive_sum(here, int(l) + 1); });
    const auto products =
        results<float>(mask, [](uint) { return simd_prefix_inclusive_product(here, 2.0f); });
    const auto others = results<float>(mask, [](uint) { return simd_prefix_exclusive_product(here, 2.0f); });
    int sum = 0;
    float product = 1;
    for_active(mask, [&](uint lane) {
      CHECK_EQ(before[lane], sum);
      CHECK_EQ(others[lane], product);
      sum += int(lane) + 1;
      product *= 2;
      CHECK_EQ(sums[lane], sum);
      CHECK_EQ(products[lane], product);
    });
  }
}

namespace {

template <class T, class D>
void check_product() {
  T a[64], b[64];
  D c[64], out[64];
  for (int i = 0; i < 64; ++i) {
    a[i] = T(float(i % 7 - 3));
    b[i] = T(float(i % 5 - 2) * 0.5f);
    c[i] = D(float(i));
    out[i] = D(0);
  }
  run(~0u, [&](uint) {
    simdgroup_matrix<T, 8, 8> ma, mb;
    simdgroup_matrix<D, 8, 8> mc;
    simdgroup_load(ma, a);
    simdgroup_load(mb, b);
    simdgroup_load(mc, c);
    simdgroup_multiply_accumulate(here, mc, ma, mb, mc);
    simdgroup_store(mc, out);
  });
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = float(c[row * 8 + column]);
      for (int k = 0; k < 8; ++k) sum += float(a[row * 8 + k]) * float(b[k * 8 + column]);
      CHECK_EQ(float(out[row * 8 + column]), sum);
    }
  }
}

}  // namespace

TEST_CASE(matrix_products) {
  check_product<float, float>();
  check_product<half, float>();
  check_product<half, half>();
  check_product<bfloat, float>();
  float out[64];
  run(~0u, [&](uint) {
    simdgroup_float8x8 two(2.0f), d;
    simdgroup_multiply(here, d, two, make_filled_simdgroup_matrix<float, 8, 8>(3.0f));
    simdgroup_store(d, out, 8, 0, false);
  });
  for (const float x : out) CHECK_EQ(x, 6.0f);
}

TEST_CASE(matrix_layout_and_memory) {
  float memory[40 * 16];
  for (int i = 0; i < 40 * 16; ++i) memory[i] = float(i);
  float transposed[64] = {};
  run(~0u, [&](uint lane) {
    simdgroup_barrier(here, mem_flags::mem_threadgroup);
    simdgroup_float8x8 m;
    simdgroup_load(here, m, memory, 16, ulong2(3, 5), false);
    // The lane's place as kernels compute it for Apple's layout.
    const uint quad = lane / 4;
    const uint row = (quad & 4) + (lane / 2) % 4, column = (quad & 2) * 2 + (lane % 2) * 2;
    CHECK_EQ(m.thread_elements()[0], float((5 + row) * 16 + 3 + column));
    CHECK_EQ(m.thread_elements()[1], float((5 + row) * 16 + 4 + column));
    simdgroup_store(here, m, transposed, 8, 0, true);
    simdgroup_load(m, memory, 16, 0, true);
    CHECK_EQ(m.thread_elements()[1], float((column + 1) * 16 + row));
  });
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 8; ++column) {
      CHECK_EQ(transposed[column * 8 + row], float((5 + row) * 16 + 3 + column));
    }
  }
}

TEST_CASE(atomics) {
  atomic_uint u = {5};
  CHECK_EQ(atomic_fetch_add_explicit(&u, 3, memory_order_relaxed), 5u);
  CHECK_EQ(atomic_fetch_sub_explicit(&u, 10, memory_order_relaxed), 8u);
  CHECK_EQ(atomic_fetch_min_explicit(&u, 7, memory_order_relaxed), 0xfffffffeu);
  CHECK_EQ(atomic_fetch_max_explicit(&u, 12, memory_order_relaxed), 7u);
  CHECK_EQ(atomic_fetch_and_explicit(&u, 8, memory_order_relaxed), 12u);
  CHECK_EQ(atomic_fetch_or_explicit(&u, 3, memory_order_relaxed), 8u);
  CHECK_EQ(atomic_fetch_xor_explicit(&u, 1, memory_order_relaxed), 11u);
  CHECK_EQ(atomic_exchange_explicit(&u, 42, memory_order_relaxed), 10u);
  uint expected = 41;
  CHECK(!atomic_compare_exchange_weak_explicit(&u, &expected, 1, memory_order_relaxed, memory_order_relaxed));
  CHECK_EQ(expected, 42u);
  while (
      !atomic_compare_exchange_weak_explicit(&u, &expected, 1, memory_order_relaxed, memory_order_relaxed)) {
  }
  CHECK_EQ(atomic_load_explicit(&u, memory_order_relaxed), 1u);
  atomic_int i = {-3};
  CHECK_EQ(atomic_fetch_min_explicit(&i, -7, memory_order_relaxed), -3);
  atomic_float f = {1.5f};
  CHECK_EQ(atomic_fetch_add_explicit(&f, 2, memory_order_relaxed), 1.5f);
  CHECK_EQ(atomic_fetch_max_explicit(&f, 9.0f, memory_order_relaxed), 3.5f);
  atomic_ulong l = {7};
  atomic_max_explicit(&l, 1ul << 40, memory_order_relaxed);
  atomic_min_explicit(&l, 1ul << 41, memory_order_relaxed);
  CHECK_EQ(atomic_load_explicit(&l, memory_order_relaxed), 1ul << 40);
  atomic_bool b = {false};
  atomic_store_explicit(&b, true, memory_order_relaxed);
  CHECK(atomic_load_explicit(&b, memory_order_relaxed));
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}

TEST_CASE(atomics_between_threads) {
  atomic_float sum = {0};
  atomic_uint highest = {0};
  std::vector<std::thread> threads;
  for (uint t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint i = 0; i < 10000; ++i) {
        atomic_fetch_add_explicit(&sum, 1.0f, memory_order_relaxed);
        atomic_fetch_max_explicit(&highest, 4 * i + t, memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(atomic_load_explicit(&sum, memory_order_relaxed), 40000.0f);
  CHECK_EQ(atomic_load_explicit(&highest, memory_order_relaxed), 39999u);
}

namespace {
struct FirstKernel;
struct SecondKernel;
struct UnusedKernel;
}  // namespace

TEST_CASE(threadgroup_variables) {
  alignas(16) uint8_t memory[1024] = {};
  metalane_group group = {};
  group.threadgroup_memory = memory;
  detail::current_group() = &group;
  auto& bytes = detail::threadgroup_variable<FirstKernel, char[5], 0>();
  auto& floats = detail::threadgroup_variable<FirstKernel, float[8], 1>();
  auto& other = detail::threadgroup_variable<SecondKernel, float4, 0>();
  CHECK_EQ(detail::threadgroup_bytes<SecondKernel>(), 16u);
  CHECK_EQ(detail::threadgroup_bytes<UnusedKernel>(), 0u);
  CHECK_EQ(static_cast<void*>(&other), static_cast<void*>(memory));
  const auto from = [&](const void* p) { return static_cast<const uint8_t*>(p) - memory; };
  CHECK_EQ(from(bytes) % 16, 0);
  CHECK_EQ(from(floats) % 16, 0);
  CHECK_EQ(from(bytes) + from(floats), 16 + (from(bytes) == 0 ? 0 : 16));
  CHECK_EQ(detail::threadgroup_bytes<FirstKernel>(), from(bytes) == 0 ? 48u : 37u);
  CHECK_EQ(static_cast<void*>(&(detail::threadgroup_variable<FirstKernel, char[5], 0>())),
           static_cast<void*>(bytes));
  Simdgroup state;
  simdgroup = &state;
  detail::runtime() = &fake_runtime;
  threadgroup_barrier(here, mem_flags::mem_threadgroup);
  CHECK_EQ(state.site, here.index);
}

CHECK_MAIN()
