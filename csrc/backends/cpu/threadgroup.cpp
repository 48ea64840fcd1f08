// Scheduling of threads, simdgroup collectives and threadgroup barriers within one threadgroup.
#include "backends/cpu/threadgroup.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

namespace metalane::cpu {
namespace {

constexpr std::uint32_t simd_width = METALANE_SIMD_WIDTH;

// The module's own variables and every argument may each be rounded up.
constexpr std::size_t threadgroup_memory_bytes =
    max_threadgroup_memory + METALANE_MAX_THREADGROUP_ARGS * threadgroup_argument_alignment + 4096;

std::string place_of(const metalane_module& module, std::uint32_t site) {
  if (site >= module.site_count) return "an unknown place";
  const metalane_site& place = module.sites[site];
  return std::string(place.operation) + " at " + place.file + ":" + std::to_string(place.line) + ":" +
         std::to_string(place.column);
}

// Whether a thread at one place is behind (-1) a thread at another or before it (1): by the outermost
// difference of their paths, of which the site is the last element.
int compare_places(const metalane_path* path, std::uint32_t site, const metalane_path* other_path,
                   std::uint32_t other_site) noexcept {
  const auto length = [](const metalane_path* p) { return p != nullptr ? p->depth + 1 : 0; };
  const auto compare = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : 0; };
  while (length(path) > length(other_path)) site = path->place, path = path->outer;
  while (length(other_path) > length(path)) other_site = other_path->place, other_path = other_path->outer;
  int result = compare(site, other_site);
  for (; path != nullptr; path = path->outer, other_path = other_path->outer) {
    const int place = compare(path->place, other_path->place);
    const int element = place != 0 ? place : compare(path->turn, other_path->turn);
    if (element != 0) result = element;
  }
  return result;
}

// What compare_places() == 0 says of paths, for lanes that mostly came the same way.
METALANE_NO_TSAN inline bool is_same_path(const metalane_path* path, const metalane_path* other) noexcept {
  while (path != nullptr && other != nullptr) {
    if (path->turn != other->turn || path->place != other->place) return false;
    path = path->outer, other = other->outer;
  }
  return path == other;
}

}  // namespace

METALANE_NO_TSAN const metalane_runtime& module_runtime() {
  static const metalane_runtime runtime = {&ThreadgroupRunner::threadgroup_barrier,
                                           &ThreadgroupRunner::simd_collective};
  return runtime;
}

ThreadgroupRunner::ThreadgroupRunner(const AtomicFlag& stop)
    : metalane_group{}, stop_(stop), fibers_(&ThreadgroupRunner::fiber_main, this) {
  std::fill(std::begin(fiber_of_), std::end(fiber_of_), &main_);
}

ThreadgroupRunner::~ThreadgroupRunner() {
  if (memory_mapping_ != nullptr) munmap(memory_mapping_, memory_mapping_bytes_);
}

