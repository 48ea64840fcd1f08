// Pins and the one moment at which pages go back.
#include "core/storage.h"

#include "core/device_state.h"

namespace metalane::core {

Storage::Storage(std::shared_ptr<DeviceState> device, const backend::Allocation& allocation, bool wrapped,
                 bool readonly, std::shared_ptr<void> owner, std::shared_ptr<const HostSource> source,
                 std::shared_ptr<BlockHome> home)
    : device_(std::move(device)),
      allocation_(allocation),
      owner_(std::move(owner)),
      source_(std::move(source)),
      home_(std::move(home)),
      wrapped_(wrapped),
      readonly_(readonly) {}

Storage::~Storage() {
  // Nobody can pin any more: the last owner is gone.
  if ((uses_.load(std::memory_order_acquire) & freed_bit) == 0) free_pages();
}

bool Storage::try_pin() noexcept {
  std::uint64_t uses = uses_.load(std::memory_order_relaxed);
  do {
    if ((uses & released_bit) != 0) return false;
  } while (!uses_.compare_exchange_weak(uses, uses + 1, std::memory_order_acq_rel));
  return true;
}

void Storage::unpin() noexcept {
  // The thread that takes a released storage's last pin away frees it.
  const std::uint64_t before = uses_.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & ~given_back_bit) == (released_bit | 1)) free_pages();
}

void Storage::release() noexcept {
  const std::uint64_t before = uses_.fetch_or(released_bit, std::memory_order_acq_rel);
  if ((before & ~given_back_bit) == 0) free_pages();
}

bool Storage::mark_given_back() noexcept {
  std::uint64_t uses = uses_.load(std::memory_order_relaxed);
  do {
    if ((uses & (released_bit | given_back_bit)) != 0) return false;
  } while (!uses_.compare_exchange_weak(uses, uses | given_back_bit, std::memory_order_acq_rel));
  return true;
}

void Storage::host_may_write(std::uint64_t offset, std::uint64_t nbytes) noexcept {
  device_->backend().host_may_write(address() + offset, nbytes);
}

// Once: no pin comes after released_bit is set, so that only one thread sees the last one go.
void Storage::free_pages() noexcept {
  const std::uint64_t before = uses_.fetch_or(freed_bit, std::memory_order_acq_rel);
  const auto begin = reinterpret_cast<std::uint64_t>(allocation_.address);
  device_->forget_range({begin, begin + allocation_.nbytes});
  if (home_ == nullptr) {
    device_->release_allocation(allocation_, wrapped_);
  } else if (!device_->in_other_process()) {
    home_->take_back(allocation_, (before & given_back_bit) != 0);
  }
  owner_.reset();
}

}  // namespace metalane::core
