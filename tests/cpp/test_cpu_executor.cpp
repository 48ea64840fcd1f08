// Threadgroups on fibers: barriers, collectives, divergence, faults, time limits, grids.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <numeric>
#include <sstream>
#include <thread>

#include "backends/cpu/processors.h"
#include "check.h"
#include "cpu_modules.h"

using namespace cpu_modules;

namespace {

// Allocations of the threads that run kernels: every one but the test's own.
std::atomic<std::uint64_t> worker_allocations{0};
thread_local bool is_worker = true;

}  // namespace

#if !defined(METALANE_ASAN) && !defined(METALANE_TSAN)  // which have allocation functions of their own
void* operator new(std::size_t nbytes) {
  if (is_worker) worker_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(nbytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace {

// Opaque to the compiler, which would otherwise warn of the store or drop it.
volatile std::uintptr_t unmapped_address = 0x40;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void store_index(metalane_group* group) {
  buffer<std::uint32_t>(group)[global_thread(group)] += global_thread(group) + 1;
}

// Every thread reads what its neighbour wrote before the barrier, many times.
void rotate(metalane_group* group) {
  auto* shared = reinterpret_cast<std::uint32_t*>(group->threadgroup_memory);
  const std::uint32_t thread = group->current_thread, count = group->thread_count;
  shared[thread] = thread;
  for (int round = 0; round < 50; ++round) {
    runtime().threadgroup_barrier(group, 0);
    const std::uint32_t value = shared[(thread + 1) % count];
    runtime().threadgroup_barrier(group, 1);
    shared[thread] = value;
  }
  buffer<std::uint32_t>(group)[global_thread(group)] = shared[thread];
}

void sum_all(metalane_group* group) {
  buffer<std::uint32_t>(group)[global_thread(group)] = simd_sum(group, 2, group->current_thread % 32);
}

// Odd lanes loop: each time only those that are still in the loop take part.
void sum_in_loop(metalane_group* group) {
  const std::uint32_t lane = group->current_thread % 32;
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < lane; ++i) total += simd_sum(group, 2, 1u);
  buffer<std::uint32_t>(group)[global_thread(group)] = total * 1000 + simd_sum(group, 3, 1u);
}

METALANE_NO_TSAN __attribute__((noinline)) std::uint32_t sum_at_depth(metalane_group* group,
                                                                      std::uint32_t depth) {
  volatile std::uint32_t kept = depth;
  return depth == 0 ? simd_sum(group, 2, 1u) : sum_at_depth(group, depth - 1) + kept - depth;
}

// Few lanes stay behind; each waits elsewhere on its stack every time.
void sum_at_depths(metalane_group* group) {
  const std::uint32_t lane = group->current_thread % 32;
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < 40; ++i) {
    if (lane >= 29) total += sum_at_depth(group, (i * 7 + lane * 3) % 11);
  }
  buffer<std::uint32_t>(group)[group->current_thread] = total + 1000 * simd_sum(group, 3, 1u);
}

// A function of one site, called from two branches, in a loop of which lanes skip iterations; all lanes meet
// behind it. As the adapter writes it.
METALANE_NO_TSAN void sum_on_paths(metalane_group* group) {
  const std::uint32_t lane = group->current_thread % 32;
  std::uint32_t total = 0;
  metalane_path loop = {nullptr, 0, 0, 0};
  group->path = &loop;
  for (std::uint32_t turn = 1; turn <= 4; ++turn) {
    loop.turn = turn;
    if ((lane + turn) % 3 != 0) continue;
    const metalane_path call = {&loop, 1 + lane % 2, 1, 0};
    group->path = &call;
    total += simd_sum(group, 2, 100 * turn + lane);
    group->path = call.outer;
  }
  group->path = loop.outer;
  const metalane_path call = {nullptr, 2 - lane % 2, 0, 0};
  group->path = &call;
  total += simd_sum(group, 2, 10000u);
  runtime().threadgroup_barrier(group, 3);
  group->path = call.outer;
  buffer<std::uint32_t>(group)[group->current_thread] = total + simd_sum(group, 3, 1000000u);
}

// One site, two operations, as in a template: each takes its own lanes.
void sum_by_type(metalane_group* group) {
  const std::uint32_t lane = group->current_thread % 32;
  double sum;
  switch (lane % 3) {
    case 0:
      sum = simd_sum<std::uint32_t>(group, 2, 1000 + lane);
      break;
    case 1:
      sum = simd_sum<std::uint8_t>(group, 2, static_cast<std::uint8_t>(lane));
      break;
    default:
      sum = simd_sum<double>(group, 2, 0.5 * lane);
  }
  // The lanes meet again.
  buffer<double>(group)[global_thread(group)] = sum + 1000000.0 * simd_sum(group, 3, 1u);
}

void half_barrier(metalane_group* group) {
  if (group->current_thread < 16) runtime().threadgroup_barrier(group, 0);
}

void first_lanes_barrier(metalane_group* group) {
  if (group->current_thread % 32 == 0) runtime().threadgroup_barrier(group, 0);
}

void two_barriers(metalane_group* group) { runtime().threadgroup_barrier(group, group->current_thread % 2); }

// Kernels that are cut short are not instrumented, as those compiled at run time are not.
METALANE_NO_TSAN void wild_store(metalane_group* group) {
  if (group->position[0] == 3 && group->current_thread == 5)
    *reinterpret_cast<volatile int*>(unmapped_address) = 1;
}

METALANE_NO_TSAN void wild_store_among_waiting(metalane_group* group) {
  if (group->current_thread == 40) *reinterpret_cast<volatile int*>(unmapped_address) = 1;
  runtime().threadgroup_barrier(group, 0);
}

METALANE_NO_TSAN __attribute__((noinline)) std::uint32_t deep(std::uint32_t depth) {
  volatile std::uint8_t frame[512];
  frame[depth % 512] = 1;
  return depth == 0 ? 0 : deep(depth - 1) + frame[depth % 512];
}
METALANE_NO_TSAN void recurse(metalane_group* group) { buffer<std::uint32_t>(group)[0] = deep(1u << 24); }

METALANE_NO_TSAN void endless(metalane_group* group) {
  const auto* flag = buffer<std::uint32_t>(group);
  while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0) {
  }
}

