// See operator_arguments.h. Messages are built only where a check fails.
#include "ops/operator_arguments.h"

#include <metalane/error.h>

#include <algorithm>
#include <array>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/storage.h"

namespace metalane::ops {

namespace {

std::string names_of(std::span<const DType> dtypes) {
  std::string names;
  for (const DType dtype : dtypes) names += (names.empty() ? "" : " or ") + std::string(name_of(dtype));
  return names;
}

// The argument's addresses, as far as the operator goes.
AddressRange check_buffer(const char* op, const core::DeviceState& device, const BufferArgument& argument) {
  const Buffer& buffer = argument.buffer;
  const core::Storage* storage = buffer.storage().get();
  if (storage == nullptr || storage->released()) {
    throw ArgumentError(op, argument.name, "a buffer", storage == nullptr ? "nothing" : "a released buffer");
  }
  if (storage->device().get() != &device) {
    throw ArgumentError(op, argument.name, "a buffer of the encoder's device", "a buffer of another device");
  }
  if (std::find(argument.dtypes.begin(), argument.dtypes.end(), buffer.dtype()) == argument.dtypes.end()) {
    throw DTypeError(op, argument.name, names_of(argument.dtypes), std::string(name_of(buffer.dtype())));
  }
  if (buffer.nbytes() < argument.nbytes) {
    throw ArgumentError(op, argument.name,
                        "at least " + std::to_string(argument.nbytes / size_of(argument.dtypes[0])) + " " +
                            std::string(name_of(argument.dtypes[0])),
                        std::string(name_of(buffer.dtype())) + " " + buffer.shape().str());
  }
  const std::uint64_t begin = reinterpret_cast<std::uint64_t>(storage->address()) + buffer.byte_offset();
  if (begin % argument.alignment != 0) {
    throw ArgumentError(op, argument.name, "aligned to " + std::to_string(argument.alignment) + " bytes",
                        "byte offset " + std::to_string(buffer.byte_offset()));
  }
  if (argument.written && buffer.readonly()) {
    throw ArgumentError(op, argument.name, "writable", "a read-only buffer");
  }
  return {begin, begin + argument.nbytes};
}

}  // namespace

core::DeviceState& device_of(const char* op, const CommandEncoder& encoder) {
  if (encoder.state() == nullptr || !encoder.is_open()) {
    throw ArgumentError(op, "encoder", "open", "an encoder that was committed, discarded or moved from");
  }
  return *encoder.state()->device();
}

void check_buffers(const char* op, const core::DeviceState& device,
                   std::span<const BufferArgument> arguments) {
  constexpr std::size_t most = 8;
  std::array<AddressRange, most> ranges;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    ranges[i] = check_buffer(op, device, arguments[i]);
    for (std::size_t j = 0; j < i; ++j) {
      if ((arguments[i].written || arguments[j].written) && ranges[i].overlaps(ranges[j])) {
        const std::size_t written = arguments[i].written ? i : j;
        throw ArgumentError(op, arguments[written].name, "memory of its own, because it is written",
                            "memory that overlaps " + std::string(arguments[written == i ? j : i].name));
      }
    }
  }
}

BufferArgument grid_argument(const Buffer& grid) {
  static constexpr std::array<DType, 1> counts = {DType::uint32};
  return {"grid", grid, counts, 3 * sizeof(std::uint32_t), sizeof(std::uint32_t), false};
}

Grid grid_of(const Buffer& grid, const Size3& count, std::uint32_t threads) {
  const Size3 group = {threads, 1, 1};
  return grid ? Grid::indirect(grid, group) : Grid::threadgroups(count, group);
}

void check_count(const char* op, const char* argument, std::uint64_t value, std::uint64_t most) {
  if (value == 0 || value > most) {
    throw ArgumentError(op, argument, "1 to " + std::to_string(most), std::to_string(value));
  }
}

}  // namespace metalane::ops
