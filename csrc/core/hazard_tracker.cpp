// See hazard_tracker.h.
#include "core/hazard_tracker.h"

#include <algorithm>

namespace metalane::core {

void RangeSet::insert(const AddressRange& range) {
  if (range.empty()) return;
  if (!chunks_.empty()) {
    insert_ordered(range);
    return;
  }
  for (const AddressRange& known : small_) {
    if (known.begin <= range.begin && range.end <= known.end) return;
  }
  append(range);
}

void RangeSet::append(const AddressRange& range) {
  if (range.empty()) return;
  small_.push_back(range);
  if (small_.size() > small_limit) {
    for (const AddressRange& known : small_) insert_ordered(known);
    small_.clear();
  }
}

std::optional<RangeSet::Place> RangeSet::last_before(std::uint64_t address) const {
  const auto chunk = std::lower_bound(begins_.begin(), begins_.end(), address);
  if (chunk == begins_.begin()) return std::nullopt;
  const auto index = static_cast<std::size_t>(chunk - begins_.begin()) - 1;
  const Chunk& ranges = chunks_[index];
  const auto next = std::partition_point(ranges.begin(), ranges.end(),
                                         [address](const AddressRange& r) { return r.begin < address; });
  return Place{index, static_cast<std::size_t>(next - ranges.begin()) - 1};
}

RangeSet::Place RangeSet::erase(const Place& place) {
  Chunk& chunk = chunks_[place.chunk];
  chunk.erase(chunk.begin() + static_cast<std::ptrdiff_t>(place.index));
  if (chunk.empty()) {
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(place.chunk));
    begins_.erase(begins_.begin() + static_cast<std::ptrdiff_t>(place.chunk));
    return {place.chunk, 0};
  }
  begins_[place.chunk] = chunk.front().begin;
  return place.index < chunk.size() ? place : Place{place.chunk + 1, 0};
}

// Before the range that is at `place`, or at the end of a chunk.
void RangeSet::place_at(Place place, const AddressRange& range) {
  if (chunks_.empty()) {
    chunks_.emplace_back();
    begins_.push_back(range.begin);
  } else if (place.chunk == chunks_.size()) {
    place = {place.chunk - 1, chunks_.back().size()};
  }
  if (chunks_[place.chunk].size() == chunk_limit) {
    const Chunk& full = chunks_[place.chunk];
    Chunk upper(full.begin() + chunk_limit / 2, full.end());
    const auto behind = static_cast<std::ptrdiff_t>(place.chunk) + 1;
    begins_.insert(begins_.begin() + behind, upper.front().begin);
    chunks_[place.chunk].resize(chunk_limit / 2);
    chunks_.insert(chunks_.begin() + behind, std::move(upper));
    if (place.index > chunk_limit / 2) place = {place.chunk + 1, place.index - chunk_limit / 2};
  }
  Chunk& chunk = chunks_[place.chunk];
  chunk.insert(chunk.begin() + static_cast<std::ptrdiff_t>(place.index), range);
  begins_[place.chunk] = chunk.front().begin;
}

void RangeSet::insert_ordered(AddressRange range) {
  Place next;
  // One that begins where the new range does counts as before it; an address past the last has no range.
  if (const std::optional<Place> previous = last_before(range.begin + 1)) {
    if (at(*previous).end >= range.end) return;
    if (at(*previous).end >= range.begin) {
      range.begin = at(*previous).begin;
      next = erase(*previous);
    } else {
      next = {previous->chunk, previous->index + 1};
      if (next.index == chunks_[next.chunk].size()) next = {next.chunk + 1, 0};
    }
  }
  while (next.chunk < chunks_.size() && at(next).begin <= range.end) {
    range.end = std::max(range.end, at(next).end);
    next = erase(next);
  }
  place_at(next, range);
}

bool RangeSet::overlaps(const AddressRange& range) const {
  if (range.empty()) return false;
  for (const AddressRange& known : small_) {
    if (known.overlaps(range)) return true;
  }
  if (chunks_.empty()) return false;
  const std::optional<Place> last = last_before(range.end);
  return last && at(*last).end > range.begin;
}

void RangeSet::clear() noexcept {
  small_.clear();
  chunks_.clear();
  begins_.clear();
}

bool HazardTracker::conflicts(std::span<const TouchedRange> launch) const {
  for (const TouchedRange& touched : launch) {
    if (written_.overlaps(touched.range)) return true;
    if (writes(touched.access) && read_.overlaps(touched.range)) return true;
  }
  return false;
}

void HazardTracker::add(std::span<const TouchedRange> launch) {
  // In many sequences every launch is the first one behind a barrier.
  const bool first = read_.empty() && written_.empty();
  for (const TouchedRange& touched : launch) {
    RangeSet& set = writes(touched.access) ? written_ : read_;
    if (first) {
      set.append(touched.range);
    } else {
      set.insert(touched.range);
    }
  }
}

void HazardTracker::clear() noexcept {
  read_.clear();
  written_.clear();
}

}  // namespace metalane::core
