// Which processors there are, and on which of them the threads of one launch run.
#pragma once

#include <istream>
#include <span>
#include <string>
#include <thread>

namespace metalane::cpu {

// Those that this process may use: its affinity and a container's limit count. At least 1.
unsigned usable_processor_count();

// How many processors' worth of time Linux' control groups grant, rounded up; 0: any. `groups` is as
// /proc/self/cgroup, `root` the folder where they are mounted.
unsigned processors_by_quota(std::istream& groups, const std::string& root);

// For debuggers; at most 15 characters.
void name_current_thread(const char* name) noexcept;

// Of the calling thread, at this moment; -1 where the system does not say.
int current_processor() noexcept;

// Moves the calling thread to a processor that is none of `taken`, where it may use one; it may be moved on
// later as any thread.
void leave_processors(std::span<const int> taken) noexcept;

// Moves another thread that waits for the calling thread's processor to one of the others that it may use.
void send_away(std::thread& waiting) noexcept;

}  // namespace metalane::cpu
