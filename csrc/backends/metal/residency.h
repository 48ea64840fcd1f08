// Allocations that stay resident on the GPU.
#pragma once

#import <Metal/Metal.h>

#include <cstdint>
#include <mutex>

#import "backends/metal/features.h"
#import "backends/metal/owned.h"

namespace metalane::metal {

// A residency set of the queue's, filled up to a number of bytes in the order of allocation. Off, it does
// nothing. Thread-safe.
class Residency {
 public:
  // `limit` 0: off. Throws DeviceError where this system has no residency sets.
  Residency(id<MTLDevice> device, id<MTLCommandQueue> queue, const Features& features, std::uint64_t limit);
  ~Residency();
  void add(id<MTLBuffer> buffer);
  void remove(id<MTLBuffer> buffer);

 private:
  id<MTLCommandQueue> queue_;
  const std::uint64_t limit_;
  Owned<id<MTLResidencySet>> set_;  // nil: off
  std::mutex mutex_;
  std::uint64_t held_ = 0;  // bytes in the set
};

}  // namespace metalane::metal
