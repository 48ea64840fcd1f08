// Tells a process from the one it was forked from.
#pragma once

#include <cstdint>

namespace metalane::core {

// Zero in the process that loaded the library, one more in each generation of forked children. Whoever owns
// threads or locks keeps the value it was made under and compares: unequal means that the threads stayed in
// the parent and that a lock may be held by nobody. Async-signal-safe, takes no lock.
std::uint64_t fork_generation() noexcept;

}  // namespace metalane::core
