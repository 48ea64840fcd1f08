// See encoder_state.h. The road of a launch: check_launch -> ranges -> barrier? -> backend, or -> graph node.
#include "core/encoder_state.h"

#include <metalane/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/call_recheck.h"
#include "core/device_state.h"
#include "core/graph_order.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

std::atomic<std::uint64_t> next_encoder_id{1};

const BuiltinPipeline& copy_kernel() {
  static const BuiltinPipeline kernel("metalane_copy");
  return kernel;
}

const BuiltinPipeline& fill_kernel() {
  static const BuiltinPipeline kernel("metalane_fill");
  return kernel;
}

// What metalane_fill takes (shaders/memory.metal).
struct FillParams {
  std::uint64_t nbytes;
  std::uint32_t element_bytes;
  std::uint8_t element[8];
  std::uint32_t padding;
};
constexpr std::uint64_t bytes_per_thread = 16;

}  // namespace

EncoderState::Use::Use(EncoderState& encoder, const char* call, bool must_be_open) : encoder_(encoder) {
  // First of all: in a forked child `user_` may name a thread that stayed in the parent.
  encoder_.device_->check_process();
  for (;;) {
    int nobody = 0;
    if (encoder_.user_.compare_exchange_weak(nobody, 1, std::memory_order_acquire)) break;
    if (nobody == 1) {
      throw ArgumentError(std::string(call) +
                          ": another thread is using this encoder; give each thread its own");
    }
  }
  if (must_be_open && !encoder_.is_open()) {
    encoder_.user_.store(0, std::memory_order_release);
    throw ArgumentError(std::string(call) + ": the encoder was committed or discarded; open a new one");
  }
}

EncoderState::Use::~Use() { encoder_.user_.store(0, std::memory_order_release); }

EncoderState::Call::Call(EncoderState& encoder, const char* op) : capture_(encoder.capture_.get()) {
  if (capture_ == nullptr) return;
  capture_->calls.emplace_back().op = op;
  capture_->open_call = capture_->calls.size() - 1;
}

EncoderState::Call::~Call() {
  if (capture_ != nullptr && capture_->calls.back().nodes.empty()) capture_->calls.pop_back();
}

OperatorScope::OperatorScope(EncoderState& encoder, const char* op, std::string_view label)
    : encoder_(encoder), use_(encoder, op), call_(encoder, op) {
  encoder_.begin_label(label);
}

OperatorScope::~OperatorScope() { encoder_.end_label(); }

bool OperatorScope::is_captured() const noexcept { return encoder_.capture_ != nullptr; }

void OperatorScope::remember(std::span<const std::uint8_t> params, CallAgain again) {
  RecordedCall& call = encoder_.capture_->calls.back();
  call.params.assign(params.begin(), params.end());
  call.again = std::move(again);
}

void OperatorScope::dispatch(const Pipeline& pipeline, std::initializer_list<KernelArg> args,
                             const Grid& grid) {
  encoder_.encode(pipeline, {args.begin(), args.size()}, grid, {}, encoder_.label_path_, nullptr);
}

void OperatorScope::barrier() { encoder_.encode_barrier(); }

std::shared_ptr<EncoderState> EncoderState::open(std::shared_ptr<DeviceState> device,
                                                 EncoderOptions options) {
  device->check_process();
  return std::make_shared<EncoderState>(std::move(device), options);
}

EncoderState::EncoderState(std::shared_ptr<DeviceState> device, EncoderOptions options)
    : device_(std::move(device)),
      options_(options),
      id_(next_encoder_id.fetch_add(1, std::memory_order_relaxed)),
      submission_(device_->open_submission({options.concurrent})) {
  device_->timeline().add_encoder(this);
}

EncoderState::~EncoderState() {
  if (is_open()) close();
}

EncoderCounters EncoderState::counters() const noexcept { return {launches_.load(), barriers_.load()}; }

