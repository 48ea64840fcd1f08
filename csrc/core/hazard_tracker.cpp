// See hazard_tracker.h.
#include "core/hazard_tracker.h"

#include <algorithm>

namespace metalane::core {

void RangeSet::insert(const AddressRange& range) {
  if (range.empty()) return;
  if (!ordered_.empty()) {
    insert_ordered(range);
    return;
  }
  for (const AddressRange& known : small_) {
    if (known.begin <= range.begin && range.end <= known.end) return;
  }
  small_.push_back(range);
  if (small_.size() > small_limit) {
    for (const AddressRange& known : small_) insert_ordered(known);
    small_.clear();
  }
}

void RangeSet::insert_ordered(AddressRange range) {
  auto next = ordered_.upper_bound(range.begin);
  if (next != ordered_.begin()) {
    auto previous = std::prev(next);
    if (previous->second >= range.end) return;
    if (previous->second >= range.begin) {
      range.begin = previous->first;
      next = ordered_.erase(previous);
    }
  }
  while (next != ordered_.end() && next->first <= range.end) {
    range.end = std::max(range.end, next->second);
    next = ordered_.erase(next);
  }
  ordered_.emplace_hint(next, range.begin, range.end);
}

bool RangeSet::overlaps(const AddressRange& range) const {
  if (range.empty()) return false;
  for (const AddressRange& known : small_) {
    if (known.overlaps(range)) return true;
  }
  if (ordered_.empty()) return false;
  auto next = ordered_.lower_bound(range.end);  // the first that begins at or past our end
  return next != ordered_.begin() && std::prev(next)->second > range.begin;
}

void RangeSet::clear() noexcept {
  small_.clear();
  ordered_.clear();
}

bool HazardTracker::conflicts(std::span<const TouchedRange> launch) const {
  for (const TouchedRange& touched : launch) {
    if (written_.overlaps(touched.range)) return true;
    if (writes(touched.access) && read_.overlaps(touched.range)) return true;
  }
  return false;
}

void HazardTracker::add(std::span<const TouchedRange> launch) {
  for (const TouchedRange& touched : launch) {
    if (writes(touched.access)) {
      written_.insert(touched.range);
    } else {
      read_.insert(touched.range);
    }
  }
}

void HazardTracker::clear() noexcept {
  read_.clear();
  written_.clear();
}

}  // namespace metalane::core
