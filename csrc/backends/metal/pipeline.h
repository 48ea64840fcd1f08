// Kernels compiled by Metal.
#pragma once

#import <Metal/Metal.h>

#include <memory>

#import "backends/metal/library.h"
#import "backends/metal/owned.h"
#include "core/backend.h"
#include "core/fork.h"
#include "msl/msl.h"

namespace metalane::metal {

class MetalPipeline final : public backend::Pipeline {
 public:
  ~MetalPipeline() override;
  Owned<id<MTLComputePipelineState>> state;

 private:
  const std::uint64_t fork_generation_ = core::fork_generation();
};

// Throws ArgumentError (constants), CompileError: Metal refuses, or gives a kernel that is not what the
// reader says of it or what the device's limits allow.
std::shared_ptr<MetalPipeline> build_pipeline(id<MTLDevice> device, const Library& library,
                                              const backend::CompileRequest& request,
                                              const msl::Program& program);

}  // namespace metalane::metal
