// Which processors there are, and on which of them the threads of one launch run.
#pragma once

#include <span>

namespace metalane::cpu {

// Those that this process may use: a container's limit counts. At least 1.
unsigned usable_processor_count() noexcept;

// For debuggers; at most 15 characters.
void name_current_thread(const char* name) noexcept;

// Of the calling thread, at this moment; -1 where the system does not say.
int current_processor() noexcept;

// Moves the calling thread to a processor that is none of `taken`, where it may use one; it may be moved on
// later as any thread.
void leave_processors(std::span<const int> taken) noexcept;

}  // namespace metalane::cpu
