// Back-pressure: at most so many submissions in flight, first come, first served.
#pragma once

#include <metalane/export.h>
#include <metalane/ticket.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace metalane {

namespace core {
class InFlightState;
class InFlightPlace;
}  // namespace core

// One place under a limit. It is given back when this goes, or, after hold_until(), when the ticket is done.
class METALANE_API InFlightSlot {
 public:
  explicit InFlightSlot(std::shared_ptr<core::InFlightPlace> place);
  InFlightSlot(InFlightSlot&&) noexcept = default;
  InFlightSlot& operator=(InFlightSlot&&) noexcept;
  InFlightSlot(const InFlightSlot&) = delete;
  InFlightSlot& operator=(const InFlightSlot&) = delete;
  ~InFlightSlot();
  // Throws ArgumentError for a slot that was given away already.
  void hold_until(const Ticket& ticket);
  const std::shared_ptr<core::InFlightPlace>& place() const noexcept { return place_; }

 private:
  std::shared_ptr<core::InFlightPlace> place_;
};

// Cheap to copy, thread-safe; for the process that made it.
class METALANE_API InFlightLimit {
 public:
  // Throws ArgumentError for 0.
  explicit InFlightLimit(std::uint64_t max_in_flight);
  explicit InFlightLimit(std::shared_ptr<core::InFlightState> state) : state_(std::move(state)) {}

  // Waits for a place behind those who asked before. Throws TimeoutError after `seconds`.
  InFlightSlot acquire(std::optional<double> seconds = std::nullopt) const;

  std::uint64_t max_in_flight() const noexcept;
  std::uint64_t in_flight() const;  // places that are taken
  std::uint64_t waiting() const;    // callers that wait for one
  const std::shared_ptr<core::InFlightState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<core::InFlightState> state_;
};

}  // namespace metalane
