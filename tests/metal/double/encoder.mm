// The compute encoder: arguments and their checks, dispatches, barriers.
#include <algorithm>
#include <cstring>

#include "accounting.h"
#include "commands.h"

using namespace metal_double;
using metalane::Grid;

namespace {

constexpr NSUInteger max_buffers = 31;
constexpr NSUInteger max_bytes = 4096;

struct Slot {
  std::shared_ptr<BufferState> buffer;
  NSUInteger offset = 0;
  std::vector<std::uint8_t> bytes;  // where there is no buffer
};

struct EncoderState {
  std::shared_ptr<CommandBufferState> commands;
  std::shared_ptr<EncodedPass> pass;
  std::shared_ptr<PipelineState> pipeline;
  Slot slots[max_buffers];
  NSUInteger threadgroup_memory[max_buffers] = {};
  std::vector<std::string> groups;
};

std::string triple(MTLSize size) {
  return "(" + std::to_string(size.width) + ", " + std::to_string(size.height) + ", " +
         std::to_string(size.depth) + ")";
}

// The violation, which also keeps the command buffer from running.
void refuse(EncoderState& state, const char* member, const std::string& problem) {
  state.commands->refuse("-[MTLComputeCommandEncoder " + std::string(member) + "]: " + problem);
}

bool is_open(EncoderState& state, const char* member) {
  if (state.pass->ended) refuse(state, member, "after endEncoding");
  return !state.pass->ended;
}

bool has_index(EncoderState& state, const char* member, NSUInteger index) {
  if (index < max_buffers) return true;
  refuse(state, member, "index " + std::to_string(index) + " is not below 31");
  return false;
}

std::string describe(const metalane::KernelArgument& argument) {
  return "argument " + std::to_string(argument.index) + " (" + argument.name + ")";
}

// What an argument is bound to, into `dispatch`; false after a violation.
bool bind(EncoderState& state, const char* member, const metalane::KernelArgument& argument,
          Dispatch& dispatch) {
  if (argument.access == metalane::Access::none) return true;
  const std::string& kernel = state.pipeline->name;
  if (argument.space == metalane::AddressSpace::threadgroup) {
    const NSUInteger length = state.threadgroup_memory[argument.index];
    if (length == 0) {
      refuse(state, member, kernel + ": " + describe(argument) + " has no threadgroup memory");
      return false;
    }
    dispatch.threadgroup_memory.push_back({argument.index, static_cast<std::uint32_t>(length)});
    return true;
  }
  const Slot& slot = state.slots[argument.index];
  const NSUInteger given = slot.buffer != nullptr ? slot.buffer->length - slot.offset : slot.bytes.size();
  if (given == 0) {
    refuse(state, member, kernel + ": " + describe(argument) + " is not bound");
    return false;
  }
  if (argument.is_reference && given < argument.type.size) {
    refuse(state, member,
           kernel + ": " + describe(argument) + " takes " + std::to_string(argument.type.size) + " bytes, " +
               std::to_string(given) + " are bound");
    return false;
  }
  if (slot.buffer == nullptr) {
    if (metalane::writes(argument.access)) {
      refuse(state, member, kernel + ": " + describe(argument) + " may be written and is bound to bytes");
      return false;
    }
    const std::vector<std::uint8_t>& data = dispatch.byte_data.emplace_back(slot.bytes);
    dispatch.bytes.push_back({argument.index, static_cast<std::uint32_t>(data.size()), data.data()});
    return true;
  }
  if (argument.type.alignment != 0 && slot.offset % argument.type.alignment != 0) {
    refuse(state, member,
           kernel + ": " + describe(argument) + " has offset " + std::to_string(slot.offset) +
               ", not a multiple of " + std::to_string(argument.type.alignment));
    return false;
  }
  dispatch.buffers.push_back({argument.index, argument.access, slot.buffer->address + slot.offset, given,
                              slot.buffer.get(), slot.offset});
  return true;
}

bool check_threads(EncoderState& state, const char* member, MTLSize threads) {
  const NSUInteger most = state.pipeline->max_threads;
  const bool each = threads.width != 0 && threads.height != 0 && threads.depth != 0 &&
                    threads.width <= most && threads.height <= most && threads.depth <= most;
  if (!each || threads.width * threads.height * threads.depth > most) {
    refuse(state, member,
           state.pipeline->name + ": threadsPerThreadgroup " + triple(threads) + " is not from 1 to " +
               std::to_string(most) + " in all");
    return false;
  }
  if (state.pipeline->whole_simdgroups && threads.width * threads.height * threads.depth % 32 != 0) {
    refuse(state, member,
           state.pipeline->name + ": threadsPerThreadgroup " + triple(threads) +
               " is not a multiple of threadExecutionWidth, as the pipeline was told");
    return false;
  }
  return true;
}

// The launch but for its grid; null after a violation.
Dispatch* append(EncoderState& state, const char* member, Grid::Kind kind, MTLSize threads) {
  if (!is_open(state, member)) return nullptr;
  if (state.pipeline == nullptr) {
    refuse(state, member, "no pipeline is set");
    return nullptr;
  }
  if (!check_threads(state, member, threads)) return nullptr;
  Dispatch dispatch;
  dispatch.pipeline = state.pipeline;
  dispatch.kind = kind;
  NSUInteger memory = state.pipeline->static_threadgroup_memory;
  for (const metalane::KernelArgument& argument : state.pipeline->compiled->signature.arguments) {
    if (!bind(state, member, argument, dispatch)) return nullptr;
  }
  for (const auto& binding : dispatch.threadgroup_memory) memory += binding.nbytes;
  if (memory > limits().threadgroup_memory) {
    refuse(state, member,
           state.pipeline->name + ": " + std::to_string(memory) +
               " bytes of threadgroup memory, the "
               "limit is " +
               std::to_string(limits().threadgroup_memory));
    return nullptr;
  }
  dispatch.threads[0] = static_cast<std::uint32_t>(threads.width);
  dispatch.threads[1] = static_cast<std::uint32_t>(threads.height);
  dispatch.threads[2] = static_cast<std::uint32_t>(threads.depth);
  dispatch.label = state.groups.empty() ? state.pipeline->name : state.groups.back();
  dispatch.signposts = state.pass->signposts.size();
  state.pass->dispatches.push_back(std::move(dispatch));
  count_event(Event::dispatch);
  return &state.pass->dispatches.back();
}

bool check_grid(EncoderState& state, const char* member, MTLSize grid) {
  constexpr NSUInteger most = 0xffffffff;
  if (grid.width != 0 && grid.height != 0 && grid.depth != 0 && grid.width <= most && grid.height <= most &&
      grid.depth <= most)
    return true;
  refuse(state, member, "a grid of " + triple(grid) + " is not from 1 to 2^32 - 1 on each axis");
  return false;
}

void set_grid(Dispatch& dispatch, MTLSize grid) {
  dispatch.grid[0] = static_cast<std::uint32_t>(grid.width);
  dispatch.grid[1] = static_cast<std::uint32_t>(grid.height);
  dispatch.grid[2] = static_cast<std::uint32_t>(grid.depth);
}

}  // namespace

