// Compute pipelines.
#pragma once

#import <Metal/MTLArgument.h>
#import <Metal/MTLDevice.h>
#import <Metal/MTLLibrary.h>
#import <Metal/MTLPipeline.h>

@interface MTLComputePipelineReflection : NSObject {
 @package
  NSArray* _bindings;
}
@property(readonly) NSArray* bindings;
@end

@interface MTLComputePipelineDescriptor : NSObject <NSCopying> {
 @package
  NSString* _label;
  id<MTLFunction> _computeFunction;
  BOOL _threadGroupSizeIsMultipleOfThreadExecutionWidth;
  NSUInteger _maxTotalThreadsPerThreadgroup;
  MTLPipelineBufferDescriptorArray* _buffers;
  BOOL _supportIndirectCommandBuffers;
  NSArray* _binaryArchives;
}
@property(nonatomic, copy) NSString* label;
@property(nonatomic, strong) id<MTLFunction> computeFunction;
@property(nonatomic) BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property(nonatomic) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) MTLPipelineBufferDescriptorArray* buffers;
@property(nonatomic) BOOL supportIndirectCommandBuffers;
@property(nonatomic, copy) NSArray* binaryArchives;
- (void)reset;
@end

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger staticThreadgroupMemoryLength;
@property(readonly) BOOL supportIndirectCommandBuffers;
@end
