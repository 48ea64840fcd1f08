// The launches of one barrier-free interval, and which of their threads a segment belongs to.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/cpu/check_module.h"

namespace metalane::cpu {

// The shape of a launch: threadgroups, and threads of each.
struct LaunchShape {
  std::uint32_t groups[3] = {1, 1, 1};
  std::uint32_t nominal[3] = {1, 1, 1};
  std::uint32_t grid[3] = {1, 1, 1};  // threads

  void position(std::uint64_t group, std::uint32_t position[3]) const;
  // Threads of the group at `position`: fewer than nominal at a ragged edge.
  void threads(const std::uint32_t position[3], std::uint32_t threads[3]) const;
};

struct ThreadPosition {
  std::array<std::uint32_t, 3> thread{};
  std::array<std::uint32_t, 3> threadgroup{};
};

class CheckLaunches {
 public:
  void clear() { launches_.clear(); }
  void begin_launch(std::shared_ptr<CheckedModule> module, const LaunchShape& shape, std::uint32_t segment);
  // Group `number` of the newest launch begins with `segment`.
  void begin_group(std::uint64_t number, std::uint32_t segment);
  // The group that runs has ordered what it did before `segment` (a fence).
  void fence(std::uint32_t segment);
  bool group_has_fenced() const noexcept;

  const std::shared_ptr<CheckedModule>& module_of(std::uint32_t segment) const {
    return find(segment).module;
  }
  // Where thread `index` of the segment's group is; unknown_position where nobody kept the group.
  ThreadPosition position_of(std::uint32_t segment, std::uint32_t index) const;
  // Whether the segment's group has ordered it by a fence afterwards.
  bool fenced_after(std::uint32_t segment) const;

 private:
  struct GroupBegin {
    std::uint32_t segment;
    std::uint64_t number;
  };
  struct Fence {  // the last one of a group
    std::uint32_t group_begin;
    std::uint32_t segment;
  };
  struct Launch {
    std::shared_ptr<CheckedModule> module;
    LaunchShape shape;
    std::uint32_t segment = 0;
    std::uint32_t group_begin = 0;  // of the group that began last
    std::vector<GroupBegin> groups;
    bool groups_complete = true;  // every group is in `groups`
    std::vector<Fence> fences;
  };
  const Launch& find(std::uint32_t segment) const;
  static const GroupBegin* group_of(const Launch& launch, std::uint32_t segment);

  // 64 MiB of them; positions of later ones are not kept.
  static constexpr std::size_t max_groups = std::size_t{4} << 20;
  std::vector<Launch> launches_;
};

}  // namespace metalane::cpu
