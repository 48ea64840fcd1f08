// Compute pipelines, their descriptors, and archives of them.
#include <algorithm>
#include <fstream>
#include <set>

#include "accounting.h"
#include "core/hash.h"
#include "devices.h"
#include "libraries.h"
#include "metal_double.h"

using namespace metal_double;

NSString* const MTLBinaryArchiveDomain = @"MTLBinaryArchiveDomain";

namespace {
NSString* const pipeline_domain = @"MTLComputePipelineError";
constexpr NSUInteger max_buffers = 31;
}  // namespace

// ---- descriptors

@implementation MTLPipelineBufferDescriptor
METAL_DOUBLE_COUNTED("MTLPipelineBufferDescriptor")
@synthesize mutability = _mutability;
- (void)destroy {
}
- (id)copyWithZone:(NSZone*)zone {
  MTLPipelineBufferDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_mutability = _mutability;
  return copy;
}
@end

@implementation MTLPipelineBufferDescriptorArray
METAL_DOUBLE_COUNTED("MTLPipelineBufferDescriptorArray")
- (void)destroy {
  for (MTLPipelineBufferDescriptor* descriptor : _descriptors) [descriptor release];
}
- (MTLPipelineBufferDescriptor*)objectAtIndexedSubscript:(NSUInteger)bufferIndex {
  if (bufferIndex >= max_buffers) {
    violation("MTLPipelineBufferDescriptorArray: index %lu is not below 31",
              static_cast<unsigned long>(bufferIndex));
    return nil;
  }
  if (_descriptors[bufferIndex] == nil)
    _descriptors[bufferIndex] = [[MTLPipelineBufferDescriptor alloc] init];
  return _descriptors[bufferIndex];
}
- (void)setObject:(MTLPipelineBufferDescriptor*)buffer atIndexedSubscript:(NSUInteger)bufferIndex {
  if (bufferIndex >= max_buffers) {
    violation("MTLPipelineBufferDescriptorArray: index %lu is not below 31",
              static_cast<unsigned long>(bufferIndex));
    return;
  }
  MTLPipelineBufferDescriptor* copy = [buffer copy];
  [_descriptors[bufferIndex] release];
  _descriptors[bufferIndex] = copy;
}
@end

@implementation MTLComputePipelineDescriptor
METAL_DOUBLE_COUNTED("MTLComputePipelineDescriptor")
@synthesize label = _label;
@synthesize computeFunction = _computeFunction;
@synthesize threadGroupSizeIsMultipleOfThreadExecutionWidth =
    _threadGroupSizeIsMultipleOfThreadExecutionWidth;
@synthesize maxTotalThreadsPerThreadgroup = _maxTotalThreadsPerThreadgroup;
@synthesize buffers = _buffers;
@synthesize supportIndirectCommandBuffers = _supportIndirectCommandBuffers;
METAL_DOUBLE_OF_ITS_SYSTEM
- (id)init {
  self = [super init];
  _buffers = [[MTLPipelineBufferDescriptorArray alloc] init];
  return self;
}
- (void)destroy {
  [_label release];
  [_computeFunction release];
  [_buffers release];
  [_binaryArchives release];
}
- (NSArray*)binaryArchives {
  require_system(METAL_DOUBLE_NO_BINARY_ARCHIVES, "binaryArchives");
  return _binaryArchives;
}
- (void)setBinaryArchives:(NSArray*)archives {
  require_system(METAL_DOUBLE_NO_BINARY_ARCHIVES, "setBinaryArchives:");
  NSArray* copy = [archives copy];
  [_binaryArchives release];
  _binaryArchives = copy;
}
- (void)reset {
  self.label = nil;
  self.computeFunction = nil;
  _threadGroupSizeIsMultipleOfThreadExecutionWidth = NO;
  _maxTotalThreadsPerThreadgroup = 0;
  _supportIndirectCommandBuffers = NO;
  [_buffers release];
  _buffers = [[MTLPipelineBufferDescriptorArray alloc] init];
  [_binaryArchives release];
  _binaryArchives = nil;
}
- (id)copyWithZone:(NSZone*)zone {
  MTLComputePipelineDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_label = [_label copy];
  copy->_computeFunction = [_computeFunction retain];
  copy->_threadGroupSizeIsMultipleOfThreadExecutionWidth = _threadGroupSizeIsMultipleOfThreadExecutionWidth;
  copy->_maxTotalThreadsPerThreadgroup = _maxTotalThreadsPerThreadgroup;
  copy->_supportIndirectCommandBuffers = _supportIndirectCommandBuffers;
  copy->_binaryArchives = [_binaryArchives copy];
  for (NSUInteger i = 0; i < max_buffers; ++i)
    copy->_buffers->_descriptors[i] = [_buffers->_descriptors[i] copy];
  return copy;
}
@end

