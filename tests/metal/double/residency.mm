// Residency sets.
#include "accounting.h"
#include "devices.h"
#include "metal_double.h"

using namespace metal_double;

@implementation MTLResidencySetDescriptor
METAL_DOUBLE_COUNTED("MTLResidencySetDescriptor")
@synthesize label = _label;
@synthesize initialCapacity = _initialCapacity;
- (void)destroy {
  [_label release];
}
- (id)copyWithZone:(NSZone*)zone {
  MTLResidencySetDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_label = [_label copy];
  copy->_initialCapacity = _initialCapacity;
  return copy;
}
@end

// Changes wait in `_pending` for -commit. Both hold their allocations.
@interface MetalDoubleResidencySet : NSObject <MTLResidencySet> {
 @package
  DeviceState* _device;
  NSString* _label;
  NSMutableSet* _committed;
  NSMutableSet* _pending;
}
@end

@implementation MetalDoubleResidencySet
METAL_DOUBLE_COUNTED("MTLResidencySet")
@synthesize label = _label;
- (void)destroy {
  if (![_pending isEqualToSet:_committed])
    violation("MTLResidencySet: released with changes that were not committed");
  [_label release];
  [_committed release];
  [_pending release];
}
- (id<MTLDevice>)device {
  return device_object(*_device);
}
- (uint64_t)allocatedSize {
  @synchronized(self) {
    uint64_t size = 0;
    for (id<MTLAllocation> allocation in _committed) size += [allocation allocatedSize];
    return size;
  }
}
- (NSArray*)allAllocations {
  @synchronized(self) {
    return [_pending allObjects];
  }
}
- (NSUInteger)allocationCount {
  @synchronized(self) {
    return [_pending count];
  }
}
- (void)requestResidency {
  count_event(Event::residency_request);
}
- (void)endResidency {
}
- (void)addAllocation:(id<MTLAllocation>)allocation {
  if (!is_double(allocation, objc_getClass("MetalDoubleBuffer")))
    return violation("addAllocation: not a buffer");
  count_event(Event::residency_add);
  @synchronized(self) {
    [_pending addObject:allocation];
  }
}
- (void)addAllocations:(const id<MTLAllocation>[])allocations count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; ++i) [self addAllocation:allocations[i]];
}
- (void)removeAllocation:(id<MTLAllocation>)allocation {
  count_event(Event::residency_remove);
  @synchronized(self) {
    if (![_pending containsObject:allocation])
      violation("removeAllocation: of an allocation that is not in the set");
    [_pending removeObject:allocation];
  }
}
- (void)removeAllocations:(const id<MTLAllocation>[])allocations count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; ++i) [self removeAllocation:allocations[i]];
}
- (void)removeAllAllocations {
  @synchronized(self) {
    [_pending removeAllObjects];
  }
}
- (BOOL)containsAllocation:(id<MTLAllocation>)allocation {
  @synchronized(self) {
    return [_pending containsObject:allocation];
  }
}
- (void)commit {
  count_event(Event::residency_commit);
  @synchronized(self) {
    [_committed setSet:_pending];
  }
}
@end

namespace metal_double {

id<MTLResidencySet> new_residency_set(DeviceState& device, MTLResidencySetDescriptor* descriptor) {
  if (descriptor == nil) {
    violation("newResidencySetWithDescriptor:error: nil");
    return nil;
  }
  MetalDoubleResidencySet* set = [[MetalDoubleResidencySet alloc] init];
  set->_device = &device;
  set->_label = [descriptor.label copy];
  set->_committed = [[NSMutableSet alloc] init];
  set->_pending = [[NSMutableSet alloc] init];
  return set;
}

}  // namespace metal_double
