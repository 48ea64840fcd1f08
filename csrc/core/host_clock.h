// The clock of commits, completions and Metal's GPU times.
#pragma once

#include <chrono>
#include <ctime>

namespace metalane::core {

inline double host_seconds() noexcept {
#if defined(__APPLE__)
  return static_cast<double>(clock_gettime_nsec_np(CLOCK_UPTIME_RAW)) * 1e-9;  // mach_absolute_time
#else
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

}  // namespace metalane::core
