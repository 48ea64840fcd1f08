// Hand-written CPU kernels: C++ with SIMD that stands in for a .metal kernel of the same name, with the same
// bindings and, within the stated tolerance, the same results.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.h"

namespace metalane::cpu {

enum class Isa : std::uint8_t {
  baseline,
  neon,
  avx2,
  avx512
};  // what a variant needs; baseline runs everywhere

// One launch as a native kernel sees it: `buffer(i)` is what is bound at [[buffer(i)]] (bytes included).
struct NativeLaunch {
  void* const* buffers = nullptr;
  const std::uint64_t* sizes = nullptr;  // bytes bound at each index
  std::uint32_t grid[3] = {1, 1, 1};     // threadgroups (whole grid), as launched
  std::uint32_t threads_per_threadgroup[3] = {1, 1, 1};
  std::uint32_t threads = 1;  // worker threads that the device has

  template <typename T>
  T* buffer(int index) const {
    return static_cast<T*>(buffers[index]);
  }
  template <typename T>
  const T& params(int index) const {
    return *static_cast<const T*>(buffers[index]);
  }
};

// A launch is cut into `tasks(launch)` independent pieces; `run` does one. Tasks run at once on several
// threads, in any order; results must not depend on that. Neither throws nor allocates.
struct NativeKernel {
  const char* name;
  Isa isa;
  std::uint32_t (*tasks)(const NativeLaunch& launch);
  void (*run)(const NativeLaunch& launch, std::uint32_t task);
};

// All native kernels, best instruction set first for each name. One line a family in native_kernels.cpp,
// which joins the families' own lists.
std::span<const NativeKernel> native_kernels();

}  // namespace metalane::cpu
