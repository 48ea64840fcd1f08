// Runs threadgroups of one kernel module on one OS thread: the executor's side of module_abi.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/fiber.h"
#include "msl/stdlib/module_abi.h"

namespace metalane::cpu {

constexpr std::uint32_t max_threads_per_threadgroup = 1024;
constexpr std::uint32_t max_threadgroup_memory = 32 * 1024;
constexpr std::uint32_t threadgroup_argument_alignment = 16;

// Integers, because the members of std::atomic<bool> may stay out of line, where METALANE_NO_TSAN does not
// reach.
using AtomicFlag = std::atomic<int>;

// What compiled modules call.
const metalane_runtime& module_runtime();

// Is told what a threadgroup does, by the thread that runs it: the checker.
class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  // The lanes of simdgroup `index` run next.
  virtual void enter_simdgroup(std::uint32_t index) noexcept = 0;
  // Every thread has reached the barrier.
  virtual void barrier(std::uint32_t site) noexcept = 0;
  // These lanes of the simdgroup that was entered last have met, and are combined now.
  virtual void collective(std::uint32_t site, std::uint32_t active) noexcept = 0;
};

// Schedules the threads of one threadgroup after another. Not thread-safe: one a worker.
//
// Simdgroups run in order, each until none of its lanes can go on. Lanes that wait at collectives are then
// served, the earliest path and site first; lanes at a barrier wait until no simdgroup can go on. A fiber
// that must wait hands over to the next one directly, so that a barrier costs one switch a thread.
class ThreadgroupRunner : private metalane_group {  // so that the group's address is the runner's
 public:
  enum class Outcome : std::uint8_t { done, incomplete_barrier, no_memory, left };

  // `stop`: when it is not 0, no further thread is started and run() returns `left`.
  explicit ThreadgroupRunner(const AtomicFlag& stop);
  ~ThreadgroupRunner();
  ThreadgroupRunner(const ThreadgroupRunner&) = delete;
  ThreadgroupRunner& operator=(const ThreadgroupRunner&) = delete;

  // False when the system gives no memory. To be called once, by the thread that will call run().
  bool prepare();

  // Runs the threadgroup of launch `of` at position `at` with `shape` threads an axis. After `left` by a
  // signal handler (force_leave) or a failure the runner is as new.
  Outcome run(const metalane_module& module, const metalane_launch& of, const std::uint32_t at[3],
              const std::uint32_t shape[3]);
  // Runs `function(context)` on a fiber, so that it can be left by force_leave() as a kernel can.
  Outcome run_function(void (*function)(const void*), const void* context);

  // From a signal handler on this OS thread: whether the signal met a fiber, and leaving it for good. run()
  // then returns `left`.
  bool on_fiber(void* signal_context) const noexcept;
  bool is_stack_guard(std::uintptr_t address) const noexcept;
  void force_leave(void* signal_context) noexcept;
  // Whether a fiber may be left where it is. Under a sanitizer only in kernel code, since the scheduler calls
  // the sanitizer's runtime; it looks at the stop flag itself when it goes back there.
  bool in_kernel() const noexcept;

