// Ticket: the public handle on a TicketState.
#include <metalane/error.h>
#include <metalane/ticket.h>

#include "core/device_state.h"
#include "core/timeline.h"

namespace metalane {

void Ticket::wait(std::optional<double> seconds) const {
  if (!state_->wait_done(seconds)) {
    throw TimeoutError("Ticket.wait: the submission did not finish within " + std::to_string(*seconds) +
                       " s");
  }
  if (std::exception_ptr error = state_->reported_error()) std::rethrow_exception(error);
}

bool Ticket::wait_done(double seconds) const { return state_->wait_done(seconds); }

bool Ticket::done() const noexcept { return state_->done(); }

std::exception_ptr Ticket::error() const { return state_->reported_error(); }

std::string Ticket::status() const {
  if (!state_->done()) return "pending";
  if (state_->failure() != nullptr) return "failed";
  return state_->completion().warning.empty() ? "done" : state_->completion().warning;
}

std::optional<double> Ticket::gpu_start() const {
  return state_->done() ? std::optional(state_->completion().start_seconds) : std::nullopt;
}

std::optional<double> Ticket::gpu_end() const {
  return state_->done() ? std::optional(state_->completion().end_seconds) : std::nullopt;
}

std::optional<double> Ticket::gpu_time() const {
  if (!state_->done()) return std::nullopt;
  return state_->completion().end_seconds - state_->completion().start_seconds;
}

void Ticket::on_done(std::function<void()> callback) const {
  if (!state_->done()) state_->device()->check_process();
  state_->on_done(std::move(callback));
}

}  // namespace metalane