METALANE_NO_TSAN void endless_barriers(metalane_group* group) {
  const auto* flag = buffer<std::uint32_t>(group);
  while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0) runtime().threadgroup_barrier(group, 0);
}

void divide(metalane_group* group) {
  auto* values = buffer<volatile std::int32_t>(group);
  values[2] = 0;
#if defined(__x86_64__)
  // In assembly: compilers may fold, and sanitizers report, a division by zero.
  std::int32_t quotient = 7, remainder = 0;
  asm volatile("idivl %2" : "+a"(quotient), "+d"(remainder) : "r"(values[2]));
  std::int64_t wide_quotient = INT64_MIN, wide_remainder = -1;
  asm volatile("idivq %2" : "+a"(wide_quotient), "+d"(wide_remainder) : "r"(std::int64_t{-1}));
  asm volatile("divl %2" : "+a"(quotient), "+d"(remainder) : "m"(values[2]));
#endif
  values[group->current_thread] = 77;
}

std::shared_ptr<backend::Device> device() {
  static const std::shared_ptr<backend::Device> shared = cpu::open_device({});
  return shared;
}

Dispatch over(const std::shared_ptr<cpu::CpuPipeline>& pipeline, std::vector<std::uint32_t>& data,
              std::uint32_t groups, std::uint32_t threads) {
  Dispatch dispatch{pipeline.get(), {{data.data(), data.size() * 4}}};
  dispatch.grid[0] = groups;
  dispatch.threads[0] = threads;
  return dispatch;
}

void expect_usable() {
  std::vector<std::uint32_t> data(64);
  const auto kernel = pipeline<rotate>("rotate");
  CHECK_EQ(Pending(*device(), {over(kernel, data, 1, 64)}).wait(), "");
  CHECK_EQ(data[0], 50u);
}

}  // namespace

TEST_CASE(plain_kernel_runs_every_thread_once) {
  const auto kernel = pipeline<store_index>("store_index");
  for (const std::uint32_t groups : {1u, 2u, 7u, 1000u}) {
    std::vector<std::uint32_t> data(groups * 33 + 1, 0);
    CHECK_EQ(Pending(*device(), {over(kernel, data, groups, 33)}).wait(), "");
    bool right = data.back() == 0;
    for (std::uint32_t i = 0; i + 1 < data.size(); ++i) right = right && data[i] == i + 1;
    CHECK(right);
  }
}

