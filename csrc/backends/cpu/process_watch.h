// Waiting for the end of a child process together with other descriptors.
#pragma once

#include <sys/types.h>

namespace metalane::cpu {

// A descriptor of the caller's, closed on exec, which poll() finds readable once the child has ended; -1
// where the system has none.
int watch_process(pid_t child) noexcept;

}  // namespace metalane::cpu
