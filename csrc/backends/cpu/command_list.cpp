// Copies launches into a list that outlives the call which described them.
#include "backends/cpu/command_list.h"

#include <cstring>
#include <utility>

#include "backends/cpu/threadgroup.h"

namespace metalane::cpu {

void CommandList::append(const backend::Launch& launch) {
  LaunchRecord& record = launches_.emplace_back();
  if (timed) times.emplace_back();
  record.pipeline = static_cast<const CpuPipeline*>(launch.pipeline);
  for (const backend::BufferBinding& buffer : launch.buffers) {
    record.launch.buffers[buffer.index] = buffer.address;
    record.sizes[buffer.index] = buffer.nbytes;
  }
  for (const backend::BytesBinding& bytes : launch.bytes) {
    const std::size_t begin = bytes_.size();
    bytes_.resize(begin + (bytes.nbytes + sizeof(Line) - 1) / sizeof(Line));
    if (bytes.nbytes != 0) std::memcpy(bytes_.data() + begin, bytes.data, bytes.nbytes);
    record.launch.buffers[bytes.index] = reinterpret_cast<void*>(begin);
    record.sizes[bytes.index] = bytes.nbytes;
    record.bytes_mask |= 1u << bytes.index;
  }
  // The module's own variables come first.
  constexpr std::uint32_t mask = threadgroup_argument_alignment - 1;
  std::uint32_t offset = (record.pipeline->static_threadgroup_memory + mask) & ~mask;
  for (const backend::ThreadgroupBinding& binding : launch.threadgroup_memory) {
    record.launch.threadgroup_offsets[binding.index] = offset;
    offset = (offset + binding.nbytes + mask) & ~mask;
  }
  record.threadgroup_begin = threadgroup_memory_.size();
  record.threadgroup_count = launch.threadgroup_memory.size();
  threadgroup_memory_.insert(threadgroup_memory_.end(), launch.threadgroup_memory.begin(),
                             launch.threadgroup_memory.end());
  record.after_barrier = std::exchange(barrier_, false);
  record.grid_kind = launch.grid_kind;
  for (int axis = 0; axis < 3; ++axis) {
    record.grid[axis] = launch.grid[axis];
    record.threads_per_threadgroup[axis] = launch.threads_per_threadgroup[axis];
  }
  record.indirect = launch.indirect.address;
  record.label_begin = labels_.size();
  record.label_size = launch.label.size();
  labels_ += launch.label;
}

void CommandList::seal() {
  for (LaunchRecord& record : launches_) {
    for (std::uint32_t rest = record.bytes_mask; rest != 0; rest &= rest - 1) {
      void*& address = record.launch.buffers[__builtin_ctz(rest)];
      address = bytes_.data() + reinterpret_cast<std::size_t>(address);
    }
    record.bytes_mask = 0;
  }
}

void CommandList::clear() {
  launches_.clear();
  bytes_.clear();
  threadgroup_memory_.clear();
  labels_.clear();
  barrier_ = false;
  time_limit.reset();
  done = nullptr;
  timed = false;
  times.clear();
  next = nullptr;
}

}  // namespace metalane::cpu
