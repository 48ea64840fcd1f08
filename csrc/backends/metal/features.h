// What this system's Metal and this GPU can.
#pragma once

#import <Metal/Metal.h>

#include <string>
#include <vector>

namespace metalane::metal {

struct Features {
  bool apple_gpu = false;  // what the kernels count on: simdgroups of 32, unified memory
  bool math_mode = false;  // MTLCompileOptions.mathMode; before it only fastMathEnabled
  bool binary_archives = false;
  bool residency_sets = false;
  bool architecture = false;  // MTLDevice.architecture
  MTLLanguageVersion language_version = MTLLanguageVersion3_0;
  std::string language_name;          // "3.2"
  std::vector<std::string> families;  // "apple8", "metal3", ...
};

// The only place that asks: by what objects answer to, never by the system's version number.
Features features_of(id<MTLDevice> device);

}  // namespace metalane::metal
