// A Metal device: its memory, pipelines and queue.
#pragma once

#import <Metal/Metal.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#import "backends/metal/encoding.h"
#import "backends/metal/features.h"
#import "backends/metal/library.h"
#import "backends/metal/owned.h"
#import "backends/metal/residency.h"
#include "backends/metal/submission_queue.h"
#include "core/backend.h"
#include "core/fork.h"
#include "msl/program_cache.h"

namespace metalane::metal {

class MetalDevice final : public backend::Device,
                          public Executor,
                          public std::enable_shared_from_this<MetalDevice> {
 public:
  MetalDevice(Owned<id<MTLDevice>> device, const backend::OpenOptions& options);
  ~MetalDevice() override;

  const backend::Capabilities& capabilities() const override { return capabilities_; }
  backend::Allocation allocate(std::uint64_t nbytes, bool zero) override;
  backend::Allocation wrap(void* address, std::uint64_t nbytes, bool readonly) override;
  void release(const backend::Allocation& allocation, bool wrapped) noexcept override;
  std::shared_ptr<const backend::Pipeline> compile(const backend::CompileRequest& request) override;
  std::vector<KernelSignature> inspect(const backend::SourceText& source) override;
  std::string compiler_key() const override { return compiler_key_; }
  std::unique_ptr<backend::Submission> open(const backend::SubmissionOptions& options) override;
  std::uint64_t allocated_bytes() const override;
  void start_gpu_capture(const std::string& path) override;
  void stop_gpu_capture() noexcept override;
  void cancel_all() noexcept override;

  void start(const std::shared_ptr<Execution>& execution) override;
  void settle(Execution& execution) noexcept override;

  SubmissionQueue& queue() noexcept { return queue_; }
  // Lists go round, so that recording finds them grown.
  std::unique_ptr<LaunchList> take_list(bool concurrent);
  void put_list(std::unique_ptr<LaunchList> list) noexcept;
  bool in_forked_child() const noexcept { return core::fork_generation() != fork_generation_; }
  void check_process() const;

 private:
  // What belongs to Metal and to this process.
  struct Objects {
    Owned<id<MTLDevice>> device;
    Features features;
    Owned<id<MTLCommandQueue>> queue;
    // Orders submissions, since Metal's own tracking knows buffers and not the memory that two of them may
    // share: n waits for the value n - 1 and signals n.
    Owned<id<MTLSharedEvent>> event;
    std::uint64_t last_signal = 0;  // used by start() alone
    Libraries libraries;
    Labels labels;
    std::unique_ptr<Residency> residency;

    Objects(Owned<id<MTLDevice>> given, Features known)
        : device(std::move(given)), features(std::move(known)), libraries(device.get(), features) {}
  };

  const std::uint64_t fork_generation_;
  std::unique_ptr<Objects> metal_;
  backend::Capabilities capabilities_;
  std::string compiler_key_;
  msl::ProgramCache programs_;
  SubmissionQueue queue_;

  std::mutex lists_mutex_;
  std::vector<std::unique_ptr<LaunchList>> spare_lists_;
};

}  // namespace metalane::metal
