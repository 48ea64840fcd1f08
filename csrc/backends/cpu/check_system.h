// What the checker needs of the system beyond POSIX.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metalane::cpu {

// Whether there is all of it; without it a device with a checker cannot be opened.
#if defined(__linux__)
constexpr bool has_checker = true;
#else
constexpr bool has_checker = false;
#endif

// Maps the shared pages at `from` at `to`, too, over what is there. False when the system refuses.
bool map_again(void* to, void* from, std::size_t nbytes) noexcept;

// An empty file in memory, closed on exec; -1 where the system has none.
int open_memory(const char* name) noexcept;

// The code of the loaded object that holds an address, and all of that object; empty for other addresses.
struct CodeRange {
  std::uint64_t load_address = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t image_begin = 0;
  std::uint64_t image_end = 0;
};
CodeRange find_code(std::uint64_t address);

}  // namespace metalane::cpu
