// Buffers of operators that ask for one dtype and one shape: the checks, each in one place.
#pragma once

#include <metalane/buffer.h>

#include <array>
#include <cstdint>
#include <span>

namespace metalane::core {
class DeviceState;
}

namespace metalane::ops {

// What a buffer must be. Unused dimensions are 0.
struct ExactArgument {
  const char* name;
  const Buffer& buffer;
  DType dtype;
  std::uint32_t rank;
  std::array<std::uint64_t, 4> dims;
  bool written;
};

Shape shape_of(const ExactArgument& argument);

// Throws ArgumentError or DTypeError for the first that is not so, or that is written and overlaps another.
// The first `reads` arguments are not written; message texts are built only where a check fails.
void check_exact_buffers(const char* op, const core::DeviceState& device,
                         std::span<const ExactArgument> arguments, std::size_t reads);

}  // namespace metalane::ops
