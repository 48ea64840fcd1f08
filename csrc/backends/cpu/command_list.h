// The recorded launches of one submission, kept for reuse so that recording allocates nothing once warm.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_pipeline.h"
#include "core/backend.h"

namespace metalane::cpu {

struct LaunchRecord {
  const CpuPipeline* pipeline = nullptr;
  metalane_launch launch{};  // grid fields are filled in when the launch starts
  std::uint64_t sizes[METALANE_MAX_BUFFERS] = {};
  std::uint32_t bytes_mask = 0;  // bit i: buffers[i] is an offset into the list's bytes until seal()
  Grid::Kind grid_kind = Grid::Kind::threadgroups;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t threads_per_threadgroup[3] = {1, 1, 1};
  const std::uint8_t* indirect = nullptr;
  std::size_t label_begin = 0, label_size = 0;
  std::size_t threadgroup_begin = 0, threadgroup_count = 0;  // see CommandList::threadgroup_memory
  bool after_barrier = false;
};

class CommandList {
 public:
  void append(const backend::Launch& launch);
  // The launch that is appended next is ordered behind all before it.
  void barrier() noexcept { barrier_ = true; }
  // To be called when the last launch is recorded: inline bytes get their addresses.
  void seal();
  void clear();

  const std::vector<LaunchRecord>& launches() const noexcept { return launches_; }
  std::span<const backend::ThreadgroupBinding> threadgroup_memory(const LaunchRecord& record) const {
    return std::span(threadgroup_memory_).subspan(record.threadgroup_begin, record.threadgroup_count);
  }
  std::string_view label(const LaunchRecord& record) const {
    return std::string_view(labels_).substr(record.label_begin, record.label_size);
  }

  // Of the submission, from commit on.
  std::optional<double> time_limit;
  std::function<void(backend::Completion)> done;
  bool timed = false;
  std::vector<backend::LaunchTime> times;  // one a launch, where `timed`
  std::uint64_t sequence = 0;
  CommandList* next = nullptr;

 private:
  // What a parameter struct with the widest vector needs.
  struct alignas(64) Line {
    std::uint8_t bytes[64];
  };
  std::vector<LaunchRecord> launches_;
  std::vector<Line> bytes_;
  std::vector<backend::ThreadgroupBinding> threadgroup_memory_;
  std::string labels_;
  bool barrier_ = false;
};

}  // namespace metalane::cpu
