// On which processors the threads of one launch run.
#pragma once

#include <span>

namespace metalane::cpu {

// Of the calling thread, at this moment; -1 where the system does not say.
int current_processor() noexcept;

// Moves the calling thread to a processor that is none of `taken`, where it may use one; it may be moved on
// later as any thread.
void leave_processors(std::span<const int> taken) noexcept;

}  // namespace metalane::cpu
