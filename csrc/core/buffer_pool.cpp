// Free blocks by size; what lies between give_back() and the next take() is Storage's: it hands a block back
// when its last pin is gone.
#include <metalane/buffer_pool.h>
#include <metalane/device.h>
#include <metalane/error.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device_state.h"
#include "core/storage.h"

namespace metalane {

namespace core {

namespace {

// Four sizes between one power of two and the next.
std::uint64_t block_bytes(std::uint64_t nbytes) {
  constexpr std::uint64_t smallest = 4096;
  if (nbytes <= smallest) return smallest;
  const std::uint64_t step = std::bit_floor(nbytes - 1) / 4;
  return (nbytes + step - 1) / step * step;
}

bool by_size(const backend::Allocation& allocation, std::uint64_t nbytes) {
  return allocation.nbytes < nbytes;
}

}  // namespace

class BufferPoolState final : public BlockHome, public std::enable_shared_from_this<BufferPoolState> {
 public:
  BufferPoolState(std::shared_ptr<DeviceState> device, std::uint64_t quota_bytes)
      : device_(std::move(device)), reuse_(!device_->options().check.any()) {
    counts_.quota_bytes = quota_bytes;
  }
  ~BufferPoolState() override { release_all(free_); }

  Buffer take(const Shape& shape, DType dtype);
  void end_ownership(const Buffer& buffer);
  void take_back(const backend::Allocation& allocation, bool given_back) noexcept override;
  std::uint64_t trim();
  BufferPoolStatistics statistics() const;
  const std::shared_ptr<DeviceState>& device() const noexcept { return device_; }

 private:
  backend::Allocation reused(std::uint64_t nbytes);
  backend::Allocation allocated(std::uint64_t nbytes);
  std::vector<backend::Allocation> make_room(std::uint64_t nbytes);
  std::vector<backend::Allocation> forget_free() noexcept;
  std::uint64_t release_all(const std::vector<backend::Allocation>& blocks) noexcept;

