// See residency.h.
#import "backends/metal/residency.h"

#include <metalane/error.h>

#import "backends/metal/boundary.h"

namespace metalane::metal {

Residency::Residency(id<MTLDevice> device, id<MTLCommandQueue> queue, const Features& features,
                     std::uint64_t limit)
    : queue_(queue), limit_(limit) {
  if (limit == 0) return;
  if (!features.residency_sets)
    throw DeviceError("Device: residency_bytes: this system's Metal has no residency sets (macOS 15 has)");
  auto descriptor = Owned<MTLResidencySetDescriptor*>::adopt([[MTLResidencySetDescriptor alloc] init]);
  [descriptor.get() setLabel:@"metalane"];
  NSError* error = nil;
  set_ = Owned<id<MTLResidencySet>>::adopt([device newResidencySetWithDescriptor:descriptor.get()
                                                                           error:&error]);
  if (!set_) throw DeviceError("Device: residency_bytes: Metal gave no residency set: " + text_of(error));
  [queue addResidencySet:set_.get()];
}

Residency::~Residency() {
  if (!set_) return;
  [queue_ removeResidencySet:set_.get()];
  [set_.get() endResidency];
}

void Residency::add(id<MTLBuffer> buffer) {
  if (!set_) return;
  const std::uint64_t size = [buffer allocatedSize];
  const std::lock_guard lock(mutex_);
  if (size > limit_ - held_) return;
  held_ += size;
  [set_.get() addAllocation:buffer];
  [set_.get() commit];
  [set_.get() requestResidency];
}

void Residency::remove(id<MTLBuffer> buffer) {
  if (!set_) return;
  const std::lock_guard lock(mutex_);
  if (![set_.get() containsAllocation:buffer]) return;
  held_ -= [buffer allocatedSize];
  [set_.get() removeAllocation:buffer];
  [set_.get() commit];
}

}  // namespace metalane::metal