bool ThreadgroupRunner::prepare() {
  adopt_current_thread(main_);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t usable = (threadgroup_memory_bytes + page - 1) / page * page;
  memory_mapping_bytes_ = usable + 2 * page;
  void* mapping = mmap(nullptr, memory_mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return false;
  memory_mapping_ = static_cast<std::uint8_t*>(mapping);
  if (mprotect(memory_mapping_ + page, usable, PROT_READ | PROT_WRITE) != 0) return false;
  threadgroup_memory = own_threadgroup_memory_ = memory_mapping_ + page;
  return fibers_.grow();
}

ThreadgroupRunner::Outcome ThreadgroupRunner::run(const metalane_module& module, const metalane_launch& of,
                                                  const std::uint32_t at[3], const std::uint32_t shape[3]) {
  module_ = &module;
  keeps_paths_ = module.keeps_paths != 0;
  launch = &of;
  for (int axis = 0; axis < 3; ++axis) {
    position[axis] = at[axis];
    threads[axis] = shape[axis];
  }
  thread_count = shape[0] * shape[1] * shape[2];
  current_thread = 0;
  next_thread = 0;
  finished_threads = 0;
  simdgroup_count_ = (thread_count + simd_width - 1) / simd_width;
  std::memset(at_barrier_, 0, simdgroup_count_ * sizeof at_barrier_[0]);
  runnable_ = 0;
  ahead_stack_pointer_ = nullptr;
  at_collective_ = 0;
  barrier_waiters_ = 0;
  enter_simdgroup(0);
  return run_fibers();
}

ThreadgroupRunner::Outcome ThreadgroupRunner::run_function(void (*function)(const void*),
                                                           const void* context) {
  function_ = function;
  function_context_ = context;
  module_ = nullptr;
  current_thread = 0;
  next_thread = 0;
  end_thread = 1;
  simdgroup_count_ = 0;
  current_simdgroup_ = 0;
  runnable_ = 0;
  ahead_stack_pointer_ = nullptr;
  at_collective_ = 0;
  barrier_waiters_ = 0;
  return run_fibers();
}

// For the first time its threads are taken one after another; then all of them come from a complete barrier.
void ThreadgroupRunner::enter_simdgroup(std::uint32_t index) noexcept {
  current_simdgroup_ = index;
  if (observer_ != nullptr) [[unlikely]]
    observer_->enter_simdgroup(index);
  const std::uint32_t begin = index * simd_width;
  const std::uint32_t lanes = std::min(thread_count - begin, simd_width);
  if (next_thread == thread_count) {
    runnable_ = ~0u >> (simd_width - lanes);
  } else {
    end_thread = begin + lanes;
  }
}

ThreadgroupRunner::Outcome ThreadgroupRunner::run_fibers() {
  left_ = false;
  outcome_ = Outcome::done;
  for (;;) {
    wants_fiber_ = false;
    Fiber* fiber = next();
    if (fiber != &main_) {
      current_ = fiber;
      switch_fiber(main_, *fiber);
    }
    if (left_) {
      finish_forced_switch(main_);
      leave_kernel();
      outcome_ = Outcome::left;
    }
    if (!wants_fiber_ || outcome_ != Outcome::done) break;
    // Memory is asked for here, where no signal can cut the call short.
    if (!fibers_.grow()) outcome_ = Outcome::no_memory;
    if (outcome_ != Outcome::done) break;
  }
  if (outcome_ != Outcome::done) fibers_.reset();
  return outcome_;
}

// Leaves for the main fiber when a stop came too early for a signal handler to leave this one. The order
// matters: a stop that finds the flag unset relies on the look at stop_ behind it.
METALANE_NO_TSAN inline void ThreadgroupRunner::enter_kernel() noexcept {
  if constexpr (fiber_hooks) {
    in_kernel_.store(1, std::memory_order_relaxed);
    // The handler runs on this thread: what must not happen is that the compiler swaps the two.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  if (stop_.load(std::memory_order_relaxed) == 0) return;
  leave_kernel();
  outcome_ = Outcome::left;
  Fiber* self = current_;
  current_ = &main_;
  switch_fiber(*self, main_);
}

METALANE_NO_TSAN inline void ThreadgroupRunner::leave_kernel() noexcept {
  if constexpr (fiber_hooks) in_kernel_.store(0, std::memory_order_relaxed);
}

// Every fiber: take the threads that are due, hand over, and begin again when taken from the idle list.
METALANE_NO_TSAN void ThreadgroupRunner::fiber_main(void* argument) {
  auto& runner = *static_cast<ThreadgroupRunner*>(argument);
  finish_first_switch();
  Fiber* const self = runner.current_;
  for (;;) {
    runner.enter_kernel();
    if (runner.module_ != nullptr) {
      runner.module_->entry(&runner);
    } else {
      runner.next_thread = 1;
      runner.function_(runner.function_context_);
    }
    runner.leave_kernel();
    runner.fibers_.put(self);
    Fiber* target = runner.next();
    if (target == self) continue;
    runner.current_ = target;
    switch_fiber(*self, *target);
  }
}

// The highest lane comes first, as modules take them (csrc/msl/lockstep.h says why).
METALANE_NO_TSAN inline void ThreadgroupRunner::look_ahead() noexcept {
  const std::uint32_t lane = simd_width - 1 - static_cast<std::uint32_t>(std::countl_zero(runnable_ | 1u));
  ahead_thread_ = current_simdgroup_ * simd_width + lane;
  ahead_ = fiber_of_[ahead_thread_];
  ahead_stack_pointer_ = runnable_ != 0 ? ahead_->stack_pointer : nullptr;
}

// Takes the thread that is ahead, and looks for the next one.
// Asks for the part of a stack that a switch reads some turns ahead: a barrier over 256 threads takes 35 %
// less time, over 1,024 40 %, a collective 15 %. One line, or six turns, gave half of that.
template <bool on_path>
METALANE_NO_TSAN inline void ThreadgroupRunner::take_runnable() noexcept {
  const std::uint32_t thread = ahead_thread_, lane = thread % simd_width;
  current_thread = thread;
  if constexpr (on_path) path = path_of_[thread];  // others have changed it meanwhile
  current_ = ahead_;
  runnable_ ^= 1u << lane;
  look_ahead();
  // The lowest lanes are followed by the next simdgroup's highest.
  const std::uint32_t coming = thread - turns_ahead + (lane < turns_ahead ? 2 * simd_width : 0);
  const auto stack = reinterpret_cast<std::uintptr_t>(fiber_of_[coming]->stack_pointer);
  __builtin_prefetch(reinterpret_cast<const void*>(stack), 1);
  __builtin_prefetch(reinterpret_cast<const void*>(stack + 64), 1);
}

// From the main fiber only a fresh one comes next: it looks at stop_, which others need not.
Fiber* ThreadgroupRunner::next() noexcept {
  for (;;) {
    if (runnable_ != 0) {
      look_ahead();
      keeps_paths_ ? take_runnable<true>() : take_runnable<false>();
      return current_;
    }
    if (next_thread < end_thread) {
      Fiber* fresh = fibers_.take();
      if (fresh != nullptr) return fresh;
      wants_fiber_ = true;
      return &main_;
    }
    if (at_collective_ != 0) {
      resolve_collective();
    } else if (current_simdgroup_ + 1 < simdgroup_count_) {
      enter_simdgroup(current_simdgroup_ + 1);
    } else if (!complete_barrier()) {
      return &main_;
    }
  }
}

// No simdgroup can go on: releases a complete barrier, or ends the threadgroup.
bool ThreadgroupRunner::complete_barrier() noexcept {
  if (barrier_waiters_ == 0) return false;
  if (barrier_waiters_ != thread_count || barrier_sites_differ_) {
    outcome_ = Outcome::incomplete_barrier;
    return false;
  }
  if (observer_ != nullptr) [[unlikely]]
    observer_->barrier(barrier_site_);
  std::memset(at_barrier_, 0, simdgroup_count_ * sizeof at_barrier_[0]);
  barrier_waiters_ = 0;
  enter_simdgroup(0);
  return true;
}

// The lanes that wait at the earliest place for the same operation as the lowest of them.
std::uint32_t ThreadgroupRunner::earliest_collective() const noexcept {
  const auto path_of = [this](int lane) {
    return keeps_paths_ ? path_of_[current_simdgroup_ * simd_width + static_cast<std::uint32_t>(lane)]
                        : nullptr;
  };
  int first = std::countr_zero(at_collective_);
  std::uint32_t active = 0;
  for (std::uint32_t waiting = at_collective_; waiting != 0; waiting &= waiting - 1) {
    const int lane = std::countr_zero(waiting);
    const int order =
        compare_places(path_of(lane), site_of_lane_[lane], path_of(first), site_of_lane_[first]);
    if (order < 0) {
      first = lane;
      active = 0;
    }
    if (order <= 0 && combine_of_lane_[lane] == combine_of_lane_[first]) active |= 1u << lane;
  }
  return active;
}

void ThreadgroupRunner::resolve_collective() noexcept {
  const std::uint32_t active = collectives_differ_ ? earliest_collective() : at_collective_;
  const std::uint32_t threads = thread_count - current_simdgroup_ * simd_width;
  const metalane_lanes lanes = {active, std::min(threads, simd_width), operand_of_lane_};
  if (observer_ != nullptr) [[unlikely]]
    observer_->collective(site_of_lane_[static_cast<std::uint32_t>(std::countr_zero(active)) % simd_width],
                          active);
  combine_of_lane_[std::countr_zero(active)](&lanes);
  at_collective_ &= ~active;
  runnable_ = active;
}

// Hands over to the fiber that goes on next. The common case is another lane of the simdgroup; nothing is
// left to do behind its switch, so that a lane's whole way through a rendezvous is one leaf function and a
// jump.
template <bool on_path>
METALANE_NO_TSAN inline void ThreadgroupRunner::park() noexcept {
  void* target = ahead_stack_pointer_;
  if (fiber_hooks || target == nullptr) return park_until_next();
  Fiber* self = current_;
  take_runnable<on_path>();
  metalane_fiber_switch(&self->stack_pointer, target);
}

METALANE_NO_TSAN __attribute__((noinline)) void ThreadgroupRunner::park_until_next() noexcept {
  Fiber* self = current_;
  Fiber* target = next();
  if (target != self) {
    // Only the switch will say where this one is suspended.
    if (ahead_ == self) ahead_stack_pointer_ = nullptr;
    current_ = target;
    switch_fiber(*self, *target);
  }
  if constexpr (fiber_hooks) enter_kernel();
}

template <bool on_path>
METALANE_NO_TSAN inline void ThreadgroupRunner::wait_at_barrier(std::uint32_t site) noexcept {
  const std::uint32_t thread = current_thread;
  fiber_of_[thread] = current_;
  barrier_site_of_[thread] = site;
  if constexpr (on_path) path_of_[thread] = path;
  at_barrier_[current_simdgroup_] |= 1u << thread % simd_width;
  if (barrier_waiters_++ == 0) {
    barrier_site_ = site;
    barrier_sites_differ_ = false;
  } else if (barrier_site_ != site) {
    barrier_sites_differ_ = true;
  }
  park<on_path>();
}

template <bool on_path>
METALANE_NO_TSAN inline void ThreadgroupRunner::wait_at_collective(std::uint32_t site,
                                                                   metalane_combine combine,
                                                                   void* operand) noexcept {
  const std::uint32_t thread = current_thread;
  const std::uint32_t lane = thread % simd_width;
  fiber_of_[thread] = current_;
  site_of_lane_[lane] = site;
  combine_of_lane_[lane] = combine;
  operand_of_lane_[lane] = operand;
  if constexpr (on_path) path_of_[thread] = path;
  if (at_collective_ == 0) {
    first_site_ = site;
    first_combine_ = combine;
    if constexpr (on_path) first_path_ = path;
    collectives_differ_ = false;
  } else if (site != first_site_ || combine != first_combine_) {
    collectives_differ_ = true;
  } else if (on_path && !collectives_differ_) {  // else the first lane may have gone on
    collectives_differ_ = !is_same_path(path, first_path_);
  }
  at_collective_ |= 1u << lane;
  park<on_path>();
}

METALANE_NO_TSAN void ThreadgroupRunner::threadgroup_barrier(metalane_group* group, std::uint32_t site) {
  ThreadgroupRunner& runner = of_group(group);
  runner.leave_kernel();
  runner.keeps_paths_ ? runner.wait_at_barrier<true>(site) : runner.wait_at_barrier<false>(site);
}

METALANE_NO_TSAN void ThreadgroupRunner::simd_collective(metalane_group* group, std::uint32_t site,
                                                         metalane_combine combine, void* operand) {
  ThreadgroupRunner& runner = of_group(group);
  runner.leave_kernel();
  runner.keeps_paths_ ? runner.wait_at_collective<true>(site, combine, operand)
                      : runner.wait_at_collective<false>(site, combine, operand);
}

METALANE_NO_TSAN bool ThreadgroupRunner::on_fiber(void* signal_context) const noexcept {
  return fibers_.locate(interrupted_stack_pointer(signal_context)) != FiberPool::Place::elsewhere;
}

METALANE_NO_TSAN bool ThreadgroupRunner::is_stack_guard(std::uintptr_t address) const noexcept {
  return fibers_.locate(address) == FiberPool::Place::guard;
}

METALANE_NO_TSAN bool ThreadgroupRunner::is_own(std::uintptr_t address) const noexcept {
  return address - reinterpret_cast<std::uintptr_t>(this) < sizeof *this ||
         fibers_.locate(address) != FiberPool::Place::elsewhere;
}

METALANE_NO_TSAN bool ThreadgroupRunner::in_kernel() const noexcept {
  return leavable_.load(std::memory_order_relaxed) != 0 &&
         (!fiber_hooks || in_kernel_.load(std::memory_order_relaxed) != 0);
}

METALANE_NO_TSAN void ThreadgroupRunner::force_leave(void* signal_context) noexcept {
  left_ = true;
  redirect_to_fiber(signal_context, main_);
}

void ThreadgroupRunner::observe(GroupObserver* observer, std::uint8_t* memory) noexcept {
  observer_ = observer;
  threadgroup_memory = memory != nullptr ? memory : own_threadgroup_memory_;
}

void ThreadgroupRunner::leave() noexcept {
  leave_kernel();
  set_leavable(true);
  outcome_ = Outcome::left;
  Fiber* self = current_;
  current_ = &main_;
  switch_fiber(*self, main_);
  __builtin_unreachable();  // the fiber starts anew
}

ThreadgroupRunner::BarrierPlace ThreadgroupRunner::incomplete_barrier() const noexcept {
  std::uint32_t lowest = 0;
  while (lowest + 1 < thread_count && !waits_at_barrier(lowest)) ++lowest;
  return {lowest, barrier_site_of_[lowest]};
}

std::string ThreadgroupRunner::thread_name(std::uint32_t thread) const {
  const std::uint32_t x = thread % threads[0];
  const std::uint32_t y = thread / threads[0] % threads[1];
  const std::uint32_t z = thread / threads[0] / threads[1];
  return "thread " + std::to_string(thread) + " [" + std::to_string(x) + ", " + std::to_string(y) + ", " +
         std::to_string(z) + "]";
}

std::uint32_t ThreadgroupRunner::site_of(std::uint32_t thread) const noexcept {
  const std::uint32_t lane = thread % simd_width;
  if (waits_at_barrier(thread)) return barrier_site_of_[thread];
  const bool at_collective = thread / simd_width == current_simdgroup_ && (at_collective_ >> lane & 1u) != 0;
  return at_collective ? site_of_lane_[lane] : finished;
}

// Runs of neighbours; of many runs the first ones and the last thread.
std::string ThreadgroupRunner::thread_names(const std::vector<std::uint32_t>& threads) const {
  constexpr int most_runs = 3;
  std::string text;
  int runs = 0;
  for (std::size_t begin = 0, end = 0; begin < threads.size(); begin = end) {
    while (end < threads.size() && threads[end] - threads[begin] == end - begin) ++end;
    if (begin != 0) text += ", ";
    if (runs++ == most_runs) return text + "... " + thread_name(threads.back());
    text += thread_name(threads[begin]);
    if (end - begin > 1) text += " to " + thread_name(threads[end - 1]);
  }
  return text;
}

// In the order of threads, whichever came first; those that have finished come last.
std::string ThreadgroupRunner::describe_places(const metalane_module& module, std::uint32_t begin,
                                               std::uint32_t end, std::uint32_t active) const {
  struct Place {
    std::uint32_t site;
    bool is_elsewhere;  // at a collective that is not the one which is being combined
    std::vector<std::uint32_t> threads;
  };
  std::vector<Place> places;
  for (std::uint32_t thread = begin; thread < end; ++thread) {
    const std::uint32_t site = site_of(thread);
    const bool is_elsewhere = site != finished && (active >> thread % simd_width & 1u) == 0;
    auto place = std::find_if(places.begin(), places.end(), [&](const Place& known) {
      return known.site == site && known.is_elsewhere == is_elsewhere;
    });
    if (place == places.end()) place = places.insert(place, {site, is_elsewhere, {}});
    place->threads.push_back(thread);
  }
  std::stable_partition(places.begin(), places.end(),
                        [](const Place& place) { return place.site != finished; });
  std::string text;
  for (const Place& place : places) {
    const bool one = place.threads.size() == 1;
    if (!text.empty()) text += ", ";
    text += std::to_string(place.threads.size()) + (one ? " thread (" : " threads (") +
            thread_names(place.threads) + ")";
    if (place.site == finished) {
      text += one ? " has finished" : " have finished";
      continue;
    }
    text += (one ? " waits at " : " wait at ") + place_of(module, place.site);
    const bool twice = std::any_of(places.begin(), places.end(), [&place](const Place& other) {
      return other.site == place.site && other.is_elsewhere != place.is_elsewhere;
    });
    if (place.is_elsewhere && twice) text += " in another iteration or call";
  }
  return text;
}

std::string ThreadgroupRunner::describe_collective(const metalane_module& module,
                                                   std::uint32_t active) const {
  const std::uint32_t begin = current_simdgroup_ * simd_width;
  return describe_places(module, begin, std::min(begin + simd_width, thread_count), active);
}

std::string ThreadgroupRunner::describe_barrier(const metalane_module& module) const {
  std::string text = describe_places(module, 0, thread_count, ~0u);
  const bool in_each = std::all_of(at_barrier_, at_barrier_ + simdgroup_count_,
                                   [](std::uint32_t lanes) { return lanes != 0; });
  if (barrier_waiters_ != thread_count && in_each && !barrier_sites_differ_) {
    text +=
        "; Metal leaves undefined what happens then, though hardware that counts simdgroups lets threads "
        "pass, since some of each simdgroup wait";
  }
  return text;
}

}  // namespace metalane::cpu