#if !defined(METALANE_ASAN) && !defined(METALANE_TSAN)
TEST_CASE(launches_allocate_nothing_on_their_threads) {
  is_worker = false;
  const auto plain = pipeline<store_index>("store_index");
  const auto waiting = pipeline<rotate>("rotate");
  std::vector<std::uint32_t> data(256 * 4);
  const auto allocations_of = [&](std::size_t launches) {
    std::vector<Dispatch> dispatches;
    for (std::size_t i = 0; i < launches; ++i) {
      dispatches.push_back(over(i % 2 == 0 ? plain : waiting, data, 4, 256));
    }
    const std::uint64_t before = worker_allocations.load();
    CHECK_EQ(Pending(*device(), dispatches).wait(), "");
    return worker_allocations.load() - before;
  };
  CHECK(allocations_of(100) > 0);  // fibers and whatever else a thread makes once
  const std::uint64_t few = allocations_of(2);
  CHECK(allocations_of(500) <= few + 2);
}
#endif

#if defined(__linux__)
TEST_CASE(threads_leave_processors_that_others_have) {
  cpu_set_t allowed, after;
  CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int round = 0; round < 20; ++round) {
    const int here = cpu::current_processor();
    cpu::leave_processors(std::array{here, -1, 1 << 20});
    if (CPU_COUNT(&allowed) == 1) CHECK_EQ(cpu::current_processor(), here);
    CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&allowed, &after));
  }
}

TEST_CASE(a_thread_that_waits_for_this_processor_can_be_sent_away) {
  cpu_set_t allowed, here, after;
  CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const int mine = cpu::current_processor();
  CPU_ZERO(&here);
  CPU_SET(static_cast<unsigned>(mine), &here);
  CHECK_EQ(sched_setaffinity(0, sizeof here, &here), 0);
  std::atomic<int> ran_on{-1};
  std::atomic<bool> ends{false};
  std::thread waiting([&] {  // behind this one, which does not sleep
    ran_on.store(cpu::current_processor());
    while (!ends.load()) std::this_thread::yield();
  });
  cpu::send_away(waiting);  // it may go nowhere else
  CHECK_EQ(pthread_getaffinity_np(waiting.native_handle(), sizeof after, &after), 0);
  CHECK(CPU_EQUAL(&here, &after));
  CHECK_EQ(pthread_setaffinity_np(waiting.native_handle(), sizeof allowed, &allowed), 0);
  cpu::send_away(waiting);
  CHECK_EQ(pthread_getaffinity_np(waiting.native_handle(), sizeof after, &after), 0);
  CHECK(CPU_EQUAL(&allowed, &after));
  while (ran_on.load() < 0) {
  }
  ends.store(true);
  waiting.join();
  CHECK_EQ(sched_setaffinity(0, sizeof allowed, &allowed), 0);
}
#endif

