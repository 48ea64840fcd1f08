// A module compiled for the checker: its threadgroup variables, the instructions that touch memory, and the
// lines that these come from.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/kernel_cache.h"
#include "core/backend.h"
#include "msl/stdlib/check_abi.h"

namespace metalane::cpu {

// An access of a threadgroup that is logged one by one.
struct LoggedAccess {
  std::uint32_t instruction;
  std::uint32_t segment;
  std::uint32_t turn;  // how often the thread came to the instruction in the segment, before
  std::uint16_t thread;
  std::uint16_t nbytes;
  std::uint64_t at;  // from the start of what is bound
};

enum class Touch : std::uint8_t { load, store, atomic_load, atomic_store, atomic_update };
constexpr bool writes(Touch touch) noexcept { return touch != Touch::load && touch != Touch::atomic_load; }
constexpr bool reads(Touch touch) noexcept { return touch != Touch::store && touch != Touch::atomic_store; }
constexpr bool is_atomic(Touch touch) noexcept { return touch >= Touch::atomic_load; }

// One instruction with one argument or threadgroup variable. One that meets several is several of these.
struct Instruction {
  std::uint64_t place = 0;  // the segment and thread that came here last: see Checker
  std::uint64_t count = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t lanes = 0;  // of the simdgroup whose segment that was: bit i, lane i came here
  std::uint32_t turn = 0;   // how often that thread did, before
  std::uint32_t region = 0;
  std::uint16_t next = 0;  // the same instruction with another region; 0: none
  Touch touch = Touch::load;
  std::uint8_t size = 0;  // of the last access, up to 255
  const void* pc = nullptr;
  // Of logged threadgroups: see CheckTraffic.
  std::uint64_t sampled_count = 0, sampled_nbytes = 0, simdgroup_nbytes = 0, threadgroup_nbytes = 0;
  std::uint64_t requests = 0, lines = 0, bank_cycles = 0;
};

struct SourceLine {
  std::string file;
  std::uint32_t line = 0;
};

// Of one pipeline. Used by one launch at a time.
class CheckedModule {
 public:
  static constexpr std::uint32_t max_instructions = 65535;

  // Throws CompileError where the module has no table for the checker.
  CheckedModule(std::shared_ptr<const LoadedModule> library, const std::string& kernel,
                const metalane_check_host& host);

  const metalane_module& module() const noexcept { return library_->module(); }
  const std::string& kernel() const noexcept { return kernel_; }
  std::uint32_t variable_count() const { return table_->variable_count(); }
  const metalane_check_variable& variable(std::uint32_t number) const { return table_->variables()[number]; }
  const char* variable_name(std::uint32_t number) const { return table_->names[variable(number).id]; }

  // By the offset of what a call returns to: the newest instruction there.
  const std::vector<std::uint16_t>& by_offset() const noexcept { return by_offset_; }
  std::uint64_t text_begin() const noexcept { return text_begin_; }
  // Whether an address is in the loaded module: its code, constants or data.
  bool contains(std::uint64_t address) const noexcept { return address - image_begin_ < image_bytes_; }
  // The one variable that the module has for each OS thread: the caller's.
  const void* thread_storage() const { return thread_storage_(); }
  // Accesses that were logged so far.
  std::uint64_t logged() const noexcept { return logged_; }
  void count_logged(std::uint64_t count) noexcept { logged_ += count; }

  // The number of the instruction that `pc` is behind, where it is known with this region; else 0.
  std::uint32_t find(const void* pc, std::uint32_t region) const noexcept {
    const std::uint64_t at = reinterpret_cast<std::uint64_t>(pc) - text_begin_;
    if (at >= by_offset_.size()) return 0;
    std::uint32_t number = by_offset_[at];
    while (number != 0 && instructions_[number].region != region) number = instructions_[number].next;
    return number;
  }
  // The same, made where it is not known: allocates. Instruction 0 stands for all past max_instructions.
  std::uint32_t add(const void* pc, std::uint32_t region, Touch touch);
  Instruction& instruction(std::uint32_t number) noexcept { return instructions_[number]; }
  std::vector<Instruction>& instructions() noexcept { return instructions_; }

  // What findings and counts call an argument or variable. The same in every launch of the kernel.
  struct RegionName {
    std::string name;
    std::string memory;
  };
  // Of logged threadgroups, all instructions together: see CheckArgument.
  struct RegionCounts {
    std::uint64_t thread_nbytes = 0, simdgroup_nbytes = 0, threadgroup_nbytes = 0;
  };
  void name_region(std::uint32_t region, const std::string& name, const char* memory);
  const RegionName& region_name(std::uint32_t region) const;
  RegionCounts& region_counts(std::uint32_t region);

  // The first threadgroup that was logged, as far as there is room.
  const std::vector<LoggedAccess>& samples() const noexcept { return samples_; }
  void keep_samples(const std::vector<LoggedAccess>& accesses);

  // Finds the lines of these instructions, as one program run; known ones are not asked for again.
  void find_lines(const std::vector<std::uint32_t>& numbers);
  // Empty where it was not found.
  SourceLine line(std::uint32_t number) const;
  // How often each site of the module was met at.
  std::vector<std::uint64_t>& waits() noexcept { return waits_; }
  void forget_counts();

 private:
  const std::shared_ptr<const LoadedModule> library_;
  const std::string kernel_;
  const metalane_check_module* table_ = nullptr;
  const void* (*const thread_storage_)();
  std::uint64_t load_address_ = 0;  // what the file's addresses are relative to
  std::uint64_t text_begin_ = 0;
  std::uint64_t image_begin_ = 0, image_bytes_ = 0;
  std::vector<std::uint16_t> by_offset_;
  std::vector<Instruction> instructions_;
  std::map<const void*, SourceLine> lines_;
  std::vector<std::uint64_t> waits_;
  std::uint64_t logged_ = 0;
  std::vector<RegionName> region_names_;
  std::vector<RegionCounts> region_counts_;
  std::vector<LoggedAccess> samples_;
};

}  // namespace metalane::cpu
