// Running another program and reading what it prints; what all devices of the process share a lock for.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace metalane::cpu {

// Guards the backend's process-wide tables. Held for microseconds only: fork() waits for it, so that a child
// finds it free.
std::mutex& process_mutex();

struct ProcessResult {
  int exit_code = -1;      // 128 + signal where a signal ended it
  bool timed_out = false;  // killed at the limit
  std::string output;      // stdout and stderr together, at most 1 MiB
  std::string error;       // why it could not be started; empty: it ran
};

// Runs argv[0] (found on PATH) without a shell, in a process group of its own, for at most `seconds`.
ProcessResult run_process(const std::vector<std::string>& argv, double seconds);
// The path that run_process would take for `program`; empty where there is none.
std::string find_program(const std::string& program);

}  // namespace metalane::cpu
