// Memory of a checked device: its allocations, which bytes of them were ever written, and the address range
// in which a launch sees each of its arguments apart.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace metalane::cpu {

// One bit a byte of an allocation: set once the byte was written. The host may set bits while a launch does.
class InitializedBytes {
 public:
  explicit InitializedBytes(std::uint64_t nbytes) : nbytes_(nbytes), bits_((nbytes + 7) / 8) {}

  bool complete() const noexcept { return complete_.load(std::memory_order_relaxed); }
  // Whether all of [begin, begin + count) are set; ranges lie inside the allocation.
  bool covers(std::uint64_t begin, std::uint64_t count) const noexcept;
  void set(std::uint64_t begin, std::uint64_t count) noexcept;
  // Looks whether every byte is set by now, so that later launches need not ask.
  void settle() noexcept;

 private:
  static std::uint8_t mask(std::uint64_t first, std::uint64_t last) noexcept;

  std::uint64_t nbytes_;
  std::vector<std::atomic<std::uint8_t>> bits_;
  std::atomic<bool> complete_{false};
};

struct CheckedAllocation {
  std::uint64_t begin = 0;
  std::uint64_t nbytes = 0;
  std::shared_ptr<InitializedBytes> initialized;  // null: all of it
};

// The allocations of one device. Thread-safe.
class CheckedAllocations {
 public:
  // Pages that can be mapped a second time; null where the system has none.
  void* allocate(std::uint64_t nbytes, bool initialized);
  void release(void* address) noexcept;
  void host_may_write(const void* address, std::uint64_t nbytes) noexcept;
  std::optional<CheckedAllocation> find(std::uint64_t address) const;

 private:
  std::optional<CheckedAllocation> find_locked(std::uint64_t address) const;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, CheckedAllocation> by_begin_;
};

// One reserved range of addresses, cut into slots. What is mapped into a slot has nothing round it, so far
// that any 32-bit index of elements up to 16 bytes stays inside the slot. Slots are no round number apart at
// which things begin, so that no round 64-bit offset leads from one into another. One launch at a time.
class CheckArena {
 public:
  static constexpr std::uint32_t slot_count = 32;
  static constexpr std::uint32_t threadgroup_slot = 31;

  CheckArena() = default;
  ~CheckArena();
  CheckArena(const CheckArena&) = delete;
  CheckArena& operator=(const CheckArena&) = delete;

  // False where the system has no such range. Once.
  bool reserve();
  bool reserved() const noexcept { return begin_ != 0; }
  std::uint64_t begin() const noexcept { return begin_; }
  std::uint64_t nbytes() const noexcept { return std::uint64_t{slot_count} << shift_; }
  std::uint32_t shift() const noexcept { return shift_; }
  // Where things begin in a slot, and how much fits behind.
  std::uint64_t address(std::uint32_t slot) const noexcept {
    const std::uint64_t skew = (std::uint64_t{1} << (shift_ - 8)) + 3 * std::uint64_t{1 << 16};
    return begin_ + (std::uint64_t{slot} << shift_) + (std::uint64_t{1} << (shift_ - 2)) + slot * skew;
  }
  std::uint64_t capacity() const noexcept { return std::uint64_t{1} << (shift_ - 1); }

  // Shows the pages that hold [address, address + nbytes), of a shared mapping, in `slot`; returns where the
  // first byte is then, 0 where the system refuses.
  std::uint64_t show(std::uint32_t slot, std::uint64_t address, std::uint64_t nbytes);
  // Zero-filled pages of the slot's own.
  bool provide(std::uint32_t slot, std::uint64_t nbytes);
  void clear(std::uint32_t slot) noexcept;

 private:
  std::uint64_t begin_ = 0;
  std::uint32_t shift_ = 0;
  std::uint64_t mapped_[slot_count] = {};
};

// A copy of memory that cannot be mapped twice, in pages that can. What cannot be read or written (a hole in
// a mapped file, say) is an error of the call, and no signal.
class CopiedPages {
 public:
  explicit CopiedPages(std::uint64_t nbytes);
  ~CopiedPages();
  CopiedPages(const CopiedPages&) = delete;
  CopiedPages& operator=(const CopiedPages&) = delete;
  std::uint64_t begin() const noexcept { return begin_; }  // 0: the system has none
  bool read(std::uint64_t offset, std::uint64_t from, std::uint64_t nbytes) noexcept;
  bool write_back(std::uint64_t offset, std::uint64_t to, std::uint64_t nbytes) const noexcept;

 private:
  int descriptor_ = -1;
  std::uint64_t begin_ = 0;
  std::uint64_t nbytes_ = 0;
};

std::uint64_t page_bytes() noexcept;

}  // namespace metalane::cpu
