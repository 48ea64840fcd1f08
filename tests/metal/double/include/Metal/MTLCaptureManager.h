// Captures of GPU work into a trace document.
#pragma once

#import <Metal/MTLCaptureScope.h>

FOUNDATION_EXPORT NSString* const MTLCaptureErrorDomain;

typedef NS_ENUM(NSInteger, MTLCaptureError) {
  MTLCaptureErrorNotSupported = 1,
  MTLCaptureErrorAlreadyCapturing = 2,
  MTLCaptureErrorInvalidDescriptor = 3,
};

typedef NS_ENUM(NSInteger, MTLCaptureDestination) {
  MTLCaptureDestinationDeveloperTools = 1,
  MTLCaptureDestinationGPUTraceDocument = 2,
};

@interface MTLCaptureDescriptor : NSObject <NSCopying> {
 @package
  id _captureObject;
  MTLCaptureDestination _destination;
  NSURL* _outputURL;
}
@property(nonatomic, strong) id captureObject;
@property(nonatomic) MTLCaptureDestination destination;
@property(nonatomic, copy) NSURL* outputURL;
@end

@interface MTLCaptureManager : NSObject {
 @package
  BOOL _capturing;
  NSURL* _outputURL;
  id _captureObject;
  uint64_t _commandsBefore;
  id<MTLCaptureScope> _defaultCaptureScope;
}
+ (MTLCaptureManager*)sharedCaptureManager;
- (id<MTLCaptureScope>)newCaptureScopeWithDevice:(id<MTLDevice>)device;
- (id<MTLCaptureScope>)newCaptureScopeWithCommandQueue:(id<MTLCommandQueue>)commandQueue;
- (BOOL)supportsDestination:(MTLCaptureDestination)destination;
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor*)descriptor error:(NSError**)error;
- (void)stopCapture;
@property(readwrite, strong, atomic) id<MTLCaptureScope> defaultCaptureScope;
@property(readonly) BOOL isCapturing;
@end
