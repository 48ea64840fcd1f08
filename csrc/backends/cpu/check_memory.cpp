// Mapping, and the bookkeeping of what was written.
#include "backends/cpu/check_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "backends/cpu/check_system.h"

namespace metalane::cpu {

std::uint64_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

namespace {

std::uint64_t pages_of(std::uint64_t nbytes) {
  return std::max<std::uint64_t>(1, (nbytes + page_bytes() - 1) / page_bytes()) * page_bytes();
}

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

std::uint64_t map_shared(std::uint64_t nbytes) {
  void* address = mmap(nullptr, pages_of(nbytes), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? 0 : reinterpret_cast<std::uint64_t>(address);
}

}  // namespace

// Bits first..last of a byte.
std::uint8_t InitializedBytes::mask(std::uint64_t first, std::uint64_t last) noexcept {
  return static_cast<std::uint8_t>((0xffu << first) & (0xffu >> (7 - last)));
}

bool InitializedBytes::covers(std::uint64_t begin, std::uint64_t count) const noexcept {
  for (std::uint64_t at = begin; at < begin + count;) {
    const std::uint64_t end = std::min((at / 8 + 1) * 8, begin + count);
    const std::uint8_t wanted = mask(at % 8, (end - 1) % 8);
    if ((bits_[at / 8].load(std::memory_order_relaxed) & wanted) != wanted) return false;
    at = end;
  }
  return true;
}

void InitializedBytes::set(std::uint64_t begin, std::uint64_t count) noexcept {
  for (std::uint64_t at = begin; at < begin + count;) {
    const std::uint64_t end = std::min((at / 8 + 1) * 8, begin + count);
    const std::uint8_t wanted = mask(at % 8, (end - 1) % 8);
    if ((bits_[at / 8].load(std::memory_order_relaxed) & wanted) != wanted)
      bits_[at / 8].fetch_or(wanted, std::memory_order_relaxed);
    at = end;
  }
}

void InitializedBytes::settle() noexcept {
  if (!complete() && covers(0, nbytes_)) complete_.store(true, std::memory_order_relaxed);
}

void* CheckedAllocations::allocate(std::uint64_t nbytes, bool initialized) {
  const std::uint64_t begin = map_shared(nbytes);
  if (begin == 0) return nullptr;
  CheckedAllocation allocation{begin, nbytes, nullptr};
  if (!initialized && nbytes != 0) allocation.initialized = std::make_shared<InitializedBytes>(nbytes);
  const std::lock_guard lock(mutex_);
  by_begin_.emplace(begin, std::move(allocation));
  return pointer(begin);
}

void CheckedAllocations::release(void* address) noexcept {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  std::uint64_t nbytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_begin_.find(begin);
    nbytes = found->second.nbytes;
    by_begin_.erase(found);
  }
  munmap(address, pages_of(nbytes));
}

std::optional<CheckedAllocation> CheckedAllocations::find_locked(std::uint64_t address) const {
  auto after = by_begin_.upper_bound(address);
  if (after == by_begin_.begin()) return std::nullopt;
  const CheckedAllocation& allocation = std::prev(after)->second;
  if (address - allocation.begin > allocation.nbytes) return std::nullopt;
  return allocation;
}

std::optional<CheckedAllocation> CheckedAllocations::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return find_locked(address);
}

void CheckedAllocations::host_may_write(const void* address, std::uint64_t nbytes) noexcept {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(mutex_);
  const auto allocation = find_locked(begin);
  if (!allocation || allocation->initialized == nullptr) return;
  allocation->initialized->set(begin - allocation->begin, nbytes);
  allocation->initialized->settle();
}

CheckArena::~CheckArena() {
  if (begin_ != 0) munmap(pointer(begin_), nbytes());
}

bool CheckArena::reserve() {
  // 8 TiB of addresses where they are to be had; a sanitizer or a small machine leaves less.
  for (std::uint32_t shift = 38; shift >= 30; --shift) {
    void* address = mmap(nullptr, std::uint64_t{slot_count} << shift, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) continue;
    begin_ = reinterpret_cast<std::uint64_t>(address);
    shift_ = shift;
    return true;
  }
  return false;
}

std::uint64_t CheckArena::show(std::uint32_t slot, std::uint64_t address_in, std::uint64_t nbytes) {
  clear(slot);
  const std::uint64_t skipped = address_in % page_bytes();
  const std::uint64_t mapped = pages_of(skipped + nbytes);
  if (mapped > capacity()) return 0;
  if (!map_again(pointer(address(slot)), pointer(address_in - skipped), mapped)) return 0;
  mapped_[slot] = mapped;
  return address(slot) + skipped;
}

bool CheckArena::provide(std::uint32_t slot, std::uint64_t nbytes) {
  clear(slot);
  const std::uint64_t mapped = pages_of(nbytes);
  if (mapped > capacity()) return false;
  void* given = mmap(pointer(address(slot)), mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (given == MAP_FAILED) return false;
  mapped_[slot] = mapped;
  return true;
}

void CheckArena::clear(std::uint32_t slot) noexcept {
  if (mapped_[slot] == 0) return;
  mmap(pointer(address(slot)), mapped_[slot], PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  mapped_[slot] = 0;
}

CopiedPages::CopiedPages(std::uint64_t nbytes) : nbytes_(pages_of(nbytes)) {
  descriptor_ = open_memory("metalane-check");
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(nbytes_)) != 0) return;
  void* address = mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (address != MAP_FAILED) begin_ = reinterpret_cast<std::uint64_t>(address);
}

CopiedPages::~CopiedPages() {
  if (begin_ != 0) munmap(pointer(begin_), nbytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

bool CopiedPages::read(std::uint64_t offset, std::uint64_t from, std::uint64_t nbytes) noexcept {
  while (nbytes != 0) {
    const ssize_t done = pwrite(descriptor_, pointer(from), nbytes, static_cast<off_t>(offset));
    if (done <= 0) return false;
    offset += static_cast<std::uint64_t>(done);
    from += static_cast<std::uint64_t>(done);
    nbytes -= static_cast<std::uint64_t>(done);
  }
  return true;
}

bool CopiedPages::write_back(std::uint64_t offset, std::uint64_t to, std::uint64_t nbytes) const noexcept {
  while (nbytes != 0) {
    const ssize_t done = pread(descriptor_, pointer(to), nbytes, static_cast<off_t>(offset));
    if (done <= 0) return false;
    offset += static_cast<std::uint64_t>(done);
    to += static_cast<std::uint64_t>(done);
    nbytes -= static_cast<std::uint64_t>(done);
  }
  return true;
}

}  // namespace metalane::cpu
