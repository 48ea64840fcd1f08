// Threads, queue, stopping, and the order of submissions.
#include "backends/cpu/worker_pool.h"

#include <metalane/error.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "backends/cpu/checker.h"
#include "backends/cpu/processors.h"
#include "backends/cpu/signal_context.h"
#include "core/host_clock.h"

namespace metalane::cpu {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// Workers take no signal that is meant for the program, Ctrl-C above all.
class WorkerSignalMask {
 public:
  WorkerSignalMask() {
    sigset_t mask;
    sigfillset(&mask);
    for (const int signal : handled_signals) sigdelset(&mask, signal);
    pthread_sigmask(SIG_SETMASK, &mask, &before_);
  }
  ~WorkerSignalMask() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

WorkerPool::WorkerPool(unsigned thread_count, std::shared_ptr<Checker> checker)
    : thread_count_(std::max(1u, thread_count)),
      one_processor_(usable_processor_count() == 1),
      checker_(std::move(checker)) {}

WorkerPool::~WorkerPool() = default;

template <typename Predicate, typename OnProcessor>
bool WorkerPool::spin(Predicate ready, OnProcessor on_processor) const {
  if (ready()) return true;
  if (one_processor_) return false;
  const Clock::time_point end = Clock::now() + std::chrono::microseconds(50);
  do {
    for (int i = 0; i < 8; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
  } while (Clock::now() < end && !on_processor(current_processor()));
  return ready();
}

std::unique_ptr<CommandList> WorkerPool::take_list() {
  {
    const std::lock_guard lock(lists_mutex_);
    if (!spare_lists_.empty()) {
      std::unique_ptr<CommandList> list = std::move(spare_lists_.back());
      spare_lists_.pop_back();
      return list;
    }
  }
  return std::make_unique<CommandList>();
}

void WorkerPool::put_list(std::unique_ptr<CommandList> list) noexcept {
  constexpr std::size_t max_spare = 16;
  list->clear();
  const std::lock_guard lock(lists_mutex_);
  if (spare_lists_.capacity() < max_spare) spare_lists_.reserve(max_spare);
  if (spare_lists_.size() < max_spare) spare_lists_.push_back(std::move(list));
}

// With mutex_ held. Fewer helpers than wished for do the same work, later.
void WorkerPool::start_threads() {
  const WorkerSignalMask mask;
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned i = 0; i < thread_count_; ++i) workers.push_back(std::make_unique<Worker>(stop_));
  const auto self = shared_from_this();
  for (unsigned i = 0; i < thread_count_; ++i) {
    Worker& worker = *workers[i];
    try {
      worker.thread = std::thread([self, &worker, i] {
        name_current_thread("metalane-cpu");
        worker.ready = worker.runner.prepare() && worker.guard.attach_current_thread();
        i == 0 ? self->run_leader(worker) : self->run_helper(worker);
        FaultGuard::detach_current_thread();
      });
    } catch (const std::system_error& error) {
      if (i == 0) throw DeviceError(std::string("cpu device: cannot start a thread: ") + error.what());
      workers.resize(i);
      break;
    }
  }
  workers_ = std::move(workers);
}

// With mutex_ held.
void WorkerPool::start_watchdog() {
  const WorkerSignalMask mask;
  try {
    watchdog_ = std::thread([this] { run_watchdog(); });
  } catch (const std::system_error& error) {
    throw DeviceError(std::string("cpu device: cannot start the thread that watches time limits: ") +
                      error.what());
  }
}

void WorkerPool::submit(std::unique_ptr<CommandList>& list) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (workers_.empty()) start_threads();
    if (list->time_limit && !watchdog_.joinable()) start_watchdog();
    submitter_processor_.store(current_processor(), std::memory_order_relaxed);
    const std::uint64_t sequence = submitted_.load(std::memory_order_relaxed) + 1;
    list->sequence = sequence;
    CommandList* raw = list.release();
    (queue_tail_ != nullptr ? queue_tail_->next : queue_head_) = raw;
    queue_tail_ = raw;
    submitted_.store(sequence, std::memory_order_release);
    wake = leader_sleeps_;
  }
  if (wake) leader_wakes_.notify_one();
}

void WorkerPool::cancel_all() noexcept {
  const std::lock_guard lock(mutex_);
  cancelled_up_to_ = submitted_.load(std::memory_order_relaxed);
  if (running_ != 0) stop_running(StopReason::cancelled);
}

