// The accesses of some threadgroups, one by one: what distinct bytes, cache lines and bank conflicts are
// counted from.
#pragma once

#include <metalane/check.h>

#include <cstdint>
#include <vector>

#include "backends/cpu/check_module.h"

namespace metalane::cpu {

// What a region is to the log.
struct LoggedRegion {
  bool is_threadgroup = false;
  std::uint32_t line_offset = 0;  // of its first byte within a cache line
};

// Of one threadgroup at a time. Bounded: a group with more accesses is logged up to the limit.
class CheckLog {
 public:
  // Of one kernel: later launches of it would tell the same at the same cost.
  static constexpr std::uint64_t most_logged = std::uint64_t{1} << 20;
  static constexpr std::uint64_t line_bytes = 128;

  // Which groups of a launch are logged: the first ones, and some of the others.
  static bool samples(std::uint64_t group, std::uint64_t group_count) noexcept {
    constexpr std::uint64_t most = 8;
    return group_count <= most || group % ((group_count + most - 1) / most) == 0;
  }
  void begin_group();
  void add(const LoggedAccess& access) {
    if (accesses_.size() < max_accesses) accesses_.push_back(access);
  }
  // Adds what the group did to the module's counts.
  void count(CheckedModule& module, const std::vector<LoggedRegion>& regions);
  void clear();

 private:
  void count_regions(CheckedModule& module);

  static constexpr std::size_t max_accesses = std::size_t{1} << 18;  // 8 MiB

  std::vector<LoggedAccess> accesses_;
};

}  // namespace metalane::cpu
