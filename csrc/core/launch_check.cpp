// See launch_check.h. Messages are built only where a check fails.
#include "core/launch_check.h"

#include <metalane/error.h>

#include <bit>
#include <limits>
#include <string>

#include "core/device_state.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

constexpr std::uint64_t max_inline_bytes = 4096;
constexpr std::uint64_t max_grid = std::numeric_limits<std::uint32_t>::max();

std::string str(const Size3& size) {
  return "(" + std::to_string(size.x) + ", " + std::to_string(size.y) + ", " + std::to_string(size.z) + ")";
}

std::string describe(const KernelArgument& argument) {
  return "argument " + std::to_string(argument.index) + " (" + argument.name + ")";
}

[[noreturn]] void fail(const PipelineState& pipeline, const std::string& argument,
                       const std::string& expected, const std::string& given) {
  throw ArgumentError("dispatch " + pipeline.compiled->signature.name, argument, expected, given);
}

// For errors: the argument whose check this is.
const KernelArgument& argument_of(const PipelineState& pipeline, const ArgumentCheck& check) {
  return pipeline.compiled->signature.arguments[static_cast<std::size_t>(check.argument)];
}

[[noreturn]] void fail(const PipelineState& pipeline, const ArgumentCheck& check, const std::string& expected,
                       const std::string& given) {
  fail(pipeline, describe(argument_of(pipeline, check)), expected, given);
}

[[noreturn]] void fail_index(const PipelineState& pipeline, std::uint32_t index) {
  if (index >= max_buffers) {
    fail(pipeline, "buffer index", "below 31, the size of the buffer argument table", std::to_string(index));
  }
  std::string takes;
  for (const auto& argument : pipeline.compiled->signature.arguments) {
    if (argument.space == AddressSpace::threadgroup) continue;
    takes += (takes.empty() ? "" : ", ") + std::to_string(argument.index) + " (" + argument.name + ")";
  }
  fail(pipeline, "buffer index", "one of " + (takes.empty() ? std::string("none") : takes),
       std::to_string(index));
}

void bind_buffer(const DeviceState& device, const PipelineState& pipeline, const ArgumentCheck& check,
                 std::uint32_t index, const Buffer& buffer, CheckedLaunch& out) {
  const Storage* storage = buffer.storage().get();
  if (storage == nullptr || storage->released()) {
    fail(pipeline, check, "a buffer", "a released buffer");
  }
  if (storage->device().get() != &device) {
    fail(pipeline, check, "a buffer of the encoder's device", "a buffer of another device");
  }
  if (buffer.readonly() && writes(check.access)) {
    fail(pipeline, check, "writable (the kernel declares it `device` without const)", "a read-only buffer");
  }
  std::uint8_t* address = storage->address() + buffer.byte_offset();
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  if ((begin & check.alignment_mask) != 0) {
    fail(pipeline, check,
         "aligned to " + std::to_string(check.alignment_mask + 1) + " bytes for " +
             argument_of(pipeline, check).type.name,
         "byte offset " + std::to_string(buffer.byte_offset()));
  }
  const std::uint64_t nbytes = buffer.nbytes();
  if (check.is_reference && nbytes < check.size) {
    fail(pipeline, check,
         "at least " + std::to_string(check.size) + " bytes of " + argument_of(pipeline, check).type.name,
         std::to_string(nbytes));
  }
  out.handles[out.buffer_count] = &buffer;
  out.buffers[out.buffer_count++] = {index,  check.access,      address,
                                     nbytes, storage->native(), buffer.byte_offset()};
  out.touched[out.touched_count++] = {{begin, begin + nbytes}, check.access};
}

void bind_bytes(const PipelineState& pipeline, const ArgumentCheck& check, const KernelArg& arg,
                CheckedLaunch& out) {
  if (writes(check.access)) {
    fail(pipeline, check, "a buffer (the kernel may write it)", "bytes");
  }
  if (arg.nbytes == 0 || arg.nbytes > max_inline_bytes) {
    fail(pipeline, check, "1 to 4096 bytes when given as bytes", std::to_string(arg.nbytes));
  }
  if (arg.bytes == nullptr) fail(pipeline, check, "a buffer or bytes", "a null pointer");
  if (check.is_reference && check.size != 0 && arg.nbytes != check.size) {
    fail(pipeline, check,
         std::to_string(check.size) + " bytes, the size of " + argument_of(pipeline, check).type.name,
         std::to_string(arg.nbytes));
  }
  out.bytes[out.bytes_count++] = {arg.index, static_cast<std::uint32_t>(arg.nbytes),
                                  static_cast<const std::uint8_t*>(arg.bytes)};
}

void check_threadgroup_memory(const DeviceState& device, const PipelineState& pipeline,
                              std::span<const ThreadgroupMemory> given, CheckedLaunch& out) {
  std::uint32_t bound = 0;
  std::uint64_t total = pipeline.compiled->static_threadgroup_memory;
  const std::uint64_t limit = device.capabilities().max_threadgroup_memory;
  for (const ThreadgroupMemory& memory : given) {
    const std::string name = "threadgroup memory " + std::to_string(memory.index);
    if (memory.index >= max_buffers || (pipeline.threadgroup_mask >> memory.index & 1) == 0) {
      fail(pipeline, name, "an index that the kernel declares as [[threadgroup(index)]]", "none there");
    }
    if ((bound >> memory.index & 1) != 0) fail(pipeline, name, "given once", "twice");
    if (memory.nbytes == 0) fail(pipeline, name, "at least 1 byte", "0");
    bound |= 1u << memory.index;
    const std::uint64_t rounded = memory.nbytes > limit ? memory.nbytes : (memory.nbytes + 15) / 16 * 16;
    if (rounded > limit || total + rounded > limit) {
      fail(pipeline,
           "threadgroup memory (bound and the kernel's own " +
               std::to_string(pipeline.compiled->static_threadgroup_memory) + " bytes)",
           "at most " + std::to_string(limit) + " bytes",
           std::to_string(total) + " + " + std::to_string(memory.nbytes));
    }
    total += rounded;
    out.threadgroup_memory[out.threadgroup_count++] = {memory.index, static_cast<std::uint32_t>(rounded)};
  }
  if (bound != pipeline.threadgroup_mask) {
    const int missing = std::countr_zero(pipeline.threadgroup_mask & ~bound);
    fail(pipeline, "threadgroup memory " + std::to_string(missing), "given in bytes", "nothing");
  }
}

