// What a spinning thread does between two looks.
#pragma once

namespace metalane::core {

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace metalane::core
