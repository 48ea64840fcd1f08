// Shapes, buffer handles and views.
#include <metalane/buffer.h>
#include <metalane/device.h>
#include <metalane/error.h>

#include <limits>

#include "core/device_state.h"
#include "core/storage.h"

namespace metalane {

Shape::Shape(std::span<const std::uint64_t> dims) {
  if (dims.size() > max_rank) {
    throw ArgumentError("Shape", "dimensions", "at most 8", std::to_string(dims.size()));
  }
  for (std::uint64_t dim : dims) dims_[rank_++] = dim;
}

std::uint64_t Shape::elements() const {
  // An axis of zero makes the product zero, however large the others are.
  for (std::uint64_t dim : dims()) {
    if (dim == 0) return 0;
  }
  std::uint64_t count = 1;
  for (std::uint64_t dim : dims()) {
    if (__builtin_mul_overflow(count, dim, &count)) {
      throw ArgumentError("Shape", "element count", "below 2^64", str());
    }
  }
  return count;
}

std::uint64_t Shape::bytes(DType dtype) const {
  std::uint64_t count = elements();
  if (__builtin_mul_overflow(count, size_of(dtype), &count) ||
      count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw ArgumentError("Shape", "byte count", "below 2^63", str() + " " + std::string(name_of(dtype)));
  }
  return count;
}

std::string Shape::str() const {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank_; ++axis) {
    if (axis != 0) text += ", ";
    text += std::to_string(dims_[axis]);
  }
  return text + "]";
}

namespace {

[[noreturn]] void refuse_released(const char* op) {
  throw ArgumentError(op, "self", "a buffer that was not released", "a released buffer");
}

const core::Storage& live(const std::shared_ptr<core::Storage>& storage, const char* op) {
  if (storage == nullptr || storage->released()) refuse_released(op);
  return *storage;
}

}  // namespace

bool Buffer::released() const noexcept { return storage_ == nullptr || storage_->released(); }

std::uint64_t Buffer::address() const {
  return reinterpret_cast<std::uint64_t>(live(storage_, "Buffer.address").address()) + offset_;
}

Buffer Buffer::view(std::uint64_t byte_offset, const Shape& shape, std::optional<DType> dtype) const {
  live(storage_, "Buffer.view");
  const DType element = dtype.value_or(dtype_);
  const std::uint64_t bytes = shape.bytes(element);
  std::uint64_t end = 0;
  if (__builtin_add_overflow(byte_offset, bytes, &end) || end > nbytes_) {
    throw ArgumentError("Buffer.view", "byte_offset + size of shape",
                        "at most the buffer's " + std::to_string(nbytes_) + " bytes",
                        std::to_string(byte_offset) + " + " + std::to_string(bytes));
  }
  if (byte_offset % size_of(element) != 0) {
    throw ArgumentError("Buffer.view", "byte_offset",
                        "a multiple of " + std::to_string(size_of(element)) + ", the size of " +
                            std::string(name_of(element)),
                        std::to_string(byte_offset));
  }
  if ((address() + byte_offset) % size_of(element) != 0) {
    throw ArgumentError("Buffer.view", "address", "aligned for " + std::string(name_of(element)),
                        std::to_string(address() + byte_offset));
  }
  return Buffer(storage_, offset_ + byte_offset, bytes, shape, element, readonly_, true);
}

Buffer Buffer::as_readonly() const {
  live(storage_, "Buffer.as_readonly");
  return Buffer(storage_, offset_, nbytes_, shape_, dtype_, true, true);
}

void Buffer::release() {
  if (storage_ == nullptr) return;
  if (is_view_) {
    storage_.reset();
  } else {
    storage_->release();
  }
}

void Buffer::synchronize(std::optional<double> seconds) const {
  const AddressRange touched = range();
  storage_->device()->timeline().synchronize_host_read(touched, seconds);
  if (const core::HostSource* source = storage_->source()) source->check_readable(touched);
}

void* Buffer::data() const {
  synchronize();
  if (!readonly_) storage_->host_may_write(offset_, nbytes_);
  return reinterpret_cast<void*>(address());
}

Device Buffer::device() const {
  if (storage_ == nullptr) refuse_released("Buffer.device");
  return Device(storage_->device());
}

}  // namespace metalane
