// One launch of a kernel, as the caller describes it.
#pragma once

#include <metalane/buffer.h>

#include <cstdint>
#include <type_traits>

namespace metalane {

struct Size3 {
  std::uint64_t x = 1, y = 1, z = 1;
};

// How many threads run: whole threadgroups, single threads (the last threadgroup of an axis may be
// smaller), or threadgroups whose three u32 counts are read from a buffer when the launch starts.
struct Grid {
  enum class Kind : std::uint8_t { threadgroups, threads, indirect };
  Kind kind = Kind::threadgroups;
  Size3 size;
  Size3 threads_per_threadgroup;
  Buffer counts;

  static Grid threadgroups(Size3 count, Size3 threads_per_threadgroup) {
    return {Kind::threadgroups, count, threads_per_threadgroup, {}};
  }
  static Grid threads(Size3 count, Size3 threads_per_threadgroup) {
    return {Kind::threads, count, threads_per_threadgroup, {}};
  }
  static Grid indirect(Buffer counts, Size3 threads_per_threadgroup) {
    return {Kind::indirect, {}, threads_per_threadgroup, std::move(counts)};
  }
};

// What is bound at one buffer index: a buffer, or bytes that are copied into the launch. It refers to the
// caller's object, which must outlive the call it is passed to.
struct KernelArg {
  std::uint32_t index = 0;
  const Buffer* buffer = nullptr;
  const void* bytes = nullptr;
  std::uint64_t nbytes = 0;

  KernelArg() = default;
  KernelArg(std::uint32_t index, const Buffer& buffer) : index(index), buffer(&buffer) {}
  KernelArg(std::uint32_t index, const void* bytes, std::uint64_t nbytes)
      : index(index), bytes(bytes), nbytes(nbytes) {}
  template <typename T, typename = std::enable_if_t<std::is_trivially_copyable_v<T> &&
                                                    !std::is_same_v<T, Buffer> && !std::is_pointer_v<T>>>
  KernelArg(std::uint32_t index, const T& params) : index(index), bytes(&params), nbytes(sizeof(T)) {}
};

// Bytes for [[threadgroup(index)]].
struct ThreadgroupMemory {
  std::uint32_t index = 0;
  std::uint64_t nbytes = 0;
};

}  // namespace metalane
