// Capture scopes: a stretch of work to be captured.
#pragma once

#import <Foundation/Foundation.h>

@protocol MTLCommandQueue;
@protocol MTLDevice;

@protocol MTLCaptureScope <NSObject>
@property(copy, atomic) NSString* label;
@property(readonly, nonatomic) id<MTLDevice> device;
@property(readonly, nonatomic) id<MTLCommandQueue> commandQueue;
- (void)beginScope;
- (void)endScope;
@end