  // For runs from now on; `memory` in place of the runner's own threadgroup memory. Null: as before.
  void observe(GroupObserver* observer, std::uint8_t* memory) noexcept;
  const metalane_group& group() const noexcept { return *this; }
  // From code that the running thread called: leaves the threadgroup for good, run() returns `left`.
  [[noreturn]] void leave() noexcept;
  // Whether an address is on a fiber's stack or in the runner, where lanes leave what they exchange.
  bool is_own(std::uintptr_t address) const noexcept;
  bool stop_requested() const noexcept { return stop_.load(std::memory_order_relaxed) != 0; }
  // Whether a signal handler may leave the fiber; returns what was set before. Whoever sets it looks at
  // stop_requested() when it is over.
  bool set_leavable(bool leavable) noexcept {
    const bool before = leavable_.load(std::memory_order_relaxed) != 0;
    leavable_.store(leavable ? 1 : 0, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return before;
  }

  // After `incomplete_barrier`: the lowest thread that waits, and where.
  struct BarrierPlace {
    std::uint32_t thread;
    std::uint32_t site;
  };
  BarrierPlace incomplete_barrier() const noexcept;

  // While an observer is told of a collective: the lanes of its simdgroup that wait somewhere, by bits.
  std::uint32_t waiting_lanes() const noexcept { return at_collective_ | at_barrier_[current_simdgroup_]; }

  // The thread that ran last: "thread 37 [5, 1, 0]".
  std::string current_thread_name() const { return thread_name(current_thread); }
  // After `incomplete_barrier`: who waits where.
  std::string describe_barrier(const metalane_module& module) const;
  // While an observer is told of a collective: where the lanes of its simdgroup are.
  std::string describe_collective(const metalane_module& module, std::uint32_t active) const;

 private:
  static constexpr std::uint32_t turns_ahead = 4;
  static constexpr std::uint32_t max_simdgroups = max_threads_per_threadgroup / METALANE_SIMD_WIDTH;

  friend const metalane_runtime& module_runtime();
  static void threadgroup_barrier(metalane_group* group, std::uint32_t site);
  static void simd_collective(metalane_group* group, std::uint32_t site, metalane_combine combine,
                              void* operand);
  static void fiber_main(void* runner);

  void enter_simdgroup(std::uint32_t index) noexcept;
  Outcome run_fibers();
  // The fiber that goes on next; the main fiber when the threadgroup is over or cannot go on.
  Fiber* next() noexcept;
  static ThreadgroupRunner& of_group(metalane_group* group) noexcept {
    return *static_cast<ThreadgroupRunner*>(group);
  }
  void look_ahead() noexcept;
  template <bool on_path>
  void take_runnable() noexcept;
  bool complete_barrier() noexcept;
  std::uint32_t earliest_collective() const noexcept;
  void resolve_collective() noexcept;
  template <bool on_path>
  void wait_at_collective(std::uint32_t site, metalane_combine combine, void* operand) noexcept;
  template <bool on_path>
  void wait_at_barrier(std::uint32_t site) noexcept;
  template <bool on_path>
  void park() noexcept;
  void park_until_next() noexcept;
  void enter_kernel() noexcept;
  void leave_kernel() noexcept;
  bool waits_at_barrier(std::uint32_t thread) const noexcept {
    return (at_barrier_[thread / METALANE_SIMD_WIDTH] >> thread % METALANE_SIMD_WIDTH & 1u) != 0;
  }
  // The site that a thread waits at, or `finished`.
  static constexpr std::uint32_t finished = ~0u;
  std::uint32_t site_of(std::uint32_t thread) const noexcept;
  std::string thread_name(std::uint32_t thread) const;
  std::string thread_names(const std::vector<std::uint32_t>& threads) const;
  std::string describe_places(const metalane_module& module, std::uint32_t begin, std::uint32_t end,
                              std::uint32_t active) const;

  const AtomicFlag& stop_;
  Fiber main_;
  Fiber* current_ = nullptr;
  const metalane_module* module_ = nullptr;
  void (*function_)(const void*) = nullptr;
  const void* function_context_ = nullptr;
  bool keeps_paths_ = false;  // the module does
  bool wants_fiber_ = false;
  volatile bool left_ = false;
  AtomicFlag in_kernel_{0};  // kept under sanitizers only
  AtomicFlag leavable_{1};
  GroupObserver* observer_ = nullptr;
  std::uint8_t* own_threadgroup_memory_ = nullptr;
  Outcome outcome_ = Outcome::done;

  // The simdgroup whose turn it is; bit i of a mask: lane i. No other one has lanes that can go on, or that
  // wait at a collective.
  std::uint32_t simdgroup_count_ = 0;
  std::uint32_t current_simdgroup_ = 0;
  std::uint32_t runnable_ = 0;
  // Of the highest runnable lane, looked up in time: a switch waits for one load, not for four. Null: there
  // is none, or it is not known yet where it is suspended.
  std::uint32_t ahead_thread_ = 0;
  Fiber* ahead_ = nullptr;
  void* ahead_stack_pointer_ = nullptr;
  std::uint32_t at_collective_ = 0;
  bool collectives_differ_ = false;  // from the first lane's there
  std::uint32_t first_site_ = 0;
  const metalane_path* first_path_ = nullptr;
  metalane_combine first_combine_ = nullptr;
  std::uint32_t site_of_lane_[METALANE_SIMD_WIDTH];  // these three: of lanes in at_collective_
  metalane_combine combine_of_lane_[METALANE_SIMD_WIDTH];
  void* operand_of_lane_[METALANE_SIMD_WIDTH];

  std::uint32_t barrier_waiters_ = 0;
  std::uint32_t barrier_site_ = 0;
  bool barrier_sites_differ_ = false;
  std::uint32_t at_barrier_[max_simdgroups];
  std::uint32_t barrier_site_of_[max_threads_per_threadgroup];
  const metalane_path* path_of_[max_threads_per_threadgroup];  // of threads that wait and keep one
  // Of threads that have waited once; always a fiber, also behind the last thread.
  Fiber* fiber_of_[max_threads_per_threadgroup + METALANE_SIMD_WIDTH];

  FiberPool fibers_;
  std::uint8_t* memory_mapping_ = nullptr;  // threadgroup memory between two guard pages
  std::size_t memory_mapping_bytes_ = 0;
};

}  // namespace metalane::cpu
