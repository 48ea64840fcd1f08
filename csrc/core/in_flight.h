// The queue behind an InFlightLimit.
#pragma once

#include <metalane/in_flight.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace metalane::core {

class InFlightState;

// What a caller has asked for: waits in the queue, is granted, and ends given back or given away. Whoever
// asked must end it. Thread-safe.
class METALANE_API InFlightPlace {
 public:
  InFlightPlace(std::shared_ptr<InFlightState> limit, std::function<void()> on_grant)
      : limit_(std::move(limit)), on_grant_(std::move(on_grant)) {}

  bool granted() const;
  bool wait_granted(double seconds) const;
  // Leaves the queue, or lets the next one in. Nothing happens where it is over already.
  void give_back() noexcept;
  // give_back() once the ticket is done. Throws ArgumentError unless granted and not over.
  void hold_until(const Ticket& ticket);

 private:
  friend class InFlightState;
  enum class Stage : std::uint8_t { waiting, granted, over };

  std::shared_ptr<InFlightState> limit_;
  const std::function<void()> on_grant_;
  Stage stage_ = Stage::waiting;  // guarded by the limit's mutex
};

class METALANE_API InFlightState : public std::enable_shared_from_this<InFlightState> {
 public:
  explicit InFlightState(std::uint64_t max_in_flight);

  // A place, granted at once or later; then `on_grant` runs once, on the thread that gave a place back. It
  // must not throw, and is not called for what is granted at once.
  std::shared_ptr<InFlightPlace> ask(std::function<void()> on_grant);
  std::uint64_t max_in_flight() const noexcept { return max_in_flight_; }
  std::uint64_t in_flight() const;
  std::uint64_t waiting() const;

 private:
  friend class InFlightPlace;
  bool in_other_process() const noexcept;
  void check_process() const;
  void release() noexcept;

  const std::uint64_t max_in_flight_;
  const std::uint64_t fork_generation_;
  mutable std::mutex mutex_;
  mutable std::condition_variable granted_;
  std::uint64_t in_flight_ = 0;
  std::deque<std::shared_ptr<InFlightPlace>> queue_;
};

}  // namespace metalane::core