std::optional<bool> EncoderState::holds_write_to(const AddressRange& range) {
  int nobody = 0;
  if (!user_.compare_exchange_strong(nobody, 2, std::memory_order_acquire)) return std::nullopt;
  const bool holds = std::any_of(touched_.begin(), touched_.end(), [&](const TouchedRange& touched) {
    return writes(touched.access) && touched.range.overlaps(range);
  });
  user_.store(0, std::memory_order_release);
  return holds;
}

void EncoderState::dispatch(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
                            std::span<const ThreadgroupMemory> threadgroup_memory) {
  Use use(*this, "CommandEncoder.dispatch");
  Call call(*this, "dispatch");
  if (!pipeline) throw ArgumentError("CommandEncoder.dispatch", "pipeline", "a pipeline", "an empty handle");
  encode(pipeline, args, grid, threadgroup_memory, label_path_, nullptr);
}

void EncoderState::encode_graph(const GraphState& graph) {
  Use use(*this, "ComputeGraph.encode");
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    for (const GraphBinding& binding : graph.nodes()[i].bindings) {
      if (binding.bytes.empty() && binding.buffer.released()) {
        throw ArgumentError("ComputeGraph.encode",
                            "node " + std::to_string(i) + " argument " + std::to_string(binding.index),
                            "a live buffer", "a released one");
      }
    }
  }
  std::vector<std::size_t> calls;  // of the graph, in the open capture
  if (capture_ != nullptr) {
    for (const RecordedCall& call : graph.calls()) {
      calls.push_back(capture_->calls.size());
      capture_->calls.push_back(call);
      capture_->calls.back().nodes.clear();
    }
  }
  for (const GraphNode& node : graph.nodes()) {
    if (capture_ != nullptr) capture_->open_call = calls[node.call];
    encode_node(node);
  }
}

void EncoderState::encode_node(const GraphNode& node) {
  std::array<KernelArg, max_buffers> args;
  std::size_t count = 0;
  for (const GraphBinding& binding : node.bindings) {
    args[count++] = binding.bytes.empty()
                        ? KernelArg(binding.index, binding.buffer)
                        : KernelArg(binding.index, binding.bytes.data(), binding.bytes.size());
  }
  const std::vector<TouchedRange> ranges = touched_by(node);
  if (node.ranges_overridden && !pending_) pending_ = ranges;  // another capture must know it, too
  if (node.barrier_before) encode_barrier();
  std::string path;
  std::string_view label = node.label;
  if (!label_path_.empty()) {
    path = node.label.empty() ? label_path_ : label_path_ + "/" + node.label;
    label = path;
  }
  encode(node.pipeline, {args.data(), count}, node.grid, node.threadgroup_memory, label, &ranges);
}

void EncoderState::encode(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
                          std::span<const ThreadgroupMemory> threadgroup_memory, std::string_view label,
                          const std::vector<TouchedRange>* ranges) {
  // A call that throws uses the pending ranges up: they must never reach another launch.
  std::optional<std::vector<TouchedRange>> pending;
  if (pending_) pending = std::exchange(pending_, std::nullopt);
  checked_.buffer_count = checked_.bytes_count = checked_.threadgroup_count = 0;
  checked_.touched_count = checked_.handle_count = 0;
  check_launch(*device_, *pipeline.state(), args, grid, threadgroup_memory, checked_);
  checked_.launch.label = label;
  if (recheck_ != nullptr) {
    recheck_->meet(pipeline, checked_);
    return;
  }
  const bool overridden = pending.has_value();
  std::span<const TouchedRange> touched(checked_.touched.data(), checked_.touched_count);
  if (overridden) {
    touched = *pending;
  } else if (ranges != nullptr) {
    touched = *ranges;
  }
  if (capture_ != nullptr) {
    capture(pipeline, grid, touched, overridden);
  } else {
    record(pipeline, touched);
  }
}

