// The checks of one launch: what the caller gave becomes a backend::Launch or an error.
#pragma once

#include <metalane/launch.h>

#include <array>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/registry.h"
#include "core/timeline.h"

namespace metalane::core {

class DeviceState;

// A checked launch on the stack: no allocation.
struct CheckedLaunch {
  backend::Launch launch;
  std::array<backend::BufferBinding, max_buffers> buffers;
  std::array<const Buffer*, max_buffers + 1> handles;  // of `buffers`, then of the indirect counts
  std::array<backend::BytesBinding, max_buffers> bytes;
  std::array<backend::ThreadgroupBinding, max_buffers> threadgroup_memory;
  std::array<TouchedRange, max_buffers + 1> touched;
  std::size_t buffer_count = 0, bytes_count = 0, threadgroup_count = 0, touched_count = 0, handle_count = 0;
};

// Fills `out`. Throws ArgumentError or DTypeError naming the kernel and the argument; nothing is encoded
// then.
void check_launch(const DeviceState& device, const PipelineState& pipeline, std::span<const KernelArg> args,
                  const Grid& grid, std::span<const ThreadgroupMemory> threadgroup_memory,
                  CheckedLaunch& out);

}  // namespace metalane::core
