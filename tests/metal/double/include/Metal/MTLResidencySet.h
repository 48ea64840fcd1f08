// Residency sets: allocations that stay resident together.
#pragma once

#import <Metal/MTLResource.h>

@interface MTLResidencySetDescriptor : NSObject <NSCopying> {
 @package
  NSString* _label;
  NSUInteger _initialCapacity;
}
@property(nonatomic, copy) NSString* label;
@property(nonatomic) NSUInteger initialCapacity;
@end

@protocol MTLResidencySet <NSObject>
@property(readonly) id<MTLDevice> device;
@property(readonly) NSString* label;
@property(readonly) uint64_t allocatedSize;
@property(readonly, copy) NSArray* allAllocations;
@property(readonly) NSUInteger allocationCount;
- (void)requestResidency;
- (void)endResidency;
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)addAllocations:(const id<MTLAllocation>[])allocations count:(NSUInteger)count;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocations:(const id<MTLAllocation>[])allocations count:(NSUInteger)count;
- (void)removeAllAllocations;
- (BOOL)containsAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
@end
