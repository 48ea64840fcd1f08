// Encoding and running: what is refused, in which order things run, how they end.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "double_test.h"

using namespace double_test;

namespace {

// An encoder with `add_one` from one buffer to another bound and set.
struct Encoding : Fixture {
  id<MTLBuffer> in = buffer({1, 2, 3, 4});
  id<MTLBuffer> out = buffer({0, 0, 0, 0});
  id<MTLComputePipelineState> add_one = pipeline(@"add_one");
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder =
      [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];

  void set_add_one(id<MTLBuffer> from, id<MTLBuffer> to) {
    [encoder setComputePipelineState:add_one];
    [encoder setBuffer:from offset:0 atIndex:0];
    [encoder setBuffer:to offset:0 atIndex:1];
  }
  void dispatch(NSUInteger threads = 4) {
    [encoder dispatchThreads:MTLSizeMake(threads, 1, 1) threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  }
  void finish() {
    [encoder endEncoding];
    [commands commit];
    [commands waitUntilCompleted];
  }
};

// What follows a violation: the work is not run, and says so.
void expect_refused(Encoding& f, const char* violation, int line) {
  [f.encoder endEncoding];
  expect_violation(violation, line, __FILE__);
  [f.commands commit];
  [f.commands waitUntilCompleted];
  CHECK_EQ(f.commands.status, MTLCommandBufferStatusError);
  CHECK_EQ(f.commands.error.code, static_cast<NSInteger>(MTLCommandBufferErrorInvalidResource));
  CHECK(values_of(f.out) == (std::vector<uint32_t>{0, 0, 0, 0}));
}
#define EXPECT_REFUSED(f, text) expect_refused(f, text, __LINE__)

}  // namespace

TEST_CASE(a_dispatch_runs_after_commit_on_another_thread) {
  Encoding f;
  f.set_add_one(f.in, f.out);
  f.dispatch();
  [f.encoder endEncoding];
  std::atomic<bool> handled{false};
  std::atomic<bool>* handled_at = &handled;
  const std::thread::id here = std::this_thread::get_id();
  id<MTLBuffer> out = f.out;
  [f.commands addCompletedHandler:^(id<MTLCommandBuffer> commands) {
    *handled_at = std::this_thread::get_id() != here && commands.status == MTLCommandBufferStatusCompleted &&
                  values_of(out) == std::vector<uint32_t>{2, 3, 4, 5};
  }];
  CHECK_EQ(f.commands.status, MTLCommandBufferStatusNotEnqueued);
  CHECK(values_of(f.out) == (std::vector<uint32_t>{0, 0, 0, 0}));
  [f.commands commit];
  [f.commands waitUntilCompleted];
  CHECK(handled);
  CHECK_EQ(f.commands.status, MTLCommandBufferStatusCompleted);
  CHECK(f.commands.error == nil);
  CHECK(f.commands.GPUStartTime > 0 && f.commands.GPUEndTime >= f.commands.GPUStartTime);
  EXPECT_NO_VIOLATION();
}

namespace {

// The block's own variables end with this function.
__attribute__((noinline)) void add_handler(id<MTLCommandBuffer> commands, std::atomic<int>* sum, int value) {
  const int also = value * 10;
  [commands addCompletedHandler:^(id<MTLCommandBuffer>) {
    *sum += value + also;
  }];
}

}  // namespace

TEST_CASE(handlers_keep_what_they_captured) {
  Fixture f;
  id<MTLCommandBuffer> commands = [f.queue commandBuffer];
  std::atomic<int> sum{0};
  for (int i = 1; i <= 3; ++i) add_handler(commands, &sum, i);
  [commands commit];
  [commands waitUntilCompleted];
  CHECK_EQ(sum.load(), 66);
}

TEST_CASE(the_life_cycle_of_an_encoder_is_enforced) {
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder endEncoding];
    f.dispatch();
    EXPECT_VIOLATION("after endEncoding");
  }
  {
    Encoding f;
    [f.encoder endEncoding];
    [f.encoder endEncoding];
    EXPECT_VIOLATION("after endEncoding");
  }
  {
    Encoding f;
    CHECK([f.commands computeCommandEncoder] == nil);
    EXPECT_VIOLATION("an encoder is open");
    [f.encoder endEncoding];
  }
  {
    Encoding f;
    [f.commands commit];
    EXPECT_VIOLATION("an encoder is open");
    [f.commands waitUntilCompleted];
    CHECK_EQ(f.commands.status, MTLCommandBufferStatusError);
    [f.encoder endEncoding];
  }
  {
    Encoding f;
    f.finish();
    [f.commands commit];
    EXPECT_VIOLATION("a second time");
    CHECK([f.commands computeCommandEncoder] == nil);
    EXPECT_VIOLATION("after commit");
    [f.commands addCompletedHandler:^(id<MTLCommandBuffer>){
    }];
    EXPECT_VIOLATION("after commit");
  }
  {
    Encoding f;
    [f.encoder pushDebugGroup:@"open"];
    EXPECT_REFUSED(f, "a debug group is open: open");
  }
  {
    Fixture f;
    {
      Pool inner;
      [[f.queue commandBuffer] computeCommandEncoder];
    }
    CHECK_EQ(metal_double_violation_count(), 2u);  // the encoder's and the command buffer's
    metal_double_clear_violations();
  }
}

