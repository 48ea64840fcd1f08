// Devices and buffers.
#include "devices.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "accounting.h"
#include "backends/cpu/cpu_device.h"
#include "metal_double.h"

using namespace metal_double;

namespace metal_double {
namespace {

std::atomic<std::uint32_t> device_count{2};
std::atomic<std::int64_t> given{0};

std::uint64_t page_size() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

std::uint64_t physical_memory() { return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_size(); }

std::uint64_t whole_pages(std::uint64_t nbytes) {
  return (nbytes + page_size() - 1) / page_size() * page_size();
}

// What fresh memory reads: nobody promises zeros.
constexpr int garbage = 0xa5;

}  // namespace

metalane::backend::Device& DeviceState::cpu() {
  const std::lock_guard lock(mutex_);
  if (cpu_ == nullptr) {
    metalane::backend::OpenOptions options;
    options.kernels = metalane::KernelChoice::shader;
    cpu_ = metalane::cpu::open_device(options);
  }
  return *cpu_;
}

bool DeviceState::lost() const { return (faults().lost >> index & 1) != 0; }

DeviceState& device_state(std::uint32_t index) {
  static DeviceState* all = [] {
    auto* states = new DeviceState[max_devices];
    for (std::uint32_t i = 0; i < max_devices; ++i) states[i].index = i;
    return states;
  }();
  return all[index];
}

void set_device_count(std::uint32_t count) { device_count = std::min(count, max_devices); }

void lose_device(std::uint32_t index) {
  if (index >= max_devices) return;
  faults().lost |= 1u << index;
  DeviceState& state = device_state(index);
  const std::lock_guard lock(state.mutex_);
  if (state.cpu_ != nullptr) state.cpu_->cancel_all();
}

Limits limits() {
  Limits known = system_lacks(METAL_DOUBLE_SMALL_LIMITS) ? Limits{64ull << 20, 512, 16 << 10}
                                                         : Limits{physical_memory(), 1024, 32 << 10};
  if (const std::uint64_t length = faults().max_buffer_length; length != 0) known.buffer_bytes = length;
  return known;
}

BufferState::~BufferState() {
  if (mapped == 0) return;
  munmap(address, mapped);
  device->allocated -= mapped;
}

bool is_double(id object, Class type) { return [object isKindOfClass:type]; }

}  // namespace metal_double

// ---- buffers

@interface MetalDoubleBuffer : NSObject <MTLBuffer> {
 @package
  std::shared_ptr<BufferState>* _state;
  NSString* _label;
  void (^_deallocator)(void*, NSUInteger);
}
@end

@implementation MetalDoubleBuffer
METAL_DOUBLE_COUNTED("MTLBuffer")
@synthesize label = _label;
- (void)destroy {
  BufferState& state = **_state;
  state.alive = false;
  if (state.unretained != 0)
    violation("MTLBuffer: released while a command buffer that does not retain it is in flight");
  if (_deallocator != nullptr) {
    _deallocator(state.address, state.length);
    Block_release(_deallocator);
  }
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object(*(*_state)->device);
}
- (NSUInteger)length {
  return (*_state)->length;
}
- (MTLGPUAddress)gpuAddress {
  return reinterpret_cast<MTLGPUAddress>((*_state)->address);
}
- (void*)contents {
  return (*_state)->address;
}
- (NSUInteger)allocatedSize {
  return whole_pages((*_state)->length);
}
- (MTLCPUCacheMode)cpuCacheMode {
  return static_cast<MTLCPUCacheMode>((*_state)->options & 15);
}
- (MTLStorageMode)storageMode {
  return static_cast<MTLStorageMode>((*_state)->options >> MTLResourceStorageModeShift & 15);
}
- (MTLHazardTrackingMode)hazardTrackingMode {
  return static_cast<MTLHazardTrackingMode>((*_state)->options >> MTLResourceHazardTrackingModeShift & 3);
}
- (MTLResourceOptions)resourceOptions {
  return (*_state)->options;
}
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state {
  if (state != MTLPurgeableStateKeepCurrent && state != MTLPurgeableStateNonVolatile)
    violation("setPurgeableState: memory that may be discarded is not played");
  return MTLPurgeableStateNonVolatile;
}
- (void)didModifyRange:(NSRange)range {
  if (self.storageMode != MTLStorageModeManaged)
    violation("didModifyRange: (%lu, %lu) of a buffer that is not managed",
              static_cast<unsigned long>(range.location), static_cast<unsigned long>(range.length));
}
- (void)addDebugMarker:(NSString*)marker range:(NSRange)range {
  if (marker == nil || range.location > self.length || range.length > self.length - range.location)
    violation("addDebugMarker:range: past the end of the buffer");
}
- (void)removeAllDebugMarkers {
}
@end

