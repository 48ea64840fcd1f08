// See processors.h. Without a move, Linux leaves two threads that woke together on one processor for
// milliseconds while another idles: a third of the launches of 2.5 ms then took 5 ms on two processors.
#include "backends/cpu/processors.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <thread>

namespace metalane::cpu {

#if defined(__linux__)

unsigned usable_processor_count() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) > 0)
    return static_cast<unsigned>(CPU_COUNT(&allowed));
  return std::max(1u, std::thread::hardware_concurrency());  // more processors than a cpu_set_t holds
}

void name_current_thread(const char* name) noexcept { pthread_setname_np(pthread_self(), name); }

int current_processor() noexcept { return sched_getcpu(); }

void leave_processors(std::span<const int> taken) noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more processors than a cpu_set_t holds
  cpu_set_t others = allowed;
  for (const int processor : taken) {
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_CLR(static_cast<unsigned>(processor), &others);
  }
  if (CPU_COUNT(&others) == 0) return;
  // The first call moves the thread, the second leaves it free again.
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

#else  // macOS: it says and moves nothing

unsigned usable_processor_count() noexcept { return std::max(1u, std::thread::hardware_concurrency()); }
void name_current_thread(const char* name) noexcept { pthread_setname_np(name); }
int current_processor() noexcept { return -1; }
void leave_processors(std::span<const int>) noexcept {}

#endif

}  // namespace metalane::cpu
