// Looking up groups by segments.
#include "backends/cpu/check_launches.h"

#include <algorithm>

#include "backends/cpu/check_findings.h"

namespace metalane::cpu {

void LaunchShape::position(std::uint64_t group, std::uint32_t position[3]) const {
  position[0] = static_cast<std::uint32_t>(group % groups[0]);
  position[1] = static_cast<std::uint32_t>(group / groups[0] % groups[1]);
  position[2] = static_cast<std::uint32_t>(group / groups[0] / groups[1]);
}

void LaunchShape::threads(const std::uint32_t position[3], std::uint32_t threads[3]) const {
  for (int axis = 0; axis < 3; ++axis)
    threads[axis] = std::min(grid[axis] - position[axis] * nominal[axis], nominal[axis]);
}

void CheckLaunches::begin_launch(std::shared_ptr<CheckedModule> module, const LaunchShape& shape,
                                 std::uint32_t segment) {
  Launch& launch = launches_.emplace_back();
  launch.module = std::move(module);
  launch.shape = shape;
  launch.segment = segment;
}

void CheckLaunches::begin_group(std::uint64_t number, std::uint32_t segment) {
  Launch& launch = launches_.back();
  launch.group_begin = segment;
  if (launch.groups.size() < max_groups) {
    launch.groups.push_back({segment, number});
  } else {
    launch.groups_complete = false;
  }
}

void CheckLaunches::fence(std::uint32_t segment) {
  if (!group_has_fenced()) launches_.back().fences.push_back({launches_.back().group_begin, segment});
  launches_.back().fences.back().segment = segment;
}

bool CheckLaunches::group_has_fenced() const noexcept {
  const Launch& launch = launches_.back();
  return !launch.fences.empty() && launch.fences.back().group_begin == launch.group_begin;
}

const CheckLaunches::Launch& CheckLaunches::find(std::uint32_t segment) const {
  const auto after =
      std::upper_bound(launches_.begin(), launches_.end(), segment,
                       [](std::uint32_t value, const Launch& launch) { return value < launch.segment; });
  return after == launches_.begin() ? launches_.front() : *std::prev(after);
}

const CheckLaunches::GroupBegin* CheckLaunches::group_of(const Launch& launch, std::uint32_t segment) {
  const auto after =
      std::upper_bound(launch.groups.begin(), launch.groups.end(), segment,
                       [](std::uint32_t value, const GroupBegin& group) { return value < group.segment; });
  if (after == launch.groups.begin()) return nullptr;
  if (after == launch.groups.end() && !launch.groups_complete) return nullptr;
  return &*std::prev(after);
}

ThreadPosition CheckLaunches::position_of(std::uint32_t segment, std::uint32_t index) const {
  const Launch& launch = find(segment);
  const GroupBegin* group = group_of(launch, segment);
  ThreadPosition result;
  if (group == nullptr) {
    result.thread.fill(unknown_position);
    result.threadgroup.fill(unknown_position);
    return result;
  }
  std::uint32_t threads[3];
  launch.shape.position(group->number, result.threadgroup.data());
  launch.shape.threads(result.threadgroup.data(), threads);
  const std::uint32_t local[3] = {index % threads[0], index / threads[0] % threads[1],
                                  index / threads[0] / threads[1]};
  for (std::size_t axis = 0; axis < 3; ++axis)
    result.thread[axis] = result.threadgroup[axis] * launch.shape.nominal[axis] + local[axis];
  return result;
}

bool CheckLaunches::fenced_after(std::uint32_t segment) const {
  const Launch& launch = find(segment);
  const GroupBegin* group = group_of(launch, segment);
  if (group == nullptr) return true;  // nobody knows: no false alarm
  const auto fence = std::lower_bound(
      launch.fences.begin(), launch.fences.end(), group->segment,
      [](const Fence& candidate, std::uint32_t begin) { return candidate.group_begin < begin; });
  return fence != launch.fences.end() && fence->group_begin == group->segment && fence->segment >= segment;
}

}  // namespace metalane::cpu
