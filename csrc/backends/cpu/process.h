// Running another program and reading what it prints; what all devices of the process share a lock for.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace metalane::cpu {

// Guards the backend's process-wide tables. Held for microseconds only: fork() waits for it, so that a child
// finds it free.
std::mutex& process_mutex();

struct ProcessLimits {
  double seconds;              // of running; each process started has as many of processor time
  std::uint64_t memory_bytes;  // address space of each process
  std::uint64_t file_bytes;    // each file written
};

struct ProcessResult {
  int exit_code = -1;      // 128 + signal where a signal ended it
  bool timed_out = false;  // killed at the limit
  std::string output;      // stdout and stderr together, at most 1 MiB
  std::string error;       // why it could not be started; empty: it ran
};

// Runs argv[0] (found on PATH) in a process group of its own, which is killed with everything in it at the
// time limit, when the calling process dies, and when core::check_interrupt() throws, which is passed on.
// `temporary_directory` becomes its TMPDIR.
ProcessResult run_process(const std::vector<std::string>& argv, const std::string& temporary_directory,
                          const ProcessLimits& limits);
// The path that run_process would take for `program`; empty where there is none.
std::string find_program(const std::string& program);

}  // namespace metalane::cpu
