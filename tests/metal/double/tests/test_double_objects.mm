// Objects: their counts and ends, memory, the system that is played, libraries, pipelines, archives,
// captures.
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "double_test.h"

using namespace double_test;

namespace {

// A folder of its own, removed at the end.
struct Folder {
  std::string path;
  Folder() {
    path = std::filesystem::temp_directory_path() / "metal_double_XXXXXX";
    mkdtemp(path.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  NSURL* url(const char* name) const {
    return [NSURL fileURLWithPath:[NSString stringWithFormat:@"%s/%s", path.c_str(), name]];
  }
};

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

void launch_once(Fixture& f, id<MTLComputePipelineState> pipeline, id<MTLBuffer> data) {
  const Pool pool;
  id<MTLCommandBuffer> commands = [f.queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder =
      [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  [encoder setComputePipelineState:pipeline];
  [encoder setBuffer:data offset:0 atIndex:0];
  [encoder setBuffer:data offset:0 atIndex:1];
  [encoder dispatchThreads:one threadsPerThreadgroup:one];
  [encoder endEncoding];
  [commands commit];
}

}  // namespace

TEST_CASE(every_object_is_counted_from_its_first_to_its_last_day) {
  const Pool pool;
  const int64_t before = metal_double_live_objects(nullptr);
  {
    Fixture f;
    CHECK_EQ(metal_double_live_objects("MTLDevice"), 1);
    CHECK_EQ(metal_double_live_objects("MTLCommandQueue"), 1);
    CHECK_EQ(metal_double_live_objects("MTLBuffer"), 0);
    id<MTLBuffer> data = [f.device newBufferWithLength:64 options:0];
    [data retain];
    CHECK_EQ([data retainCount], 2u);
    [data release];
    CHECK_EQ(metal_double_live_objects("MTLBuffer"), 1);
    [data release];
    CHECK_EQ(metal_double_live_objects("MTLBuffer"), 0);
    launch_once(f, f.pipeline(@"add_one"), f.buffer({1}));
    id<MTLCommandBuffer> last = [f.queue commandBuffer];
    [last commit];
    [last waitUntilCompleted];
  }
  // A completed buffer goes once its handlers have returned.
  for (int i = 0; i < 1000 && metal_double_live_objects(nullptr) != before; ++i) usleep(1000);
  CHECK_EQ(metal_double_live_objects(nullptr), before);
  EXPECT_NO_VIOLATION();
}

TEST_CASE(use_after_the_last_release_is_seen) {
  Fixture f;
  id<MTLBuffer> data = [f.device newBufferWithLength:64 options:0];
  [data release];
  CHECK([data contents] == nullptr);
  EXPECT_VIOLATION("-contents to a MTLBuffer after its last release");
  [data release];
  EXPECT_VIOLATION("-release of a MTLBuffer after its last release");
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  [options release];
  [options retain];
  EXPECT_VIOLATION("-retain of a MTLCompileOptions after its last release");
}

TEST_CASE(buffers_have_pages_and_nobody_promises_zeros) {
  Fixture f;
  const auto page = static_cast<NSUInteger>(sysconf(_SC_PAGESIZE));
  const NSUInteger before = f.device.currentAllocatedSize;
  id<MTLBuffer> data = [f.device newBufferWithLength:100 options:MTLResourceStorageModeShared];
  CHECK_EQ(reinterpret_cast<uintptr_t>([data contents]) % page, 0u);
  CHECK_EQ(data.length, 100u);
  CHECK_EQ(data.allocatedSize, page);
  CHECK_EQ(f.device.currentAllocatedSize, before + page);
  CHECK_EQ(static_cast<uint8_t*>([data contents])[99], 0xa5);
  [data release];
  CHECK_EQ(f.device.currentAllocatedSize, before);
  CHECK([f.device newBufferWithLength:0 options:0] == nil);
  EXPECT_VIOLATION("length 0 is not from 1 to maxBufferLength");
  CHECK([f.device newBufferWithLength:f.device.maxBufferLength + 1 options:0] == nil);
  EXPECT_VIOLATION("is not from 1 to maxBufferLength");
  CHECK([f.device newBufferWithLength:16 options:MTLResourceStorageModePrivate] == nil);
  EXPECT_VIOLATION("storage mode 2");
  metal_double_fail_allocations(1, 1);
  id<MTLBuffer> passes = [[f.device newBufferWithLength:16 options:0] autorelease];
  CHECK(passes != nil && [f.device newBufferWithLength:16 options:0] == nil);
  EXPECT_NO_VIOLATION();
}

TEST_CASE(memory_of_the_caller_is_wrapped_by_whole_pages) {
  Fixture f;
  const auto page = static_cast<NSUInteger>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  __block NSUInteger freed = 0;
  id<MTLBuffer> wrapped = [f.device newBufferWithBytesNoCopy:memory
                                                      length:2 * page
                                                     options:0
                                                 deallocator:^(void* bytes, NSUInteger length) {
                                                   freed = bytes == memory ? length : 0;
                                                 }];
  CHECK([wrapped contents] == memory);
  CHECK_EQ(freed, 0u);
  [wrapped release];
  CHECK_EQ(freed, 2 * page);
  auto* bytes = static_cast<uint8_t*>(memory);
  CHECK([f.device newBufferWithBytesNoCopy:bytes + 16 length:page options:0 deallocator:nil] == nil);
  EXPECT_VIOLATION("is not a page's");
  CHECK([f.device newBufferWithBytesNoCopy:bytes length:page + 16 options:0 deallocator:nil] == nil);
  EXPECT_VIOLATION("is not of whole pages");
  munmap(memory, 2 * page);
}

TEST_CASE(an_older_system_says_what_it_lacks) {
  Fixture f;
  struct Part {
    uint32_t lacks;
    id object;
    Class type;
    SEL selector;
  };
  const Part parts[] = {
      {METAL_DOUBLE_NO_RESIDENCY_SETS, f.device, Nil, @selector(newResidencySetWithDescriptor:error:)},
      {METAL_DOUBLE_NO_RESIDENCY_SETS, f.queue, Nil, @selector(addResidencySet:)},
      {METAL_DOUBLE_NO_RESIDENCY_SETS, [f.queue commandBuffer], Nil, @selector(useResidencySet:)},
      {METAL_DOUBLE_NO_MATH_MODE, nil, [MTLCompileOptions class], @selector(setMathMode:)},
      {METAL_DOUBLE_NO_BINARY_ARCHIVES, f.device, Nil, @selector(newBinaryArchiveWithDescriptor:error:)},
      {METAL_DOUBLE_NO_BINARY_ARCHIVES, nil, [MTLComputePipelineDescriptor class],
       @selector(setBinaryArchives:)},
  };
  const auto answers = [](const Part& part) {
    return part.object != nil ? [part.object respondsToSelector:part.selector]
                              : [part.type instancesRespondToSelector:part.selector];
  };
  for (const uint32_t lacks : {0u, 1u, 2u, 4u, 15u}) {
    metal_double_set_system(lacks);
    for (const Part& part : parts) CHECK_EQ(static_cast<bool>(answers(part)), (lacks & part.lacks) == 0);
    CHECK_EQ(NSClassFromString(@"MTLResidencySetDescriptor") != Nil, (lacks & 1) == 0);
    CHECK_EQ(NSClassFromString(@"MTLBinaryArchiveDescriptor") != Nil, (lacks & 4) == 0);
    CHECK(NSClassFromString(@"NSString") == [NSString class]);
  }
  CHECK_EQ(f.device.maxThreadgroupMemoryLength, 16384u);
  CHECK_EQ(f.device.maxThreadsPerThreadgroup.width, 512u);
  CHECK_EQ(f.device.maxBufferLength, 64u << 20);
  CHECK_EQ([f.pipeline(@"add_one") maxTotalThreadsPerThreadgroup], 512u);
  MTLCompileOptions* options = [[[MTLCompileOptions alloc] init] autorelease];
  EXPECT_NO_VIOLATION();
  options.mathMode = MTLMathModeSafe;
  EXPECT_VIOLATION("setMathMode:: this system does not have it");
  metal_double_reset();
  CHECK_EQ(f.device.maxThreadgroupMemoryLength, 32768u);
}

TEST_CASE(the_number_of_devices_can_be_set) {
  const Pool pool;
  CHECK_EQ([[MTLCopyAllDevices() autorelease] count], 2u);
  metal_double_set_device_count(0);
  CHECK_EQ([[MTLCopyAllDevices() autorelease] count], 0u);
  CHECK(MTLCreateSystemDefaultDevice() == nil);
  metal_double_reset();
  id<MTLDevice> device = [MTLCreateSystemDefaultDevice() autorelease];
  CHECK(device != nil && device == [[MTLCopyAllDevices() autorelease] objectAtIndex:0]);
}

TEST_CASE(what_does_not_compile_says_why) {
  Fixture f;
  NSError* error = nil;
  CHECK([f.device newLibraryWithSource:@"kernel void broken(" options:nil error:&error] == nil);
  CHECK([error.domain isEqualToString:MTLLibraryErrorDomain]);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLLibraryErrorCompileFailure));
  CHECK([[error localizedDescription] hasPrefix:@"program_source:1:"]);
  metal_double_fail_compilations(1, "asked for");
  CHECK([f.device newLibraryWithSource:@"kernel void k() {}" options:nil error:&error] == nil);
  CHECK([[error localizedDescription] isEqualToString:@"asked for"]);
  id<MTLLibrary> small = [f.device newLibraryWithSource:@"kernel void k() {}" options:nil error:&error];
  CHECK([[small functionNames] isEqualToArray:[NSArray arrayWithObject:@"k"]]);
  CHECK([small newFunctionWithName:@"other"] == nil);
  [small release];
  MTLCompileOptions* options = [[[MTLCompileOptions alloc] init] autorelease];
  options.languageVersion = MTLLanguageVersion4_0;
  metal_double_set_system(METAL_DOUBLE_NO_MATH_MODE);
  CHECK([f.device newLibraryWithSource:@"kernel void k() {}" options:options error:&error] == nil);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLLibraryErrorUnsupported));
  metal_double_reset();
  metal_double_fail_pipelines(1, "no pipeline today");
  id<MTLFunction> function = [[f.library newFunctionWithName:@"add_one"] autorelease];
  CHECK([f.device newComputePipelineStateWithFunction:function error:&error] == nil);
  CHECK([[error localizedDescription] isEqualToString:@"no pipeline today"]);
  EXPECT_NO_VIOLATION();
}

