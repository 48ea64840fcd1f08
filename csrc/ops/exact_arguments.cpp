// See exact_arguments.h.
#include "ops/exact_arguments.h"

#include <metalane/error.h>

#include <string>

#include "core/device_state.h"
#include "core/storage.h"

namespace metalane::ops {

namespace {

// Which of the checks below a buffer fails, as an error.
[[noreturn]] void fail(const char* op, const ExactArgument& expected, const core::DeviceState& device) {
  const Buffer& buffer = expected.buffer;
  if (!buffer || buffer.released()) {
    throw ArgumentError(op, expected.name, "a buffer", buffer ? "a released buffer" : "nothing");
  }
  if (buffer.storage()->device().get() != &device) {
    throw ArgumentError(op, expected.name, "a buffer of the encoder's device", "a buffer of another device");
  }
  if (buffer.dtype() != expected.dtype) {
    throw DTypeError(op, expected.name, std::string(name_of(expected.dtype)),
                     std::string(name_of(buffer.dtype())));
  }
  if (buffer.shape() != shape_of(expected)) {
    throw ArgumentError(op, expected.name,
                        std::string(name_of(expected.dtype)) + " " + shape_of(expected).str(),
                        std::string(name_of(buffer.dtype())) + " " + buffer.shape().str());
  }
  throw ArgumentError(op, expected.name, "writable", "a read-only buffer");
}

// The buffer's addresses, once it is what `expected` says.
AddressRange check(const char* op, const ExactArgument& expected, const core::DeviceState& device) {
  const Buffer& buffer = expected.buffer;
  const Shape& shape = buffer.shape();
  const core::Storage* storage = buffer.storage().get();
  bool good = storage != nullptr && !storage->released() && storage->device().get() == &device &&
              buffer.dtype() == expected.dtype && shape.rank() == expected.rank &&
              !(expected.written && buffer.readonly());
  for (std::uint32_t axis = 0; good && axis < expected.rank; ++axis)
    good = shape[axis] == expected.dims[axis];
  if (!good) fail(op, expected, device);
  const std::uint64_t begin = reinterpret_cast<std::uint64_t>(storage->address()) + buffer.byte_offset();
  return {begin, begin + buffer.nbytes()};
}

}  // namespace

Shape shape_of(const ExactArgument& argument) {
  return Shape(std::span<const std::uint64_t>(argument.dims.data(), argument.rank));
}

void check_exact_buffers(const char* op, const core::DeviceState& device,
                         std::span<const ExactArgument> arguments, std::size_t reads) {
  constexpr std::size_t most = 16;
  std::array<AddressRange, most> ranges;
  for (std::size_t i = 0; i < arguments.size(); ++i) ranges[i] = check(op, arguments[i], device);
  for (std::size_t i = reads; i < arguments.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (ranges[i].overlaps(ranges[j])) {
        throw ArgumentError(op, arguments[i].name, "memory of its own, because it is written",
                            "memory that overlaps " + std::string(arguments[j].name));
      }
    }
  }
}

}  // namespace metalane::ops
