// Metal for a test double on Linux: the part of the framework's interface that a compute backend uses,
// written from the selectors, type encodings and enum values that tests/metal/metal_api.json lists.
// Deprecated members and graphics are left out. Classes declare their variables, as the ABI of GCC's
// Objective-C runtime wants it.
#pragma once

#import <Metal/MTLArgument.h>
#import <Metal/MTLBinaryArchive.h>
#import <Metal/MTLBuffer.h>
#import <Metal/MTLCaptureManager.h>
#import <Metal/MTLCaptureScope.h>
#import <Metal/MTLCommandBuffer.h>
#import <Metal/MTLCommandEncoder.h>
#import <Metal/MTLCommandQueue.h>
#import <Metal/MTLComputeCommandEncoder.h>
#import <Metal/MTLComputePipeline.h>
#import <Metal/MTLDevice.h>
#import <Metal/MTLEvent.h>
#import <Metal/MTLFunctionConstantValues.h>
#import <Metal/MTLFunctionDescriptor.h>
#import <Metal/MTLLibrary.h>
#import <Metal/MTLPipeline.h>
#import <Metal/MTLResidencySet.h>
#import <Metal/MTLResource.h>
#import <Metal/MTLTypes.h>
