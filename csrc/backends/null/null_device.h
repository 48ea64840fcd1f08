// The null device: records launches and runs nothing. It proves that the contract is small, and measures what
// the runtime itself costs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"

namespace metalane::null {

struct RecordedBuffer {
  std::uint64_t address = 0, nbytes = 0;
  std::uint32_t index = 0;
};

// One launch as the backend was given it.
struct RecordedLaunch {
  std::string kernel, label;
  std::vector<RecordedBuffer> buffers;
  std::vector<std::pair<std::uint32_t, std::vector<std::uint8_t>>> bytes;  // by index
  std::vector<backend::ThreadgroupBinding> threadgroup_memory;
  Grid::Kind grid_kind = Grid::Kind::threadgroups;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t threads_per_threadgroup[3] = {1, 1, 1};
  bool barrier_before = false;
};

class Record;

class NullDevice final : public backend::Device, public std::enable_shared_from_this<NullDevice> {
 public:
  NullDevice();
  ~NullDevice() override;
  const backend::Capabilities& capabilities() const override { return capabilities_; }
  backend::Allocation allocate(std::uint64_t nbytes, bool zero) override;
  backend::Allocation wrap(void* address, std::uint64_t nbytes, bool readonly) override;
  void release(const backend::Allocation& allocation, bool wrapped) noexcept override;
  std::shared_ptr<const backend::Pipeline> compile(const backend::CompileRequest& request) override;
  std::vector<KernelSignature> inspect(const backend::SourceText& source) override;
  std::string compiler_key() const override { return "none"; }
  std::unique_ptr<backend::Submission> open(const backend::SubmissionOptions& options) override;
  void cancel_all() noexcept override {}
  std::uint64_t allocated_bytes() const override { return allocated_bytes_.load(std::memory_order_relaxed); }

  // The launches of the submission committed last.
  METALANE_API std::vector<RecordedLaunch> last_record() const;

 private:
  friend class NullSubmission;
  std::unique_ptr<Record> take_record();
  void committed(std::unique_ptr<Record> record);
  void dropped(std::unique_ptr<Record> record);

  backend::Capabilities capabilities_;
  std::atomic<std::uint64_t> allocated_bytes_{0};
  mutable std::mutex mutex_;
  std::unique_ptr<Record> last_;
  std::unique_ptr<Record> spare_;  // what an earlier submission grew
};

std::shared_ptr<backend::Device> open_device(const backend::OpenOptions& options);

}  // namespace metalane::null
