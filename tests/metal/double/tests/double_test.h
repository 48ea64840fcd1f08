// What the double's tests share: a device with a queue, kernels to run, and a look at violations.
#pragma once

#import <Metal/Metal.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "metal_double.h"

namespace double_test {

constexpr const char* kernels = R"(#include <metal_stdlib>
using namespace metal;
struct Params { uint factor; uchar tag; float4 offset; ushort pair[3]; };
constant bool negate [[function_constant(3)]];
kernel void add_one(device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) { out[i] = in[i] + 1; }
kernel void scale(constant Params& params [[buffer(0)]], device uint* data [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { data[i] = data[i] * params.factor; }
kernel void signed_copy(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                        uint i [[thread_position_in_grid]]) { out[i] = negate ? -in[i] : in[i]; }
kernel void group_sum(device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]],
                      threadgroup uint* memory [[threadgroup(0)]], uint i [[thread_position_in_threadgroup]]) {
  memory[i] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) { uint sum = 0; for (uint k = 0; k < 32; ++k) sum += memory[k]; out[0] = sum; }
}
kernel void for_ever(device atomic_uint* word [[buffer(0)]]) {
  while (atomic_load_explicit(word, memory_order_relaxed) == 0) {}
}
)";

// A pool's scope, as every thread has one.
struct Pool {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  ~Pool() { [pool drain]; }
};

struct Fixture {
  Pool pool;
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  id<MTLCommandQueue> queue = [device newCommandQueue];
  id<MTLLibrary> library = make_library();

  Fixture() { metal_double_clear_violations(); }
  ~Fixture() {
    [library release];
    [queue release];
    [device release];
    metal_double_reset();
    metal_double_clear_violations();
  }

  id<MTLLibrary> make_library() {
    MTLCompileOptions* options = [[[MTLCompileOptions alloc] init] autorelease];
    options.mathMode = MTLMathModeSafe;
    NSError* error = nil;
    id<MTLLibrary> made = [device newLibraryWithSource:[NSString stringWithUTF8String:kernels]
                                               options:options
                                                 error:&error];
    if (made == nil) check::report(false, __FILE__, __LINE__, [[error localizedDescription] UTF8String]);
    return made;
  }

  // Autoreleased.
  id<MTLComputePipelineState> pipeline(NSString* name) {
    id<MTLFunction> function = [[library newFunctionWithName:name] autorelease];
    NSError* error = nil;
    id<MTLComputePipelineState> made = [device newComputePipelineStateWithFunction:function error:&error];
    if (made == nil) check::report(false, __FILE__, __LINE__, [[error localizedDescription] UTF8String]);
    return [made autorelease];
  }
  id<MTLBuffer> buffer(const std::vector<uint32_t>& values) {
    return [[device newBufferWithBytes:values.data() length:values.size() * 4 options:0] autorelease];
  }
};

inline std::vector<uint32_t> values_of(id<MTLBuffer> buffer) {
  std::vector<uint32_t> values([buffer length] / 4);
  std::memcpy(values.data(), [buffer contents], values.size() * 4);
  return values;
}

inline const MTLSize one = {1, 1, 1};

// One violation, with this text in it; none are left behind.
inline void expect_violation(const char* text, int line, const char* file) {
  const size_t count = metal_double_violation_count();
  const std::string seen = count != 0 ? metal_double_violation(count - 1) : "none";
  check::report(count == 1 && seen.find(text) != std::string::npos, file, line,
                std::to_string(count) + " violations, the last: " + seen + "; expected one: " + text);
  metal_double_clear_violations();
}
#define EXPECT_VIOLATION(text) double_test::expect_violation(text, __LINE__, __FILE__)
#define EXPECT_NO_VIOLATION() \
  CHECK_EQ(std::string(metal_double_violation_count() ? metal_double_violation(0) : ""), "")

}  // namespace double_test