TEST_CASE(quotas_of_control_groups_limit_processors) {
  std::string root = (std::filesystem::temp_directory_path() / "metalane-groups-XXXXXX").string();
  CHECK(mkdtemp(root.data()) != nullptr);
  const auto write = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = root + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  const auto processors = [&](const std::string& groups) {
    std::istringstream stream(groups);
    return cpu::processors_by_quota(stream, root);
  };
  CHECK_EQ(processors("0::/a/b\n"), 0u);  // no such folder
  CHECK_EQ(processors(""), 0u);
  CHECK_EQ(processors("nonsense\n0:\n::\n"), 0u);
  write("a/b/cpu.max", "max 100000\n");
  CHECK_EQ(processors("0::/a/b\n"), 0u);
  write("a/cpu.max", "250000 100000\n");
  CHECK_EQ(processors("0::/a/b\n"), 3u);  // a group's limit holds for those within it
  write("a/b/cpu.max", "50000 100000\n");
  CHECK_EQ(processors("0::/a/b\n"), 1u);
  CHECK_EQ(processors("0::/a\n"), 3u);
  CHECK_EQ(processors("0::/elsewhere/c\n"), 0u);
  write("a/b/cpu.max", "0 0\n");
  CHECK_EQ(processors("0::/a/b\n"), 3u);
  write("cpu.max", "200000 100000\n");  // as within a container
  CHECK_EQ(processors("0::/elsewhere/c\n"), 2u);
  CHECK_EQ(processors("0::/\n"), 2u);
  std::filesystem::remove(root + "/cpu.max");
  write("cpu/x/cpu.cfs_quota_us", "400000\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(processors("3:cpuset:/x\n2:cpu,cpuacct:/x\n1:cpuacct:/x\n0::/\n"), 4u);
  write("cpu/x/cpu.cfs_quota_us", "-1\n");
  CHECK_EQ(processors("2:cpu,cpuacct:/x\n"), 0u);
  std::filesystem::remove_all(root);
}

TEST_CASE(barriers_order_threads) {
  const auto kernel = pipeline<rotate>("rotate");
  std::vector<std::uint32_t> sizes = {1, 2, 31, 32, 33, 256};
#if !defined(__SANITIZE_THREAD__)  // which takes milliseconds to make a fiber
  sizes.insert(sizes.end(), {1000, 1024});
#endif
  for (const std::uint32_t threads : sizes) {
    std::vector<std::uint32_t> data(threads * 3);
    CHECK_EQ(Pending(*device(), {over(kernel, data, 3, threads)}).wait(), "");
    bool right = true;
    for (std::uint32_t i = 0; i < data.size(); ++i) right = right && data[i] == (i % threads + 50) % threads;
    CHECK(right);
  }
}

TEST_CASE(collectives_take_the_lanes_at_one_site) {
  std::vector<std::uint32_t> data(70);
  CHECK_EQ(Pending(*device(), {over(pipeline<sum_all>("sum_all"), data, 1, 70)}).wait(), "");
  CHECK_EQ(data[0], 496u);
  CHECK_EQ(data[63], 496u);
  CHECK_EQ(data[69], 15u);  // six lanes in the last simdgroup
  CHECK_EQ(Pending(*device(), {over(pipeline<sum_in_loop>("sum_in_loop"), data, 1, 32)}).wait(), "");
  // In round i the lanes above i take part; then all 32 meet behind the loop, whose site is higher.
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    std::uint32_t total = 0;
    for (std::uint32_t i = 0; i < lane; ++i) total += 31 - i;
    CHECK_EQ(data[lane], total * 1000 + 32);
  }
}

TEST_CASE(one_site_may_be_several_collectives) {
  std::vector<double> data(38);
  const auto kernel = pipeline<sum_by_type>("sum_by_type");
  Dispatch dispatch{kernel.get(), {{data.data(), data.size() * 8}}};
  dispatch.threads[0] = 38;
  CHECK_EQ(Pending(*device(), {dispatch}).wait(), "");
  for (std::uint32_t thread = 0; thread < 38; ++thread) {
    const std::uint32_t lanes = thread < 32 ? 32 : 6;
    double expected = 0;
    for (std::uint32_t lane = thread % 32 % 3; lane < lanes; lane += 3) {
      expected += lane % 3 == 0 ? 1000 + lane : lane % 3 == 1 ? lane : 0.5 * lane;
    }
    CHECK_EQ(data[thread], expected + 1000000.0 * lanes);
  }
}

TEST_CASE(lanes_are_found_where_they_wait) {
  std::vector<std::uint32_t> data(64);
  const auto kernel = pipeline<sum_at_depths>("sum_at_depths");
  CHECK_EQ(Pending(*device(), {over(kernel, data, 1, 64)}).wait(), "");
  for (std::uint32_t thread = 0; thread < 64; ++thread)
    CHECK_EQ(data[thread], 32000u + (thread % 32 >= 29 ? 40 * 3 : 0));
}