TEST_CASE(constants_specialise_functions) {
  Fixture f;
  for (const bool negate : {false, true}) {
    MTLFunctionConstantValues* values = [[[MTLFunctionConstantValues alloc] init] autorelease];
    if (negate) {
      [values setConstantValue:&negate type:MTLDataTypeBool withName:@"negate"];
    } else {
      [values setConstantValue:&negate type:MTLDataTypeBool atIndex:3];
    }
    NSError* error = nil;
    id<MTLFunction> function = [[f.library newFunctionWithName:@"signed_copy"
                                                constantValues:values
                                                         error:&error] autorelease];
    CHECK(function != nil);
    MTLFunctionConstant* constant = [[function functionConstantsDictionary] objectForKey:@"negate"];
    CHECK_EQ(constant.index, 3u);
    CHECK_EQ(constant.type, MTLDataTypeBool);
    id<MTLComputePipelineState> pipeline =
        [[f.device newComputePipelineStateWithFunction:function error:&error] autorelease];
    id<MTLBuffer> data = f.buffer({5});
    launch_once(f, pipeline, data);
    id<MTLCommandBuffer> last = [f.queue commandBuffer];
    [last commit];
    [last waitUntilCompleted];
    CHECK_EQ(values_of(data)[0], negate ? 0u - 5u : 5u);
  }
  const float wrong = 1;
  MTLFunctionConstantValues* values = [[[MTLFunctionConstantValues alloc] init] autorelease];
  [values setConstantValue:&wrong type:MTLDataTypeFloat atIndex:3];
  NSError* error = nil;
  CHECK([f.library newFunctionWithName:@"signed_copy" constantValues:values error:&error] == nil);
  CHECK([[error localizedDescription] hasPrefix:@"Function constant negate of signed_copy is a bool"]);
  EXPECT_NO_VIOLATION();
}

