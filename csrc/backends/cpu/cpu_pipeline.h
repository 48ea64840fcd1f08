// A kernel as the CPU device runs it: a compiled module, or a hand-written kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backends/cpu/native_kernel.h"
#include "core/backend.h"
#include "msl/stdlib/module_abi.h"

namespace metalane::cpu {

class CheckedModule;

class CpuPipeline : public backend::Pipeline {
 public:
  const metalane_module* module = nullptr;  // null where `native` is set
  const NativeKernel* native = nullptr;
  std::shared_ptr<CheckedModule> checked;  // set on a device with a checker: `module` is its
  std::shared_ptr<const void> library;     // keeps a module compiled at run time loaded

  // What one threadgroup took lately, to tell launches that are too small to share; 0 until measured.
  mutable std::atomic<std::uint32_t> group_nanoseconds{0};
};

}  // namespace metalane::cpu