@interface MetalDoubleComputeEncoder : NSObject <MTLComputeCommandEncoder> {
 @package
  EncoderState* _state;
  NSString* _label;
}
@end

@implementation MetalDoubleComputeEncoder
METAL_DOUBLE_COUNTED("MTLComputeCommandEncoder")
- (void)destroy {
  if (!_state->pass->ended) refuse(*_state, "dealloc", "released before endEncoding");
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object(_state->commands->queue->device);
}
- (NSString*)label {
  return _label;
}
- (void)setLabel:(NSString*)label {
  NSString* copy = [label copy];
  [_label release];
  _label = copy;
  _state->pass->label = to_string(copy);
}
- (MTLDispatchType)dispatchType {
  return _state->pass->concurrent ? MTLDispatchTypeConcurrent : MTLDispatchTypeSerial;
}
- (void)endEncoding {
  if (!is_open(*_state, "endEncoding")) return;
  if (!_state->groups.empty())
    refuse(*_state, "endEncoding", "a debug group is open: " + _state->groups.back());
  _state->pass->ended = true;
}
- (void)insertDebugSignpost:(NSString*)string {
  if (!is_open(*_state, "insertDebugSignpost:")) return;
  if (string == nil) return refuse(*_state, "insertDebugSignpost:", "nil");
  _state->pass->signposts.push_back(to_string(string));
}
- (void)pushDebugGroup:(NSString*)string {
  if (!is_open(*_state, "pushDebugGroup:")) return;
  if (string == nil) return refuse(*_state, "pushDebugGroup:", "nil");
  count_event(Event::debug_group);
  _state->groups.push_back(to_string(string));
  _state->pass->signposts.push_back(to_string(string));
}
- (void)popDebugGroup {
  if (!is_open(*_state, "popDebugGroup")) return;
  if (_state->groups.empty()) return refuse(*_state, "popDebugGroup", "no debug group is open");
  _state->groups.pop_back();
}

- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipeline {
  const char* member = "setComputePipelineState:";
  if (!is_open(*_state, member)) return;
  count_event(Event::set_pipeline);
  if (!is_double(pipeline, objc_getClass("MetalDoublePipeline")))
    return refuse(*_state, member, "not a pipeline");
  std::shared_ptr<PipelineState> state = state_of(pipeline);
  if (state->device != &_state->commands->queue->device)
    return refuse(*_state, member, state->name + " is another device's");
  _state->pipeline = std::move(state);
  _state->commands->use(pipeline);
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  const char* member = "setBytes:length:atIndex:";
  if (!is_open(*_state, member) || !has_index(*_state, member, index)) return;
  count_event(Event::set_bytes);
  if (bytes == nullptr || length == 0 || length > max_bytes)
    return refuse(*_state, member,
                  "length " + std::to_string(length) + " is not from 1 to 4096, or null bytes");
  Slot& slot = _state->slots[index];
  slot.buffer = nullptr;
  const auto* begin = static_cast<const std::uint8_t*>(bytes);
  slot.bytes.assign(begin, begin + length);
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  const char* member = "setBuffer:offset:atIndex:";
  if (!is_open(*_state, member) || !has_index(*_state, member, index)) return;
  count_event(Event::set_buffer);
  Slot& slot = _state->slots[index];
  slot.bytes.clear();
  slot.buffer = nullptr;
  slot.offset = 0;
  if (buffer == nil) return;
  if (!is_double(buffer, objc_getClass("MetalDoubleBuffer"))) return refuse(*_state, member, "not a buffer");
  std::shared_ptr<BufferState> state = state_of(buffer);
  if (state->device != &_state->commands->queue->device)
    return refuse(*_state, member, "the buffer is another device's");
  if (offset >= state->length)
    return refuse(*_state, member,
                  "offset " + std::to_string(offset) + " is past the end of a buffer of " +
                      std::to_string(state->length) + " bytes");
  slot.buffer = std::move(state);
  slot.offset = offset;
  _state->commands->use(buffer);
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  const char* member = "setBufferOffset:atIndex:";
  if (!is_open(*_state, member) || !has_index(*_state, member, index)) return;
  count_event(Event::set_buffer_offset);
  Slot& slot = _state->slots[index];
  if (slot.buffer == nullptr)
    return refuse(*_state, member, "no buffer is bound at index " + std::to_string(index));
  if (offset >= slot.buffer->length)
    return refuse(*_state, member,
                  "offset " + std::to_string(offset) + " is past the end of a buffer of " +
                      std::to_string(slot.buffer->length) + " bytes");
  slot.offset = offset;
}
- (void)setBuffers:(const id<MTLBuffer>[])buffers
           offsets:(const NSUInteger[])offsets
         withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; ++i)
    [self setBuffer:buffers[i] offset:offsets[i] atIndex:range.location + i];
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  const char* member = "setThreadgroupMemoryLength:atIndex:";
  if (!is_open(*_state, member) || !has_index(*_state, member, index)) return;
  count_event(Event::set_threadgroup_memory);
  if (length % 16 != 0)
    return refuse(*_state, member, "length " + std::to_string(length) + " is not a multiple of 16");
  if (length > limits().threadgroup_memory)
    return refuse(*_state, member,
                  "length " + std::to_string(length) + " is over the limit, " +
                      std::to_string(limits().threadgroup_memory));
  _state->threadgroup_memory[index] = length;
}

- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid
       threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup {
  const char* member = "dispatchThreadgroups:threadsPerThreadgroup:";
  if (!check_grid(*_state, member, threadgroupsPerGrid)) return;
  Dispatch* dispatch = append(*_state, member, Grid::Kind::threadgroups, threadsPerThreadgroup);
  if (dispatch != nullptr) set_grid(*dispatch, threadgroupsPerGrid);
}
- (void)dispatchThreads:(MTLSize)threadsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup {
  const char* member = "dispatchThreads:threadsPerThreadgroup:";
  if (!check_grid(*_state, member, threadsPerGrid)) return;
  Dispatch* dispatch = append(*_state, member, Grid::Kind::threads, threadsPerThreadgroup);
  if (dispatch != nullptr) set_grid(*dispatch, threadsPerGrid);
}
- (void)dispatchThreadgroupsWithIndirectBuffer:(id<MTLBuffer>)indirectBuffer
                          indirectBufferOffset:(NSUInteger)indirectBufferOffset
                         threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup {
  const char* member = "dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:";
  if (!is_double(indirectBuffer, objc_getClass("MetalDoubleBuffer")))
    return refuse(*_state, member, "not a buffer");
  const std::shared_ptr<BufferState> state = state_of(indirectBuffer);
  const NSUInteger size = sizeof(MTLDispatchThreadgroupsIndirectArguments);
  if (indirectBufferOffset % 4 != 0)
    return refuse(*_state, member,
                  "offset " + std::to_string(indirectBufferOffset) + " is not a multiple of 4");
  if (state->length < size || indirectBufferOffset > state->length - size)
    return refuse(*_state, member,
                  "offset " + std::to_string(indirectBufferOffset) +
                      " leaves no room for three counts in a buffer of " + std::to_string(state->length) +
                      " bytes");
  Dispatch* dispatch = append(*_state, member, Grid::Kind::indirect, threadsPerThreadgroup);
  if (dispatch == nullptr) return;
  count_event(Event::indirect_dispatch);
  dispatch->indirect = {0,           metalane::Access::read, state->address + indirectBufferOffset, size,
                        state.get(), indirectBufferOffset};
  _state->commands->use(indirectBuffer);
}

- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage {
  static_cast<void>(usage);
  const char* member = "useResource:usage:";
  if (!is_open(*_state, member)) return;
  if (!is_double(resource, objc_getClass("MetalDoubleBuffer")))
    return refuse(*_state, member, "not a buffer");
  _state->commands->use(static_cast<id<MTLBuffer>>(resource));
}
- (void)useResources:(const id<MTLResource>[])resources
               count:(NSUInteger)count
               usage:(MTLResourceUsage)usage {
  for (NSUInteger i = 0; i < count; ++i) [self useResource:resources[i] usage:usage];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  if (!is_open(*_state, "memoryBarrierWithScope:")) return;
  count_event(Event::barrier);
  if ((scope & MTLBarrierScopeBuffers) != 0)
    _state->pass->barriers.push_back({_state->pass->dispatches.size(), true, {}});
}
- (void)memoryBarrierWithResources:(const id<MTLResource>[])resources count:(NSUInteger)count {
  const char* member = "memoryBarrierWithResources:count:";
  if (!is_open(*_state, member)) return;
  count_event(Event::barrier);
  Barrier barrier{_state->pass->dispatches.size(), false, {}};
  for (NSUInteger i = 0; i < count; ++i) {
    if (!is_double(resources[i], objc_getClass("MetalDoubleBuffer")))
      return refuse(*_state, member, "not a buffer");
    barrier.buffers.push_back(state_of(static_cast<id<MTLBuffer>>(resources[i])).get());
  }
  _state->pass->barriers.push_back(std::move(barrier));
}
@end

namespace metal_double {

id<MTLComputeCommandEncoder> new_encoder(std::shared_ptr<CommandBufferState> commands,
                                         std::shared_ptr<EncodedPass> pass) {
  count_event(Event::encoder);
  if (pass->concurrent) count_event(Event::concurrent_encoder);
  MetalDoubleComputeEncoder* encoder = [[MetalDoubleComputeEncoder alloc] init];
  encoder->_state = new EncoderState;
  encoder->_state->commands = std::move(commands);
  encoder->_state->pass = std::move(pass);
  return encoder;
}

}  // namespace metal_double
