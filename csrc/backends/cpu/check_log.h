// The accesses of some threadgroups, one by one: what distinct bytes, cache lines and bank conflicts are
// counted from.
#pragma once

#include <metalane/check.h>

#include <cstdint>
#include <vector>

#include "backends/cpu/check_module.h"

namespace metalane::cpu {

struct LoggedAccess {
  std::uint32_t instruction;
  std::uint32_t segment;
  std::uint32_t turn;  // how often the thread came to the instruction in the segment, before
  std::uint16_t thread;
  std::uint16_t nbytes;
  std::uint64_t at;  // from the start of what is bound
};

// Of one threadgroup at a time. Bounded: a group with more accesses is logged up to the limit.
class CheckLog {
 public:
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
  void count(CheckedModule& module, const std::vector<bool>& is_threadgroup_region);
  void clear();

 private:
  static constexpr std::size_t max_accesses = std::size_t{1} << 20;  // 24 MiB

  std::vector<LoggedAccess> accesses_;
};

}  // namespace metalane::cpu
