// What a pipeline's descriptor says of each buffer.
#pragma once

#import <Metal/MTLTypes.h>

typedef NS_ENUM(NSUInteger, MTLMutability) {
  MTLMutabilityDefault = 0,
  MTLMutabilityMutable = 1,
  MTLMutabilityImmutable = 2,
};

@interface MTLPipelineBufferDescriptor : NSObject <NSCopying> {
 @package
  MTLMutability _mutability;
}
@property(nonatomic) MTLMutability mutability;
@end

@interface MTLPipelineBufferDescriptorArray : NSObject {
 @package
  MTLPipelineBufferDescriptor* _descriptors[31];
}
- (MTLPipelineBufferDescriptor*)objectAtIndexedSubscript:(NSUInteger)bufferIndex;
- (void)setObject:(MTLPipelineBufferDescriptor*)buffer atIndexedSubscript:(NSUInteger)bufferIndex;
@end
