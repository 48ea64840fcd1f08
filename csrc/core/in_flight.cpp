// See in_flight.h. A place that is given back goes straight to the first in the queue, so that nobody who
// comes later can take it.
#include "core/in_flight.h"

#include <metalane/error.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/fork.h"
#include "core/timeline.h"

namespace metalane {

namespace core {

bool InFlightPlace::granted() const {
  limit_->check_process();
  std::lock_guard lock(limit_->mutex_);
  return stage_ == Stage::granted;
}

bool InFlightPlace::wait_granted(double seconds) const {
  limit_->check_process();
  std::unique_lock lock(limit_->mutex_);
  // Past about 30 years, "for ever" on every clock's arithmetic.
  const std::chrono::duration<double> longest(std::clamp(seconds, 0.0, 1e9));
  return limit_->granted_.wait_for(lock, longest, [this] { return stage_ == Stage::granted; });
}

void InFlightPlace::give_back() noexcept {
  if (limit_->in_other_process()) return;
  {
    std::lock_guard lock(limit_->mutex_);
    const Stage before = std::exchange(stage_, Stage::over);
    if (before == Stage::waiting) {
      std::erase_if(limit_->queue_, [this](const auto& waiting) { return waiting.get() == this; });
    }
    if (before != Stage::granted) return;
  }
  limit_->release();
}

void InFlightPlace::hold_until(const Ticket& ticket) {
  limit_->check_process();
  {
    std::lock_guard lock(limit_->mutex_);
    if (stage_ != Stage::granted) {
      throw ArgumentError("InFlightSlot.hold_until: the slot has none of the limit's places");
    }
    stage_ = Stage::over;
  }
  ticket.on_done([limit = limit_] { limit->release(); });
}

InFlightState::InFlightState(std::uint64_t max_in_flight)
    : max_in_flight_(max_in_flight), fork_generation_(fork_generation()) {
  if (max_in_flight == 0) throw ArgumentError("InFlightLimit", "max_in_flight", "at least 1", "0");
}

bool InFlightState::in_other_process() const noexcept { return fork_generation() != fork_generation_; }

void InFlightState::check_process() const {
  if (in_other_process()) {
    throw DeviceError("InFlightLimit: it was made before this process was forked; make a new one here");
  }
}

std::shared_ptr<InFlightPlace> InFlightState::ask(std::function<void()> on_grant) {
  check_process();
  auto place = std::make_shared<InFlightPlace>(shared_from_this(), std::move(on_grant));
  std::lock_guard lock(mutex_);
  if (in_flight_ < max_in_flight_) {
    ++in_flight_;
    place->stage_ = InFlightPlace::Stage::granted;
  } else {
    queue_.push_back(place);
  }
  return place;
}

void InFlightState::release() noexcept {
  std::shared_ptr<InFlightPlace> next;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      --in_flight_;
      return;
    }
    next = std::move(queue_.front());
    queue_.pop_front();
    next->stage_ = InFlightPlace::Stage::granted;
  }
  granted_.notify_all();
  next->on_grant_();
}

std::uint64_t InFlightState::in_flight() const {
  check_process();
  std::lock_guard lock(mutex_);
  return in_flight_;
}

std::uint64_t InFlightState::waiting() const {
  check_process();
  std::lock_guard lock(mutex_);
  return queue_.size();
}

}  // namespace core

InFlightSlot::InFlightSlot(std::shared_ptr<core::InFlightPlace> place) : place_(std::move(place)) {}

InFlightSlot& InFlightSlot::operator=(InFlightSlot&& other) noexcept {
  if (place_ != nullptr && this != &other) place_->give_back();
  place_ = std::move(other.place_);
  return *this;
}

InFlightSlot::~InFlightSlot() {
  if (place_ != nullptr) place_->give_back();
}

void InFlightSlot::hold_until(const Ticket& ticket) {
  if (place_ == nullptr) throw ArgumentError("InFlightSlot.hold_until: the slot was moved from");
  place_->hold_until(ticket);
}

InFlightLimit::InFlightLimit(std::uint64_t max_in_flight)
    : state_(std::make_shared<core::InFlightState>(max_in_flight)) {}

InFlightSlot InFlightLimit::acquire(std::optional<double> seconds) const {
  InFlightSlot slot(state_->ask([] {}));
  if (!slot.place()->wait_granted(seconds.value_or(1e9))) {
    throw TimeoutError("InFlightLimit.acquire: no submission ended within " + std::to_string(*seconds) +
                       " s");
  }
  return slot;
}

std::uint64_t InFlightLimit::max_in_flight() const noexcept { return state_->max_in_flight(); }
std::uint64_t InFlightLimit::in_flight() const { return state_->in_flight(); }
std::uint64_t InFlightLimit::waiting() const { return state_->waiting(); }

}  // namespace metalane