TEST_CASE(reflection_says_what_the_source_does_or_what_a_test_plants) {
  Fixture f;
  id<MTLFunction> function = [[f.library newFunctionWithName:@"scale"] autorelease];
  const auto reflect = [&] {
    MTLComputePipelineReflection* reflection = nil;
    NSError* error = nil;
    const MTLPipelineOption options = MTLPipelineOptionBindingInfo | MTLPipelineOptionBufferTypeInfo;
    [[f.device newComputePipelineStateWithFunction:function
                                           options:options
                                        reflection:&reflection
                                             error:&error] autorelease];
    return reflection.bindings;
  };
  NSArray* bindings = reflect();
  CHECK_EQ([bindings count], 2u);
  id<MTLBufferBinding> params = [bindings objectAtIndex:0], data = [bindings objectAtIndex:1];
  CHECK([params.name isEqualToString:@"params"] && params.index == 0 && params.used);
  CHECK_EQ(params.access, MTLBindingAccessReadOnly);
  CHECK_EQ(params.bufferDataType, MTLDataTypeStruct);
  CHECK_EQ(params.bufferDataSize, 48u);
  CHECK_EQ(params.bufferAlignment, 16u);
  CHECK_EQ(data.access, MTLBindingAccessReadWrite);
  CHECK_EQ(data.bufferDataType, MTLDataTypeUInt);
  struct Member {
    NSString* name;
    NSUInteger offset;
    MTLDataType type;
  };
  const Member members[] = {{@"factor", 0, MTLDataTypeUInt},
                            {@"tag", 4, MTLDataTypeUChar},
                            {@"offset", 16, MTLDataTypeFloat4},
                            {@"pair", 32, MTLDataTypeArray}};
  CHECK_EQ([params.bufferStructType.members count], 4u);
  for (const Member& expected : members) {
    MTLStructMember* member = [params.bufferStructType memberByName:expected.name];
    CHECK_EQ(member.offset, expected.offset);
    CHECK_EQ(member.dataType, expected.type);
  }
  MTLArrayType* pair = [[params.bufferStructType memberByName:@"pair"] arrayType];
  CHECK(pair.elementType == MTLDataTypeUShort && pair.arrayLength == 3 && pair.stride == 2);
  metal_double_plant_reflection("params", "tag", "offset", 8);
  metal_double_plant_reflection("data", nullptr, "access", MTLBindingAccessReadOnly);
  bindings = reflect();
  CHECK_EQ([[[[bindings objectAtIndex:0] bufferStructType] memberByName:@"tag"] offset], 8u);
  CHECK_EQ([[bindings objectAtIndex:1] access], MTLBindingAccessReadOnly);
}