// ---- pipelines

@interface MetalDoublePipeline : NSObject <MTLComputePipelineState> {
 @package
  std::shared_ptr<PipelineState>* _state;
  NSString* _label;
  BOOL _supportIndirectCommandBuffers;
}
@end

@implementation MetalDoublePipeline
METAL_DOUBLE_COUNTED("MTLComputePipelineState")
@synthesize label = _label;
@synthesize supportIndirectCommandBuffers = _supportIndirectCommandBuffers;
- (void)destroy {
  (*_state)->alive = false;
  if ((*_state)->unretained != 0)
    violation(
        "MTLComputePipelineState: released while a command buffer that does not retain it is in flight");
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object(*(*_state)->device);
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return (*_state)->max_threads;
}
- (NSUInteger)threadExecutionWidth {
  return (*_state)->execution_width;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return (*_state)->static_threadgroup_memory;
}
@end

namespace metal_double {

std::shared_ptr<PipelineState> state_of(id<MTLComputePipelineState> pipeline) {
  return *static_cast<MetalDoublePipeline*>(pipeline)->_state;
}

namespace {

// Null for a descriptor that names no function.
std::shared_ptr<const FunctionState> function_of(MTLComputePipelineDescriptor* descriptor, const char* member,
                                                 NSError** error) {
  if (is_double(descriptor.computeFunction, objc_getClass("MetalDoubleFunction")))
    return state_of(descriptor.computeFunction);
  violation("%s: there is no computeFunction", member);
  set_error(error, pipeline_domain, 3, std::string(member) + ": there is no computeFunction");
  return nullptr;
}

bool found_in_archives(MTLComputePipelineDescriptor* descriptor, const FunctionState& function) {
  const std::string key = pipeline_key(function);
  for (id<MTLBinaryArchive> archive in descriptor->_binaryArchives) {
    if (archive_holds(archive, key)) return true;
  }
  return false;
}

}  // namespace

id<MTLComputePipelineState> new_pipeline(DeviceState& device, MTLComputePipelineDescriptor* descriptor,
                                         MTLPipelineOption options, MTLComputePipelineReflection** reflection,
                                         NSError** error) {
  const auto function = function_of(descriptor, "newComputePipelineState", error);
  if (function == nullptr) return nil;
  if (function->library->device != &device) {
    violation("newComputePipelineState: the function is another device's");
    return nil;
  }
  if (descriptor->_binaryArchives != nil) {
    const bool found = found_in_archives(descriptor, *function);
    count_event(found ? Event::archive_hit : Event::archive_miss);
    if (!found && (options & MTLPipelineOptionFailOnBinaryArchiveMiss) != 0) {
      set_error(error, MTLBinaryArchiveDomain, MTLBinaryArchiveErrorNone,
                "no archive of the descriptor has the pipeline " + function->name);
      return nil;
    }
  }
  if (const auto fault = faults().pipeline.take()) {
    set_error(error, pipeline_domain, 3, fault->text);
    return nil;
  }
  const auto compiled = compile(*function, error);
  if (compiled == nullptr) return nil;
  const NSUInteger asked_for = descriptor->_maxTotalThreadsPerThreadgroup;
  if (asked_for > limits().threads || compiled->static_threadgroup_memory > limits().threadgroup_memory) {
    set_error(error, pipeline_domain, 3,
              "the pipeline " + function->name + " asks for " + std::to_string(asked_for) +
                  " threads and has " + std::to_string(compiled->static_threadgroup_memory) +
                  " bytes of threadgroup memory; the device's limits are " +
                  std::to_string(limits().threads) + " and " + std::to_string(limits().threadgroup_memory));
    return nil;
  }
  count_event(Event::pipeline);
  auto state = std::make_shared<PipelineState>();
  state->device = &device;
  state->compiled = compiled;
  state->name = descriptor->_label != nil ? to_string(descriptor->_label) : function->name;
  const auto value_of = [](const char* what, std::uint32_t own) {
    return static_cast<std::uint32_t>(planted("", "", what).value_or(own));
  };
  state->max_threads = value_of("maxTotalThreadsPerThreadgroup",
                                std::min(compiled->max_total_threads_per_threadgroup, limits().threads));
  state->execution_width = value_of("threadExecutionWidth", compiled->thread_execution_width);
  state->static_threadgroup_memory =
      value_of("staticThreadgroupMemoryLength", compiled->static_threadgroup_memory);
  if (asked_for != 0)
    state->max_threads = std::min(state->max_threads, static_cast<std::uint32_t>(asked_for));
  state->whole_simdgroups = descriptor->_threadGroupSizeIsMultipleOfThreadExecutionWidth;
  const bool wants_reflection =
      (options & (MTLPipelineOptionBindingInfo | MTLPipelineOptionBufferTypeInfo)) != 0;
  if (reflection != nullptr) *reflection = wants_reflection ? make_reflection(compiled->signature) : nil;
  MetalDoublePipeline* pipeline = [[MetalDoublePipeline alloc] init];
  pipeline->_state = new std::shared_ptr<PipelineState>(std::move(state));
  pipeline->_label = [descriptor->_label copy];
  pipeline->_supportIndirectCommandBuffers = descriptor->_supportIndirectCommandBuffers;
  return pipeline;
}

}  // namespace metal_double

