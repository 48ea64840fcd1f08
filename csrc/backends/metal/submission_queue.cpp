// See submission_queue.h. The lists are guarded by one mutex; Metal and `done` are called outside it.
#include "backends/metal/submission_queue.h"

#include <metalane/error.h>

#include <algorithm>
#include <new>
#include <utility>

namespace metalane::metal {

namespace {

// Enough to keep the GPU busy. The queue has room for twice as many, so that asking it for a command buffer
// never blocks (metal_device.mm).
constexpr unsigned max_running = 64;

std::exception_ptr device_error(const std::string& label, const char* reason) {
  return std::make_exception_ptr(CommandBufferError("device", label, true, label + ": " + reason));
}

}  // namespace

SubmissionQueue::SubmissionQueue(Executor& executor)
    : executor_(executor), out_of_memory_(device_error("submission", "the host is out of memory")) {}

void SubmissionQueue::commit(std::shared_ptr<Execution> execution) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    unreported_.push_back(execution);
    try {
      waiting_.push_back(execution);
    } catch (const std::bad_alloc&) {
      unreported_.pop_back();
      throw;
    }
  } catch (const std::bad_alloc&) {
    backend::Completion completion;
    completion.error = out_of_memory_;
    std::exchange(execution->done, nullptr)(std::move(completion));
    return;
  }
  start_waiting();
}

void SubmissionQueue::start_waiting() noexcept {
  std::unique_lock lock(mutex_);
  if (starting_) return;  // the thread that does it looks again before it leaves
  starting_ = true;
  while (!waiting_.empty() && running_ < max_running) {
    const std::shared_ptr<Execution> execution = std::move(waiting_.front());
    waiting_.pop_front();
    ++running_;
    lock.unlock();
    std::exception_ptr error;
    try {
      executor_.start(execution);
    } catch (const std::bad_alloc&) {
      error = out_of_memory_;
    } catch (const Error& refusal) {
      error = device_error(execution->launches->name(), refusal.what());
    }
    if (error != nullptr) {
      backend::Completion completion;
      completion.error = std::move(error);
      end(execution, std::move(completion));
      report_ended();
    }
    lock.lock();
  }
  starting_ = false;
}

void SubmissionQueue::end(const std::shared_ptr<Execution>& execution,
                          backend::Completion completion) noexcept {
  const std::lock_guard lock(mutex_);
  execution->completion = std::move(completion);
  --running_;
}

void SubmissionQueue::ended(const std::shared_ptr<Execution>& execution,
                            const std::function<backend::Completion()>& completion) noexcept {
  backend::Completion known;
  try {
    known = completion();
  } catch (const std::bad_alloc&) {
    known.error = out_of_memory_;
  }
  end(execution, std::move(known));
  start_waiting();  // first: the GPU should not wait for what callers do on their reports
  report_ended();
}

void SubmissionQueue::report_ended() noexcept {
  std::unique_lock lock(mutex_);
  if (reporting_) return;  // as in start_waiting()
  reporting_ = true;
  while (!unreported_.empty() && unreported_.front()->completion.has_value()) {
    const std::shared_ptr<Execution> execution = std::move(unreported_.front());
    unreported_.pop_front();
    lock.unlock();
    executor_.settle(*execution);
    std::exchange(execution->done, nullptr)(*std::exchange(execution->completion, std::nullopt));
    lock.lock();
  }
  reporting_ = false;
}

void SubmissionQueue::cancel_waiting() noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Execution>& execution : waiting_) {
      const std::string& label = execution->launches->name();
      backend::Completion completion;
      completion.error =
          std::make_exception_ptr(CommandBufferError("cancelled", label, true, label + ": cancelled"));
      execution->completion = std::move(completion);
    }
    waiting_.clear();
  }
  report_ended();
}

}  // namespace metalane::metal
