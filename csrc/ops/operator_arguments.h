// What operators check of their arguments, each in one place.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>

#include <cstdint>
#include <span>
#include <string>

namespace metalane::core {
class DeviceState;
}

namespace metalane::ops {

// The device of an open encoder; throws ArgumentError.
core::DeviceState& device_of(const char* op, const CommandEncoder& encoder);

// A buffer of one of `dtypes` and of at least `nbytes`, whatever its shape.
struct BufferArgument {
  const char* name;
  const Buffer& buffer;
  std::span<const DType> dtypes;
  std::uint64_t nbytes;
  std::uint32_t alignment;  // of its first byte, as the kernels read it
  bool written;
};

// Throws ArgumentError or DTypeError for the first that is not so, or that is written and overlaps another.
void check_buffers(const char* op, const core::DeviceState& device,
                   std::span<const BufferArgument> arguments);

// The three u32 of an operator's indirect grid, as an argument to check.
BufferArgument grid_argument(const Buffer& grid);
// Threadgroups as `grid` counts them when the launch starts, or `count` where it is empty.
Grid grid_of(const Buffer& grid, const Size3& count, std::uint32_t threads);

// A number of at least 1 and at most `most`.
void check_count(const char* op, const char* argument, std::uint64_t value, std::uint64_t most);

}  // namespace metalane::ops