void EncoderState::record(const Pipeline& pipeline, std::span<const TouchedRange> touched) {
  pin_buffers();
  if (pipelines_.empty() || pipelines_.back().state() != pipeline.state()) {
    const std::size_t look_back = std::min<std::size_t>(pipelines_.size(), 16);
    const bool known =
        std::any_of(pipelines_.end() - static_cast<std::ptrdiff_t>(look_back), pipelines_.end(),
                    [&](const Pipeline& kept) { return kept.state() == pipeline.state(); });
    if (!known) pipelines_.push_back(pipeline);
  }
  if (options_.auto_barriers && options_.concurrent) {
    if (hazards_.conflicts(touched)) encode_barrier();
    hazards_.add(touched);
  }
  remember(touched);
  if (pipeline.state()->status_argument >= 0) bind_status(*pipeline.state());
  submission_->dispatch(checked_.launch);
  launches_.store(launches_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Atomics that only add: no hazard, and so no touched range.
void EncoderState::bind_status(const PipelineState& pipeline) {
  if (status_ == nullptr) status_ = std::make_unique<LaunchStatus>(*device_);
  const auto argument = static_cast<std::size_t>(pipeline.status_argument);
  checked_.buffers[checked_.buffer_count++] =
      status_->word(checked_.launch.label, pipeline.compiled->signature.arguments[argument]);
  checked_.launch.buffers = {checked_.buffers.data(), checked_.buffer_count};
}

void EncoderState::pin_buffers() {
  for (std::size_t i = 0; i < checked_.handle_count; ++i) {
    const std::shared_ptr<Storage>& storage = checked_.handles[i]->storage();
    if (storage->pinned_by_encoder.load(std::memory_order_relaxed) == id_) continue;
    if (!storage->try_pin())
      throw ArgumentError("CommandEncoder.dispatch: a buffer was released during the call");
    storage->pinned_by_encoder.store(id_, std::memory_order_relaxed);
    pinned_.push_back(storage);
  }
}

void EncoderState::remember(std::span<const TouchedRange> touched) {
  for (const TouchedRange& range : touched) {
    // Serving loops touch the same ranges again and again: most repetitions end here. Buffers lie at page
    // boundaries: the top bits of the product depend on every bit of both addresses.
    const std::uint64_t mix = (range.range.begin + 3 * range.range.end) * 0x9e3779b97f4a7c15u;
    std::array<TouchedRange, 2>& recent = recent_[mix >> 59];
    const auto is_it = [&range](const TouchedRange& known) {
      return known.range == range.range && known.access == range.access;
    };
    if (is_it(recent[0]) || is_it(recent[1])) continue;
    recent = {range, recent[0]};
    touched_.push_back(range);
  }
  if (touched_.size() > compact_touched_at_) {
    merge_touched(touched_);
    compact_touched_at_ = std::max<std::size_t>(8192, touched_.size() * 2);
  }
}

void EncoderState::capture(const Pipeline& pipeline, const Grid& grid, std::span<const TouchedRange> touched,
                           bool overridden) {
  GraphNode node;
  RecordedCall& call = capture_->calls[capture_->open_call];
  call.nodes.push_back(static_cast<std::uint32_t>(capture_->nodes.size()));
  node.op = call.op;
  node.call = static_cast<std::uint32_t>(capture_->open_call);
  node.pipeline = pipeline;
  node.label = checked_.launch.label;
  for (std::size_t i = 0; i < checked_.buffer_count; ++i) {
    node.bindings.push_back(
        {checked_.buffers[i].index, checked_.buffers[i].access, *checked_.handles[i], {}});
  }
  for (std::size_t i = 0; i < checked_.bytes_count; ++i) {
    const backend::BytesBinding& bytes = checked_.bytes[i];
    node.bindings.push_back({bytes.index, Access::read, {}, {bytes.data, bytes.data + bytes.nbytes}});
  }
  std::sort(node.bindings.begin(), node.bindings.end(),
            [](const GraphBinding& a, const GraphBinding& b) { return a.index < b.index; });
  for (std::size_t i = 0; i < checked_.threadgroup_count; ++i) {
    node.threadgroup_memory.push_back(
        {checked_.threadgroup_memory[i].index, checked_.threadgroup_memory[i].nbytes});
  }
  node.grid = grid;
  for (const TouchedRange& range : touched) {
    if (reads(range.access)) node.reads.push_back(range.range);
    if (writes(range.access)) node.writes.push_back(range.range);
  }
  node.ranges_overridden = overridden;
  node.barrier_before = std::exchange(capture_->barrier, false);
  capture_->nodes.push_back(std::move(node));
}

void EncoderState::copy(const Buffer& source, const Buffer& destination) {
  Use use(*this, "CommandEncoder.copy");
  Call call(*this, "copy");
  if (source.nbytes() != destination.nbytes()) {
    throw ArgumentError("CommandEncoder.copy", "destination",
                        std::to_string(source.nbytes()) + " bytes like the source",
                        std::to_string(destination.nbytes()));
  }
  const AddressRange from = source.range(), to = destination.range();
  if (from.overlaps(to)) {
    throw ArgumentError("CommandEncoder.copy", "destination", "apart from the source",
                        "an overlapping range");
  }
  const std::uint64_t nbytes = source.nbytes();
  if (nbytes == 0) return;
  const std::vector<TouchedRange> ranges = {{from, Access::read}, {to, Access::write}};
  const KernelArg args[] = {{0, source}, {1, destination}, {2, nbytes}};
  encode(copy_kernel().on(*device_), args,
         Grid::threads({(nbytes + bytes_per_thread - 1) / bytes_per_thread}, {256}), {}, label_path_,
         &ranges);
}

void EncoderState::fill(const Buffer& buffer, std::span<const std::uint8_t> element) {
  Use use(*this, "CommandEncoder.fill");
  Call call(*this, "fill");
  if (element.size() != size_of(buffer.dtype())) {
    throw ArgumentError("CommandEncoder.fill", "value",
                        "one " + std::string(name_of(buffer.dtype())) + " of " +
                            std::to_string(size_of(buffer.dtype())) + " bytes",
                        std::to_string(element.size()) + " bytes");
  }
  FillParams params{};
  params.nbytes = buffer.nbytes();
  params.element_bytes = static_cast<std::uint32_t>(element.size());
  std::memcpy(params.element, element.data(), element.size());
  const std::vector<TouchedRange> ranges = {{buffer.range(), Access::write}};
  if (params.nbytes == 0) return;
  const KernelArg args[] = {{0, buffer}, {1, params}};
  encode(fill_kernel().on(*device_), args,
         Grid::threads({(params.nbytes + bytes_per_thread - 1) / bytes_per_thread}, {256}), {}, label_path_,
         &ranges);
}

void EncoderState::memory_barrier() {
  Use use(*this, "CommandEncoder.memory_barrier");
  encode_barrier();
}

void EncoderState::encode_barrier() {
  if (recheck_ != nullptr) return;
  if (capture_ != nullptr) {
    capture_->barrier = !capture_->nodes.empty();
    return;
  }
  // Nothing ran since the last barrier (or ever): this one would order nothing.
  if (launches_.load(std::memory_order_relaxed) == launches_at_barrier_) return;
  launches_at_barrier_ = launches_.load(std::memory_order_relaxed);
  hazards_.clear();
  if (!options_.concurrent) return;
  submission_->barrier();
  barriers_.store(barriers_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void EncoderState::start_capture() {
  Use use(*this, "CommandEncoder.start_capture");
  if (capture_ != nullptr) throw ArgumentError("CommandEncoder.start_capture: a capture is already open");
  capture_ = std::make_unique<Capture>();
}

bool EncoderState::is_capturing() {
  Use use(*this, "CommandEncoder.is_capturing", false);
  return capture_ != nullptr || recheck_ != nullptr;
}

ComputeGraph EncoderState::take_capture() {
  Use use(*this, "CommandEncoder.take_capture");
  if (capture_ == nullptr)
    throw ArgumentError("CommandEncoder.take_capture: no capture is open; call start_capture first");
  ComputeGraph graph(
      std::make_shared<const GraphState>(device_, std::move(capture_->nodes), std::move(capture_->calls)));
  capture_.reset();
  pending_.reset();
  return graph;
}

void EncoderState::abandon_capture() {
  Use use(*this, "CommandEncoder.abandon_capture", false);
  capture_.reset();
  pending_.reset();
}

void EncoderState::set_pending_buffer_ranges(std::vector<AddressRange> reads,
                                             std::vector<AddressRange> writes) {
  Use use(*this, "CommandEncoder.set_pending_buffer_ranges");
  std::vector<TouchedRange> ranges;
  for (const auto& [list, access] : {std::pair(&reads, Access::read), std::pair(&writes, Access::write)}) {
    for (const AddressRange& range : *list) {
      if (range.begin > range.end) {
        throw ArgumentError("CommandEncoder.set_pending_buffer_ranges", "range", "begin <= end",
                            std::to_string(range.begin) + " > " + std::to_string(range.end));
      }
      ranges.push_back({range, access});
    }
  }
  pending_ = std::move(ranges);
}

void EncoderState::push_label(std::string_view name) {
  Use use(*this, "CommandEncoder.label");
  begin_label(name);
}

void EncoderState::begin_label(std::string_view name) {
  label_starts_.push_back(label_path_.size());
  if (!label_path_.empty()) label_path_ += '/';
  label_path_ += name;
  submission_->push_label(name);
}

void EncoderState::pop_label() {
  Use use(*this, "CommandEncoder.label");
  if (label_starts_.empty()) throw ArgumentError("CommandEncoder.pop_label: no label is open");
  end_label();
}

void EncoderState::end_label() {
  label_path_.resize(label_starts_.back());
  label_starts_.pop_back();
  submission_->pop_label();
}

void EncoderState::wait_for(const Ticket& ticket) {
  Use use(*this, "CommandEncoder.wait_for");
  // Work of one device is ordered already; what has failed must still be told.
  waits_.push_back(ticket.state());
}

Ticket EncoderState::commit(std::optional<double> time_limit) {
  Use use(*this, "CommandEncoder.commit");
  if (capture_ != nullptr) {
    throw ArgumentError(
        "CommandEncoder.commit: a capture is open; call take_capture or abandon_capture first");
  }
  check_time_limit("CommandEncoder.commit", time_limit);
  end_labels();
  auto flight = std::make_shared<Flight>();
  flight->submission = std::move(submission_);
  flight->time_limit = time_limit;
  flight->own_touched = std::move(touched_);
  flight->touched = flight->own_touched;
  flight->pinned = std::move(pinned_);
  flight->pipelines = std::move(pipelines_);
  flight->waits = std::move(waits_);
  flight->status = std::move(status_);
  flight->ticket = std::make_shared<TicketState>(device_);
  Ticket ticket(flight->ticket);
  open_.store(false, std::memory_order_release);
  touched_.clear();
  pinned_.clear();
  // The flight is on the timeline before the encoder leaves it: a host read always finds its writes.
  device_->timeline().submit(std::move(flight));
  device_->timeline().remove_encoder(this);
  return ticket;
}

void EncoderState::discard() noexcept {
  int nobody = 0;
  while (!user_.compare_exchange_weak(nobody, 1, std::memory_order_acquire)) nobody = 0;
  if (is_open()) close();
  user_.store(0, std::memory_order_release);
}

void EncoderState::end_labels() noexcept {
  for (; !label_starts_.empty(); label_starts_.pop_back()) submission_->pop_label();
  label_path_.clear();
}

void EncoderState::close() noexcept {
  open_.store(false, std::memory_order_release);
  capture_.reset();
  submission_.reset();
  if (!device_->in_other_process()) device_->timeline().remove_encoder(this);
  for (const auto& storage : pinned_) storage->unpin();
  pinned_.clear();
  touched_.clear();
  pipelines_.clear();
  waits_.clear();
}

}  // namespace metalane::core
