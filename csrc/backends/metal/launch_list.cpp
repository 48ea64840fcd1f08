// See launch_list.h.
#include "backends/metal/launch_list.h"

#include <algorithm>

namespace metalane::metal {

void LaunchList::launch(const backend::Launch& launch) {
  if (name_.empty()) name_ = launch.label.empty() ? launch.pipeline->signature.name : launch.label;
  Command& command = commands_.emplace_back();
  command.grid_kind = launch.grid_kind;
  command.pipeline = launch.pipeline;
  std::copy_n(launch.grid, 3, command.grid);
  std::copy_n(launch.threads_per_threadgroup, 3, command.threads_per_threadgroup);
  command.buffer_count = static_cast<std::uint32_t>(launch.buffers.size());
  for (const backend::BufferBinding& buffer : launch.buffers) {
    // An empty view may lie at the very end of its buffer, an offset that Metal refuses.
    buffers_.push_back({buffer.index, buffer.native, buffer.nbytes == 0 ? 0 : buffer.native_offset});
  }
  command.bytes_count = static_cast<std::uint32_t>(launch.bytes.size());
  for (const backend::BytesBinding& bytes : launch.bytes) {
    bytes_.push_back({bytes.index, bytes.nbytes});
    data_.insert(data_.end(), bytes.data, bytes.data + bytes.nbytes);
  }
  command.threadgroup_count = static_cast<std::uint32_t>(launch.threadgroup_memory.size());
  threadgroup_memory_.insert(threadgroup_memory_.end(), launch.threadgroup_memory.begin(),
                             launch.threadgroup_memory.end());
  command.indirect = launch.indirect.native;
  command.indirect_offset = launch.indirect.native_offset;
}

void LaunchList::barrier() { commands_.emplace_back().kind = Command::Kind::barrier; }

void LaunchList::push_label(std::string_view label) {
  Command& command = commands_.emplace_back();
  command.kind = Command::Kind::push_label;
  command.label_size = static_cast<std::uint32_t>(label.size());
  text_ += label;
}

void LaunchList::pop_label() { commands_.emplace_back().kind = Command::Kind::pop_label; }

void LaunchList::clear() {
  name_.clear();
  commands_.clear();
  buffers_.clear();
  bytes_.clear();
  threadgroup_memory_.clear();
  data_.clear();
  text_.clear();
}

}  // namespace metalane::metal
