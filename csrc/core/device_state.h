// What the handles of one device share.
#pragma once

#include <metalane/device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/profiling.h"
#include "core/scratch_pool.h"
#include "core/timeline.h"

namespace metalane::core {

class EncoderState;
class RegistryState;

DeviceInfo info_of(const backend::Capabilities& capabilities, std::uint32_t index);

class DeviceState : public std::enable_shared_from_this<DeviceState> {
 public:
  // Destruction is safe from any thread, a backend's own included.
  // `index`: which of the kind's devices it is.
  static std::shared_ptr<DeviceState> create(std::shared_ptr<backend::Device> backend,
                                             const DeviceOptions& options, std::uint32_t index = 0);
  ~DeviceState();

  backend::Device& backend() const noexcept { return *backend_; }
  const backend::Capabilities& capabilities() const noexcept { return capabilities_; }
  const DeviceOptions& options() const noexcept { return options_; }
  std::uint32_t index() const noexcept { return index_; }
  const std::shared_ptr<RegistryState>& registry() const noexcept { return registry_; }
  Timeline& timeline() noexcept { return timeline_; }
  ScratchPool& scratch_pool() noexcept { return scratch_pool_; }
  Profiling& profiling() noexcept { return profiling_; }

  // A submission of the backend, which the running profile sees, if there is one.
  std::unique_ptr<backend::Submission> open_submission(const backend::SubmissionOptions& options) {
    return profiling_.observed(backend_->open(options));
  }

  // Throws DeviceError in a process that was forked after the device was opened: its threads and locks
  // belong to the parent.
  void check_process() const;
  METALANE_API bool in_other_process() const noexcept;

  void release_allocation(const backend::Allocation& allocation, bool wrapped) noexcept;
  // No failure is remembered for these addresses any more.
  void forget_range(const AddressRange& range) noexcept;

 private:
  DeviceState(std::shared_ptr<backend::Device> backend, const DeviceOptions& options, std::uint32_t index);

  std::shared_ptr<backend::Device> backend_;
  backend::Capabilities capabilities_;
  DeviceOptions options_;
  std::uint32_t index_;
  std::uint64_t fork_generation_;
  std::shared_ptr<RegistryState> registry_;
  Timeline timeline_;
  ScratchPool scratch_pool_;
  Profiling profiling_;
};

}  // namespace metalane::core