TEST_CASE(what_a_dispatch_binds_is_checked) {
  {
    Encoding f;
    f.dispatch();
    EXPECT_REFUSED(f, "no pipeline is set");
  }
  {
    Encoding f;
    f.set_add_one(f.in, nil);
    f.dispatch();
    EXPECT_REFUSED(f, "argument 1 (out) is not bound");
  }
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    const uint32_t word = 0;
    [f.encoder setBytes:&word length:4 atIndex:1];
    f.dispatch();
    EXPECT_REFUSED(f, "argument 1 (out) may be written and is bound to bytes");
  }
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder setBufferOffset:2 atIndex:0];
    f.dispatch();
    EXPECT_REFUSED(f, "argument 0 (in) has offset 2, not a multiple of 4");
  }
  {
    Encoding f;
    [f.encoder setBuffer:f.in offset:16 atIndex:0];
    EXPECT_REFUSED(f, "offset 16 is past the end of a buffer of 16 bytes");
  }
  {
    Encoding f;
    [f.encoder setBuffer:f.in offset:0 atIndex:31];
    EXPECT_REFUSED(f, "index 31 is not below 31");
  }
  {
    Encoding f;
    [f.encoder setBufferOffset:0 atIndex:3];
    EXPECT_REFUSED(f, "no buffer is bound at index 3");
  }
  {
    Encoding f;
    const std::vector<uint8_t> bytes(4097);
    [f.encoder setBytes:bytes.data() length:bytes.size() atIndex:0];
    EXPECT_REFUSED(f, "length 4097 is not from 1 to 4096");
  }
  {
    Encoding f;
    [f.encoder setComputePipelineState:f.pipeline(@"scale")];
    const uint32_t word = 0;
    [f.encoder setBytes:&word length:4 atIndex:0];
    [f.encoder setBuffer:f.out offset:0 atIndex:1];
    f.dispatch();
    EXPECT_REFUSED(f, "argument 0 (params) takes 48 bytes, 4 are bound");
  }
  {
    Encoding f;
    id<MTLDevice> second = [MTLCopyAllDevices() objectAtIndex:1];
    id<MTLBuffer> foreign = [[second newBufferWithLength:16 options:0] autorelease];
    [f.encoder setBuffer:foreign offset:0 atIndex:0];
    EXPECT_REFUSED(f, "another device's");
  }
}

