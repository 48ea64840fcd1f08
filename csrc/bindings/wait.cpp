// Waiting from Python: without the GIL, in slices short enough for Ctrl-C.
#include <algorithm>
#include <chrono>
#include <cstdio>

#if defined(__APPLE__)
#include <pthread.h>
#else
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "bindings/bindings.h"
#include "core/in_flight.h"
#include "core/interrupt.h"

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

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds);
  return text;
}

// Python runs signal handlers on this thread alone.
bool is_main_thread() {
#if defined(__APPLE__)
  return pthread_main_np() != 0;
#else
  return syscall(SYS_gettid) == getpid();  // glibc has a function for it from 2.30 on only
#endif
}

// For waits that run without the GIL: those for a compiler.
void raise_pending_signals() {
  if (!is_main_thread()) return;
  park_if_exiting();
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

void bind_waits() { core::set_interrupt_check(&raise_pending_signals); }

void wait_for_ticket(const Ticket& ticket, std::optional<double> seconds) {
  drain_deferred();
  if (!ticket.done() && !wait_in_slices(seconds, [&](double slice) { return ticket.wait_done(slice); })) {
    throw TimeoutError("Ticket.wait: the submission is still running after " + seconds_text(*seconds) +
                       " s; the ticket stays valid");
  }
  ticket.wait(0.0);  // raises the submission's error
}

void wait_for_place(const core::InFlightPlace& place, std::optional<double> seconds) {
  drain_deferred();
  if (place.granted()) return;
  if (!wait_in_slices(seconds, [&](double slice) { return place.wait_granted(slice); })) {
    throw TimeoutError("InFlightLimit.slot: no place came free within " + seconds_text(*seconds) + " s");
  }
}

void wait_for_profile(const Profile& profile) {
  drain_deferred();
  wait_in_slices(std::nullopt, [&](double slice) { return profile.wait_done(slice); });
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
