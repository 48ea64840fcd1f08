// Device handles: memory, registry, encoders.
#include <metalane/device.h>
#include <metalane/error.h>

#include <cstring>
#include <thread>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/fork.h"
#include "core/registry.h"
#include "core/storage.h"

namespace metalane {

namespace core {

DeviceState::DeviceState(std::shared_ptr<backend::Device> backend, const DeviceOptions& options,
                         std::uint32_t index)
    : backend_(std::move(backend)),
      capabilities_(backend_->capabilities()),
      options_(options),
      index_(index),
      fork_generation_(core::fork_generation()),
      registry_(std::make_shared<RegistryState>(backend_)),
      timeline_(*this),
      scratch_pool_(*this) {}

DeviceState::~DeviceState() = default;

std::shared_ptr<DeviceState> DeviceState::create(std::shared_ptr<backend::Device> backend,
                                                 const DeviceOptions& options, std::uint32_t index) {
  return std::shared_ptr<DeviceState>(new DeviceState(std::move(backend), options, index));
}

bool DeviceState::in_other_process() const noexcept { return core::fork_generation() != fork_generation_; }

void DeviceState::check_process() const {
  if (in_other_process()) {
    throw DeviceError("Device: it was opened before this process was forked; open a new Device here");
  }
}

void DeviceState::release_allocation(const backend::Allocation& allocation, bool wrapped) noexcept {
  if (!in_other_process()) backend_->release(allocation, wrapped);
}

void DeviceState::forget_range(const AddressRange& range) noexcept {
  if (!in_other_process()) timeline_.forget_range(range);
}

DeviceInfo info_of(const backend::Capabilities& capabilities, std::uint32_t index) {
  DeviceInfo info;
  info.kind = capabilities.kind;
  info.name = capabilities.name;
  info.selector = capabilities.kind + (index == 0 ? "" : ":" + std::to_string(index));
  info.architecture = capabilities.architecture;
  info.families = capabilities.families;
  info.limits = {capabilities.max_buffer_bytes, capabilities.max_threads_per_threadgroup,
                 capabilities.max_threadgroup_memory, capabilities.thread_execution_width,
                 capabilities.wrap_alignment};
  info.memory_bytes = capabilities.memory_bytes;
  return info;
}

}  // namespace core

void backend::Device::start_gpu_capture(const std::string&) {
  throw DeviceError("Device.gpu_capture: the " + capabilities().kind + " device has no GPU to capture");
}

const std::string& Device::kind() const noexcept { return state_->capabilities().kind; }
const std::string& Device::name() const noexcept { return state_->capabilities().name; }
KernelChoice Device::kernels() const noexcept { return state_->options().kernels; }
const CheckOptions& Device::check() const noexcept { return state_->options().check; }

DeviceInfo Device::info() const {
  state_->check_process();
  return core::info_of(state_->capabilities(), state_->index());
}

std::uint64_t Device::allocated_bytes() const {
  state_->check_process();
  return state_->backend().allocated_bytes();
}

namespace {

void check_dtype(const char* op, DType dtype) {
  if (dtype > DType::int64) {
    throw DTypeError(op, "dtype", "an element type of metalane",
                     "the value " + std::to_string(static_cast<int>(dtype)));
  }
}

// Memory of the caller's, `bytes` long.
void check_memory(const char* op, const void* address, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  if (bytes == 0) return;
  if (begin == 0) throw ArgumentError(op, "address", "not null", "null");
  std::uint64_t end = 0;
  if (__builtin_add_overflow(begin, bytes, &end)) {
    throw ArgumentError(op, "address", std::to_string(bytes) + " bytes before the end of memory",
                        std::to_string(begin));
  }
}

Buffer allocate(const std::shared_ptr<core::DeviceState>& state, const Shape& shape, DType dtype, bool zero) {
  state->check_process();
  check_dtype("Device", dtype);
  const std::uint64_t bytes = shape.bytes(dtype);
  if (bytes > state->capabilities().max_buffer_bytes) {
    throw OutOfMemoryError("Device: " + std::to_string(bytes) + " bytes are more than the device's " +
                           std::to_string(state->capabilities().max_buffer_bytes) + " a buffer");
  }
  const backend::Allocation allocation = state->backend().allocate(bytes, zero);
  auto storage = std::make_shared<core::Storage>(state, allocation, false, false, nullptr);
  return Buffer(std::move(storage), 0, bytes, shape, dtype, false, false);
}

}  // namespace

Buffer Device::zeros(const Shape& shape, DType dtype) const { return allocate(state_, shape, dtype, true); }
Buffer Device::empty(const Shape& shape, DType dtype) const { return allocate(state_, shape, dtype, false); }

Buffer Device::wrap(void* address, const Shape& shape, DType dtype, bool readonly,
                    std::shared_ptr<void> owner) const {
  state_->check_process();
  check_dtype("Device.wrap", dtype);
  const std::uint64_t bytes = shape.bytes(dtype);
  const auto value = reinterpret_cast<std::uint64_t>(address);
  if (value % size_of(dtype) != 0) {
    throw ArgumentError("Device.wrap", "address",
                        "aligned to " + std::to_string(size_of(dtype)) + " bytes for " +
                            std::string(name_of(dtype)) + " (copy with from_numpy instead)",
                        std::to_string(value));
  }
  check_memory("Device.wrap", address, bytes);
  const backend::Allocation allocation = state_->backend().wrap(address, bytes, readonly);
  auto storage = std::make_shared<core::Storage>(state_, allocation, true, readonly, std::move(owner));
  return Buffer(std::move(storage), 0, bytes, shape, dtype, readonly, false);
}

Buffer Device::copy_of(const void* address, const Shape& shape, DType dtype) const {
  Buffer buffer = empty(shape, dtype);
  check_memory("Device.copy_of", address, buffer.nbytes());
  if (buffer.nbytes() != 0) std::memcpy(buffer.storage()->address(), address, buffer.nbytes());
  state_->backend().host_may_write(buffer.storage()->address(), buffer.nbytes());
  return buffer;
}

KernelRegistry Device::registry() const { return KernelRegistry(state_->registry()); }

CommandEncoder Device::command_encoder(EncoderOptions options) const {
  return CommandEncoder(core::EncoderState::open(state_, options));
}

void Device::synchronize() const { state_->timeline().wait_idle(); }

CheckReport Device::check_report() const {
  state_->timeline().wait_idle();
  return state_->backend().check_report();
}

void Device::clear_check_report() const {
  state_->timeline().wait_idle();
  state_->backend().clear_check_report();
}

}  // namespace metalane
