// One allocation and who uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/backend.h"

namespace metalane::core {

class DeviceState;

// Where wrapped memory comes from when it can go away under its owner: a file that shrinks while it is
// mapped.
class HostSource {
 public:
  virtual ~HostSource() = default;
  // Throws where these addresses cannot be read any more.
  virtual void check_readable(const AddressRange& range) const = 0;
};

// Where blocks go that are used again.
class BlockHome {
 public:
  virtual ~BlockHome() = default;
  // Nothing uses the block any more. `given_back`: its owner ended the ownership by mark_given_back().
  virtual void take_back(const backend::Allocation& block, bool given_back) noexcept = 0;
};

// Owned by the handles, views, graphs and launches that name it. Its pages are freed with it, or by
// release() as soon as no pin holds them. A pin is a promise to hold the pages: a launch recorded or in
// flight, or a host view (NumPy, DLPack). Thread-safe.
class Storage {
 public:
  Storage(std::shared_ptr<DeviceState> device, const backend::Allocation& allocation, bool wrapped,
          bool readonly, std::shared_ptr<void> owner, std::shared_ptr<const HostSource> source = nullptr,
          std::shared_ptr<BlockHome> home = nullptr);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // False once released.
  METALANE_API bool try_pin() noexcept;
  METALANE_API void unpin() noexcept;
  void release() noexcept;
  // What gets the pages when they would be freed; null: the device.
  const BlockHome* home() const noexcept { return home_.get(); }
  // To be followed by release(). False where that, or release(), was called before.
  bool mark_given_back() noexcept;
  // See backend::Device: a writable view of these bytes is handed out.
  METALANE_API void host_may_write(std::uint64_t offset, std::uint64_t nbytes) noexcept;
  bool released() const noexcept { return (uses_.load(std::memory_order_acquire) & released_bit) != 0; }

  std::uint8_t* address() const noexcept { return static_cast<std::uint8_t*>(allocation_.address); }
  std::uint64_t nbytes() const noexcept { return allocation_.nbytes; }
  void* native() const noexcept { return allocation_.native; }
  bool readonly() const noexcept { return readonly_; }
  // Null for memory that stays; else asked before the host reads.
  const HostSource* source() const noexcept { return source_.get(); }
  const std::shared_ptr<DeviceState>& device() const noexcept { return device_; }

  // The last encoder that pinned this storage, so that one pins it once.
  std::atomic<std::uint64_t> pinned_by_encoder{0};

 private:
  void free_pages() noexcept;

  // Pins are counted below the flags.
  static constexpr std::uint64_t released_bit = std::uint64_t{1} << 63;
  static constexpr std::uint64_t freed_bit = std::uint64_t{1} << 62;
  static constexpr std::uint64_t given_back_bit = std::uint64_t{1} << 61;
  std::atomic<std::uint64_t> uses_{0};
  std::shared_ptr<DeviceState> device_;
  backend::Allocation allocation_;
  std::shared_ptr<void> owner_;
  const std::shared_ptr<const HostSource> source_;
  const std::shared_ptr<BlockHome> home_;
  bool wrapped_;
  bool readonly_;
};

}  // namespace metalane::core
