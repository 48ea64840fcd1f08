// See scratch_pool.h. Sizes are powers of two, so that a few allocations serve calls of all sizes.
#include "core/scratch_pool.h"

#include <metalane/buffer.h>

#include <algorithm>
#include <bit>
#include <new>

#include "core/device_state.h"

namespace metalane::core {

namespace {

constexpr std::size_t kept = 64;  // allocations; more than that go back to the device
constexpr std::uint64_t smallest = 4096;

bool by_size(const backend::Allocation& allocation, std::uint64_t nbytes) {
  return allocation.nbytes < nbytes;
}

}  // namespace

ScratchPool::~ScratchPool() {
  for (const backend::Allocation& allocation : free_) device_.release_allocation(allocation, false);
}

Buffer ScratchPool::take(std::uint64_t words) {
  const std::uint64_t nbytes = std::bit_ceil(std::max(words * sizeof(std::uint32_t), smallest));
  backend::Allocation allocation;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::lower_bound(free_.begin(), free_.end(), nbytes, by_size);
    if (found != free_.end() && found->nbytes == nbytes) {
      allocation = *found;
      free_.erase(found);
    }
  }
  if (allocation.address == nullptr) allocation = device_.backend().allocate(nbytes, false);
  const std::shared_ptr<DeviceState> device = device_.shared_from_this();
  auto storage = std::make_shared<Storage>(device, allocation, false, false, nullptr, nullptr,
                                           std::shared_ptr<BlockHome>(device, this));
  return Buffer(std::move(storage), 0, words * sizeof(std::uint32_t), Shape({words}), DType::uint32, false,
                false);
}

void ScratchPool::take_back(const backend::Allocation& allocation, bool) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (free_.size() < kept) {
      free_.reserve(kept);
      free_.insert(std::lower_bound(free_.begin(), free_.end(), allocation.nbytes, by_size), allocation);
      return;
    }
  }
  device_.release_allocation(allocation, false);
}

}  // namespace metalane::core
