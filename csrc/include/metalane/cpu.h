// What is the same for all CPU devices of a process: threads, the processor's instruction sets, and the disk
// cache of compiled kernels.
#pragma once

#include <metalane/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace metalane::cpu {

// Worker threads of CPU devices opened from now on; 0, the default: one a processor that the process may use,
// by its affinity and its container's quota. Throws ArgumentError above 4,096.
METALANE_API void set_thread_count(std::uint64_t count);

// What DeviceOptions::isa may name on this processor, the fastest first, which a device takes by
// itself.
METALANE_API std::vector<std::string> instruction_sets();

struct KernelCacheInfo {
  std::string directory;
  std::uint64_t entries = 0;      // compiled kernels
  std::uint64_t nbytes = 0;       // of all of them
  std::uint64_t limit_bytes = 0;  // the least recently used ones go when more is stored
};

// Where kernels compiled at run time are kept: `directory`, or where empty $METALANE_CACHE_DIR, else
// $XDG_CACHE_HOME/metalane, else ~/.cache/metalane. The limit is 1 GiB by default.
METALANE_API void set_kernel_cache(const std::string& directory, std::uint64_t limit_bytes);
METALANE_API KernelCacheInfo kernel_cache_info();
// Deletes the least recently used compiled kernels until at most `nbytes` are left; returns how many went.
METALANE_API std::uint64_t prune_kernel_cache(std::uint64_t nbytes);
// Deletes every compiled kernel; returns how many. Kernels in use stay usable.
METALANE_API std::uint64_t clear_kernel_cache();

}  // namespace metalane::cpu