  const std::shared_ptr<DeviceState> device_;
  const bool reuse_;
  mutable std::mutex mutex_;
  std::vector<backend::Allocation>
      free_;  // by size; has room for every block, so that taking back cannot fail
  BufferPoolStatistics counts_;
};

Buffer BufferPoolState::take(const Shape& shape, DType dtype) {
  device_->check_process();
  const std::uint64_t nbytes = shape.bytes(dtype);
  const std::uint64_t most = device_->capabilities().max_buffer_bytes;
  if (nbytes > most) {
    throw OutOfMemoryError("BufferPool.take: " + std::to_string(nbytes) +
                           " bytes are more than the device's " + std::to_string(most) + " a buffer");
  }
  const std::uint64_t wanted = std::min(block_bytes(nbytes), most);
  backend::Allocation allocation = reused(wanted);
  if (allocation.address == nullptr) allocation = allocated(wanted);
  auto storage =
      std::make_shared<Storage>(device_, allocation, false, false, nullptr, nullptr, shared_from_this());
  return Buffer(std::move(storage), 0, nbytes, shape, dtype, false, false);
}

backend::Allocation BufferPoolState::reused(std::uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  ++counts_.takes;
  const auto found = std::lower_bound(free_.begin(), free_.end(), nbytes, by_size);
  if (found == free_.end() || found->nbytes != nbytes) return {};
  const backend::Allocation allocation = *found;
  free_.erase(found);
  ++counts_.reuses;
  counts_.free_bytes -= nbytes;
  counts_.owned_bytes += nbytes;
  return allocation;
}

backend::Allocation BufferPoolState::allocated(std::uint64_t nbytes) {
  release_all(make_room(nbytes));
  backend::Allocation allocation;
  try {
    try {
      allocation = device_->backend().allocate(nbytes, false);
    } catch (const OutOfMemoryError&) {
      if (trim() == 0) throw;
      allocation = device_->backend().allocate(nbytes, false);
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    counts_.held_bytes -= nbytes;
    counts_.owned_bytes -= nbytes;
    --counts_.blocks;
    throw;
  }
  return allocation;
}

// Counts a block more as held and owned, and gives the free blocks that must go for it. Throws past the
// quota.
std::vector<backend::Allocation> BufferPoolState::make_room(std::uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  const std::uint64_t quota = counts_.quota_bytes;
  const std::uint64_t in_use = counts_.owned_bytes + counts_.returning_bytes;
  if (quota != 0 && (nbytes > quota || in_use > quota - nbytes)) {
    throw OutOfMemoryError("BufferPool.take: a block of " + std::to_string(nbytes) +
                           " bytes is past the quota of " + std::to_string(quota) + ": " +
                           std::to_string(counts_.owned_bytes) + " bytes have owners, " +
                           std::to_string(counts_.returning_bytes) + " were given back and are still in use");
  }
  free_.reserve(counts_.blocks + 1);
  std::vector<backend::Allocation> surplus;
  if (quota != 0 && counts_.held_bytes > quota - nbytes) surplus = forget_free();
  counts_.held_bytes += nbytes;
  counts_.owned_bytes += nbytes;
  ++counts_.blocks;
  counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.held_bytes);
  return surplus;
}

// With mutex_ held; the caller releases them. `free_` keeps its room.
std::vector<backend::Allocation> BufferPoolState::forget_free() noexcept {
  std::vector<backend::Allocation> blocks(free_);
  free_.clear();
  counts_.held_bytes -= counts_.free_bytes;
  counts_.blocks -= blocks.size();
  counts_.free_bytes = 0;
  return blocks;
}

std::uint64_t BufferPoolState::release_all(const std::vector<backend::Allocation>& blocks) noexcept {
  std::uint64_t nbytes = 0;
  for (const backend::Allocation& block : blocks) {
    nbytes += block.nbytes;
    device_->release_allocation(block, false);
  }
  return nbytes;
}

void BufferPoolState::end_ownership(const Buffer& buffer) {
  device_->check_process();
  constexpr const char* op = "BufferPool.give_back";
  if (buffer.is_view()) throw ArgumentError(op, "buffer", "what take() gave", "a view");
  if (buffer.storage() == nullptr || buffer.storage()->home() != this) {
    throw ArgumentError(op, "buffer", "a block of this pool", "a buffer from elsewhere");
  }
  {
    std::lock_guard lock(mutex_);
    if (!buffer.storage()->mark_given_back()) {
      throw ArgumentError(op, "buffer", "a block that has an owner",
                          "one that was given back or released already");
    }
    counts_.owned_bytes -= buffer.storage()->nbytes();
    counts_.returning_bytes += buffer.storage()->nbytes();
  }
  buffer.storage()->release();
}

void BufferPoolState::take_back(const backend::Allocation& allocation, bool given_back) noexcept {
  {
    std::lock_guard lock(mutex_);
    (given_back ? counts_.returning_bytes : counts_.owned_bytes) -= allocation.nbytes;
    if (reuse_) {
      free_.insert(std::lower_bound(free_.begin(), free_.end(), allocation.nbytes, by_size), allocation);
      counts_.free_bytes += allocation.nbytes;
      return;
    }
    counts_.held_bytes -= allocation.nbytes;
    --counts_.blocks;
  }
  device_->release_allocation(allocation, false);
}

std::uint64_t BufferPoolState::trim() {
  device_->check_process();
  std::vector<backend::Allocation> blocks;
  {
    std::lock_guard lock(mutex_);
    blocks = forget_free();
  }
  return release_all(blocks);
}

BufferPoolStatistics BufferPoolState::statistics() const {
  device_->check_process();
  std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace core

BufferPool::BufferPool(const Device& device, std::uint64_t quota_bytes)
    : state_(std::make_shared<core::BufferPoolState>(device.state(), quota_bytes)) {}

Buffer BufferPool::take(const Shape& shape, DType dtype) const { return state_->take(shape, dtype); }
void BufferPool::give_back(const Buffer& buffer) const { state_->end_ownership(buffer); }
std::uint64_t BufferPool::trim() const { return state_->trim(); }
BufferPoolStatistics BufferPool::statistics() const { return state_->statistics(); }
Device BufferPool::device() const { return Device(state_->device()); }

}  // namespace metalane