void check_grid(const DeviceState& device, const PipelineState& pipeline, const Grid& grid,
                CheckedLaunch& out) {
  const Size3& group = grid.threads_per_threadgroup;
  const std::uint64_t limit = pipeline.compiled->max_total_threads_per_threadgroup;
  const bool in_range = group.x != 0 && group.y != 0 && group.z != 0 && group.x <= limit &&
                        group.y <= limit && group.z <= limit;
  if (!in_range || group.x * group.y * group.z > limit) {
    fail(pipeline, "threads_per_threadgroup",
         "at least 1 on each axis and at most " + std::to_string(limit) + " in all for this pipeline",
         str(group));
  }
  out.launch.grid_kind = grid.kind;
  out.launch.threads_per_threadgroup[0] = static_cast<std::uint32_t>(group.x);
  out.launch.threads_per_threadgroup[1] = static_cast<std::uint32_t>(group.y);
  out.launch.threads_per_threadgroup[2] = static_cast<std::uint32_t>(group.z);
  if (grid.kind == Grid::Kind::indirect) {
    const Buffer& counts = grid.counts;
    if (counts.released()) fail(pipeline, "threadgroups", "a buffer of three u32", "a released buffer");
    if (counts.storage()->device().get() != &device) {
      fail(pipeline, "threadgroups", "a buffer of the encoder's device", "a buffer of another device");
    }
    if (counts.dtype() != DType::uint32) {
      throw DTypeError("dispatch " + pipeline.compiled->signature.name, "threadgroups", "a uint32 buffer",
                       std::string(name_of(counts.dtype())));
    }
    if (counts.nbytes() < 12) {
      fail(pipeline, "threadgroups", "a buffer of three u32", std::to_string(counts.nbytes()) + " bytes");
    }
    std::uint8_t* address = counts.storage()->address() + counts.byte_offset();
    out.launch.indirect = {0, Access::read, address, 12, counts.storage()->native(), counts.byte_offset()};
    const auto begin = reinterpret_cast<std::uint64_t>(address);
    out.touched[out.touched_count++] = {{begin, begin + 12}, Access::read};
    out.handles[out.handle_count++] = &counts;
    return;
  }
  const bool whole = grid.kind == Grid::Kind::threadgroups;
  const std::uint64_t size[3] = {grid.size.x, grid.size.y, grid.size.z};
  const std::uint64_t per_group[3] = {group.x, group.y, group.z};
  for (int axis = 0; axis < 3; ++axis) {
    std::uint64_t threads = 0;
    const bool overflow = __builtin_mul_overflow(size[axis], whole ? per_group[axis] : 1, &threads);
    if (size[axis] == 0 || overflow || threads > max_grid) {
      fail(pipeline, whole ? "threadgroups" : "threads",
           "at least 1 and, in threads, below 2^32 on each axis",
           str(grid.size) + (whole ? " of " + str(group) + " threads" : ""));
    }
    out.launch.grid[axis] = static_cast<std::uint32_t>(size[axis]);
  }
}

}  // namespace

void check_launch(const DeviceState& device, const PipelineState& pipeline, std::span<const KernelArg> args,
                  const Grid& grid, std::span<const ThreadgroupMemory> threadgroup_memory,
                  CheckedLaunch& out) {
  if (pipeline.device.get() != &device.backend()) {
    throw ArgumentError("dispatch " + pipeline.compiled->signature.name, "pipeline",
                        "built by the encoder's device", "a pipeline of another device");
  }
  std::uint32_t bound = 0;
  for (const KernelArg& arg : args) {
    if (arg.index >= max_buffers || (pipeline.buffer_mask >> arg.index & 1) == 0) {
      fail_index(pipeline, arg.index);
    }
    const ArgumentCheck& check = pipeline.checks[arg.index];
    if ((bound >> arg.index & 1) != 0) fail(pipeline, check, "bound once", "twice");
    bound |= 1u << arg.index;
    if (arg.buffer != nullptr) {
      bind_buffer(device, pipeline, check, arg.index, *arg.buffer, out);
    } else {
      bind_bytes(pipeline, check, arg, out);
    }
  }
  if ((pipeline.required_mask & ~bound) != 0) {
    const auto missing = static_cast<std::size_t>(std::countr_zero(pipeline.required_mask & ~bound));
    fail(pipeline, pipeline.checks[missing], "bound", "nothing");
  }
  out.handle_count = out.buffer_count;
  check_grid(device, pipeline, grid, out);
  if (!threadgroup_memory.empty() || pipeline.threadgroup_mask != 0) {
    check_threadgroup_memory(device, pipeline, threadgroup_memory, out);
  }
  out.launch.pipeline = pipeline.compiled.get();
  out.launch.buffers = {out.buffers.data(), out.buffer_count};
  out.launch.bytes = {out.bytes.data(), out.bytes_count};
  out.launch.threadgroup_memory = {out.threadgroup_memory.data(), out.threadgroup_count};
}

}  // namespace metalane::core
