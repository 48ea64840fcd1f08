// The threads of one CPU device: a leader that runs submissions in order, and helpers that share its
// launches.
#pragma once

#include <metalane/check.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/command_list.h"
#include "backends/cpu/faults.h"
#include "backends/cpu/threadgroup.h"

namespace metalane::cpu {

class Checker;

// Threads are started by the first submit(). Idle ones spin for 50 us, then sleep.
class WorkerPool : public std::enable_shared_from_this<WorkerPool> {
 public:
  // With a checker every launch is run by the leader, group after group.
  WorkerPool(unsigned thread_count, std::shared_ptr<Checker> checker);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  unsigned thread_count() const noexcept { return thread_count_; }

  // Empty lists for recording, and back.
  std::unique_ptr<CommandList> take_list();
  void put_list(std::unique_ptr<CommandList> list) noexcept;

  // Runs `list` after those submitted before. Throws DeviceError, and leaves `list` alone, when no thread can
  // be started.
  void submit(std::unique_ptr<CommandList>& list);
  // Ends what runs and what waits with code "cancelled".
  void cancel_all() noexcept;
  // Ends all threads once the queue is empty, and waits for them; a worker that calls it is left to end by
  // itself.
  void shut_down();

 private:
  using Clock = std::chrono::steady_clock;
  enum class StopReason : std::uint8_t { none, failed, timeout, cancelled };

  struct Worker {
    explicit Worker(const AtomicFlag& stop) : runner(stop), guard(runner) {}
    ThreadgroupRunner runner;
    FaultGuard guard;
    bool ready = false;
    std::atomic<int> processor{-1};     // where it began its part of a shared launch; -1: it has none
    std::atomic<std::uint64_t> job{0};  // number of the last one that it saw
    std::thread thread;
  };

  // The launch that runs. Written by the leader while no helper is inside.
  struct Job {
    const LaunchRecord* record = nullptr;
    std::string_view label;
    metalane_launch launch{};
    std::uint32_t groups[3] = {1, 1, 1};
    std::uint32_t nominal[3] = {1, 1, 1};
    NativeLaunch native;
    std::uint64_t total = 0;  // threadgroups or native tasks
    std::uint64_t chunk = 1;
    std::atomic<std::uint64_t> next{0};
  };

  struct Failure {
    std::string code;
    std::string label;
    bool is_transient = false;
    std::string message;
    std::vector<CheckFinding> findings;
  };

  void start_threads();
  void start_watchdog();
  void run_leader(Worker& worker);
  void run_helper(Worker& worker);
  void run_watchdog();
  CommandList* next_submission();
  void run_submission(Worker& worker, CommandList& list);
  std::exception_ptr finish_submission(const CommandList& list);

  void run_launch(Worker& worker, const CommandList& list, std::size_t number);
  void run_checked(Worker& worker, std::size_t number);
  bool go_on_after(Worker& worker, ThreadgroupRunner::Outcome outcome, std::uint64_t at);
  void end_check();
  bool set_grid();
  void set_native_tasks();
  bool worth_sharing() const;
  void share_job();
  void join_helpers();
  void spread(Worker& worker);
  void fetch_late_helpers();
  void participate(Worker& worker);
  ThreadgroupRunner::Outcome run_chunk(Worker& worker, std::uint64_t begin, std::uint64_t end,
                                       std::uint64_t& at);
  void report(Worker& worker, ThreadgroupRunner::Outcome outcome, std::uint64_t at);
  std::string kernel_name() const;
  std::string describe_place(const Worker& worker, std::uint64_t at) const;
  void fail(const std::string& code, bool is_transient, const std::string& message);
  void stop_running(StopReason reason);  // with mutex_ held

  // Whether `ready` turned true within 50 us: a wake-up from sleep takes about as long. Gives up early where
  // who is waited for was last seen on the caller's own processor, which `on_processor` tells: it cannot go
  // on before the caller sleeps. (Yielding to it instead loses whole time slices to other processes.)
  template <typename Predicate, typename OnProcessor>
  bool spin(Predicate ready, OnProcessor on_processor) const;

  const unsigned thread_count_;
  const bool one_processor_;  // asked once: the C library reads a file for it
  const std::shared_ptr<Checker> checker_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::thread watchdog_;

  std::mutex lists_mutex_;
  std::vector<std::unique_ptr<CommandList>> spare_lists_;

  // Queue and state of the running submission.
  std::mutex mutex_;
  std::condition_variable leader_wakes_;
  CommandList* queue_head_ = nullptr;
  CommandList* queue_tail_ = nullptr;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<int> submitter_processor_{-1};  // of the last submit()
  std::uint64_t taken_ = 0;
  bool leader_sleeps_ = false;
  std::atomic<bool> quit_{false};
  std::uint64_t running_ = 0;  // sequence of the running submission, 0: none
  std::uint64_t cancelled_up_to_ = 0;
  StopReason stop_reason_ = StopReason::none;
  std::optional<Failure> failure_;
  bool check_ends_ = false;  // a finding ended a launch: the submission's others are not run
  std::string stopped_at_;   // where a kernel was cut short
  AtomicFlag stop_{0};

  std::condition_variable watchdog_wakes_;
  std::optional<Clock::time_point> deadline_;

  // Sharing of one job. `gate_`: bit 31 is set while helpers may enter, the rest counts those inside.
  static constexpr std::uint32_t gate_open = 1u << 31;
  Job job_;
  std::atomic<std::uint32_t> gate_{0};
  std::atomic<std::uint64_t> job_number_{0};
  std::atomic<int> leader_processor_{-1};  // when it shared its last job
  std::mutex helpers_mutex_;
  std::condition_variable helpers_wake_;
  std::condition_variable helpers_left_;
  unsigned helpers_asleep_ = 0;
  std::optional<Clock::time_point> helpers_due_;  // the leader's own
};

}  // namespace metalane::cpu
