// The checker: what a device opened with it watches, and what it found.
#pragma once

#include <metalane/error.h>
#include <metalane/export.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metalane {

// What the CPU device watches while it runs shaders. With nothing set it runs them as always.
struct CheckOptions {
  bool races = false;          // also `same-value` and `lockstep`
  bool bounds = false;         // outside the bound view, the threadgroup variable, or through null
  bool uninitialised = false;  // reads of memory from empty(), or of threadgroup memory, never written
  bool divergence = false;     // barriers not reached by all, shuffles from lanes that take no part
  bool traffic = false;        // counts accesses
  bool as_list = false;        // findings fail no submission: they are read from Device::check_report()

  static constexpr CheckOptions all() noexcept { return {true, true, true, true, true, false}; }
  constexpr bool any() const noexcept { return races || bounds || uninitialised || divergence || traffic; }
};

enum class CheckKind : std::uint8_t { race, bounds, uninitialised, divergence, same_value, lockstep };
enum class CheckSeverity : std::uint8_t { error, warning };
enum class CheckAccessKind : std::uint8_t { load, store, atomic, wait };

// "race", "same-value", ...; "error", "warning"; "load", ...
METALANE_API const char* name_of(CheckKind kind) noexcept;
METALANE_API const char* name_of(CheckSeverity severity) noexcept;
METALANE_API const char* name_of(CheckAccessKind kind) noexcept;

// One access, barrier or collective of one thread.
struct CheckAccess {
  std::string kernel;
  std::string file;        // the name that the source was registered under, or of the header
  std::uint32_t line = 0;  // from 1; 0: not known
  CheckAccessKind access = CheckAccessKind::load;
  std::uint64_t nbytes = 0;
  std::array<std::uint32_t, 3> thread{};       // [[thread_position_in_grid]]
  std::array<std::uint32_t, 3> threadgroup{};  // [[threadgroup_position_in_grid]]
  std::uint32_t thread_index = 0;              // [[thread_index_in_threadgroup]]
  std::uint32_t simdgroup = 0;                 // [[simdgroup_index_in_threadgroup]]
  std::uint32_t lane = 0;                      // [[thread_index_in_simdgroup]]
};

// One fault of a program, however often it happens: the first time that it did.
struct CheckFinding {
  CheckKind kind = CheckKind::race;
  CheckSeverity severity = CheckSeverity::error;
  std::string argument;              // the kernel's argument or threadgroup variable; empty: none
  std::string memory;                // "device", "constant", "threadgroup", or empty
  std::int64_t byte_offset = 0;      // from the start of what is bound; negative: before it
  std::int64_t element_index = 0;    // the same in elements of the argument's type, rounded down
  std::uint64_t bound_nbytes = 0;    // bytes of what is bound, or of the variable
  CheckAccess access;                // what was found
  std::optional<CheckAccess> other;  // what it conflicts with
  std::uint64_t count = 0;           // how often
  std::string message;               // a finished sentence
};

// What one line of a kernel did with one argument.
struct CheckTraffic {
  std::string kernel;
  std::string argument;
  std::string memory;
  std::string file;
  std::uint32_t line = 0;
  CheckAccessKind access = CheckAccessKind::load;
  // Exact, over every launch.
  std::uint64_t count = 0;   // accesses
  std::uint64_t nbytes = 0;  // all of them together
  // Of the threadgroups whose accesses were logged; everything below is of these alone.
  std::uint64_t sampled_count = 0;
  std::uint64_t sampled_nbytes = 0;
  std::uint64_t simdgroup_nbytes = 0;    // distinct bytes of each simdgroup, added up
  std::uint64_t threadgroup_nbytes = 0;  // distinct bytes of each threadgroup, added up
  std::uint64_t requests = 0;            // accesses of a simdgroup's lanes together
  std::uint64_t lines = 0;               // 128-byte cache lines of them (device memory)
  std::uint64_t bank_cycles = 0;         // turns that 32 banks of 4 bytes take (threadgroup memory)
};

// What a kernel did with one argument or threadgroup variable, wherever in its source: a byte that several
// lines touch is one.
struct CheckArgument {
  std::string kernel;
  std::string argument;
  std::string memory;
  // Exact, over every launch. Atomics that read and write count in both.
  std::uint64_t loaded_nbytes = 0;
  std::uint64_t stored_nbytes = 0;
  // Of the threadgroups whose accesses were logged.
  std::uint64_t sampled_nbytes = 0;      // all accesses together
  std::uint64_t thread_nbytes = 0;       // distinct bytes of each thread, added up
  std::uint64_t simdgroup_nbytes = 0;    // of each simdgroup
  std::uint64_t threadgroup_nbytes = 0;  // of each threadgroup
};

// Where threads of one threadgroup went, for pictures: one access.
struct CheckSample {
  std::uint32_t traffic = 0;  // index into CheckReport::traffic
  std::uint32_t thread_index = 0;
  std::uint32_t turn = 0;  // which request of its simdgroup
  std::uint64_t byte_offset = 0;
  std::uint32_t nbytes = 0;
};

// What was waited for, over every launch of one kernel.
struct CheckWaits {
  std::string kernel;
  std::string operation;  // "threadgroup_barrier", "simd_sum", ...
  std::string file;
  std::uint32_t line = 0;
  std::uint64_t count = 0;  // times that a threadgroup (barriers) or a simdgroup (collectives) met there
};

struct CheckReport {
  std::vector<CheckFinding> findings;
  std::vector<CheckTraffic> traffic;
  std::vector<CheckArgument> arguments;
  std::vector<CheckWaits> waits;
  std::vector<CheckSample> samples;
};

// A submission whose launches were found at fault; code() is "check", the message names every finding.
class METALANE_API CheckError : public CommandBufferError {
 public:
  CheckError(std::string label, const std::string& message, std::vector<CheckFinding> findings)
      : CommandBufferError("check", std::move(label), false, message), findings_(std::move(findings)) {}
  // Warnings of the same submission included.
  const std::vector<CheckFinding>& findings() const noexcept { return findings_; }

 private:
  std::vector<CheckFinding> findings_;
};

}  // namespace metalane
