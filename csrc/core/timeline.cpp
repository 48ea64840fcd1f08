// See timeline.h. One mutex guards the lists; backend calls and ticket callbacks run outside it.
#include "core/timeline.h"

#include <metalane/error.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/spin.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

// How long a waiter looks before it sleeps: about what a sleep and a wake-up cost.
constexpr auto spin_time = std::chrono::microseconds(20);

std::chrono::steady_clock::time_point deadline_after(double seconds) {
  // Past about 30 years, "for ever" on every clock's arithmetic.
  const double bounded = std::clamp(seconds, 0.0, 1e9);
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(bounded));
}

// Whether the written ones among `touched` cover all of `range`.
bool is_overwritten(std::span<const TouchedRange> touched, const AddressRange& range) {
  std::vector<AddressRange> written;
  for (const TouchedRange& one : touched) {
    if (writes(one.access) && one.range.overlaps(range)) written.push_back(one.range);
  }
  std::sort(written.begin(), written.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  std::uint64_t covered = range.begin;
  for (const AddressRange& one : written) {
    if (one.begin > covered) return false;
    covered = std::max(covered, one.end);
  }
  return covered >= range.end;
}

}  // namespace

void merge_touched(std::vector<TouchedRange>& touched) {
  std::sort(touched.begin(), touched.end(), [](const TouchedRange& a, const TouchedRange& b) {
    return std::pair(a.access, a.range.begin) < std::pair(b.access, b.range.begin);
  });
  std::size_t kept = 0;
  for (const TouchedRange& next : touched) {
    if (kept != 0 && touched[kept - 1].access == next.access &&
        next.range.begin <= touched[kept - 1].range.end) {
      touched[kept - 1].range.end = std::max(touched[kept - 1].range.end, next.range.end);
    } else {
      touched[kept++] = next;
    }
  }
  touched.resize(kept);
}

void check_time_limit(const char* call, const std::optional<double>& seconds) {
  if (seconds && !(*seconds > 0)) {
    throw ArgumentError(call, "timeout", "a positive number of seconds", std::to_string(*seconds));
  }
}

bool TicketState::wait_done(std::optional<double> seconds) const {
  if (done()) return true;
  device_->check_process();
  const auto spin_end = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < 8; ++i) {
      if (done()) return true;
      cpu_relax();
    }
    std::this_thread::yield();  // the device's thread may be due on this very processor
  } while ((!seconds || *seconds > 0) && std::chrono::steady_clock::now() < spin_end);
  std::unique_lock lock(mutex_);
  if (!seconds) {
    finished_.wait(lock, [&] { return done(); });
    return true;
  }
  return finished_.wait_until(lock, deadline_after(*seconds), [&] { return done(); });
}

std::exception_ptr TicketState::reported_error() const noexcept {
  if (!done() || failure_ == nullptr) return nullptr;
  std::uint64_t expected = Failure::unreported;
  failure_->reported_at.compare_exchange_strong(expected, device_->timeline().commits());
  return failure_->error;
}

void TicketState::on_done(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void TicketState::finish(backend::Completion completion, std::shared_ptr<Failure> failure) {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    completion_ = std::move(completion);
    failure_ = std::move(failure);
    done_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
  }
  finished_.notify_all();
  for (auto& callback : callbacks) callback();
}

void Timeline::submit(std::shared_ptr<Flight> flight) {
  // What it waits for calls back here, and keeps the device until then.
  std::vector<std::shared_ptr<TicketState>> waits = flight->waits;
  {
    std::lock_guard lock(mutex_);
    flight->number = commits_.load(std::memory_order_relaxed) + 1;
    commits_.store(flight->number, std::memory_order_release);
    flights_.push_back(std::move(flight));
  }
  for (const auto& wait : waits) {
    wait->on_done([device = device_.shared_from_this()] { device->timeline().hand_over(); });
  }
  hand_over();
}

void Timeline::hand_over() {
  std::unique_lock lock(mutex_);
  if (handing_over_) return;  // the thread that does it looks again before it leaves
  handing_over_ = true;
  while (handed_over_ < flights_.size()) {
    std::shared_ptr<Flight> flight = flights_[handed_over_];
    const bool ready = std::all_of(flight->waits.begin(), flight->waits.end(),
                                   [](const auto& ticket) { return ticket->done(); });
    if (!ready) break;
    for (const auto& ticket : flight->waits) {
      if (ticket->failure() != nullptr && flight->inherited == nullptr) flight->inherited = ticket->failure();
    }
    ++handed_over_;
    lock.unlock();
    if (flight->inherited != nullptr) {
      complete(flight, {});
    } else {
      // The device must outlive the callback, whoever drops its handles meanwhile.
      flight->submission->commit(
          flight->time_limit, [device = device_.shared_from_this(), flight](backend::Completion completion) {
            device->timeline().complete(flight, std::move(completion));
          });
    }
    lock.lock();
  }
  handing_over_ = false;
}

void Timeline::complete(const std::shared_ptr<Flight>& flight, backend::Completion completion) {
  {
    std::lock_guard lock(mutex_);
    flight->completion = std::move(completion);
  }
  finish_in_order();
}

void Timeline::finish_in_order() {
  std::unique_lock lock(mutex_);
  if (finishing_) return;
  finishing_ = true;
  while (!flights_.empty() && flights_.front()->completion.has_value()) {
    std::shared_ptr<Flight> flight = flights_.front();
    settle(*flight);
    flights_.pop_front();
    --handed_over_;
    lock.unlock();
    if (flight->status != nullptr) flight->completion->warning = flight->status->text();
    // Memory goes back before the ticket says so: after wait() nothing of the launch is held.
    flight->status.reset();
    for (const auto& storage : flight->pinned) storage->unpin();
    flight->pinned.clear();
    flight->pipelines.clear();
    flight->touched = {};
    flight->held.reset();
    flight->submission.reset();
    flight->ticket->finish(std::move(*flight->completion), std::move(flight->inherited));
    lock.lock();
  }
  finishing_ = false;
}

