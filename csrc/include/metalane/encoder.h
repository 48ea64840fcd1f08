// Recording launches into a submission, with barriers from declared access, and capture into a graph.
#pragma once

#include <metalane/buffer.h>
#include <metalane/export.h>
#include <metalane/graph.h>
#include <metalane/kernel.h>
#include <metalane/launch.h>
#include <metalane/ticket.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace metalane {

class Device;

namespace core {
class EncoderState;
}

struct EncoderOptions {
  bool concurrent = true;     // false: one launch after another, no barriers needed
  bool auto_barriers = true;  // false: only explicit memory_barrier() orders launches
};

struct EncoderCounters {
  std::uint64_t launches = 0;
  std::uint64_t barriers = 0;
};

// Records launches of one submission. Move-only, and for one thread at a time: two threads inside one
// encoder at once raise. Nothing is encoded by a call that throws.
class METALANE_API CommandEncoder {
 public:
  explicit CommandEncoder(std::shared_ptr<core::EncoderState> state);
  CommandEncoder(CommandEncoder&&) noexcept;
  CommandEncoder& operator=(CommandEncoder&&) noexcept;
  CommandEncoder(const CommandEncoder&) = delete;
  CommandEncoder& operator=(const CommandEncoder&) = delete;
  ~CommandEncoder();  // discards what was not committed

  void dispatch(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
                std::span<const ThreadgroupMemory> threadgroup_memory = {});
  void dispatch(const Pipeline& pipeline, std::initializer_list<KernelArg> args, const Grid& grid,
                std::span<const ThreadgroupMemory> threadgroup_memory = {}) {
    dispatch(pipeline, std::span<const KernelArg>(args.begin(), args.size()), grid, threadgroup_memory);
  }
  // Launches of built-in kernels. copy: equal byte counts, ranges that don't overlap. fill: `value` is one
  // element of the buffer's dtype, given as its bytes.
  void copy(const Buffer& source, const Buffer& destination);
  void fill(const Buffer& buffer, std::span<const std::uint8_t> element);

  // Orders everything after it behind everything before it.
  void memory_barrier();

  // From here to take_capture() launches become nodes of a graph instead of being encoded.
  void start_capture();
  bool is_capturing() const;
  ComputeGraph take_capture();
  // Ends a capture and drops its nodes.
  void abandon_capture();
  // The next launch has these ranges instead of those derived from its signature and bindings.
  void set_pending_buffer_ranges(std::vector<AddressRange> reads, std::vector<AddressRange> writes);

  // Names what follows until the matching pop_label(); labels nest.
  void push_label(std::string_view name);
  void pop_label();

  // The submission starts only when `ticket` (of any device) is done, and fails with its error.
  void wait_for(const Ticket& ticket);

  // Hands the recorded work to the device and closes the encoder. `time_limit`: seconds that the submission
  // may run on the device before it fails with CommandBufferError code "timeout".
  Ticket commit(std::optional<double> time_limit = std::nullopt);
  void commit_and_wait(std::optional<double> time_limit = std::nullopt);
  // Drops what was recorded and closes the encoder.
  void discard() noexcept;

  bool is_open() const noexcept;
  EncoderCounters counters() const noexcept;
  Device device() const;
  const std::shared_ptr<core::EncoderState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<core::EncoderState> state_;
};

// A capture that ends with the scope: what take() did not fetch is dropped, and the encoder stays usable.
class CaptureScope {
 public:
  explicit CaptureScope(CommandEncoder& encoder) : encoder_(encoder) { encoder_.start_capture(); }
  ~CaptureScope() {
    if (!taken_ && encoder_.is_open()) encoder_.abandon_capture();
  }
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  ComputeGraph take() {
    ComputeGraph graph = encoder_.take_capture();
    taken_ = true;
    return graph;
  }

 private:
  CommandEncoder& encoder_;
  bool taken_ = false;
};

// Pushes a label for the lifetime of the scope.
class LabelScope {
 public:
  LabelScope(CommandEncoder& encoder, std::string_view name) : encoder_(encoder) {
    encoder_.push_label(name);
  }
  ~LabelScope() {
    if (encoder_.is_open()) encoder_.pop_label();
  }
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  CommandEncoder& encoder_;
};

}  // namespace metalane
