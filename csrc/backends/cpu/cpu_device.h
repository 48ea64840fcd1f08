// The CPU device: .metal kernels on this machine's processors.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/cpu_pipeline.h"
#include "backends/cpu/instruction_set.h"
#include "backends/cpu/worker_pool.h"
#include "core/backend.h"
#include "msl/program_cache.h"

namespace metalane::cpu {

class Checker;

std::shared_ptr<backend::Device> open_device(const backend::OpenOptions& options);

class CpuDevice final : public backend::Device {
 public:
  explicit CpuDevice(const backend::OpenOptions& options);
  ~CpuDevice() override;

  const backend::Capabilities& capabilities() const override { return capabilities_; }
  backend::Allocation allocate(std::uint64_t nbytes, bool zero) override;
  backend::Allocation wrap(void* address, std::uint64_t nbytes, bool readonly) override;
  void release(const backend::Allocation& allocation, bool wrapped) noexcept override;
  std::shared_ptr<const backend::Pipeline> compile(const backend::CompileRequest& request) override;
  std::vector<KernelSignature> inspect(const backend::SourceText& source) override;
  std::string compiler_key() const override;
  std::unique_ptr<backend::Submission> open(const backend::SubmissionOptions& options) override;
  void cancel_all() noexcept override;
  std::uint64_t allocated_bytes() const override { return allocated_bytes_.load(std::memory_order_relaxed); }
  void host_may_write(const void* address, std::uint64_t nbytes) noexcept override;
  CheckReport check_report() override;
  void clear_check_report() override;

 private:
  void check_process() const;
  bool in_forked_child() const noexcept;
  std::shared_ptr<const msl::Program> read_program(const backend::SourceText& source);
  void choose_code(CpuPipeline& pipeline, const backend::CompileRequest& request,
                   const msl::Program& program) const;

  const KernelChoice kernels_;
  const Isa isa_;
  const std::uint64_t fork_generation_;
  backend::Capabilities capabilities_;
  std::atomic<std::uint64_t> allocated_bytes_{0};
  std::shared_ptr<Checker> checker_;  // null: nothing is checked
  std::shared_ptr<WorkerPool> pool_;
  msl::ProgramCache programs_;
};

}  // namespace metalane::cpu
