// What two accesses that nothing orders are called, and how findings are written down.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "backends/cpu/checker.h"
#include "backends/cpu/checker_current.h"

namespace metalane::cpu {

void Checker::conflict(Conflict& access, Mark other, bool other_writes, std::uint64_t at) {
  bool& told = other_writes ? access.told_writer : access.told_reader;
  if (told) return;
  told = true;
  const Unleavable unleavable(*this);
  Conflict found = access;
  found.at = at;
  found.other = other;
  found.other_writes = other_writes;
  // Another threadgroup's, which fences on both sides order. They have to meet at an atomic in between, which
  // is taken for granted.
  const bool is_far = other.segment() < group_first_;
  if (is_far && launches_.group_has_fenced() && launches_.fenced_after(other.segment())) return;
  const bool may_be_equal = other_writes && access.self_touch == Touch::store && !other.atomic() &&
                            access.nbytes <= sizeof pending_store_.before;
  if (!may_be_equal) {
    decide(found, false);
    return;
  }
  const CheckRegion& region = regions_[access.region];
  pending_store_.conflict = found;
  pending_store_.address = region.begin + access.at;
  pending_store_.nbytes = static_cast<std::uint32_t>(access.nbytes);
  std::memcpy(pending_store_.before, reinterpret_cast<const void*>(pending_store_.address), access.nbytes);
  has_pending_store_ = true;
}

// The store has been made by now: nothing else has touched memory since.
void Checker::compare_pending() {
  const Unleavable unleavable(*this);
  has_pending_store_ = false;
  const bool equal = std::memcmp(pending_store_.before, reinterpret_cast<const void*>(pending_store_.address),
                                 pending_store_.nbytes) == 0;
  decide(pending_store_.conflict, equal);
}

void Checker::decide(const Conflict& conflict, bool equal_values) {
  if (equal_values) {
    record(CheckKind::same_value, conflict, true, "both store what was there already: the same value");
    return;
  }
  const bool same_simdgroup =
      conflict.other.segment() >= group_first_ && conflict.other.simdgroup() == conflict.self.simdgroup();
  if (!same_simdgroup) {
    record(CheckKind::race, conflict, true, "no barrier between them");
  } else if (conflict.other.segment() != conflict.self.segment()) {
    record(CheckKind::lockstep, conflict, true,
           "ordered by a collective that lanes met at, and by no barrier");
  } else {
    // Which lanes come to which instruction is known at the segment's end.
    const std::uint64_t key = std::uint64_t{conflict.self.instruction()} << 32 |
                              std::uint64_t{conflict.other.instruction()} << 16 | conflict.region;
    const bool in_turn = happen_in_turn(conflict);
    const auto [known, is_new] =
        pending_index_.emplace(key << 1 | (in_turn ? 1 : 0), pending_lockstep_.size());
    if (is_new) pending_lockstep_.push_back(conflict);
  }
}

// One instruction that two lanes come to at different turns.
bool Checker::happen_in_turn(const Conflict& conflict) {
  return conflict.self.instruction() == conflict.other.instruction() &&
         conflict.self.turn() != conflict.other.turn();
}

// Conflicts within the segment that ends. Lanes in step order two instructions that some lane runs both of:
// which all lanes that do are at together. They don't order the two sides of a branch, nor what lanes do at
// one instruction at once.
void Checker::settle_lockstep() {
  const Unleavable unleavable(*this);
  for (const Conflict& conflict : pending_lockstep_) {
    const Instruction& mine = module_->instruction(conflict.self.instruction());
    const Instruction& theirs = module_->instruction(conflict.other.instruction());
    const bool one = conflict.self.instruction() == conflict.other.instruction();
    const bool in_step = one ? happen_in_turn(conflict) : (mine.lanes & theirs.lanes) != 0;
    if (in_step) {
      record(CheckKind::lockstep, conflict, true, "ordered by lanes that run in step, and by no barrier");
    } else {
      record(CheckKind::race, conflict, true, "no barrier between them");
    }
  }
  pending_lockstep_.clear();
  pending_index_.clear();
}

// Round what allocates where no thread can be left: the threadgroup's end tells of it.
template <typename Body>
void Checker::guard(const Body& body) noexcept {
  try {
    body();
  } catch (const std::bad_alloc&) {
    out_of_memory_ = true;
  }
}

void Checker::new_segment() noexcept {
  guard([this] {
    if (has_pending_store_) compare_pending();
    if (!pending_lockstep_.empty()) settle_lockstep();
  });
  ++segment_;
}

CheckAccess Checker::access_of(Mark mark, Touch touch, std::uint64_t nbytes) const {
  CheckAccess access;
  access.access = is_atomic(touch) ? CheckAccessKind::atomic
                  : writes(touch)  ? CheckAccessKind::store
                                   : CheckAccessKind::load;
  access.nbytes = nbytes;
  access.thread_index = mark.thread();
  access.simdgroup = mark.simdgroup();
  access.lane = mark.thread() % METALANE_SIMD_WIDTH;
  const ThreadPosition position = launches_.position_of(mark.segment(), mark.thread());
  access.thread = position.thread;
  access.threadgroup = position.threadgroup;
  return access;
}

void Checker::record(CheckKind kind, const Conflict& conflict, bool with_other, std::string detail) {
  const CheckPlace place = {module_, conflict.self.instruction(), false};
  CheckPlace other;
  if (with_other)
    other = {launches_.module_of(conflict.other.segment()), conflict.other.instruction(), false};
  const CheckPlace* second = with_other ? &other : nullptr;
  if (findings_.count(kind, place, second, conflict.region)) return;
  const CheckRegion& region = regions_[conflict.region];
  CheckFinding finding;
  finding.kind = kind;
  finding.argument = region.name;
  finding.memory = region.memory;
  finding.byte_offset = static_cast<std::int64_t>(conflict.at);
  const std::int64_t element = std::max<std::int64_t>(
      1, region.element_bytes != 0 ? region.element_bytes : static_cast<std::int64_t>(conflict.nbytes));
  const std::int64_t offset = finding.byte_offset;
  finding.element_index = offset >= 0 ? offset / element : -((-offset + element - 1) / element);
  finding.bound_nbytes = region.nbytes;
  finding.access = access_of(conflict.self, conflict.self_touch, conflict.nbytes);
  if (with_other) {
    const Instruction& instruction = other.module->instruction(other.number);
    finding.other = access_of(conflict.other, instruction.touch, instruction.size);
  }
  findings_.add(std::move(finding), place, second, conflict.region, std::move(detail));
}

void Checker::record_wait(std::uint32_t site, std::uint32_t thread, std::string detail) {
  const CheckPlace place = {module_, site, true};
  if (findings_.count(CheckKind::divergence, place, nullptr, null_region)) return;
  CheckFinding finding;
  finding.kind = CheckKind::divergence;
  finding.access = access_of(Mark(segment_, 0, thread, 0, false), Touch::load, 0);
  finding.access.access = CheckAccessKind::wait;
  findings_.add(std::move(finding), place, nullptr, null_region, std::move(detail));
}

void Checker::absent_lane(std::uint32_t lane, std::int32_t from) {
  if (!options_.divergence) return;
  const Unleavable unleavable(*this);
  const std::uint32_t thread = simdgroup_ * METALANE_SIMD_WIDTH + lane;
  const std::string whose = from < 0 || from >= METALANE_SIMD_WIDTH
                                ? "a lane that no simdgroup has"
                                : "lane " + std::to_string(from) + ", which takes no part";
  record_wait(collective_site_, thread,
              "lane " + std::to_string(lane) + " of simdgroup " + std::to_string(simdgroup_) +
                  " asks for the value of " + whose);
}

void Checker::incomplete_barrier(const ThreadgroupRunner::BarrierPlace& place,
                                 const std::string& description) {
  record_wait(place.site, place.thread, "incomplete barrier: " + description);
}

// A simdgroup_barrier that `active` lanes have met at. Lanes that are elsewhere will not come, since the
// earliest place is served first, and those at the kernel's end have gone past. Lanes that have returned take
// part in nothing any more, and those that the threadgroup has no threads for never do.
void Checker::ask_all_lanes(std::uint32_t active) {
  const std::uint32_t missing = (runner_->waiting_lanes() | ended_[simdgroup_]) & ~active;
  if (missing == 0) return;
  const Unleavable unleavable(*this);
  const auto first = static_cast<std::uint32_t>(std::countr_zero(active));
  record_wait(collective_site_, simdgroup_ * METALANE_SIMD_WIDTH + first,
              "incomplete barrier: of simdgroup " + std::to_string(simdgroup_) + ", " +
                  runner_->describe_collective(module_->module(), active));
}

void Checker::fence(std::uint32_t flags) {
  if ((flags & flag_device) != 0) launches_.fence(segment_);
}

// GroupObserver
// -----------------------------------------------------------------------------------------------

void Checker::enter_simdgroup(std::uint32_t index) noexcept {
  new_segment();
  simdgroup_ = index;
}

void Checker::barrier(std::uint32_t site) noexcept {
  new_segment();
  const std::uint32_t flags = flags_of_site_[site];
  if ((flags & flag_device) != 0) barrier_first_[device_memory] = segment_;
  if ((flags & flag_threadgroup) != 0) barrier_first_[threadgroup_memory] = segment_;
  ++module_->waits()[site];
}

void Checker::collective(std::uint32_t site, std::uint32_t active) noexcept {
  new_segment();
  collective_site_ = site;
  const std::uint32_t flags = flags_of_site_[site];
  if (options_.divergence && (flags & METALANE_CHECK_SIMDGROUP) != 0) guard([&] { ask_all_lanes(active); });
  if ((flags & flag_device) != 0) simdgroup_first_[device_memory][simdgroup_] = segment_;
  if ((flags & flag_threadgroup) != 0) simdgroup_first_[threadgroup_memory][simdgroup_] = segment_;
  ++module_->waits()[site];
}

}  // namespace metalane::cpu
