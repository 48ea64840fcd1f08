// The capture manager: a trace is a folder with one file, which counts the commits of its time to what is
// captured.
#include "accounting.h"
#include "devices.h"
#include "metal_double.h"

using namespace metal_double;

NSString* const MTLCaptureErrorDomain = @"MTLCaptureError";

@implementation MTLCaptureDescriptor
METAL_DOUBLE_COUNTED("MTLCaptureDescriptor")
@synthesize captureObject = _captureObject;
@synthesize destination = _destination;
@synthesize outputURL = _outputURL;
- (id)init {
  self = [super init];
  _destination = MTLCaptureDestinationDeveloperTools;
  return self;
}
- (void)destroy {
  [_captureObject release];
  [_outputURL release];
}
- (id)copyWithZone:(NSZone*)zone {
  MTLCaptureDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_captureObject = [_captureObject retain];
  copy->_destination = _destination;
  copy->_outputURL = [_outputURL copy];
  return copy;
}
@end

@interface MetalDoubleCaptureScope : NSObject <MTLCaptureScope> {
 @package
  NSString* _label;
  id<MTLDevice> _device;
  id<MTLCommandQueue> _commandQueue;
}
@end

@implementation MetalDoubleCaptureScope
METAL_DOUBLE_COUNTED("MTLCaptureScope")
@synthesize label = _label;
@synthesize device = _device;
@synthesize commandQueue = _commandQueue;
- (void)destroy {
  [_label release];
  [_commandQueue release];
}
- (void)beginScope {
}
- (void)endScope {
}
@end

@implementation MTLCaptureManager
@synthesize defaultCaptureScope = _defaultCaptureScope;
+ (MTLCaptureManager*)sharedCaptureManager {
  static MTLCaptureManager* shared = [[MTLCaptureManager alloc] init];
  return shared;
}
- (id<MTLCaptureScope>)newCaptureScopeWithDevice:(id<MTLDevice>)device {
  MetalDoubleCaptureScope* scope = [[MetalDoubleCaptureScope alloc] init];
  scope->_device = device;
  return scope;
}
- (id<MTLCaptureScope>)newCaptureScopeWithCommandQueue:(id<MTLCommandQueue>)commandQueue {
  MetalDoubleCaptureScope* scope = [[MetalDoubleCaptureScope alloc] init];
  scope->_device = [commandQueue device];
  scope->_commandQueue = [commandQueue retain];
  return scope;
}
- (BOOL)supportsDestination:(MTLCaptureDestination)destination {
  return destination == MTLCaptureDestinationGPUTraceDocument && !system_lacks(METAL_DOUBLE_NO_CAPTURE);
}
- (BOOL)isCapturing {
  @synchronized(self) {
    return _capturing;
  }
}
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor*)descriptor error:(NSError**)error {
  @synchronized(self) {
    NSURL* url = descriptor.outputURL;
    NSFileManager* files = [NSFileManager defaultManager];
    MTLCaptureError code = MTLCaptureErrorInvalidDescriptor;
    std::string problem;
    if (_capturing) {
      code = MTLCaptureErrorAlreadyCapturing;
      problem = "a capture is running";
    } else if (![self supportsDestination:descriptor.destination]) {
      code = MTLCaptureErrorNotSupported;
      problem =
          "this destination is not supported; for trace documents METAL_CAPTURE_ENABLED=1 has to be set";
    } else if (descriptor.captureObject == nil) {
      problem = "there is no object to capture";
    } else if (url == nil || ![url isFileURL] || ![[url path] hasSuffix:@".gputrace"]) {
      problem = "the output is not a file that ends in .gputrace";
    } else if ([files fileExistsAtPath:[url path]]) {
      problem = "the output exists: " + to_string([url path]);
    } else if (![files createDirectoryAtPath:[url path]
                   withIntermediateDirectories:NO
                                    attributes:nil
                                         error:nullptr]) {
      problem = "cannot write the output: " + to_string([url path]);
    }
    if (!problem.empty()) {
      set_error(error, MTLCaptureErrorDomain, code, problem);
      return NO;
    }
    _capturing = YES;
    _outputURL = [url copy];
    _captureObject = [descriptor.captureObject retain];
    _commandsBefore = commits_of(_captureObject);
    count_event(Event::capture);
    return YES;
  }
}
- (void)stopCapture {
  @synchronized(self) {
    if (!_capturing) {
      violation("stopCapture: nothing is being captured");
      return;
    }
    const uint64_t commits = commits_of(_captureObject) - _commandsBefore;
    NSString* text = [NSString stringWithFormat:@"%lu commits\n", static_cast<unsigned long>(commits)];
    [text writeToFile:[[_outputURL path] stringByAppendingPathComponent:@"capture"] atomically:NO];
    [_outputURL release];
    _outputURL = nil;
    [_captureObject release];
    _captureObject = nil;
    _capturing = NO;
  }
}
@end