// ---- archives

@implementation MTLBinaryArchiveDescriptor
METAL_DOUBLE_COUNTED("MTLBinaryArchiveDescriptor")
@synthesize url = _url;
- (void)destroy {
  [_url release];
}
- (id)copyWithZone:(NSZone*)zone {
  MTLBinaryArchiveDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_url = [_url copy];
  return copy;
}
@end

namespace {

// A file of the double: this line, the hash of what follows, and the keys, one a line.
constexpr std::string_view archive_magic = "metal double archive 1\n";

struct ArchiveState {
  DeviceState* device = nullptr;
  std::mutex mutex;
  std::set<std::string> keys;
};

std::string archive_text(const std::set<std::string>& keys) {
  std::string lines;
  for (const std::string& key : keys) lines += key + "\n";
  return std::string(archive_magic) + metalane::core::sha256_hex(lines) + "\n" + lines;
}

// Whether the file is whole; fills `keys`.
bool read_archive(const std::string& path, std::set<std::string>& keys) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  const std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  constexpr std::size_t line = 65;  // a hash and its line end
  const std::size_t begin = archive_magic.size() + line;
  for (std::size_t at = begin; at + line <= content.size(); at += line)
    keys.insert(content.substr(at, line - 1));
  return content == archive_text(keys);
}

}  // namespace

@interface MetalDoubleArchive : NSObject <MTLBinaryArchive> {
 @package
  ArchiveState* _state;
  NSString* _label;
}
@end

@implementation MetalDoubleArchive
METAL_DOUBLE_COUNTED("MTLBinaryArchive")
@synthesize label = _label;
- (void)destroy {
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object(*_state->device);
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                            error:(NSError**)error {
  const auto function = function_of(descriptor, "addComputePipelineFunctionsWithDescriptor:error:", error);
  if (function == nullptr || compile(*function, error) == nullptr) return NO;
  const std::lock_guard lock(_state->mutex);
  _state->keys.insert(pipeline_key(*function));
  return YES;
}
- (BOOL)serializeToURL:(NSURL*)url error:(NSError**)error {
  const std::string path = url != nil && [url isFileURL] ? to_string([url path]) : "";
  const std::lock_guard lock(_state->mutex);
  if (!faults().archive_write.take()) {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    stream << archive_text(_state->keys);
    stream.close();
    if (!stream.fail()) return YES;
  }
  set_error(error, MTLBinaryArchiveDomain, MTLBinaryArchiveErrorInternalError, "cannot write " + path);
  return NO;
}
@end

namespace metal_double {

bool archive_holds(id<MTLBinaryArchive> archive, const std::string& key) {
  ArchiveState& state = *static_cast<MetalDoubleArchive*>(archive)->_state;
  const std::lock_guard lock(state.mutex);
  return state.keys.contains(key);
}

id<MTLBinaryArchive> new_archive(DeviceState& device, MTLBinaryArchiveDescriptor* descriptor,
                                 NSError** error) {
  if (descriptor == nil) {
    violation("newBinaryArchiveWithDescriptor:error: nil");
    return nil;
  }
  std::set<std::string> keys;
  if (descriptor.url != nil && !read_archive(to_string([descriptor.url path]), keys)) {
    set_error(error, MTLBinaryArchiveDomain, MTLBinaryArchiveErrorInvalidFile,
              "invalid archive: " + to_string([descriptor.url path]));
    return nil;
  }
  MetalDoubleArchive* archive = [[MetalDoubleArchive alloc] init];
  archive->_state = new ArchiveState;
  archive->_state->device = &device;
  archive->_state->keys = std::move(keys);
  return archive;
}

}  // namespace metal_double
