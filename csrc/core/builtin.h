// The sources that the library carries. Defined in a file that the build generates from shaders/families.txt.
#pragma once

#include <span>

namespace metalane::core {

struct BuiltinSource {
  const char* family;  // "dflash2_selector": shaders/dflash2_selector.metal
  const char* text;
};

struct BuiltinHeader {
  const char*
      name;  // as #include spells it: "metalane/params_abi.h", "metalane/params/x.h", "metalane/lib/x.h"
  const char* text;
};

// Every kernel that dispatch can name without registering anything.
struct BuiltinKernel {
  const char* name;
  const char* family;
};

std::span<const BuiltinSource> builtin_sources();
std::span<const BuiltinHeader> builtin_headers();
std::span<const BuiltinKernel> builtin_kernels();

}  // namespace metalane::core
