// The recorded commands of one submission, kept for reuse so that recording allocates nothing once warm.
//
// Recording comes first and Metal's encoder at the commit, because a queue hands out a bounded number of
// command buffers and blocks the caller beyond: encoders that are open, as many as the caller likes, take
// none. A submission that is dropped has not touched Metal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace metalane::metal {

// A launch's parts lie one after another in the list's arrays: `first_...` of the next command ends them.
struct Command {
  enum class Kind : std::uint8_t { launch, barrier, push_label, pop_label };
  Kind kind = Kind::launch;
  Grid::Kind grid_kind = Grid::Kind::threadgroups;
  const backend::Pipeline* pipeline = nullptr;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t threads_per_threadgroup[3] = {1, 1, 1};
  std::uint32_t buffer_count = 0, bytes_count = 0, threadgroup_count = 0;
  void* indirect = nullptr;
  std::uint64_t indirect_offset = 0;
  std::uint32_t label_size = 0;  // of a push_label
};

struct BoundBuffer {
  std::uint32_t index;
  void* native;
  std::uint64_t offset;
};

struct BoundBytes {
  std::uint32_t index;
  std::uint32_t nbytes;
};

class LaunchList {
 public:
  explicit LaunchList(bool concurrent) : concurrent_(concurrent) {}

  void launch(const backend::Launch& launch);
  void barrier();
  void push_label(std::string_view label);
  void pop_label();
  void clear();
  void set_concurrent(bool concurrent) noexcept { concurrent_ = concurrent; }

  bool concurrent() const noexcept { return concurrent_; }
  // What the submission is called in errors and captures: its first launch's label, else kernel.
  const std::string& name() const noexcept { return name_; }
  const std::vector<Command>& commands() const noexcept { return commands_; }
  const std::vector<BoundBuffer>& buffers() const noexcept { return buffers_; }
  const std::vector<BoundBytes>& bytes() const noexcept { return bytes_; }
  const std::vector<backend::ThreadgroupBinding>& threadgroup_memory() const noexcept {
    return threadgroup_memory_;
  }
  const std::vector<std::uint8_t>& data() const noexcept { return data_; }  // of `bytes`, one after another
  const std::string& text() const noexcept { return text_; }                // of labels, one after another

 private:
  bool concurrent_;
  std::string name_;
  std::vector<Command> commands_;
  std::vector<BoundBuffer> buffers_;
  std::vector<BoundBytes> bytes_;
  std::vector<backend::ThreadgroupBinding> threadgroup_memory_;
  std::vector<std::uint8_t> data_;
  std::string text_;
};

}  // namespace metalane::metal
