// See processors.h. Without a move, Linux leaves two threads that woke together on one processor for
// milliseconds while another idles: a third of the launches of 2.5 ms then took 5 ms on two processors.
#include "backends/cpu/processors.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

namespace metalane::cpu {

namespace {

// Processors' worth of time; infinite: no limit. Version 2 of control groups has both numbers in one file.
double quota_in(const std::string& folder) {
  double quota = 0, period = 0;
  std::ifstream both(folder + "/cpu.max");
  if (!(both >> quota >> period)) {
    std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
    if (!(first >> quota) || !(second >> period)) return INFINITY;
  }
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

}  // namespace

// A group's limit holds for those within it. Where a container sees its own group as the root, the path that
// the system names may not exist.
unsigned processors_by_quota(std::istream& groups, const std::string& root) {
  double least = INFINITY;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string mount = version_2 ? root : root + "/cpu";
    for (std::string path = line.substr(second + 1);;) {
      least = std::min(least, quota_in(mount + path));
      const std::size_t parent = path.rfind('/');
      if (parent == std::string::npos || path == "/") break;
      path.resize(parent);
    }
  }
  return least < 1e6 ? std::max(1u, static_cast<unsigned>(std::ceil(least))) : 0;
}

#if defined(__linux__)

unsigned usable_processor_count() {
  std::ifstream groups("/proc/self/cgroup");
  const unsigned quota = processors_by_quota(groups, "/sys/fs/cgroup");
  unsigned count = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t allowed;  // may hold too few processors
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) > 0)
    count = static_cast<unsigned>(CPU_COUNT(&allowed));
  return quota != 0 ? std::min(count, quota) : count;
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

void send_away(std::thread& waiting) noexcept {
  const pthread_t thread = waiting.native_handle();
  const int mine = current_processor();
  cpu_set_t allowed;
  if (mine < 0 || mine >= CPU_SETSIZE || pthread_getaffinity_np(thread, sizeof allowed, &allowed) != 0)
    return;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<unsigned>(mine), &others);
  if (CPU_COUNT(&others) == 0) return;
  if (pthread_setaffinity_np(thread, sizeof others, &others) == 0)
    pthread_setaffinity_np(thread, sizeof allowed, &allowed);
}

#else  // macOS: it says and moves nothing

unsigned usable_processor_count() { return std::max(1u, std::thread::hardware_concurrency()); }
void name_current_thread(const char* name) noexcept { pthread_setname_np(name); }
int current_processor() noexcept { return -1; }
void leave_processors(std::span<const int>) noexcept {}
void send_away(std::thread&) noexcept {}

#endif

}  // namespace metalane::cpu
