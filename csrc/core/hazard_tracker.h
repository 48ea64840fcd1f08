// Which address ranges launches have touched since the last barrier, and whether another launch conflicts.
#pragma once

#include <metalane/buffer.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/timeline.h"

namespace metalane::core {

// A set of addresses. Up to `small_limit` ranges it is a flat list; beyond, an ordered map of disjoint
// ranges, so that a lookup stays logarithmic over thousands of launches.
class RangeSet {
 public:
  void insert(const AddressRange& range);
  bool overlaps(const AddressRange& range) const;
  void clear() noexcept;

 private:
  static constexpr std::size_t small_limit = 48;
  void insert_ordered(AddressRange range);

  std::vector<AddressRange> small_;
  std::map<std::uint64_t, std::uint64_t> ordered_;  // begin -> end, disjoint, not adjacent
};

class HazardTracker {
 public:
  // True where the launch must not overlap what was added since the last clear(): read after write, write
  // after write, or write after read.
  bool conflicts(std::span<const TouchedRange> launch) const;
  void add(std::span<const TouchedRange> launch);
  void clear() noexcept;

 private:
  RangeSet read_;
  RangeSet written_;
};

}  // namespace metalane::core
