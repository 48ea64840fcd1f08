// A device's committed submissions: some wait, some run, all are reported in the order of their commits.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "backends/metal/launch_list.h"
#include "core/backend.h"

namespace metalane::metal {

// One submission from its commit to its report.
struct Execution {
  std::shared_ptr<void> owner;  // keeps the queue and what it calls until the last report is over
  std::unique_ptr<LaunchList> launches;
  std::optional<double> time_limit;
  std::function<void(backend::Completion)> done;
  std::uint64_t signal_value = 0;                 // of the device's event; 0: Metal was never given it
  std::optional<backend::Completion> completion;  // set once it has ended
};

// What the queue has done for it.
class Executor {
 public:
  virtual ~Executor() = default;
  // Gives the submission to Metal, or throws. One call at a time, in the order of commits. When it has ended,
  // ended() is called once, from any thread.
  virtual void start(const std::shared_ptr<Execution>& execution) = 0;
  // It has ended and so have all before it; what waits for it may go on.
  virtual void settle(Execution& execution) noexcept = 0;
};

class SubmissionQueue {
 public:
  explicit SubmissionQueue(Executor& executor);
  void commit(std::shared_ptr<Execution> execution) noexcept;
  // From Metal's completion handler, which may not throw: neither may what `completion` says cost an end.
  void ended(const std::shared_ptr<Execution>& execution,
             const std::function<backend::Completion()>& completion) noexcept;
  // Ends those that Metal has not been given yet.
  void cancel_waiting() noexcept;

 private:
  void start_waiting() noexcept;
  void end(const std::shared_ptr<Execution>& execution, backend::Completion completion) noexcept;
  void report_ended() noexcept;

  Executor& executor_;
  const std::exception_ptr out_of_memory_;  // made before it is needed
  std::mutex mutex_;
  std::deque<std::shared_ptr<Execution>> waiting_;
  std::deque<std::shared_ptr<Execution>> unreported_;  // commit order, waiting and running ones included
  unsigned running_ = 0;                               // with Metal
  bool starting_ = false;
  bool reporting_ = false;
};

}  // namespace metalane::metal