// Decides how the flight ended and brings the failed ranges up to date.
void Timeline::settle(Flight& flight) {
  if (flight.inherited == nullptr) flight.inherited = inherited_failure(flight);
  if (flight.inherited == nullptr && flight.completion->error != nullptr) {
    flight.inherited = std::make_shared<Failure>();
    flight.inherited->error = std::move(flight.completion->error);
  }
  for (const TouchedRange& touched : flight.touched) {
    if (!writes(touched.access) || touched.range.empty()) continue;
    if (flight.inherited != nullptr || !failed_.empty()) subtract_failed(touched.range);
    if (flight.inherited != nullptr) failed_.push_back({touched.range, flight.inherited});
  }
}

std::shared_ptr<Failure> Timeline::inherited_failure(const Flight& flight) const {
  for (const FailedRange& failed : failed_) {
    for (const TouchedRange& touched : flight.touched) {
      if (!reads(touched.access) || !touched.range.overlaps(failed.range)) continue;
      // Who was told of the failure and writes the range anew tries again: a submission that also reads it
      // reads what it wrote, or what it knows to be garbage.
      const bool tries_again =
          flight.number > failed.failure->reported_at.load() &&
          (writes(touched.access) ||
           is_overwritten(flight.touched, {std::max(touched.range.begin, failed.range.begin),
                                           std::min(touched.range.end, failed.range.end)}));
      if (!tries_again) return failed.failure;
    }
  }
  return nullptr;
}

void Timeline::subtract_failed(const AddressRange& range) {
  std::vector<FailedRange> rest;
  for (FailedRange& failed : failed_) {
    if (!failed.range.overlaps(range)) {
      rest.push_back(std::move(failed));
      continue;
    }
    if (failed.range.begin < range.begin) rest.push_back({{failed.range.begin, range.begin}, failed.failure});
    if (failed.range.end > range.end) rest.push_back({{range.end, failed.range.end}, failed.failure});
  }
  failed_ = std::move(rest);
}

void Timeline::forget_range(const AddressRange& range) noexcept {
  std::lock_guard lock(mutex_);
  if (!failed_.empty()) subtract_failed(range);
}

std::optional<bool> Timeline::open_encoder_writes(const AddressRange& range) const {
  for (EncoderState* encoder : open_encoders_) {
    const std::optional<bool> holds = encoder->holds_write_to(range);
    if (!holds || *holds) return holds;
  }
  return false;
}

void Timeline::synchronize_host_read(const AddressRange& range, std::optional<double> seconds) {
  device_.check_process();
  std::optional<std::chrono::steady_clock::time_point> deadline;
  if (seconds) deadline = deadline_after(*seconds);
  for (;;) {
    std::shared_ptr<TicketState> writer;
    {
      std::unique_lock lock(mutex_);
      const std::optional<bool> held = open_encoder_writes(range);
      if (!held) {
        // A call is inside an encoder and may itself need our lock (commit): let it finish.
        lock.unlock();
        std::this_thread::yield();
        continue;
      }
      if (*held) {
        throw ArgumentError(
            "Buffer: an open encoder holds a launch that writes this range; commit or discard it before "
            "reading");
      }
      for (auto flight = flights_.rbegin(); flight != flights_.rend() && writer == nullptr; ++flight) {
        for (const TouchedRange& touched : (*flight)->touched) {
          if (writes(touched.access) && touched.range.overlaps(range)) {
            writer = (*flight)->ticket;
            break;
          }
        }
      }
      if (writer == nullptr) {
        for (const FailedRange& failed : failed_) {
          if (!failed.range.overlaps(range)) continue;
          std::uint64_t expected = Failure::unreported;
          failed.failure->reported_at.compare_exchange_strong(expected, commits());
          std::rethrow_exception(failed.failure->error);
        }
        return;
      }
    }
    std::optional<double> left;
    if (deadline) {
      left = std::chrono::duration<double>(*deadline - std::chrono::steady_clock::now()).count();
    }
    if (!writer->wait_done(left)) {
      throw TimeoutError("Buffer: work that writes this range did not finish in time");
    }
  }
}

bool Timeline::is_settled(const AddressRange& range) {
  std::lock_guard lock(mutex_);
  // An encoder that is being called cannot be asked: it may write.
  if (open_encoder_writes(range).value_or(true)) return false;
  const bool failed = std::any_of(failed_.begin(), failed_.end(),
                                  [&](const FailedRange& one) { return one.range.overlaps(range); });
  return !failed && std::none_of(flights_.begin(), flights_.end(), [&](const auto& flight) {
    return std::any_of(flight->touched.begin(), flight->touched.end(), [&](const TouchedRange& touched) {
      return writes(touched.access) && touched.range.overlaps(range);
    });
  });
}

void Timeline::wait_idle() {
  device_.check_process();
  std::shared_ptr<TicketState> last;
  {
    std::lock_guard lock(mutex_);
    if (!flights_.empty()) last = flights_.back()->ticket;
  }
  if (last != nullptr) last->wait_done(std::nullopt);
}

void Timeline::add_encoder(EncoderState* encoder) {
  std::lock_guard lock(mutex_);
  open_encoders_.push_back(encoder);
}

void Timeline::remove_encoder(EncoderState* encoder) noexcept {
  std::lock_guard lock(mutex_);
  open_encoders_.erase(std::remove(open_encoders_.begin(), open_encoders_.end(), encoder),
                       open_encoders_.end());
}

}  // namespace metalane::core