void WorkerPool::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    quit_.store(true);
  }
  leader_wakes_.notify_all();
  watchdog_wakes_.notify_all();
  {
    const std::lock_guard lock(helpers_mutex_);
  }
  helpers_wake_.notify_all();
  const auto self = std::this_thread::get_id();
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->thread.get_id() == self) {
      worker->thread.detach();
    } else if (worker->thread.joinable()) {
      worker->thread.join();
    }
  }
  if (watchdog_.joinable()) watchdog_.join();
}

CommandList* WorkerPool::next_submission() {
  const auto ready = [this] {
    return submitted_.load(std::memory_order_acquire) != taken_ || quit_.load(std::memory_order_relaxed);
  };
  spin(ready,
       [this](int processor) { return processor == submitter_processor_.load(std::memory_order_relaxed); });
  std::unique_lock lock(mutex_);
  leader_sleeps_ = true;
  leader_wakes_.wait(lock, ready);
  leader_sleeps_ = false;
  CommandList* list = queue_head_;
  if (list == nullptr) return nullptr;
  queue_head_ = list->next;
  if (queue_head_ == nullptr) queue_tail_ = nullptr;
  taken_ = list->sequence;
  return list;
}

void WorkerPool::run_leader(Worker& worker) {
  while (CommandList* list = next_submission()) run_submission(worker, *list);
}

void WorkerPool::run_helper(Worker& worker) {
  std::uint64_t seen = 0;
  const auto ready = [this, &seen] {
    return job_number_.load(std::memory_order_acquire) != seen || quit_.load();
  };
  const auto on_leaders_processor = [this](int processor) {
    return processor == leader_processor_.load(std::memory_order_relaxed);
  };
  for (;;) {
    if (!spin(ready, on_leaders_processor)) {
      std::unique_lock lock(helpers_mutex_);
      ++helpers_asleep_;
      helpers_wake_.wait(lock, ready);
      --helpers_asleep_;
    }
    if (quit_.load()) return;
    seen = job_number_.load(std::memory_order_acquire);
    worker.job.store(seen, std::memory_order_relaxed);
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    bool inside = false;
    while ((gate & gate_open) != 0 && !inside) {
      inside =
          gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed);
    }
    if (!inside) continue;
    spread(worker);
    if (worker.ready) participate(worker);
    worker.processor.store(-1, std::memory_order_relaxed);
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::lock_guard lock(helpers_mutex_);
      helpers_left_.notify_one();
    }
  }
}

// Takes a processor that no other worker of the launch is on.
void WorkerPool::spread(Worker& worker) {
  const int mine = current_processor();
  bool taken = false;
  std::array<int, 256> others;
  std::size_t count = 0;
  for (const std::unique_ptr<Worker>& other : workers_) {
    const int theirs = other->processor.load(std::memory_order_relaxed);
    if (theirs < 0 || other.get() == &worker || count == others.size()) continue;
    others[count++] = theirs;
    taken = taken || theirs == mine;
  }
  if (taken) leave_processors({others.data(), count});
  worker.processor.store(taken ? current_processor() : mine, std::memory_order_relaxed);
}

void WorkerPool::share_job() {
  leader_processor_.store(current_processor(), std::memory_order_relaxed);
  gate_.store(gate_open, std::memory_order_release);
  job_number_.fetch_add(1, std::memory_order_release);
  unsigned asleep;
  {
    const std::lock_guard lock(helpers_mutex_);
    asleep = helpers_asleep_;
  }
  const std::uint64_t useful = std::min<std::uint64_t>(asleep, job_.total - 1);
  for (std::uint64_t i = 0; i < useful; ++i) helpers_wake_.notify_one();
  helpers_due_ = Clock::now() + std::chrono::microseconds(50);
}

// A helper may wait for the very processor that the leader works on, where it was woken or had been spinning:
// Linux leaves it there for the leader's whole time slice of milliseconds, while another processor idles.
void WorkerPool::fetch_late_helpers() {
  if (!helpers_due_ || Clock::now() < *helpers_due_) return;
  helpers_due_.reset();
  const std::uint64_t job = job_number_.load(std::memory_order_relaxed);
  const std::uint64_t wanted = std::min<std::uint64_t>(workers_.size(), job_.total);
  for (std::uint64_t i = 1; i < wanted; ++i) {
    if (workers_[i]->job.load(std::memory_order_relaxed) != job) send_away(workers_[i]->thread);
  }
}

