// Walks the list's arrays once.
#import "backends/metal/encoding.h"

#include <cstring>

#import "backends/metal/boundary.h"
#import "backends/metal/pipeline.h"

namespace metalane::metal {

namespace {

constexpr std::size_t max_indices = 31;

// What was set at each index and stays set from launch to launch.
class EncoderState {
 public:
  explicit EncoderState(id<MTLComputeCommandEncoder> encoder) : encoder_(encoder) {}

  void set_pipeline(id<MTLComputePipelineState> pipeline) {
    if (pipeline == pipeline_) return;
    pipeline_ = pipeline;
    [encoder_ setComputePipelineState:pipeline];
  }

  void set_buffer(const BoundBuffer& bound) {
    Slot& slot = slots_[bound.index];
    if (slot.native != bound.native) {
      [encoder_ setBuffer:static_cast<id<MTLBuffer>>(bound.native) offset:bound.offset atIndex:bound.index];
    } else if (slot.offset != bound.offset) {
      [encoder_ setBufferOffset:bound.offset atIndex:bound.index];
    }
    slot = {bound.native, bound.offset, nullptr, 0};
  }

  void set_bytes(const BoundBytes& bound, const std::uint8_t* data) {
    Slot& slot = slots_[bound.index];
    const bool same = slot.bytes != nullptr && slot.nbytes == bound.nbytes &&
                      std::memcmp(slot.bytes, data, bound.nbytes) == 0;
    if (!same) [encoder_ setBytes:data length:bound.nbytes atIndex:bound.index];
    slot = {nullptr, 0, data, bound.nbytes};
  }

  void set_threadgroup_memory(const backend::ThreadgroupBinding& bound) {
    std::uint32_t& length = threadgroup_memory_[bound.index];
    if (length == bound.nbytes) return;
    length = bound.nbytes;
    [encoder_ setThreadgroupMemoryLength:bound.nbytes atIndex:bound.index];
  }

 private:
  struct Slot {
    void* native = nullptr;
    std::uint64_t offset = 0;
    const std::uint8_t* bytes = nullptr;
    std::uint32_t nbytes = 0;
  };

  id<MTLComputeCommandEncoder> encoder_;
  id<MTLComputePipelineState> pipeline_ = nil;
  Slot slots_[max_indices];
  std::uint32_t threadgroup_memory_[max_indices] = {};
};

MTLSize size_of(const std::uint32_t (&size)[3]) { return MTLSizeMake(size[0], size[1], size[2]); }

void dispatch(id<MTLComputeCommandEncoder> encoder, const Command& command) {
  const MTLSize threads = size_of(command.threads_per_threadgroup);
  switch (command.grid_kind) {
    case Grid::Kind::threadgroups:
      [encoder dispatchThreadgroups:size_of(command.grid) threadsPerThreadgroup:threads];
      break;
    case Grid::Kind::threads:
      [encoder dispatchThreads:size_of(command.grid) threadsPerThreadgroup:threads];
      break;
    case Grid::Kind::indirect:
      [encoder dispatchThreadgroupsWithIndirectBuffer:static_cast<id<MTLBuffer>>(command.indirect)
                                 indirectBufferOffset:command.indirect_offset
                                threadsPerThreadgroup:threads];
      break;
  }
}

}  // namespace

NSString* Labels::of(std::string_view text) {
  if (const auto found = known_.find(text); found != known_.end()) return found->second.get();
  if (known_.size() >= max_labels) known_.clear();
  std::string key(text);
  const auto string = Owned<NSString*>::keep(string_of(key));
  return known_.emplace(std::move(key), string).first->second.get();
}

void encode(const LaunchList& list, id<MTLComputeCommandEncoder> encoder, Labels& labels) {
  EncoderState state(encoder);
  std::size_t buffer = 0, bytes = 0, threadgroup = 0, text = 0;
  const std::uint8_t* data = list.data().data();
  for (const Command& command : list.commands()) {
    switch (command.kind) {
      case Command::Kind::barrier:
        [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        break;
      case Command::Kind::push_label:
        [encoder pushDebugGroup:labels.of(std::string_view(list.text()).substr(text, command.label_size))];
        text += command.label_size;
        break;
      case Command::Kind::pop_label:
        [encoder popDebugGroup];
        break;
      case Command::Kind::launch:
        state.set_pipeline(static_cast<const MetalPipeline*>(command.pipeline)->state.get());
        for (std::uint32_t i = 0; i < command.buffer_count; ++i) state.set_buffer(list.buffers()[buffer++]);
        for (std::uint32_t i = 0; i < command.bytes_count; ++i) {
          state.set_bytes(list.bytes()[bytes], data);
          data += list.bytes()[bytes++].nbytes;
        }
        for (std::uint32_t i = 0; i < command.threadgroup_count; ++i)
          state.set_threadgroup_memory(list.threadgroup_memory()[threadgroup++]);
        dispatch(encoder, command);
        break;
    }
  }
}

}  // namespace metalane::metal
