// How one launch runs: its grid, its split over the workers, and what it fails with.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "backends/cpu/processors.h"
#include "backends/cpu/worker_pool.h"

namespace metalane::cpu {
namespace {

std::string triple(const std::uint32_t values[3]) {
  return "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " +
         std::to_string(values[2]) + "]";
}

void position_of(std::uint64_t index, const std::uint32_t groups[3], std::uint32_t position[3]) {
  position[0] = static_cast<std::uint32_t>(index % groups[0]);
  const std::uint64_t rows = index / groups[0];
  position[1] = static_cast<std::uint32_t>(rows % groups[1]);
  position[2] = static_cast<std::uint32_t>(rows / groups[1]);
}

struct NativeTask {
  const NativeKernel* kernel;
  const NativeLaunch* launch;
  std::uint32_t task;
};

void run_native_task(const void* context) {
  const auto& task = *static_cast<const NativeTask*>(context);
  task.kernel->run(*task.launch, task.task);
}

}  // namespace

void WorkerPool::run_launch(Worker& worker, const CommandList& list, std::size_t number) {
  const LaunchRecord& record = list.launches()[number];
  const std::string_view label = list.label(record);
  job_.record = &record;
  job_.label = label.empty() ? std::string_view(record.pipeline->signature.name) : label;
  job_.next.store(0, std::memory_order_relaxed);
  if (!worker.ready) {
    fail("out-of-memory", true, kernel_name() + ": no memory for the stacks of the CPU device's threads");
    return;
  }
  if (!set_grid()) return;
  if (record.pipeline->native != nullptr) set_native_tasks();
  if (job_.total == 0) return;
  if (record.pipeline->checked != nullptr) {
    run_checked(worker, number);
    return;
  }
  const Clock::time_point start = Clock::now();
  const bool shared = worth_sharing();
  if (shared) {
    worker.processor.store(current_processor(), std::memory_order_relaxed);
    share_job();
    participate(worker);
    join_helpers();
    worker.processor.store(-1, std::memory_order_relaxed);
  } else {
    helpers_due_.reset();
    participate(worker);
  }
  const auto elapsed = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  const double share =
      shared ? static_cast<double>(std::min<std::uint64_t>(job_.total, workers_.size())) : 1.0;
  const double each = elapsed * share / static_cast<double>(job_.total);
  record.pipeline->group_nanoseconds.store(static_cast<std::uint32_t>(std::clamp(each, 1.0, 4e9)),
                                           std::memory_order_relaxed);
}

// Fails the submission where a count is past what positions of 32 bits can name.
bool WorkerPool::set_grid() {
  const LaunchRecord& record = *job_.record;
  const bool indirect = record.grid_kind == Grid::Kind::indirect;
  std::uint32_t counts[3];
  std::memcpy(counts, indirect ? record.indirect : reinterpret_cast<const std::uint8_t*>(record.grid),
              sizeof counts);
  job_.launch = record.launch;
  unsigned __int128 total = 1;
  bool fits = true;
  for (int axis = 0; axis < 3; ++axis) {
    const std::uint32_t nominal = record.threads_per_threadgroup[axis];
    std::uint64_t threads = counts[axis];
    std::uint32_t groups = counts[axis];
    if (record.grid_kind == Grid::Kind::threads) {
      groups = static_cast<std::uint32_t>((threads + nominal - 1) / nominal);
    } else {
      threads *= nominal;
    }
    fits = fits && threads <= 0xffffffffu;
    job_.groups[axis] = groups;
    job_.nominal[axis] = nominal;
    job_.launch.grid_groups[axis] = groups;
    job_.launch.grid_threads[axis] = static_cast<std::uint32_t>(threads);
    job_.launch.nominal_threads[axis] = nominal;
    total *= groups;
  }
  constexpr std::uint64_t most = std::uint64_t{1} << 62;  // leaves room for every worker's last step
  if (!fits || total > most) {
    fail(indirect ? "indirect" : "grid", false,
         kernel_name() + ": a grid of " + triple(counts) +
             (indirect ? " threadgroups (read from the buffer)" : "") + " with " +
             triple(record.threads_per_threadgroup) +
             " threads each has more than 4294967295 threads on an axis or 2^62 threadgroups");
    return false;
  }
  job_.total = static_cast<std::uint64_t>(total);
  job_.chunk = std::max<std::uint64_t>(1, job_.total / (workers_.size() * 8));
  return true;
}

void WorkerPool::set_native_tasks() {
  NativeLaunch& native = job_.native;
  native.buffers = job_.launch.buffers;
  native.sizes = job_.record->sizes;
  for (int axis = 0; axis < 3; ++axis) {
    native.grid[axis] = job_.groups[axis];
    native.threads_per_threadgroup[axis] = job_.nominal[axis];
  }
  native.threads = static_cast<std::uint32_t>(workers_.size());
  if (job_.total != 0) job_.total = job_.record->pipeline->native->tasks(native);
  job_.chunk = 1;
}

// A helper that sleeps takes some 10 us to arrive; native kernels cut themselves into pieces worth a thread.
bool WorkerPool::worth_sharing() const {
  if (workers_.size() == 1 || job_.total == 1) return false;
  const std::uint32_t each = job_.record->pipeline->group_nanoseconds.load(std::memory_order_relaxed);
  return job_.record->pipeline->native != nullptr || each == 0 ||
         static_cast<double>(each) * static_cast<double>(job_.total) > 20000.0;
}

void WorkerPool::participate(Worker& worker) {
  std::uint64_t at = 0;
  auto outcome = ThreadgroupRunner::Outcome::done;
  worker.guard.arm(job_.record->pipeline->native == nullptr);
  while (outcome == ThreadgroupRunner::Outcome::done) {
    const std::uint64_t begin = job_.next.fetch_add(job_.chunk, std::memory_order_relaxed);
    if (begin >= job_.total) break;
    outcome = run_chunk(worker, begin, std::min(begin + job_.chunk, job_.total), at);
    if (&worker == workers_.front().get()) fetch_late_helpers();
  }
  worker.guard.disarm();
  if (outcome != ThreadgroupRunner::Outcome::done) report(worker, outcome, at);
}

ThreadgroupRunner::Outcome WorkerPool::run_chunk(Worker& worker, std::uint64_t begin, std::uint64_t end,
                                                 std::uint64_t& at) {
  const CpuPipeline& pipeline = *job_.record->pipeline;
  auto outcome = ThreadgroupRunner::Outcome::done;
  if (pipeline.native != nullptr) {
    for (at = begin; at < end; ++at) {
      const NativeTask task = {pipeline.native, &job_.native, static_cast<std::uint32_t>(at)};
      outcome = worker.runner.run_function(&run_native_task, &task);
      if (outcome != ThreadgroupRunner::Outcome::done) break;
    }
    return outcome;
  }
  std::uint32_t position[3];
  position_of(begin, job_.groups, position);
  for (at = begin; at < end; ++at) {
    std::uint32_t threads[3];
    for (int axis = 0; axis < 3; ++axis) {
      const std::uint32_t left = job_.launch.grid_threads[axis] - position[axis] * job_.nominal[axis];
      threads[axis] = std::min(left, job_.nominal[axis]);
    }
    outcome = worker.runner.run(*pipeline.module, job_.launch, position, threads);
    if (outcome != ThreadgroupRunner::Outcome::done) break;
    for (int axis = 0; axis < 3 && ++position[axis] == job_.groups[axis] && axis < 2; ++axis)
      position[axis] = 0;
  }
  return outcome;
}

void WorkerPool::report(Worker& worker, ThreadgroupRunner::Outcome outcome, std::uint64_t at) {
  const std::string place = describe_place(worker, at);
  switch (outcome) {
    case ThreadgroupRunner::Outcome::done:
      return;
    case ThreadgroupRunner::Outcome::incomplete_barrier: {
      std::uint32_t position[3];
      position_of(at, job_.groups, position);
      fail("barrier", false,
           kernel_name() + ": threadgroup " + triple(position) +
               ": incomplete barrier: " + worker.runner.describe_barrier(*job_.record->pipeline->module));
      return;
    }
    case ThreadgroupRunner::Outcome::no_memory:
      fail("out-of-memory", true, place + ": no memory for another thread's stack");
      return;
    case ThreadgroupRunner::Outcome::left:
      break;
  }
  if (const FaultGuard::Fault fault = worker.guard.take_fault()) {
    fail(fault.stack_overflow ? "stack-overflow" : "fault", false, place + ": " + describe(fault));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (stopped_at_.empty()) stopped_at_ = place;
}

std::string WorkerPool::kernel_name() const {
  const std::string& name = job_.record->pipeline->signature.name;
  std::string text = "kernel '" + name + "'";
  if (job_.label != name) text += " (" + std::string(job_.label) + ")";
  return text;
}

std::string WorkerPool::describe_place(const Worker& worker, std::uint64_t at) const {
  if (job_.record->pipeline->native != nullptr) {
    return kernel_name() + ": native task " + std::to_string(at);
  }
  std::uint32_t position[3];
  position_of(at, job_.groups, position);
  return kernel_name() + ": threadgroup " + triple(position) + ", " + worker.runner.current_thread_name();
}

}  // namespace metalane::cpu
