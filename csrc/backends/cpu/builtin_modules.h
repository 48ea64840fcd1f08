// The built-in kernels as compiled with the library, one module a kernel and instruction-set level. Defined
// in files that the build generates.
#pragma once

#include <span>

#include "msl/stdlib/module_abi.h"

namespace metalane::cpu {

// Levels a wheel carries: "baseline", "x86-64-v3", "x86-64-v4".
struct BuiltinModule {
  const char* kernel;
  const char* isa;
  const metalane_module* module;
};
std::span<const BuiltinModule> builtin_modules();

}  // namespace metalane::cpu
