// Memory that operators need while they run, kept for the next one.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "core/backend.h"
#include "core/storage.h"

namespace metalane {
class Buffer;
}

namespace metalane::core {

class DeviceState;

// One a device. Thread-safe. What was taken once is allocated no more: after the first calls of a serving
// loop its operators allocate nothing.
class ScratchPool final : public BlockHome {
 public:
  explicit ScratchPool(DeviceState& device) : device_(device) {}
  ~ScratchPool() override;
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // At least `words` u32 with any contents. The memory comes back by itself when the last owner lets go: a
  // handle, a graph, or a submission that uses it. Throws OutOfMemoryError.
  Buffer take(std::uint64_t words);
  void take_back(const backend::Allocation& allocation, bool given_back) noexcept override;

 private:
  DeviceState& device_;
  std::mutex mutex_;
  std::vector<backend::Allocation> free_;  // by size
};

}  // namespace metalane::core
