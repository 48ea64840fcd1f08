// What happens at each access: whose memory it is, whether it is inside, ordered, and was ever written.
#include <algorithm>
#include <cstring>
#include <new>

#include "backends/cpu/checker.h"
#include "backends/cpu/checker_current.h"

namespace metalane::cpu {

namespace {

// Pointers below come from null, plus an index.
constexpr std::uint64_t null_bytes = std::uint64_t{1} << 20;

}  // namespace

// No exception may pass through a kernel: where memory ends, so does the threadgroup.
template <typename Body>
inline void Checker::guarded(const Body& body) {
  try {
    body();
    return;
  } catch (const std::bad_alloc&) {
    out_of_memory_ = true;
  }
  runner_->leave();
}

std::uint32_t Checker::instruction_of(const void* pc, std::uint32_t region, Touch touch) {
  const std::uint32_t known = module_->find(pc, region);
  if (known != 0) return known;
  const Unleavable unleavable(*this);
  const std::uint32_t added = module_->add(pc, region, touch);
  instructions_ = module_->instructions().data();
  return added;
}

// A load of a word of threadgroup memory that orders nothing anew: somebody wrote it before the newest
// barrier, and since then two threads have loaded it that are as far apart as this one can be from any: of
// two simdgroups, or of the segment that runs. Most loads of threadgroup memory are of this kind.
inline bool Checker::adds_nothing(const CheckRegion& region, std::uint64_t at,
                                  std::uint64_t nbytes) const noexcept {
  const Cell* cell = region.shadow->only(at, nbytes);
  if (cell == nullptr) return false;
  const std::uint32_t first = barrier_first_[threadgroup_memory];
  const std::uint32_t written = cell->writer.segment();
  if (written >= first || written < group_first_ || cell->far_reader.atomic()) return false;
  const std::uint32_t far = cell->far_reader.segment();
  return (far >= first && cell->far_reader.turn() >= 2) ||
         (far == segment_ && cell->reader.segment() == segment_);
}

inline std::uint32_t Checker::region_at(std::uint64_t address) const noexcept {
  const auto slot = static_cast<std::uint32_t>((address - arena_begin_) >> arena_shift_);
  if (slot != CheckArena::threadgroup_slot) return slot;
  const std::uint64_t place = (address - variables_begin_) / METALANE_CHECK_PITCH;
  return place < variable_count_ ? first_variable + static_cast<std::uint32_t>(place) : slot;
}

inline void Checker::count(std::uint32_t here, std::uint64_t nbytes) noexcept {
  Instruction& instruction = instructions_[here];
  const std::uint32_t thread = group_->current_thread;
  const std::uint64_t place = std::uint64_t{segment_} << 32 | thread;
  if (instruction.place != place) {
    if ((instruction.place ^ place) >> 32 != 0) instruction.lanes = 0;
    instruction.lanes |= 1u << (thread % 32);
    instruction.place = place;
    instruction.turn = 0;
  } else {
    ++instruction.turn;
  }
  ++instruction.count;
  instruction.nbytes += nbytes;
  instruction.size = static_cast<std::uint8_t>(nbytes < 255 ? nbytes : 255);
}

// The short way of nearly all accesses. What it calls comes last and is out of line: nothing is kept on the
// stack (an eighth of the time).
template <Touch touch, bool is_range>
inline void Checker::access(std::uint64_t address, std::uint64_t nbytes, const void* pc) {
  if (address - arena_begin_ >= arena_bytes_) {
    // The stack of the thread that runs, from here upwards.
    if (address - stack_pointer() >= FiberPool::stack_bytes) [[unlikely]]
      access_elsewhere<touch, is_range>(address, nbytes, pc);
    return;
  }
  const std::uint32_t number = region_at(address);
  const CheckRegion& region = region_data_[number];
  const std::uint64_t at = address - region.begin;
  const std::uint64_t in_text = reinterpret_cast<std::uint64_t>(pc) - text_begin_;
  const std::uint32_t here = in_text < text_bytes_ ? by_offset_[in_text] : 0;
  if (runner_->stop_requested() || has_pending_store_ || logs_ || at >= region.nbytes ||
      nbytes > region.nbytes - at || (writes(touch) && region.is_const) || here == 0 ||
      instructions_[here].region != number) [[unlikely]] {
    access_in_full<touch, is_range>(address, nbytes, pc);
    return;
  }
  count(here, nbytes);
  if (touch == Touch::load && region.is_threadgroup && region.shadow != nullptr &&
      adds_nothing(region, at, nbytes))
    return;
  if (region.shadow != nullptr || region.initialized != nullptr)
    watch<touch, is_range>(region, here, at, nbytes);
}

template <Touch touch, bool is_range>
__attribute__((noinline)) void Checker::access_elsewhere(std::uint64_t address, std::uint64_t nbytes,
                                                         const void* pc) {
  if (!is_own(address)) access_in_full<touch, is_range>(address, nbytes, pc);
}

template <Touch touch, bool is_range>
__attribute__((noinline)) void Checker::access_in_full(std::uint64_t address, std::uint64_t nbytes,
                                                       const void* pc) {
  if (runner_->stop_requested()) runner_->leave();
  guarded([&] {
    if (has_pending_store_) compare_pending();
    const bool is_outside = address - arena_begin_ >= arena_bytes_;
    const std::uint32_t number = is_outside ? null_region : region_at(address);
    const CheckRegion& region = regions_[number];
    const std::uint64_t at = address - region.begin;
    if (is_outside || at >= region.nbytes || nbytes > region.nbytes - at) {
      out_of_bounds(address, nbytes, touch, pc);
      return;
    }
    if (writes(touch) && region.is_const) store_to_const(number, at, nbytes, touch, pc);
    const std::uint32_t here = instruction_of(pc, number, touch);
    count(here, nbytes);
    if (logs_) {
      log_.add({here, segment_, instructions_[here].turn, static_cast<std::uint16_t>(group_->current_thread),
                static_cast<std::uint16_t>(std::min<std::uint64_t>(nbytes, 65535)), at});
    }
    if (region.shadow != nullptr || region.initialized != nullptr)
      watch<touch, is_range>(region, here, at, nbytes);
  });
}

template <Touch touch, bool is_range>
__attribute__((noinline)) void Checker::watch(const CheckRegion& region, std::uint32_t here, std::uint64_t at,
                                              std::uint64_t nbytes) {
  const std::uint32_t turn = std::min(instructions_[here].turn, 31u);
  const Mark self(segment_, here, group_->current_thread, turn, is_atomic(touch));
  const auto number = static_cast<std::uint32_t>(&region - region_data_);
  Conflict whole = {number, at, nbytes, self, touch, is_range};
  guarded([&] {
    if (region.initialized != nullptr) ask_initialized(region, whole);
    if (region.shadow != nullptr) track(region, whole);
  });
}

// Whether unwritten bytes of a load, `run` of them up to `last` (counted from its first byte), are no padding
// of a type that is loaded whole. A load of up to 8 bytes at a multiple of their number is a scalar's or a
// vector's: only a vector of three has padding, its last quarter. All else may be structs: the first byte is
// a field's, and a gap is shorter than their alignment, of which the size is a multiple.
constexpr bool is_no_padding(std::uint64_t run, std::uint64_t last, std::uint64_t nbytes, bool is_range) {
  if (!is_range && nbytes <= 8) return nbytes < 4 || last + 1 - run < nbytes / 4 * 3;
  if (run > last) return true;
  const std::uint64_t multiple_of = nbytes & (~nbytes + 1);
  const std::uint64_t alignment = multiple_of == nbytes ? nbytes / 2 : multiple_of;
  return run >= std::min<std::uint64_t>(alignment, 16);
}

void Checker::ask_initialized(const CheckRegion& region, const Conflict& access) {
  const std::uint64_t begin = region.initialized_begin + access.at;
  if (reads(access.self_touch) && !region.initialized->covers(begin, access.nbytes)) {
    std::uint64_t unwritten = 0;
    bool counts = false;
    for (std::uint64_t i = 0; i < access.nbytes && !counts; ++i) {
      unwritten = region.initialized->covers(begin + i, 1) ? 0 : unwritten + 1;
      counts = unwritten != 0 && is_no_padding(unwritten, i, access.nbytes, access.is_range);
    }
    const Unleavable unleavable(*this);
    if (counts)
      record(CheckKind::uninitialised, access, false,
             "nothing was written there since it was made by empty()");
  }
  if (writes(access.self_touch)) region.initialized->set(begin, access.nbytes);
}

// Whether `other` took effect before what `thread` of the group that runs does now.
inline bool Checker::is_ordered(Mark other, Memory memory, std::uint32_t thread) const noexcept {
  const std::uint32_t segment = other.segment();
  if (segment < interval_first_) return true;
  if (segment < group_first_) return memory == threadgroup_memory;
  if (segment < barrier_first_[memory] || other.thread() == thread) return true;
  return other.simdgroup() == thread / 32 && segment < simdgroup_first_[memory][thread / 32];
}

// How far apart two accesses are that nothing orders: lanes, simdgroups, threadgroups.
inline std::uint32_t Checker::distance(Mark a, Mark b) const noexcept {
  if (a.segment() < group_first_ || b.segment() < group_first_) return 3;
  if (a.simdgroup() != b.simdgroup()) return 2;
  return a.thread() != b.thread() ? 1 : 0;
}

inline bool Checker::clashes(Mark other, Mark self, Memory memory) const noexcept {
  return !is_ordered(other, memory, self.thread()) && !(other.atomic() && self.atomic());
}

// Of threadgroup memory: `unwritten` counts the bytes before the cell that nobody of the group wrote.
inline void Checker::ask_written(const Cell& cell, Conflict& access, std::uint64_t at, std::uint64_t nbytes) {
  if (cell.writer.segment() >= group_first_ || !options_.uninitialised) [[likely]] {
    access.unwritten = 0;
    return;
  }
  access.unwritten += nbytes;
  const std::uint64_t last = at + nbytes - 1 - access.at;
  if (access.told_unwritten || !is_no_padding(access.unwritten, last, access.nbytes, access.is_range)) return;
  access.told_unwritten = true;
  const Unleavable unleavable(*this);
  record(CheckKind::uninitialised, access, false, "no thread of the threadgroup has written there");
}

inline void Checker::read_cell(Cell& cell, Memory memory, Conflict& access, std::uint64_t at) {
  const Mark self = access.self;
  const Mark writer = cell.writer;
  if (memory == threadgroup_memory) {
    // Somebody of another simdgroup has read, too: nothing that comes adds to that.
    if (cell.far_reader.segment() >= barrier_first_[memory] && cell.far_reader.turn() >= 2 &&
        writer.segment() < barrier_first_[memory]) {
      return;
    }
  }
  if (!track_races_) return;
  if (clashes(writer, self, memory)) [[unlikely]]
    conflict(access, writer, true, at);
  const std::uint32_t thread = self.thread();
  if (is_ordered(cell.reader, memory, thread)) {
    // The new one stands for what came before it, or the other one does.
    cell.reader = is_ordered(cell.far_reader, memory, thread) ? self : cell.far_reader;
    cell.far_reader = Mark();
  }
  const std::uint32_t far = distance(self, cell.reader);
  if (far > cell.far_reader.turn() || (far != 0 && is_ordered(cell.far_reader, memory, thread)))
    cell.far_reader = self.with_turn(far);
}

inline void Checker::write_cell(Cell& cell, Memory memory, Conflict& access, std::uint64_t at) {
  if (track_races_) {
    if (clashes(cell.writer, access.self, memory)) [[unlikely]]
      conflict(access, cell.writer, true, at);
    if (clashes(cell.reader, access.self, memory)) [[unlikely]]
      conflict(access, cell.reader, false, at);
    else if (clashes(cell.far_reader, access.self, memory)) [[unlikely]]
      conflict(access, cell.far_reader, false, at);
  }
  // Among atomics, none stands for the plain accesses before it: later ones clash with those alone.
  if (access.self.atomic()) {
    if (clashes(cell.writer, access.self, memory)) return;
  } else {
    cell.reader = cell.far_reader = Mark();
  }
  cell.writer = access.self;
}

inline void Checker::track(const CheckRegion& region, Conflict& access) {
  const Memory memory = region.is_threadgroup ? threadgroup_memory : device_memory;
  const bool stores = writes(access.self_touch);
  for (std::uint64_t done = 0; done < access.nbytes;) {
    const std::uint64_t begin = region.shadow_begin + access.at + done;
    const std::uint64_t left = access.nbytes - done;
    ShadowMemory::Cells cells;
    if (region.shadow->is_ready(begin, left)) [[likely]] {
      cells = region.shadow->at(begin, left);
    } else {
      const Unleavable unleavable(*this);
      cells = region.shadow->at(begin, left);
    }
    for (std::uint32_t i = 0; i < cells.count; ++i) {
      const std::uint64_t at = access.at + done + (std::uint64_t{i} << cells.shift);
      if (memory == threadgroup_memory && reads(access.self_touch))
        ask_written(cells.first[i], access, at, std::uint64_t{1} << cells.shift);
      if (stores) {
        write_cell(cells.first[i], memory, access, at);
      } else {
        read_cell(cells.first[i], memory, access, at);
      }
    }
    done += std::uint64_t{cells.count} << cells.shift;
  }
}

// Memory outside the arena that a thread's code may touch: other stacks, where lanes exchange values, what it
// and the executor tell each other, and the module's own constants.
bool Checker::is_own(std::uint64_t address) const noexcept {
  const auto is_in = [address](const void* object, std::uint64_t nbytes) {
    return address - reinterpret_cast<std::uint64_t>(object) < nbytes;
  };
  return is_in(thread_storage_, sizeof(void*)) || runner_->is_own(address) || module_->contains(address) ||
         is_in(group_->launch, sizeof(metalane_launch)) || is_in(&module_runtime(), sizeof(metalane_runtime));
}

// The argument or variable that an address outside all of them is nearest to; null_region: none.
std::uint32_t Checker::nearest_region(std::uint64_t address) const noexcept {
  if (address - arena_begin_ >= arena_bytes_) return null_region;
  std::uint32_t number = region_at(address);
  if (number == CheckArena::threadgroup_slot) number = first_variable;
  return regions_[number].name.empty() ? null_region : number;
}

// Leaves the threadgroup: the access is not made. Where bounds are not asked for it meets what is there, or
// faults.
void Checker::out_of_bounds(std::uint64_t address, std::uint64_t nbytes, Touch touch, const void* pc) {
  if (!options_.bounds) return;
  const std::uint32_t number = nearest_region(address);
  {
    const Unleavable unleavable(*this);
    const std::uint32_t here = instruction_of(pc, number, touch);
    const Mark self(segment_, here, group_->current_thread, 0, is_atomic(touch));
    const std::uint64_t at = address - regions_[number].begin;
    if (number != null_region) {
      record(CheckKind::bounds, {number, at, nbytes, self, touch}, false,
             "it has " + std::to_string(regions_[number].nbytes) + " bytes, the access begins at byte " +
                 std::to_string(static_cast<std::int64_t>(at)));
    } else if (address < null_bytes) {
      record(CheckKind::bounds, {number, address, nbytes, self, touch}, false,
             "the pointer is null, plus " + std::to_string(address) + " bytes");
    } else {
      // Where that is differs from run to run.
      record(CheckKind::bounds, {number, 0, nbytes, self, touch}, false,
             "the pointer is to nothing that the kernel was given");
    }
    left_ = true;
  }
  runner_->leave();
}

// Through a cast that takes `const` away. Leaves the threadgroup, as above: the bytes may be another launch's
// that nothing orders with this one, since barriers follow from what is declared.
void Checker::store_to_const(std::uint32_t region, std::uint64_t at, std::uint64_t nbytes, Touch touch,
                             const void* pc) {
  if (!options_.bounds) return;
  {
    const Unleavable unleavable(*this);
    const Mark self(segment_, instruction_of(pc, region, touch), group_->current_thread, 0, is_atomic(touch));
    record(CheckKind::bounds, {region, at, nbytes, self, touch}, false, "the argument is declared const");
    left_ = true;
  }
  runner_->leave();
}

// Called from modules
// -----------------------------------------------------------------------------------------

__attribute__((tls_model("initial-exec"))) thread_local Checker* current_checker = nullptr;

struct Checker::Hooks {
  // Modules are called outside launches, too: for what their tables say.
  template <Touch touch, bool is_range = false>
  static inline void enter(const void* address, std::uint64_t nbytes, const void* pc) {
    Checker* const checker = current_checker;
    if (checker == nullptr) return;
    if constexpr (fiber_hooks) {
      // A sanitizer's runtime is no place to be left.
      const Unleavable unleavable(*checker);
      checker->access<touch, is_range>(reinterpret_cast<std::uint64_t>(address), nbytes, pc);
    } else {
      checker->access<touch, is_range>(reinterpret_cast<std::uint64_t>(address), nbytes, pc);
    }
  }
  template <std::uint64_t nbytes, Touch touch>
  static void fixed(const void* address, const void* pc) {
    enter<touch>(address, nbytes, pc);
  }
  template <Touch touch>
  static void range(const void* address, std::uint64_t nbytes, const void* pc) {
    if (nbytes != 0) enter<touch, true>(address, nbytes, pc);
  }
  static void atomic(const void* address, std::uint32_t nbytes, std::uint32_t what, const void* pc) {
    if (what == METALANE_CHECK_LOAD) {
      enter<Touch::atomic_load>(address, nbytes, pc);
    } else if (what == METALANE_CHECK_STORE) {
      enter<Touch::atomic_store>(address, nbytes, pc);
    } else {
      enter<Touch::atomic_update>(address, nbytes, pc);
    }
  }
  static void barrier(std::uint32_t site, std::uint32_t flags) {
    if (site < current_checker->flags_of_site_.size()) current_checker->flags_of_site_[site] = flags;
  }
  static void end() {
    Checker& checker = *current_checker;
    const std::uint32_t thread = checker.group_->current_thread;
    checker.ended_[thread / METALANE_SIMD_WIDTH] |= 1u << thread % METALANE_SIMD_WIDTH;
  }
  static void fence(std::uint32_t flags) {
    Checker& checker = *current_checker;
    checker.guarded([&checker, flags] {
      const Unleavable unleavable(checker);
      checker.fence(flags);
    });
  }
  // Called while the scheduler combines lanes: there is no thread to leave.
  static void absent_lane(std::uint32_t lane, std::int32_t from) {
    try {
      current_checker->absent_lane(lane, from);
    } catch (const std::bad_alloc&) {
      current_checker->out_of_memory_ = true;
    }
  }
  static void* copy(void* to, const void* from, std::uint64_t nbytes) {
    return std::memmove(to, from, nbytes);
  }
  static void* fill(void* to, int value, std::uint64_t nbytes) { return std::memset(to, value, nbytes); }
};

const metalane_check_host& Checker::host() {
  static constexpr metalane_check_host table = {
      {&Hooks::fixed<1, Touch::load>, &Hooks::fixed<2, Touch::load>, &Hooks::fixed<4, Touch::load>,
       &Hooks::fixed<8, Touch::load>, &Hooks::fixed<16, Touch::load>},
      {&Hooks::fixed<1, Touch::store>, &Hooks::fixed<2, Touch::store>, &Hooks::fixed<4, Touch::store>,
       &Hooks::fixed<8, Touch::store>, &Hooks::fixed<16, Touch::store>},
      &Hooks::range<Touch::load>,
      &Hooks::range<Touch::store>,
      &Hooks::atomic,
      &Hooks::barrier,
      &Hooks::end,
      &Hooks::fence,
      &Hooks::absent_lane,
      &Hooks::copy,
      &Hooks::fill};
  return table;
}

}  // namespace metalane::cpu