TEST_CASE(archives_keep_pipelines_in_a_file) {
  Fixture f;
  const Folder folder;
  NSURL* url = folder.url("archive");
  MTLComputePipelineDescriptor* pipeline = [[[MTLComputePipelineDescriptor alloc] init] autorelease];
  pipeline.computeFunction = [[f.library newFunctionWithName:@"add_one"] autorelease];
  MTLBinaryArchiveDescriptor* descriptor = [[[MTLBinaryArchiveDescriptor alloc] init] autorelease];
  NSError* error = nil;
  id<MTLBinaryArchive> archive = [[f.device newBinaryArchiveWithDescriptor:descriptor
                                                                     error:&error] autorelease];
  CHECK([archive addComputePipelineFunctionsWithDescriptor:pipeline error:&error]);
  metal_double_fail_archive_writes(1);
  CHECK(![archive serializeToURL:url error:&error]);
  CHECK(![archive serializeToURL:folder.url("missing/archive") error:&error]);
  CHECK([archive serializeToURL:url error:&error]);
  descriptor.url = url;
  id<MTLBinaryArchive> again = [[f.device newBinaryArchiveWithDescriptor:descriptor
                                                                   error:&error] autorelease];
  pipeline.binaryArchives = [NSArray arrayWithObject:again];
  const auto make = [&] {
    return [[f.device newComputePipelineStateWithDescriptor:pipeline
                                                    options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                 reflection:nullptr
                                                      error:&error] autorelease];
  };
  const int64_t hits = metal_double_count("archive hits"), misses = metal_double_count("archive misses");
  CHECK(make() != nil);
  pipeline.computeFunction = [[f.library newFunctionWithName:@"scale"] autorelease];
  CHECK(make() == nil);
  CHECK([error.domain isEqualToString:MTLBinaryArchiveDomain]);
  CHECK_EQ(metal_double_count("archive hits"), hits + 1);
  CHECK_EQ(metal_double_count("archive misses"), misses + 1);
  std::ofstream(folder.path + "/archive", std::ios::app) << "torn";
  CHECK([f.device newBinaryArchiveWithDescriptor:descriptor error:&error] == nil);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLBinaryArchiveErrorInvalidFile));
  EXPECT_NO_VIOLATION();
}

TEST_CASE(libraries_come_from_files) {
  Fixture f;
  const Folder folder;
  std::ofstream(folder.path + "/good") << METAL_DOUBLE_LIBRARY_MAGIC << kernels;
  std::ofstream(folder.path + "/bad") << "MTLB something else";
  NSError* error = nil;
  id<MTLLibrary> good = [[f.device newLibraryWithURL:folder.url("good") error:&error] autorelease];
  CHECK([[good functionNames] containsObject:@"add_one"]);
  CHECK([f.device newLibraryWithURL:folder.url("bad") error:&error] == nil);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLLibraryErrorInternal));
  CHECK([f.device newLibraryWithURL:folder.url("none") error:&error] == nil);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLLibraryErrorFileNotFound));
}

