// CommandEncoder: the public handle on an EncoderState.
#include <metalane/device.h>
#include <metalane/encoder.h>
#include <metalane/error.h>

#include "core/device_state.h"
#include "core/encoder_state.h"

namespace metalane {

namespace {

core::EncoderState& state_of(const std::shared_ptr<core::EncoderState>& state) {
  if (state == nullptr) throw ArgumentError("CommandEncoder: it was moved from");
  return *state;
}

}  // namespace

CommandEncoder::CommandEncoder(std::shared_ptr<core::EncoderState> state) : state_(std::move(state)) {}
CommandEncoder::CommandEncoder(CommandEncoder&&) noexcept = default;
CommandEncoder& CommandEncoder::operator=(CommandEncoder&& other) noexcept {
  if (this != &other) {
    discard();
    state_ = std::move(other.state_);
  }
  return *this;
}
CommandEncoder::~CommandEncoder() { discard(); }

void CommandEncoder::dispatch(const Pipeline& pipeline, std::span<const KernelArg> args, const Grid& grid,
                              std::span<const ThreadgroupMemory> threadgroup_memory) {
  state_of(state_).dispatch(pipeline, args, grid, threadgroup_memory);
}
void CommandEncoder::copy(const Buffer& source, const Buffer& destination) {
  state_of(state_).copy(source, destination);
}
void CommandEncoder::fill(const Buffer& buffer, std::span<const std::uint8_t> element) {
  state_of(state_).fill(buffer, element);
}
void CommandEncoder::memory_barrier() { state_of(state_).memory_barrier(); }
void CommandEncoder::start_capture() { state_of(state_).start_capture(); }
bool CommandEncoder::is_capturing() const { return state_of(state_).is_capturing(); }
ComputeGraph CommandEncoder::take_capture() { return state_of(state_).take_capture(); }
void CommandEncoder::abandon_capture() { state_of(state_).abandon_capture(); }
void CommandEncoder::set_pending_buffer_ranges(std::vector<AddressRange> reads,
                                               std::vector<AddressRange> writes) {
  state_of(state_).set_pending_buffer_ranges(std::move(reads), std::move(writes));
}
void CommandEncoder::push_label(std::string_view name) { state_of(state_).push_label(name); }
void CommandEncoder::pop_label() { state_of(state_).pop_label(); }
void CommandEncoder::wait_for(const Ticket& ticket) { state_of(state_).wait_for(ticket); }
Ticket CommandEncoder::commit(std::optional<double> time_limit) {
  return state_of(state_).commit(time_limit);
}
void CommandEncoder::commit_and_wait(std::optional<double> time_limit) { commit(time_limit).wait(); }
void CommandEncoder::discard() noexcept {
  if (state_ != nullptr) state_->discard();
}
bool CommandEncoder::is_open() const noexcept { return state_ != nullptr && state_->is_open(); }
EncoderCounters CommandEncoder::counters() const noexcept {
  return state_ != nullptr ? state_->counters() : EncoderCounters{};
}
Device CommandEncoder::device() const { return Device(state_of(state_).device()); }

}  // namespace metalane
