// Buffers and views of device-visible host memory.
#pragma once

#include <metalane/dtype.h>
#include <metalane/export.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace metalane {

namespace core {
class Storage;
class DeviceState;
}  // namespace core
class Device;

// Up to eight dimensions, row-major, stored inline.
class METALANE_API Shape {
 public:
  static constexpr std::size_t max_rank = 8;
  Shape() = default;
  Shape(std::initializer_list<std::uint64_t> dims)
      : Shape(std::span<const std::uint64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::uint64_t> dims);  // throws ArgumentError past eight dimensions

  std::size_t rank() const noexcept { return rank_; }
  std::uint64_t operator[](std::size_t axis) const noexcept { return dims_[axis]; }
  std::span<const std::uint64_t> dims() const noexcept { return {dims_.data(), rank_}; }
  // Elements, and bytes of that many elements; throw ArgumentError where 64 bits overflow.
  std::uint64_t elements() const;
  std::uint64_t bytes(DType dtype) const;
  bool operator==(const Shape& other) const noexcept = default;
  std::string str() const;  // "[4, 15, 16]"

 private:
  std::array<std::uint64_t, max_rank> dims_{};
  std::uint32_t rank_ = 0;
};

// Addresses [begin, end) in this process.
struct AddressRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool empty() const noexcept { return begin >= end; }
  bool overlaps(const AddressRange& other) const noexcept {
    return begin < other.end && other.begin < end && !empty() && !other.empty();
  }
  bool operator==(const AddressRange&) const noexcept = default;
};

// A typed, contiguous range of shared memory: a whole allocation or a view of one. A handle: copies are
// cheap and name the same memory, which lives until the last handle, host view, graph and launch in
// flight lets go of it. Thread-safe.
class METALANE_API Buffer {
 public:
  Buffer() = default;

  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }
  // Offset from the start of the allocation; views of views add up.
  std::uint64_t byte_offset() const noexcept { return offset_; }
  bool readonly() const noexcept { return readonly_; }
  bool is_view() const noexcept { return is_view_; }
  bool released() const noexcept;
  explicit operator bool() const noexcept { return storage_ != nullptr; }

  // The address of the first byte; throws ArgumentError when released. No waiting, no ordering.
  std::uint64_t address() const;
  AddressRange range() const {
    auto a = address();
    return {a, a + nbytes_};
  }

  // A view of `shape` elements that starts `byte_offset` bytes into this buffer. Throws ArgumentError
  // where the view would leave this buffer or the offset is not a multiple of the element's size.
  Buffer view(std::uint64_t byte_offset, const Shape& shape, std::optional<DType> dtype = std::nullopt) const;
  // The same range, not writable.
  Buffer as_readonly() const;
  // Frees an allocation at once (or, where host views or launches in flight hold it, with the last of
  // them) and makes every later use of it, also through views, throw. On a view it lets go of the view.
  void release();

  // Waits until no committed work that writes this range is in flight, and rethrows that work's error;
  // throws ArgumentError while an open encoder holds a launch that writes it. `seconds`: how long to wait
  // at most (TimeoutError); forever where not given.
  void synchronize(std::optional<double> seconds = std::nullopt) const;
  // synchronize(), then a pointer to the elements. The pointer is valid while this handle lives.
  void* data() const;

  Device device() const;
  const std::shared_ptr<core::Storage>& storage() const noexcept { return storage_; }
  // For the runtime: a handle on a range that the caller has checked.
  Buffer(std::shared_ptr<core::Storage> storage, std::uint64_t offset, std::uint64_t nbytes,
         const Shape& shape, DType dtype, bool readonly, bool is_view)
      : storage_(std::move(storage)),
        offset_(offset),
        nbytes_(nbytes),
        shape_(shape),
        dtype_(dtype),
        readonly_(readonly),
        is_view_(is_view) {}

 private:
  std::shared_ptr<core::Storage> storage_;
  std::uint64_t offset_ = 0;
  std::uint64_t nbytes_ = 0;
  Shape shape_;
  DType dtype_ = DType::uint8;
  bool readonly_ = false;
  bool is_view_ = false;
};

}  // namespace metalane