namespace metal_double {

std::shared_ptr<BufferState> state_of(id<MTLBuffer> buffer) {
  return *static_cast<MetalDoubleBuffer*>(buffer)->_state;
}

namespace {

// Whether a buffer of so many bytes can be had; a request that no device could meet is a violation.
bool may_allocate(const char* member, NSUInteger length, MTLResourceOptions options) {
  if (length == 0 || length > limits().buffer_bytes) {
    violation("%s: length %lu is not from 1 to maxBufferLength, %llu", member,
              static_cast<unsigned long>(length), static_cast<unsigned long long>(limits().buffer_bytes));
    return false;
  }
  const NSUInteger storage = options >> MTLResourceStorageModeShift & 15;
  if (storage != MTLStorageModeShared) {
    violation("%s: storage mode %lu; only shared memory is played", member,
              static_cast<unsigned long>(storage));
    return false;
  }
  return !faults().allocation.take();
}

id<MTLBuffer> new_buffer(std::shared_ptr<BufferState> state) {
  MetalDoubleBuffer* buffer = [[MetalDoubleBuffer alloc] init];
  buffer->_state = new std::shared_ptr<BufferState>(std::move(state));
  return buffer;
}

id<MTLBuffer> new_own_buffer(DeviceState& device, const char* member, NSUInteger length,
                             MTLResourceOptions options) {
  if (!may_allocate(member, length, options)) return nil;
  const std::uint64_t mapped = whole_pages(length);
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nil;
  // Large ones are left to the system's zeros but for both ends: filling them would touch every page.
  const std::uint64_t edge = std::min<std::uint64_t>(mapped, 256 << 10);
  std::memset(address, garbage, edge);
  std::memset(static_cast<std::uint8_t*>(address) + mapped - edge, garbage, edge);
  auto state = std::make_shared<BufferState>();
  state->device = &device;
  state->address = static_cast<std::uint8_t*>(address);
  state->length = length;
  state->mapped = mapped;
  state->options = options;
  device.allocated += mapped;
  return new_buffer(std::move(state));
}

}  // namespace
}  // namespace metal_double

// ---- devices

@implementation MTLArchitecture
METAL_DOUBLE_COUNTED("MTLArchitecture")
@synthesize name = _name;
- (void)destroy {
  [_name release];
}
- (id)copyWithZone:(NSZone*)zone {
  static_cast<void>(zone);
  return [self retain];
}
@end

@interface MetalDoubleDevice : NSObject <MTLDevice> {
 @package
  DeviceState* _state;
}
@end

@implementation MetalDoubleDevice
METAL_DOUBLE_OF_ITS_SYSTEM
- (NSString*)name {
  return _state->index == 0 ? @"Metal test double"
                            : [NSString stringWithFormat:@"Metal test double %u", _state->index];
}
- (uint64_t)registryID {
  return 0x100000300ull + _state->index;
}
- (MTLArchitecture*)architecture {
  MTLArchitecture* architecture = [[[MTLArchitecture alloc] init] autorelease];
  architecture->_name = [@"applegpu_double" retain];
  return architecture;
}
- (MTLSize)maxThreadsPerThreadgroup {
  return MTLSizeMake(limits().threads, limits().threads, limits().threads);
}
- (BOOL)isLowPower {
  return _state->index != 0;
}
- (BOOL)isHeadless {
  return NO;
}
- (BOOL)isRemovable {
  return _state->index != 0;
}
- (BOOL)hasUnifiedMemory {
  return YES;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return physical_memory() / 4 * 3;
}
- (MTLDeviceLocation)location {
  return _state->index == 0 ? MTLDeviceLocationBuiltIn : MTLDeviceLocationExternal;
}
- (NSUInteger)locationNumber {
  return _state->index;
}
- (uint64_t)maxTransferRate {
  return 0;
}
- (MTLArgumentBuffersTier)argumentBuffersSupport {
  return MTLArgumentBuffersTier2;
}
- (NSUInteger)currentAllocatedSize {
  return _state->allocated;
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return limits().threadgroup_memory;
}
- (NSUInteger)maxBufferLength {
  return limits().buffer_bytes;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  // An M2; the older system's is an M1 without what came with Metal 3.
  const bool older = system_lacks(METAL_DOUBLE_SMALL_LIMITS);
  const bool apple =
      family >= MTLGPUFamilyApple1 && family <= (older ? MTLGPUFamilyApple7 : MTLGPUFamilyApple8);
  const bool common = family >= MTLGPUFamilyCommon1 && family <= MTLGPUFamilyCommon3;
  return apple || common || family == MTLGPUFamilyMac2 || (family == MTLGPUFamilyMetal3 && !older);
}

- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  return new_own_buffer(*_state, "newBufferWithLength:options:", length, options);
}
- (id<MTLBuffer>)newBufferWithBytes:(const void*)bytes
                             length:(NSUInteger)length
                            options:(MTLResourceOptions)options {
  if (bytes == nullptr) {
    violation("newBufferWithBytes:length:options: null bytes");
    return nil;
  }
  id<MTLBuffer> buffer = new_own_buffer(*_state, "newBufferWithBytes:length:options:", length, options);
  if (buffer != nil) std::memcpy([buffer contents], bytes, length);
  return buffer;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)bytes
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void* bytes, NSUInteger length))deallocator {
  const char* member = "newBufferWithBytesNoCopy:length:options:deallocator:";
  if (bytes == nullptr || reinterpret_cast<std::uintptr_t>(bytes) % page_size() != 0) {
    violation("%s: address %p is not a page's", member, bytes);
    return nil;
  }
  if (length % page_size() != 0) {
    violation("%s: length %lu is not of whole pages", member, static_cast<unsigned long>(length));
    return nil;
  }
  if (!may_allocate(member, length, options)) return nil;
  auto state = std::make_shared<BufferState>();
  state->device = _state;
  state->address = static_cast<std::uint8_t*>(bytes);
  state->length = length;
  state->options = options;
  auto* buffer = static_cast<MetalDoubleBuffer*>(new_buffer(std::move(state)));
  if (deallocator != nullptr) buffer->_deallocator = Block_copy(deallocator);
  return buffer;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor
                                               error:(NSError**)error {
  static_cast<void>(error);
  require_system(METAL_DOUBLE_NO_RESIDENCY_SETS, "newResidencySetWithDescriptor:error:");
  return new_residency_set(*_state, descriptor);
}

- (id<MTLLibrary>)newDefaultLibrary {
  return nil;  // there is no application bundle
}
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error {
  return new_library_of_file(*_state, url, error);
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error {
  return new_library(*_state, to_string(source), options, error);
}
- (void)newLibraryWithSource:(NSString*)source
                     options:(MTLCompileOptions*)options
           completionHandler:(MTLNewLibraryCompletionHandler)handler {
  NSError* error = nil;
  id<MTLLibrary> library = new_library(*_state, to_string(source), options, &error);
  handler(library, error);
  [library release];
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError**)error {
  return [self newComputePipelineStateWithFunction:function
                                           options:MTLPipelineOptionNone
                                        reflection:nullptr
                                             error:error];
}
- (id<MTLComputePipelineState>)
    newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                options:(MTLPipelineOption)options
                             reflection:(MTLAutoreleasedComputePipelineReflection*)reflection
                                  error:(NSError**)error {
  MTLComputePipelineDescriptor* descriptor = [[MTLComputePipelineDescriptor alloc] init];
  descriptor.computeFunction = function;
  id<MTLComputePipelineState> pipeline = new_pipeline(*_state, descriptor, options, reflection, error);
  [descriptor release];
  return pipeline;
}
- (id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLAutoreleasedComputePipelineReflection*)reflection
                                    error:(NSError**)error {
  return new_pipeline(*_state, descriptor, options, reflection, error);
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)descriptor
                                                 error:(NSError**)error {
  require_system(METAL_DOUBLE_NO_BINARY_ARCHIVES, "newBinaryArchiveWithDescriptor:error:");
  return new_archive(*_state, descriptor, error);
}

- (id<MTLCommandQueue>)newCommandQueue {
  return new_queue(*_state, 64);
}
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)maxCommandBufferCount {
  if (maxCommandBufferCount == 0) violation("newCommandQueueWithMaxCommandBufferCount: 0");
  return new_queue(*_state, std::max<NSUInteger>(1, maxCommandBufferCount));
}
- (id<MTLCommandQueue>)newCommandQueueWithDescriptor:(MTLCommandQueueDescriptor*)descriptor {
  return [self newCommandQueueWithMaxCommandBufferCount:descriptor.maxCommandBufferCount];
}
- (id<MTLEvent>)newEvent {
  return new_event(*_state, false, nullptr);
}
- (id<MTLSharedEvent>)newSharedEvent {
  return static_cast<id<MTLSharedEvent>>(new_event(*_state, true, nullptr));
}
- (id<MTLSharedEvent>)newSharedEventWithHandle:(MTLSharedEventHandle*)handle {
  return static_cast<id<MTLSharedEvent>>(new_event(*_state, true, state_of(handle->_event)));
}
- (void)sampleTimestamps:(MTLTimestamp*)cpuTimestamp gpuTimestamp:(MTLTimestamp*)gpuTimestamp {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *cpuTimestamp = *gpuTimestamp =
      static_cast<MTLTimestamp>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}
@end

namespace metal_double {

id<MTLDevice> device_object(const DeviceState& state) {
  static MetalDoubleDevice** all = [] {
    auto** made = new MetalDoubleDevice*[max_devices];
    for (std::uint32_t i = 0; i < max_devices; ++i) {
      made[i] = [[MetalDoubleDevice alloc] init];
      made[i]->_state = &device_state(i);
    }
    return made;
  }();
  return all[state.index];
}

std::int64_t devices_held() {
  std::int64_t held = 0;
  for (std::uint32_t i = 0; i < max_devices; ++i)
    held += static_cast<std::int64_t>([device_object(device_state(i)) retainCount]) - 1;
  return held;
}

std::int64_t devices_given() { return given; }

}  // namespace metal_double

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  if (device_count == 0) return nil;
  ++given;
  return [device_object(device_state(0)) retain];
}

NSArray* MTLCopyAllDevices(void) {
  NSMutableArray* all = [[NSMutableArray alloc] init];
  for (std::uint32_t i = 0; i < device_count; ++i) {
    [all addObject:device_object(device_state(i))];
    ++given;
  }
  return all;
}