TEST_CASE(residency_sets_hold_what_they_are_given) {
  Fixture f;
  MTLResidencySetDescriptor* descriptor = [[[MTLResidencySetDescriptor alloc] init] autorelease];
  id<MTLResidencySet> set = [f.device newResidencySetWithDescriptor:descriptor error:nullptr];
  id<MTLBuffer> data = [f.device newBufferWithLength:100 options:0];
  [set addAllocation:data];
  CHECK_EQ(set.allocatedSize, 0u);
  [set commit];
  CHECK_EQ(set.allocatedSize, data.allocatedSize);
  CHECK(set.allocationCount == 1 && [set containsAllocation:data]);
  [data release];
  CHECK_EQ(metal_double_live_objects("MTLBuffer"), 1);
  [f.queue addResidencySet:set];
  [f.queue removeResidencySet:set];
  EXPECT_NO_VIOLATION();
  [f.queue removeResidencySet:set];
  EXPECT_VIOLATION("of a set that the queue does not have");
  [set removeAllAllocations];
  [set release];
  EXPECT_VIOLATION("released with changes that were not committed");
  CHECK_EQ(metal_double_live_objects("MTLBuffer"), 0);
}

TEST_CASE(captures_write_a_trace_and_exclude_each_other) {
  Fixture f;
  const Folder folder;
  MTLCaptureManager* manager = [MTLCaptureManager sharedCaptureManager];
  MTLCaptureDescriptor* descriptor = [[[MTLCaptureDescriptor alloc] init] autorelease];
  descriptor.captureObject = f.device;
  descriptor.destination = MTLCaptureDestinationGPUTraceDocument;
  descriptor.outputURL = folder.url("a.gputrace");
  NSError* error = nil;
  CHECK([manager startCaptureWithDescriptor:descriptor error:&error]);
  CHECK(manager.isCapturing);
  descriptor.outputURL = folder.url("b.gputrace");
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error]);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLCaptureErrorAlreadyCapturing));
  [[f.queue commandBuffer] commit];
  [manager stopCapture];
  CHECK(!manager.isCapturing);
  std::string text;
  std::getline(std::ifstream(folder.path + "/a.gputrace/capture"), text);
  CHECK_EQ(text, "1 commits");
  descriptor.outputURL = folder.url("a.gputrace");
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error]);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLCaptureErrorInvalidDescriptor));
  metal_double_set_system(METAL_DOUBLE_NO_CAPTURE);
  descriptor.outputURL = folder.url("c.gputrace");
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error]);
  CHECK_EQ(error.code, static_cast<NSInteger>(MTLCaptureErrorNotSupported));
  EXPECT_NO_VIOLATION();
  [manager stopCapture];
  EXPECT_VIOLATION("nothing is being captured");
}

TEST_CASE(events_tell_listeners) {
  Fixture f;
  id<MTLSharedEvent> event = [[f.device newSharedEvent] autorelease];
  MTLSharedEventHandle* handle = [[event newSharedEventHandle] autorelease];
  id<MTLSharedEvent> same = [[f.device newSharedEventWithHandle:handle] autorelease];
  MTLSharedEventListener* listener = [[[MTLSharedEventListener alloc] init] autorelease];
  __block uint64_t told = 0;
  [same notifyListener:listener
               atValue:5
                 block:^(id<MTLSharedEvent>, uint64_t value) {
                   told = value;
                 }];
  event.signaledValue = 4;
  CHECK_EQ(told, 0u);
  event.signaledValue = 6;
  CHECK_EQ(told, 6u);
  CHECK(![event waitUntilSignaledValue:7 timeoutMS:1]);
}

// Launches one at a time, each in a command buffer of its own.
TEST_CASE(many_launches_leave_nothing_behind) {
  Fixture f;
  id<MTLComputePipelineState> pipeline = f.pipeline(@"add_one");
  id<MTLBuffer> data = f.buffer({0});
  const int warm = 2000, count = 20000;
  // Objects that are left once all has come to its end, and memory without what malloc keeps for later.
  const auto settle = [&](int launches, int64_t alive) {
    for (int i = 0; i < launches; ++i) launch_once(f, pipeline, data);
    for (int i = 0; i < 5000 && metal_double_live_objects("MTLCommandBuffer") != 0; ++i) usleep(1000);
    CHECK_EQ(metal_double_live_objects(nullptr), alive);
    malloc_trim(0);
    return resident_kib();
  };
  const int64_t alive = metal_double_live_objects(nullptr);
  const long before = settle(warm, alive);
  const long after = settle(count, alive);
  // AddressSanitizer keeps freed memory for a while.
  CHECK(after - before < (__has_feature(address_sanitizer) ? 256 << 10 : 1024));
  CHECK_EQ(values_of(data)[0], static_cast<uint32_t>(warm + count));
  EXPECT_NO_VIOLATION();
}

CHECK_MAIN()