TEST_CASE(lanes_meet_that_came_by_one_path) {
  std::vector<std::uint32_t> data(40);
  const auto kernel = pipeline<sum_on_paths, true>("sum_on_paths");
  const auto keeps_none = pipeline<sum_in_loop>("sum_in_loop");
  // The second launch finds no path of the first.
  CHECK_EQ(Pending(*device(), {over(kernel, data, 1, 40)}).wait(), "");
  for (std::uint32_t thread = 0; thread < 40; ++thread) {
    const std::uint32_t lanes = thread < 32 ? 32 : 8, lane = thread % 32;
    std::uint32_t expected = 0;
    for (std::uint32_t turn = 1; turn <= 4; ++turn) {
      if ((lane + turn) % 3 != 0) continue;
      for (std::uint32_t other = 0; other < lanes; ++other) {
        if ((other + turn) % 3 == 0 && other % 2 == lane % 2) expected += 100 * turn + other;
      }
    }
    for (std::uint32_t other = 0; other < lanes; ++other) expected += (other % 2 == lane % 2) * 10000;
    CHECK_EQ(data[thread], expected + 1000000 * lanes);
  }
  std::vector<std::uint32_t> second(32);
  CHECK_EQ(Pending(*device(), {over(keeps_none, second, 1, 32)}).wait(), "");
  CHECK_EQ(second[0], 32u);
}

TEST_CASE(incomplete_barriers_fail_and_name_both_places) {
  std::vector<std::uint32_t> data(64);
  std::string message;
  CHECK_EQ(Pending(*device(), {over(pipeline<half_barrier>("half"), data, 2, 48)}).wait(&message), "barrier");
  CHECK(has(message, "kernel 'half'") && has(message, "16 threads") && has(message, "k.metal:10:3"));
  CHECK(has(message, "32 threads") && has(message, "finished") && has(message, "threadgroup ["));
  CHECK(!has(message, "undefined"));
  CHECK_EQ(Pending(*device(), {over(pipeline<first_lanes_barrier>("first"), data, 1, 64)}).wait(&message),
           "barrier");
  CHECK(has(message, "2 threads") && has(message, "62 threads") && has(message, "Metal leaves undefined"));
  CHECK_EQ(Pending(*device(), {over(pipeline<two_barriers>("two"), data, 1, 64)}).wait(&message), "barrier");
  CHECK(has(message, "k.metal:10:3") && has(message, "k.metal:20:5") && !has(message, "undefined"));
  expect_usable();
}

TEST_CASE(faults_name_kernel_threadgroup_thread_and_address) {
  std::vector<std::uint32_t> data(64);
  std::string message;
  CHECK_EQ(Pending(*device(), {over(pipeline<wild_store>("wild"), data, 8, 32)}).wait(&message), "fault");
  CHECK(has(message, "kernel 'wild'") && has(message, "threadgroup [3, 0, 0]") &&
        has(message, "thread 5 [5, 0, 0]"));
  CHECK(has(message, "0x40"));
  CHECK_EQ(
      Pending(*device(), {over(pipeline<wild_store_among_waiting>("waiting"), data, 1, 64)}).wait(&message),
      "fault");
  CHECK(has(message, "thread 40"));
  expect_usable();
}

TEST_CASE(stack_overflow_is_told_apart) {
  std::vector<std::uint32_t> data(64);
  std::string message;
  CHECK_EQ(Pending(*device(), {over(pipeline<recurse>("recurse"), data, 1, 1)}).wait(&message),
           "stack-overflow");
  CHECK(has(message, "kernel 'recurse'"));
  expect_usable();
}

TEST_CASE(time_limits_end_loops_on_all_workers) {
  std::vector<std::uint32_t> data(64);
  std::string message;
  CHECK_EQ(Pending(*device(), {over(pipeline<endless>("endless"), data, 8, 4)}, 0.05).wait(&message),
           "timeout");
  CHECK(has(message, "kernel 'endless'") && has(message, "0.05 s"));
  CHECK_EQ(Pending(*device(), {over(pipeline<endless_barriers>("endless"), data, 8, 64)}, 0.05).wait(),
           "timeout");
  expect_usable();
  // A limit that is not reached.
  CHECK_EQ(Pending(*device(), {over(pipeline<store_index>("store_index"), data, 1, 64)}, 60.0).wait(), "");
}

TEST_CASE(cancel_ends_what_runs_and_what_waits) {
  std::vector<std::uint32_t> data(64), second(64);
  const auto loop = pipeline<endless>("endless");
  const auto store = pipeline<store_index>("store_index");
  Pending running(*device(), {over(loop, data, 4, 4)});
  Pending waiting(*device(), {over(store, second, 1, 64)});
  device()->cancel_all();
  CHECK_EQ(running.wait(), "cancelled");
  CHECK_EQ(waiting.wait(), "cancelled");
  CHECK_EQ(second[0], 0u);
  expect_usable();
}

