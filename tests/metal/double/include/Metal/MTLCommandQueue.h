// Command queues.
#pragma once

#import <Metal/MTLCommandBuffer.h>

@protocol MTLResidencySet;

@interface MTLCommandQueueDescriptor : NSObject <NSCopying> {
 @package
  NSUInteger _maxCommandBufferCount;
}
@property(nonatomic, readwrite) NSUInteger maxCommandBufferCount;
@end

@protocol MTLCommandQueue <NSObject>
@property(copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
- (id<MTLCommandBuffer>)commandBuffer;
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor*)descriptor;
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
- (void)addResidencySet:(id<MTLResidencySet>)residencySet;
- (void)addResidencySets:(const id<MTLResidencySet>[])residencySets count:(NSUInteger)count;
- (void)removeResidencySet:(id<MTLResidencySet>)residencySet;
- (void)removeResidencySets:(const id<MTLResidencySet>[])residencySets count:(NSUInteger)count;
@end
