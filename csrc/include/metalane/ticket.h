// The receipt of a committed submission.
#pragma once

#include <metalane/export.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace metalane {

namespace core {
class TicketState;
}

// Cheap to copy, thread-safe. Tickets of one device finish in commit order.
class METALANE_API Ticket {
 public:
  explicit Ticket(std::shared_ptr<core::TicketState> state) : state_(std::move(state)) {}
  // Never empty: a move copies.
  Ticket(const Ticket&) = default;
  Ticket& operator=(const Ticket&) = default;

  // Blocks until the submission has finished; throws its error, or TimeoutError (the ticket stays valid).
  void wait(std::optional<double> seconds = std::nullopt) const;
  // True once finished within `seconds`; never throws the submission's error.
  bool wait_done(double seconds) const;
  bool done() const noexcept;
  // The submission's error; null while it runs and when it succeeded.
  std::exception_ptr error() const;
  // "pending", "done" or "failed"; a finished submission may carry a warning that a kernel set instead.
  std::string status() const;
  // When the first launch began and the last one ended, in seconds of the device's clock, and the time
  // between; empty until finished.
  std::optional<double> gpu_start() const;
  std::optional<double> gpu_end() const;
  std::optional<double> gpu_time() const;
  // Called once, from a runtime thread (or at once where already finished). Must not throw, and must not take
  // long: the device's other work waits.
  void on_done(std::function<void()> callback) const;
  const std::shared_ptr<core::TicketState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<core::TicketState> state_;
};

}  // namespace metalane