TEST_CASE(a_failure_spares_the_next_submission) {
  std::vector<std::uint32_t> data(64);
  const auto bad = pipeline<wild_store>("wild");
  const auto good = pipeline<store_index>("store_index");
  Pending first(*device(), {over(bad, data, 8, 32), over(good, data, 1, 64)});
  Pending second(*device(), {over(good, data, 1, 64)});
  CHECK_EQ(first.wait(), "fault");
  CHECK_EQ(second.wait(), "");
  CHECK_EQ(data[63], 64u);  // once: the launch behind the fault did not run
}

TEST_CASE(division_by_zero_gives_some_value) {
  std::vector<std::uint32_t> data(64);
  CHECK_EQ(Pending(*device(), {over(pipeline<divide>("divide"), data, 1, 64)}).wait(), "");
  CHECK_EQ(data[63], 77u);
}

TEST_CASE(foreign_faults_reach_the_handler_that_stood_before) {
  static std::atomic<int> seen{0};
  struct sigaction action = {}, before = {}, after = {};
  action.sa_handler = [](int) { ++seen; };
  sigaction(SIGFPE, &action, &before);
  std::vector<std::uint32_t> data(64);
  const auto loop = pipeline<endless>("endless");
  Pending pending(*device(), {over(loop, data, 1, 1)});
  struct sigaction current = {};
  do {
    sigaction(SIGFPE, nullptr, &current);
  } while (current.sa_handler == action.sa_handler);  // until the launch runs
  raise(SIGFPE);
  CHECK_EQ(seen.load(), 1);
  __atomic_store_n(&data[0], 1u, __ATOMIC_SEQ_CST);  // std::atomic_ref came late to Apple's library
  CHECK_EQ(pending.wait(), "");
  sigaction(SIGFPE, &before, &after);
  CHECK(after.sa_handler == action.sa_handler);
}

TEST_CASE(ragged_grids_have_smaller_last_threadgroups) {
  std::vector<std::uint32_t> data(100, 0);
  const auto kernel = pipeline<store_index>("store_index");
  Dispatch dispatch = over(kernel, data, 75, 32);
  dispatch.kind = Grid::Kind::threads;
  CHECK_EQ(Pending(*device(), {dispatch}).wait(), "");
  CHECK_EQ(data[74], 75u);
  CHECK_EQ(data[75], 0u);
}

TEST_CASE(indirect_counts_are_read_when_the_launch_starts) {
  std::vector<std::uint32_t> data(100, 0);
  std::uint32_t counts[3] = {2, 1, 1};
  const auto kernel = pipeline<store_index>("store_index");
  Dispatch dispatch = over(kernel, data, 0, 8);
  dispatch.kind = Grid::Kind::indirect;
  dispatch.counts = counts;
  CHECK_EQ(Pending(*device(), {dispatch}).wait(), "");
  CHECK_EQ(data[15], 16u);
  CHECK_EQ(data[16], 0u);
  counts[1] = 0;
  CHECK_EQ(Pending(*device(), {dispatch}).wait(), "");
  CHECK_EQ(data[15], 16u);
  counts[0] = 0xffffffffu;
  counts[1] = 1;
  std::string message;
  CHECK_EQ(Pending(*device(), {dispatch}).wait(&message), "indirect");
  CHECK(has(message, "4294967295"));
}

TEST_CASE(devices_are_independent) {
  const auto other = cpu::open_device({});
  std::vector<std::uint32_t> data(64), flag(64);
  const auto loop = pipeline<endless>("endless");
  Pending stuck(*device(), {over(loop, flag, 1, 1)});
  CHECK_EQ(Pending(*other, {over(pipeline<store_index>("store_index"), data, 1, 64)}).wait(), "");
  __atomic_store_n(&flag[0], 1u, __ATOMIC_SEQ_CST);  // std::atomic_ref came late to Apple's library
  CHECK_EQ(stuck.wait(), "");
}

CHECK_MAIN()
