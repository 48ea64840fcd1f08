// Waiting from Python: without the GIL, in slices short enough for Ctrl-C.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bindings/bindings.h"

namespace metalane::python {

namespace {

// Half of the 100 ms in which Ctrl-C has to end a wait.
constexpr double kSliceSeconds = 0.05;

// `wait(seconds)` returns whether what is waited for has come. False: `seconds` ran out first.
template <typename Wait>
bool wait_in_slices(std::optional<double> seconds, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (true) {
    double slice = kSliceSeconds;
    if (seconds) {
      const double left = *seconds - std::chrono::duration<double>(Clock::now() - start).count();
      slice = std::clamp(left, 0.0, kSliceSeconds);
    }
    bool come = false;
    {
      Unlocked unlocked;
      come = wait(slice);
    }
    if (come) return true;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (seconds && std::chrono::duration<double>(Clock::now() - start).count() >= *seconds) return false;
  }
}

}  // namespace

void wait_for_ticket(const Ticket& ticket, std::optional<double> seconds) {
  drain_deferred();
  if (!ticket.done() && !wait_in_slices(seconds, [&](double slice) { return ticket.wait_done(slice); })) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", *seconds);
    throw TimeoutError("Ticket.wait: the submission is still running after " + std::string(text) +
                       " s; the ticket stays valid");
  }
  ticket.wait(0.0);  // raises the submission's error
}

void wait_for_buffer(const Buffer& buffer) {
  drain_deferred();
  const auto synchronized = [&](double slice) {
    try {
      buffer.synchronize(slice);
    } catch (const TimeoutError&) {
      return false;
    }
    return true;
  };
  wait_in_slices(std::nullopt, synchronized);
}

}  // namespace metalane::python
