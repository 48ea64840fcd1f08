// The open end of a submission: checks launches, derives ranges and barriers, records or captures.
#pragma once

#include <metalane/encoder.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/graph_state.h"
#include "core/hazard_tracker.h"
#include "core/launch_check.h"
#include "core/launch_status.h"
#include "core/registry.h"
#include "core/timeline.h"

namespace metalane::core {

class CallRecheck;
class DeviceState;

class EncoderState {
 public:
  static std::shared_ptr<EncoderState> open(std::shared_ptr<DeviceState> device, EncoderOptions options);
  EncoderState(std::shared_ptr<DeviceState> device, EncoderOptions options);
  ~EncoderState();

  void dispatch(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
                std::span<const ThreadgroupMemory> threadgroup_memory);
  void encode_graph(const GraphState& graph);
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
  // Launches go there from now on, instead of being recorded. For a fresh encoder that is then discarded.
  void compare_with(CallRecheck* recheck) noexcept { recheck_ = recheck; }

 private:
  friend class OperatorScope;
  // Holds the encoder for one call of its thread; throws where another thread does, or where it is closed.
  class Use {
   public:
    Use(EncoderState& encoder, const char* call, bool must_be_open = true);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    EncoderState& encoder_;
  };

  // What start_capture() begins.
  struct Capture {
    std::vector<GraphNode> nodes;
    std::vector<RecordedCall> calls;
    std::size_t open_call = 0;  // whose launches come
    bool barrier = false;       // an explicit one stands before the next node
  };
  // The launches until its end are those of one call, if they are captured.
  class Call {
   public:
    Call(EncoderState& encoder, const char* op);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Capture* capture_;
  };

  // `ranges` stand in for the derived ones; null: derive.
  void encode(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
              std::span<const ThreadgroupMemory> threadgroup_memory, std::string_view label,
              const std::vector<TouchedRange>* ranges);
  void encode_node(const GraphNode& node);
  void record(const Pipeline& pipeline, std::span<const TouchedRange> touched);
  void bind_status(const PipelineState& pipeline);
  void capture(const Pipeline& pipeline, const Grid& grid, std::span<const TouchedRange> touched,
               bool overridden);
  void pin_buffers();
  void remember(std::span<const TouchedRange> touched);
  void encode_barrier();
  void begin_label(std::string_view name);
  void end_label();
  void end_labels() noexcept;
  void close() noexcept;

  std::shared_ptr<DeviceState> device_;
  EncoderOptions options_;
  std::uint64_t id_;
  std::atomic<int> user_{0};  // 0: nobody, 1: the encoding thread, 2: a host read looking at touched_
  std::atomic<bool> open_{true};
  std::unique_ptr<backend::Submission> submission_;
  HazardTracker hazards_;
  std::vector<TouchedRange> touched_;                     // everything since open, for the timeline
  std::array<std::array<TouchedRange, 2>, 32> recent_{};  // a two-way cache of what touched_ holds
  std::size_t compact_touched_at_ = 8192;
  std::vector<std::shared_ptr<Storage>> pinned_;
  std::vector<Pipeline> pipelines_;
  std::vector<std::shared_ptr<TicketState>> waits_;
  std::unique_ptr<LaunchStatus>
      status_;                        // where kernels that report something do so; null until one is recorded
  std::unique_ptr<Capture> capture_;  // null: launches are recorded
  CallRecheck* recheck_ = nullptr;
  std::optional<std::vector<TouchedRange>> pending_;  // ranges of the next launch
  CheckedLaunch checked_;                             // scratch of the call that is inside
  std::string label_path_;
  std::vector<std::size_t> label_starts_;  // where each open label begins in label_path_
  std::atomic<std::uint64_t> launches_{0};
  std::uint64_t launches_at_barrier_ = 0;
  std::atomic<std::uint64_t> barriers_{0};
};

// The launches of one operator under one label, recorded as one call: no other thread comes between them.
class OperatorScope {
 public:
  OperatorScope(EncoderState& encoder, const char* op, std::string_view label);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  // As CommandEncoder's dispatch() and memory_barrier().
  void dispatch(const Pipeline& pipeline, std::initializer_list<KernelArg> args, const Grid& grid);
  void barrier();

  // How a replay calls the operator again: `make_again()` gives a function of (CommandEncoder&, const
  // Rebinding&, const Params&). It is asked for only while launches are captured.
  template <typename Params, typename MakeAgain>
  void on_replay(const Params& params, const MakeAgain& make_again) {
    if (!is_captured()) return;
    remember({reinterpret_cast<const std::uint8_t*>(&params), sizeof(Params)},
             [again = make_again()](CommandEncoder& encoder, const Rebinding& rebinding,
                                    const std::uint8_t* bytes) {
               Params params;
               std::memcpy(&params, bytes, sizeof(Params));
               again(encoder, rebinding, params);
             });
  }

 private:
  bool is_captured() const noexcept;
  void remember(std::span<const std::uint8_t> params, CallAgain again);

  EncoderState& encoder_;
  EncoderState::Use use_;
  EncoderState::Call call_;
};

}  // namespace metalane::core
