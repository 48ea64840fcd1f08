// What systems do with mapped pages beyond POSIX.
#pragma once

#include <cstddef>

namespace metalane::cpu {

// Huge pages save most of the page faults and TLB misses of large buffers, and commit memory that a small one
// would not. Systems that choose for themselves take no advice.
void prefer_huge_pages(void* address, std::size_t nbytes) noexcept;
void avoid_huge_pages(void* address, std::size_t nbytes) noexcept;

// Makes whole pages of a private mapping refuse every access. False when the system has no room for that.
bool install_guard(void* address, std::size_t nbytes) noexcept;

}  // namespace metalane::cpu
