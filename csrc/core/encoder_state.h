// The open end of a submission: checks launches, derives ranges and barriers, records or captures.
#pragma once

#include <metalane/encoder.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/hazard_tracker.h"
#include "core/launch_check.h"
#include "core/registry.h"
#include "core/timeline.h"

namespace metalane::core {

class DeviceState;

class EncoderState {
 public:
  static std::shared_ptr<EncoderState> open(std::shared_ptr<DeviceState> device, EncoderOptions options);
  EncoderState(std::shared_ptr<DeviceState> device, EncoderOptions options);
  ~EncoderState();

  void dispatch(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
                std::span<const ThreadgroupMemory> threadgroup_memory);
  void dispatch_node(const GraphNode& node);
  void copy(const Buffer& source, const Buffer& destination);
  void fill(const Buffer& buffer, std::span<const std::uint8_t> element);
  void memory_barrier();
  void start_capture();
  bool is_capturing();
  ComputeGraph take_capture();
  void abandon_capture();
  void set_pending_buffer_ranges(std::vector<AddressRange> reads, std::vector<AddressRange> writes);
  void push_label(std::string_view name);
  void pop_label();
  void wait_for(const Ticket& ticket);
  Ticket commit(std::optional<double> time_limit);
  void discard() noexcept;

  bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }
  EncoderCounters counters() const noexcept;
  const std::shared_ptr<DeviceState>& device() const noexcept { return device_; }
  // For host reads, from any thread. Empty while a call is inside the encoder: ask again.
  std::optional<bool> holds_write_to(const AddressRange& range);

 private:
  class Use;

  // `ranges` stand in for the derived ones; null: derive.
  void encode(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
              std::span<const ThreadgroupMemory> threadgroup_memory, const std::vector<TouchedRange>* ranges);
  void record(const Pipeline& pipeline, std::span<const TouchedRange> touched);
  void capture(const Pipeline& pipeline, const Grid& grid, std::span<const TouchedRange> touched,
               bool overridden);
  void pin_buffers();
  void remember(std::span<const TouchedRange> touched);
  void encode_barrier();
  void end_labels() noexcept;
  void close() noexcept;

  std::shared_ptr<DeviceState> device_;
  EncoderOptions options_;
  std::uint64_t id_;
  std::atomic<int> user_{0};  // 0: nobody, 1: the encoding thread, 2: a host read looking at touched_
  std::atomic<bool> open_{true};
  std::unique_ptr<backend::Submission> submission_;
  HazardTracker hazards_;
  std::vector<TouchedRange> touched_;      // everything since open, for the timeline
  std::array<TouchedRange, 64> recent_{};  // a direct-mapped cache of what touched_ holds
  std::size_t compact_touched_at_ = 8192;
  std::vector<std::shared_ptr<Storage>> pinned_;
  std::vector<Pipeline> pipelines_;
  std::vector<std::shared_ptr<TicketState>> waits_;
  std::optional<std::vector<GraphNode>> capture_;
  bool capture_barrier_ = false;
  std::optional<std::vector<TouchedRange>> pending_;  // ranges of the next launch
  CheckedLaunch checked_;                             // scratch of the call that is inside
  std::string label_path_;
  std::vector<std::size_t> label_starts_;  // where each open label begins in label_path_
  std::atomic<std::uint64_t> launches_{0};
  std::uint64_t launches_at_barrier_ = 0;
  std::atomic<std::uint64_t> barriers_{0};
};

}  // namespace metalane::core
