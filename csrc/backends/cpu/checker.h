// The checker of one device: what it knows while a launch runs, and what it has found. ARCHITECTURE.md has
// the picture.
#pragma once

#include <metalane/check.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/cpu/check_findings.h"
#include "backends/cpu/check_launches.h"
#include "backends/cpu/check_log.h"
#include "backends/cpu/check_memory.h"
#include "backends/cpu/check_module.h"
#include "backends/cpu/check_shadow.h"
#include "backends/cpu/command_list.h"
#include "backends/cpu/threadgroup.h"

namespace metalane::cpu {

// What a kernel's argument or threadgroup variable stands for while its launch runs.
struct CheckRegion {
  std::uint64_t begin = 0;  // as the kernel sees it
  std::uint64_t nbytes = 0;
  ShadowMemory* shadow = nullptr;           // null: nobody may write it
  std::uint64_t shadow_begin = 0;           // of `begin` within it
  InitializedBytes* initialized = nullptr;  // null: all of it
  std::uint64_t initialized_begin = 0;
  bool is_threadgroup = false;
  bool is_const = false;  // declared so: nobody may write it
  std::uint32_t element_bytes = 0;
  std::uint32_t line_offset = 0;  // where a view of the device's memory begins within a cache line
  std::string name;
  const char* memory = "";
};

class Checker final : public GroupObserver {
 public:
  explicit Checker(const CheckOptions& options) : options_(options) {}

  const CheckOptions& options() const noexcept { return options_; }
  CheckedAllocations& allocations() noexcept { return allocations_; }
  // What checked modules call.
  static const metalane_check_host& host();

  // Any thread; waits for the submission that runs.
  CheckReport report();
  void clear_report();

  // The rest is for the thread that runs submissions.
  // ---------------------------------------------------------

  void begin_submission(const CommandList& list);
  // The findings of the submission; empty where there are none, or none that counts as an error.
  std::vector<CheckFinding> end_submission();

  // `launch` gets the addresses that the kernel is to see. False, with `why` set, where the system refuses
  // memory or what is bound cannot be read.
  bool begin_launch(std::size_t number, const LaunchRecord& record, const LaunchShape& shape,
                    metalane_launch& launch, ThreadgroupRunner& runner, std::string& why);
  void end_launch();
  void begin_group(std::uint64_t number);
  void end_group();
  // After a group: whether what the checker keeps has no room.
  bool out_of_memory() const noexcept { return out_of_memory_; }
  // After the group was left: whether for a finding.
  bool left_for_finding() const noexcept { return left_; }
  void incomplete_barrier(const ThreadgroupRunner::BarrierPlace& place, const std::string& description);

  // GroupObserver.
  void enter_simdgroup(std::uint32_t index) noexcept override;
  void barrier(std::uint32_t site) noexcept override;
  void collective(std::uint32_t site, std::uint32_t active) noexcept override;

 private:
  // Regions: arguments by index, threadgroup memory outside every variable, its variables and arguments by
  // place, and what is no memory.
  static constexpr std::uint32_t first_variable = CheckArena::slot_count;
  static constexpr std::uint32_t max_variables = 600;
  static constexpr std::uint32_t null_region = first_variable + max_variables;
  enum Memory : std::uint32_t { device_memory, threadgroup_memory };
  // What a barrier's mem_flags order.
  static constexpr std::uint32_t flag_device = 1, flag_threadgroup = 2;

  class Unleavable;
  struct Hooks;
  // An access, and another one that nothing orders with it.
  struct Conflict {
    std::uint32_t region = 0;
    std::uint64_t at = 0;
    std::uint64_t nbytes = 0;
    Mark self;
    Touch self_touch = Touch::load;
    bool is_range = false;  // of any number of bytes, as structs are copied
    Mark other = {};
    bool other_writes = false;
    // One of each kind an access.
    bool told_writer = false, told_reader = false, told_unwritten = false;
    std::uint64_t unwritten = 0;
  };
  // A store whose bytes are compared with what was there before, once it has been made.
  struct PendingStore {
    Conflict conflict;
    std::uint64_t address = 0;
    std::uint32_t nbytes = 0;
    std::uint8_t before[64];
  };
  // Memory that cannot be mapped twice, copied for a launch: whole pages [begin, end).
  struct Copy {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::unique_ptr<CopiedPages> pages;
  };
  struct WriteBack {
    const Copy* copy;
    std::uint64_t address;
    std::uint64_t nbytes;
  };
  // Addresses that one interval's launches may write, and what overlaps them.
  struct Tracked {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::unique_ptr<ShadowMemory> shadow;
  };

  // checker_launch.cpp
  void begin_interval(std::size_t first);
  Tracked* tracked_at(std::uint64_t address);
  void plan_copies(const LaunchRecord& record);
  bool make_copies(const LaunchRecord& record, std::string& why);
  bool show_argument(const KernelArgument& argument, const LaunchRecord& record, metalane_launch& launch,
                     std::string& why);
  bool place_threadgroup_memory(const LaunchRecord& record, metalane_launch& launch);
  void place_variable(std::uint32_t place, std::string name, std::uint64_t nbytes,
                      std::uint32_t element_bytes);

