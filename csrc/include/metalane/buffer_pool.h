// Memory that is given out and taken back without asking the device each time.
#pragma once

#include <metalane/buffer.h>
#include <metalane/export.h>

#include <cstdint>
#include <memory>

namespace metalane {

class Device;

namespace core {
class BufferPoolState;
}

// Bytes are those of whole blocks.
struct BufferPoolStatistics {
  std::uint64_t quota_bytes = 0;      // 0: no quota
  std::uint64_t held_bytes = 0;       // taken from the device: the sum of the next three
  std::uint64_t owned_bytes = 0;      // somebody has them
  std::uint64_t returning_bytes = 0;  // given back, but launches or host views use them still
  std::uint64_t free_bytes = 0;
  std::uint64_t peak_bytes = 0;  // the most that was held
  std::uint64_t takes = 0;
  std::uint64_t reuses = 0;  // takes that needed nothing from the device
  std::uint64_t blocks = 0;  // held
};

// Blocks come in sizes at most a quarter apart, and one has one owner at a time. It goes to the next once it
// was given back, or its last handle is gone, and nothing uses it any more: no open encoder, no launch in
// flight, no graph (where handles go by themselves) and no host view. Cheap to copy, thread-safe.
//
// On a device with the checker every block is new, so that it finds reads of what a former owner left.
class METALANE_API BufferPool {
 public:
  // quota_bytes: the most that it holds; 0: whatever the device has.
  explicit BufferPool(const Device& device, std::uint64_t quota_bytes = 0);

  // A buffer with unspecified contents. Throws OutOfMemoryError past the quota, or where the device has no
  // more.
  Buffer take(const Shape& shape, DType dtype) const;
  // Ends the ownership: every later use of the buffer, also through views, throws. Throws ArgumentError for a
  // view, a buffer from elsewhere, and one that was given back or released already.
  void give_back(const Buffer& buffer) const;
  // Gives free blocks back to the device; returns their bytes.
  std::uint64_t trim() const;

  BufferPoolStatistics statistics() const;
  Device device() const;

 private:
  std::shared_ptr<core::BufferPoolState> state_;
};

}  // namespace metalane