void WorkerPool::join_helpers() {
  gate_.fetch_and(~gate_open, std::memory_order_acq_rel);
  const auto empty = [this] { return gate_.load(std::memory_order_acquire) == 0; };
  const auto on_helpers_processor = [this](int processor) {
    return std::any_of(workers_.begin() + 1, workers_.end(), [processor](const auto& helper) {
      return helper->processor.load(std::memory_order_relaxed) == processor;
    });
  };
  if (spin(empty, on_helpers_processor)) return;
  std::unique_lock lock(helpers_mutex_);
  helpers_left_.wait(lock, empty);
}

void WorkerPool::run_watchdog() {
  std::unique_lock lock(mutex_);
  while (!quit_.load()) {
    if (!deadline_) {
      watchdog_wakes_.wait(lock);
    } else if (Clock::now() < *deadline_) {
      watchdog_wakes_.wait_until(lock, *deadline_);
    } else {
      deadline_.reset();
      stop_running(StopReason::timeout);
    }
  }
}

void WorkerPool::stop_running(StopReason reason) {
  if (stop_reason_ == StopReason::none) stop_reason_ = reason;
  stop_.store(1);
  for (const std::unique_ptr<Worker>& worker : workers_) worker->guard.stop();
}

void WorkerPool::fail(const std::string& code, bool is_transient, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (failure_ || stop_reason_ != StopReason::none) return;
  failure_ = Failure{code, std::string(job_.label), is_transient, message, {}};
  stop_running(StopReason::failed);
}

void WorkerPool::run_submission(Worker& worker, CommandList& list) {
  const double start_seconds = core::host_seconds();
  const Clock::time_point start = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    running_ = list.sequence;
    job_.label = {};
    failure_.reset();
    stopped_at_.clear();
    const bool cancelled = list.sequence <= cancelled_up_to_;
    stop_reason_ = cancelled ? StopReason::cancelled : StopReason::none;
    stop_.store(cancelled ? 1 : 0);
    if (list.time_limit) {
      constexpr double longest = 1e9;  // thirty years: what the clock can add without overflow
      deadline_ = start + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(std::clamp(*list.time_limit, 0.0, longest)));
      watchdog_wakes_.notify_one();
    }
  }
  {
    const HandlerScope handlers;
    check_ends_ = false;
    if (checker_ != nullptr) checker_->begin_submission(list);
    for (std::size_t number = 0; number < list.launches().size(); ++number) {
      if (stop_.load() != 0 || check_ends_) break;
      if (list.timed) list.times[number].start_seconds = core::host_seconds();
      run_launch(worker, list, number);
      if (list.timed) list.times[number].end_seconds = core::host_seconds();
    }
    if (checker_ != nullptr) end_check();
  }
  backend::Completion completion;
  completion.start_seconds = start_seconds;
  completion.error = finish_submission(list);
  completion.end_seconds = core::host_seconds();
  completion.launches = std::move(list.times);
  const std::function<void(backend::Completion)> done = std::move(list.done);
  put_list(std::unique_ptr<CommandList>(&list));
  done(std::move(completion));
}

std::exception_ptr WorkerPool::finish_submission(const CommandList& list) {
  const std::lock_guard lock(mutex_);
  running_ = 0;
  deadline_.reset();
  switch (stop_reason_) {
    case StopReason::none:
      return nullptr;
    case StopReason::failed:
      if (!failure_->findings.empty()) {
        return std::make_exception_ptr(
            CheckError(failure_->label, failure_->message, std::move(failure_->findings)));
      }
      return std::make_exception_ptr(
          CommandBufferError(failure_->code, failure_->label, failure_->is_transient, failure_->message));
    case StopReason::timeout: {
      char limit[32];
      std::snprintf(limit, sizeof limit, "%.3g s", *list.time_limit);
      return std::make_exception_ptr(
          CommandBufferError("timeout", std::string(job_.label), true,
                             (stopped_at_.empty() ? std::string("submission") : stopped_at_) +
                                 ": ran past the time limit of " + limit));
    }
    case StopReason::cancelled:
      break;
  }
  return std::make_exception_ptr(
      CommandBufferError("cancelled", std::string(job_.label), true,
                         (stopped_at_.empty() ? std::string("submission") : stopped_at_) + ": cancelled"));
}

}  // namespace metalane::cpu