TEST_CASE(grids_and_threadgroup_memory_are_checked) {
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder dispatchThreadgroups:one threadsPerThreadgroup:MTLSizeMake(1025, 1, 1)];
    EXPECT_REFUSED(f, "threadsPerThreadgroup (1025, 1, 1) is not from 1 to 1024");
  }
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder dispatchThreadgroups:one threadsPerThreadgroup:MTLSizeMake(4, 0, 1)];
    EXPECT_REFUSED(f, "threadsPerThreadgroup (4, 0, 1)");
  }
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder dispatchThreads:MTLSizeMake(0, 1, 1) threadsPerThreadgroup:one];
    EXPECT_REFUSED(f, "a grid of (0, 1, 1)");
  }
  {
    Encoding f;
    [f.encoder setThreadgroupMemoryLength:40 atIndex:0];
    EXPECT_REFUSED(f, "length 40 is not a multiple of 16");
  }
  {
    Encoding f;
    [f.encoder setThreadgroupMemoryLength:32784 atIndex:0];
    EXPECT_REFUSED(f, "length 32784 is over the limit, 32768");
  }
  {
    Encoding f;
    [f.encoder setComputePipelineState:f.pipeline(@"group_sum")];
    [f.encoder setBuffer:f.in offset:0 atIndex:0];
    [f.encoder setBuffer:f.out offset:0 atIndex:1];
    [f.encoder dispatchThreadgroups:one threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
    EXPECT_REFUSED(f, "argument 0 (memory) has no threadgroup memory");
  }
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder dispatchThreadgroupsWithIndirectBuffer:f.in indirectBufferOffset:8 threadsPerThreadgroup:one];
    EXPECT_REFUSED(f, "offset 8 leaves no room for three counts in a buffer of 16 bytes");
  }
  {
    Encoding f;
    f.set_add_one(f.in, f.out);
    [f.encoder dispatchThreadgroupsWithIndirectBuffer:f.in indirectBufferOffset:2 threadsPerThreadgroup:one];
    EXPECT_REFUSED(f, "offset 2 is not a multiple of 4");
  }
}

