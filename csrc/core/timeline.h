// The order of one device's submissions: hand-over to the backend, completion of tickets in commit order,
// errors that follow data, and host reads that wait.
#pragma once

#include <metalane/buffer.h>
#include <metalane/kernel.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/launch_status.h"

namespace metalane::core {

class DeviceState;
class EncoderState;
class Storage;

// An error that later readers of the failed writer's ranges inherit.
struct Failure {
  static constexpr std::uint64_t unreported = ~std::uint64_t{0};
  std::exception_ptr error;
  // The number of the newest commit at the moment when a caller was first told; commits after it may write
  // the ranges anew.
  std::atomic<std::uint64_t> reported_at{unreported};
};

class TicketState {
 public:
  explicit TicketState(std::shared_ptr<DeviceState> device) : device_(std::move(device)) {}

  bool wait_done(std::optional<double> seconds) const;
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Null while unfinished or without error. Counts as telling the caller.
  std::exception_ptr reported_error() const noexcept;
  const std::shared_ptr<Failure>& failure() const noexcept { return failure_; }   // valid once done
  const backend::Completion& completion() const noexcept { return completion_; }  // valid once done
  void on_done(std::function<void()> callback);
  const std::shared_ptr<DeviceState>& device() const noexcept { return device_; }

  void finish(backend::Completion completion, std::shared_ptr<Failure> failure);

 private:
  std::shared_ptr<DeviceState> device_;
  mutable std::mutex mutex_;
  mutable std::condition_variable finished_;
  std::atomic<bool> done_{false};
  std::vector<std::function<void()>> callbacks_;
  backend::Completion completion_;
  std::shared_ptr<Failure> failure_;
};

struct TouchedRange {
  AddressRange range;
  Access access = Access::none;
};

// Sorts ranges and joins those of one access that cover or touch each other.
void merge_touched(std::vector<TouchedRange>& touched);

// Throws ArgumentError where a submission cannot have this time limit.
void check_time_limit(const char* call, const std::optional<double>& seconds);

// One submission from commit() to its ticket's end. Owns what the launches need to stay alive.
struct Flight {
  std::unique_ptr<backend::Submission> submission;
  std::optional<double> time_limit;
  std::span<const TouchedRange> touched;  // of `own_touched`, or of what is held
  std::vector<TouchedRange> own_touched;
  std::vector<std::shared_ptr<Storage>> pinned;
  std::vector<Pipeline> pipelines;
  std::shared_ptr<const void> held;  // a replayed program with its pins
  std::vector<std::shared_ptr<TicketState>> waits;
  std::unique_ptr<LaunchStatus> status;  // null where no kernel of it reports anything
  std::shared_ptr<TicketState> ticket;
  std::uint64_t number = 0;  // position in commit order, from 1
  std::optional<backend::Completion> completion;
  std::shared_ptr<Failure> inherited;
};

class Timeline {
 public:
  explicit Timeline(DeviceState& device) : device_(device) {}

  void submit(std::shared_ptr<Flight> flight);
  // Waits for committed writers of `range` and throws their error; throws ArgumentError while an open
  // encoder holds a launch that writes it.
  void synchronize_host_read(const AddressRange& range, std::optional<double> seconds);
  // True where nothing recorded or committed may write `range`, and no failed work has. For looks that can be
  // left out.
  bool is_settled(const AddressRange& range);
  void wait_idle();
  std::uint64_t commits() const noexcept { return commits_.load(std::memory_order_acquire); }

  void add_encoder(EncoderState* encoder);
  void remove_encoder(EncoderState* encoder) noexcept;
  void forget_range(const AddressRange& range) noexcept;

 private:
  struct FailedRange {
    AddressRange range;
    std::shared_ptr<Failure> failure;
  };

  void hand_over();
  void complete(const std::shared_ptr<Flight>& flight, backend::Completion completion);
  void finish_in_order();
  void settle(Flight& flight);
  std::shared_ptr<Failure> inherited_failure(const Flight& flight) const;
  std::optional<bool> open_encoder_writes(const AddressRange& range) const;
  void subtract_failed(const AddressRange& range);

  DeviceState& device_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Flight>> flights_;  // commit order, until their tickets are finished
  std::size_t handed_over_ = 0;                  // how many of them the backend or an error already has
  bool handing_over_ = false;
  bool finishing_ = false;
  std::vector<FailedRange> failed_;
  std::vector<EncoderState*> open_encoders_;
  std::atomic<std::uint64_t> commits_{0};
};

}  // namespace metalane::core