  // checker_access.cpp
  template <typename Body>
  void guarded(const Body& body);
  std::uint32_t region_at(std::uint64_t address) const noexcept;
  void count(std::uint32_t here, std::uint64_t nbytes) noexcept;
  template <Touch touch, bool is_range>
  void access(std::uint64_t address, std::uint64_t nbytes, const void* pc);
  template <Touch touch, bool is_range>
  void access_elsewhere(std::uint64_t address, std::uint64_t nbytes, const void* pc);
  template <Touch touch, bool is_range>
  void access_in_full(std::uint64_t address, std::uint64_t nbytes, const void* pc);
  bool adds_nothing(const CheckRegion& region, std::uint64_t at, std::uint64_t nbytes) const noexcept;
  std::uint32_t instruction_of(const void* pc, std::uint32_t region, Touch touch);
  template <Touch touch, bool is_range>
  void watch(const CheckRegion& region, std::uint32_t here, std::uint64_t at, std::uint64_t nbytes);
  void track(const CheckRegion& region, Conflict& access);
  bool is_ordered(Mark other, Memory memory, std::uint32_t thread) const noexcept;
  bool clashes(Mark other, Mark self, Memory memory) const noexcept;
  std::uint32_t distance(Mark a, Mark b) const noexcept;
  void ask_written(const Cell& cell, Conflict& access, std::uint64_t at, std::uint64_t nbytes);
  void read_cell(Cell& cell, Memory memory, Conflict& access, std::uint64_t at);
  void write_cell(Cell& cell, Memory memory, Conflict& access, std::uint64_t at);
  void ask_initialized(const CheckRegion& region, const Conflict& access);
  bool is_own(std::uint64_t address) const noexcept;
  std::uint32_t nearest_region(std::uint64_t address) const noexcept;
  void out_of_bounds(std::uint64_t address, std::uint64_t nbytes, Touch touch, const void* pc);
  void store_to_const(std::uint32_t region, std::uint64_t at, std::uint64_t nbytes, Touch touch,
                      const void* pc);

  // checker_conflict.cpp
  void conflict(Conflict& access, Mark other, bool other_writes, std::uint64_t at);
  static bool happen_in_turn(const Conflict& conflict);
  void decide(const Conflict& conflict, bool equal_values);
  void compare_pending();
  void settle_lockstep();
  template <typename Body>
  void guard(const Body& body) noexcept;
  void new_segment() noexcept;
  void record(CheckKind kind, const Conflict& conflict, bool with_other, std::string detail);
  CheckAccess access_of(Mark mark, Touch touch, std::uint64_t nbytes) const;
  void absent_lane(std::uint32_t lane, std::int32_t from);
  void ask_all_lanes(std::uint32_t active);
  void record_wait(std::uint32_t site, std::uint32_t thread, std::string detail);
  void fence(std::uint32_t flags);

  const CheckOptions options_;
  CheckedAllocations allocations_;

  std::mutex mutex_;  // held while a submission runs: guards all below
  CheckFindings findings_;
  std::vector<std::shared_ptr<CheckedModule>> modules_;
  CheckLog log_;

  // The submission and interval.
  const CommandList* list_ = nullptr;
  std::unique_lock<std::mutex> submission_lock_;
  CheckArena arena_;
  std::vector<Tracked> tracked_;
  std::vector<Copy> copies_;
  std::vector<WriteBack> write_back_;
  CheckLaunches launches_;
  std::uint32_t interval_first_ = 1;  // segment

  // The launch and group that run.
  ThreadgroupRunner* runner_ = nullptr;
  const metalane_group* group_ = nullptr;
  std::shared_ptr<CheckedModule> module_;
  std::vector<CheckRegion> regions_;
  // Of module_ and regions_, for each access.
  const CheckRegion* region_data_ = nullptr;
  Instruction* instructions_ = nullptr;
  const std::uint16_t* by_offset_ = nullptr;
  std::uint64_t text_begin_ = 0, text_bytes_ = 0;
  std::vector<std::unique_ptr<ShadowMemory>> variable_shadows_;
  std::vector<std::shared_ptr<InitializedBytes>> initialized_;  // of the launch's arguments
  std::uint64_t group_count_ = 0;
  std::uint64_t arena_begin_ = 0, arena_bytes_ = 0, variables_begin_ = 0;
  const void* thread_storage_ = nullptr;
  std::uint32_t arena_shift_ = 0;
  std::uint32_t variable_count_ = 0;
  bool track_races_ = false;
  bool track_threadgroup_ = false;
  bool left_ = false;
  bool out_of_memory_ = false;
  bool logs_ = false;

  // Order. Segment numbers; see ARCHITECTURE.md.
  std::uint32_t segment_ = 0;
  std::uint32_t group_first_ = 0;
  std::uint32_t simdgroup_ = 0;
  std::uint32_t collective_site_ = 0;
  std::uint32_t barrier_first_[2] = {};  // by Memory: of the group's newest barrier
  std::uint32_t simdgroup_first_[2][32] = {};
  std::uint32_t ended_[32] = {};  // lanes of each simdgroup that came to the kernel's end
  std::vector<std::uint32_t> flags_of_site_;

  bool has_pending_store_ = false;
  PendingStore pending_store_;
  std::vector<Conflict> pending_lockstep_;
  std::map<std::uint64_t, std::size_t> pending_index_;
};

}  // namespace metalane::cpu