TEST_CASE(an_indirect_grid_is_read_when_the_launch_starts) {
  Encoding f;
  id<MTLBuffer> counts = f.buffer({0, 0, 0});
  id<MTLBuffer> ones = f.buffer({0, 0, 0});
  f.set_add_one(ones, counts);  // counts become (1, 1, 1)
  [f.encoder dispatchThreads:MTLSizeMake(3, 1, 1) threadsPerThreadgroup:MTLSizeMake(3, 1, 1)];
  [f.encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
  f.set_add_one(f.in, f.out);
  [f.encoder dispatchThreadgroupsWithIndirectBuffer:counts
                               indirectBufferOffset:0
                              threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  f.finish();
  CHECK(values_of(f.out) == (std::vector<uint32_t>{2, 3, 4, 5}));
  EXPECT_NO_VIOLATION();
}

namespace {

// Eight launches that each add one to what the one before wrote: 8 where each came after the other.
uint32_t chained(uint64_t seed, bool concurrent, bool barriers, bool named) {
  Fixture f;
  metal_double_set_shuffle_seed(seed);
  id<MTLComputePipelineState> add_one = f.pipeline(@"add_one");
  NSMutableArray* steps = [NSMutableArray array];
  for (int i = 0; i < 9; ++i) [steps addObject:f.buffer({0})];
  id<MTLCommandBuffer> commands = [f.queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands
      computeCommandEncoderWithDispatchType:concurrent ? MTLDispatchTypeConcurrent : MTLDispatchTypeSerial];
  [encoder setComputePipelineState:add_one];
  for (int i = 0; i < 8; ++i) {
    [encoder setBuffer:[steps objectAtIndex:i] offset:0 atIndex:0];
    [encoder setBuffer:[steps objectAtIndex:i + 1] offset:0 atIndex:1];
    [encoder dispatchThreads:one threadsPerThreadgroup:one];
    if (!barriers) continue;
    id<MTLResource> written = [steps objectAtIndex:i + 1];
    if (named) {
      [encoder memoryBarrierWithResources:&written count:1];
    } else {
      [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    }
  }
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  EXPECT_NO_VIOLATION();
  return values_of([steps objectAtIndex:8])[0];
}

}  // namespace

TEST_CASE(a_missing_barrier_shows) {
  const uint64_t before = metal_double_shuffle_seed();
  int right = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CHECK_EQ(chained(seed, false, false, false), 8u);
    CHECK_EQ(chained(seed, true, true, false), 8u);
    CHECK_EQ(chained(seed, true, true, true), 8u);
    right += chained(seed, true, false, false) == 8;
  }
  CHECK_EQ(right, 0);
  metal_double_set_shuffle_seed(before);
}

TEST_CASE(a_barrier_of_other_buffers_orders_nothing) {
  const uint64_t before = metal_double_shuffle_seed();
  std::set<uint32_t> seen;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    metal_double_set_shuffle_seed(seed);
    Encoding f;
    id<MTLBuffer> last = f.buffer({0, 0, 0, 0});
    f.set_add_one(f.in, f.out);
    f.dispatch();
    id<MTLResource> unrelated = f.in;
    [f.encoder memoryBarrierWithResources:&unrelated count:1];
    f.set_add_one(f.out, last);
    f.dispatch();
    f.finish();
    seen.insert(values_of(last)[0]);
  }
  CHECK(seen == (std::set<uint32_t>{1, 3}));
  metal_double_set_shuffle_seed(before);
}

TEST_CASE(events_order_queues_and_devices) {
  Fixture f;
  NSArray* devices = [MTLCopyAllDevices() autorelease];
  id<MTLDevice> second = [devices objectAtIndex:1];
  id<MTLCommandQueue> waiting = [[second newCommandQueue] autorelease];
  id<MTLSharedEvent> event = [[f.device newSharedEvent] autorelease];
  id<MTLCommandBuffer> after = [waiting commandBuffer];
  [after encodeWaitForEvent:event value:2];
  [after encodeSignalEvent:event value:3];
  [after commit];
  CHECK(![event waitUntilSignaledValue:3 timeoutMS:50]);
  CHECK_EQ(after.status, MTLCommandBufferStatusScheduled);
  id<MTLCommandBuffer> first = [f.queue commandBuffer];
  [first encodeSignalEvent:event value:2];
  [first commit];
  CHECK([event waitUntilSignaledValue:3 timeoutMS:10000]);
  [after waitUntilCompleted];
  CHECK_EQ(event.signaledValue, 3u);
  EXPECT_NO_VIOLATION();
  id<MTLEvent> local = [[f.device newEvent] autorelease];
  [[waiting commandBuffer] encodeWaitForEvent:local value:1];
  EXPECT_VIOLATION("another device's and not shared");
}

TEST_CASE(command_buffers_run_in_the_order_in_which_they_were_enqueued) {
  Fixture f;
  id<MTLSharedEvent> event = [[f.device newSharedEvent] autorelease];
  id<MTLCommandBuffer> first = [f.queue commandBuffer], second = [f.queue commandBuffer];
  [first encodeSignalEvent:event value:1];
  [second encodeSignalEvent:event value:2];
  [first enqueue];
  [second commit];
  CHECK(![event waitUntilSignaledValue:1 timeoutMS:30]);
  [first commit];
  [second waitUntilCompleted];
  CHECK_EQ(event.signaledValue, 2u);
  CHECK_EQ(first.status, MTLCommandBufferStatusCompleted);
  EXPECT_NO_VIOLATION();
}

TEST_CASE(each_code_of_an_error_can_be_had) {
  for (const NSInteger code : {1, 2, 3, 4, 7, 8, 9, 10, 11, 12}) {
    Encoding f;
    metal_double_fail_execution(0, 1, code);
    f.set_add_one(f.in, f.out);
    f.dispatch();
    f.finish();
    CHECK_EQ(f.commands.status, MTLCommandBufferStatusError);
    CHECK_EQ(f.commands.error.code, code);
    CHECK([f.commands.error.domain isEqualToString:MTLCommandBufferErrorDomain]);
    CHECK(values_of(f.out) == (std::vector<uint32_t>{0, 0, 0, 0}));
    EXPECT_NO_VIOLATION();
  }
}

TEST_CASE(an_error_names_its_encoder_and_signposts) {
  Fixture f;
  metal_double_set_watchdog(0.05);
  MTLCommandBufferDescriptor* descriptor = [[[MTLCommandBufferDescriptor alloc] init] autorelease];
  descriptor.errorOptions = MTLCommandBufferErrorOptionEncoderExecutionStatus;
  id<MTLCommandBuffer> commands = [f.queue commandBufferWithDescriptor:descriptor];
  for (NSString *label in [NSArray arrayWithObjects:@"first", @"second", @"third", nil]) {
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
    encoder.label = label;
    const bool endless = [label isEqualToString:@"second"];
    [encoder setComputePipelineState:f.pipeline(endless ? @"for_ever" : @"add_one")];
    [encoder setBuffer:f.buffer({0}) offset:0 atIndex:0];
    [encoder setBuffer:f.buffer({0}) offset:0 atIndex:1];
    [encoder pushDebugGroup:@"launch"];
    [encoder dispatchThreads:one threadsPerThreadgroup:one];
    [encoder popDebugGroup];
    [encoder insertDebugSignpost:@"behind"];
    [encoder endEncoding];
  }
  [commands commit];
  [commands waitUntilCompleted];
  CHECK_EQ(commands.error.code, static_cast<NSInteger>(MTLCommandBufferErrorTimeout));
  NSArray* infos = [commands.error.userInfo objectForKey:MTLCommandBufferEncoderInfoErrorKey];
  CHECK_EQ([infos count], 3u);
  const MTLCommandEncoderErrorState states[] = {MTLCommandEncoderErrorStateCompleted,
                                                MTLCommandEncoderErrorStateFaulted,
                                                MTLCommandEncoderErrorStatePending};
  const NSUInteger signposts[] = {2, 1, 0};
  for (NSUInteger i = 0; i < [infos count]; ++i) {
    id<MTLCommandBufferEncoderInfo> info = [infos objectAtIndex:i];
    CHECK_EQ(info.errorState, states[i]);
    CHECK_EQ([info.debugSignposts count], signposts[i]);
  }
  EXPECT_NO_VIOLATION();
}

TEST_CASE(a_lost_device_ends_what_runs_and_what_comes) {
  Fixture f;
  id<MTLBuffer> word = f.buffer({0});
  id<MTLCommandBuffer> running = [f.queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [running computeCommandEncoder];
  [encoder setComputePipelineState:f.pipeline(@"for_ever")];
  [encoder setBuffer:word offset:0 atIndex:0];
  [encoder dispatchThreads:one threadsPerThreadgroup:one];
  [encoder endEncoding];
  [running commit];
  [running waitUntilScheduled];
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  metal_double_lose_device(0);
  [running waitUntilCompleted];
  CHECK_EQ(running.error.code, static_cast<NSInteger>(MTLCommandBufferErrorDeviceRemoved));
  id<MTLCommandBuffer> later = [f.queue commandBuffer];
  [later commit];
  [later waitUntilCompleted];
  CHECK_EQ(later.error.code, static_cast<NSInteger>(MTLCommandBufferErrorDeviceRemoved));
}

TEST_CASE(slow_completion_takes_its_time) {
  Encoding f;
  metal_double_delay_completion(0.1);
  const auto start = std::chrono::steady_clock::now();
  f.finish();
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(100));
  CHECK(f.commands.GPUEndTime - f.commands.GPUStartTime >= 0.1);
}

TEST_CASE(references_are_retained_until_the_end_or_have_to_be) {
  Fixture f;
  metal_double_delay_completion(0.1);
  for (const bool retained : {true, false}) {
    id<MTLCommandBuffer> commands =
        retained ? [f.queue commandBuffer] : [f.queue commandBufferWithUnretainedReferences];
    id<MTLBuffer> data = [f.device newBufferWithLength:64 options:0];
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
    [encoder setComputePipelineState:f.pipeline(@"add_one")];
    [encoder setBuffer:data offset:0 atIndex:0];
    [encoder setBuffer:data offset:0 atIndex:1];
    [encoder dispatchThreads:one threadsPerThreadgroup:one];
    [encoder endEncoding];
    [commands commit];
    const int64_t alive = metal_double_live_objects("MTLBuffer");
    [data release];
    CHECK_EQ(metal_double_live_objects("MTLBuffer"), retained ? alive : alive - 1);
    if (retained) {
      EXPECT_NO_VIOLATION();
    } else {
      EXPECT_VIOLATION("released while a command buffer that does not retain it is in flight");
    }
    [commands waitUntilCompleted];
    CHECK_EQ(metal_double_live_objects("MTLBuffer"), alive - 1);
  }
}

TEST_CASE(a_queue_takes_so_many_command_buffers) {
  Fixture f;
  id<MTLCommandQueue> queue = [[f.device newCommandQueueWithMaxCommandBufferCount:2] autorelease];
  id<MTLCommandBuffer> first = [queue commandBuffer];
  CHECK(first != nil && [queue commandBuffer] != nil);
  CHECK([queue commandBuffer] == nil);
  EXPECT_VIOLATION("would wait for ever");
  [first commit];
  CHECK([queue commandBuffer] != nil);  // waits for the first one's end
  metal_double_fail_command_buffers(0, 1);
  CHECK([f.queue commandBuffer] == nil);
  CHECK([f.queue commandBuffer] != nil);
  EXPECT_NO_VIOLATION();
}

CHECK_MAIN()
