// Libraries and functions as pipelines see them.
#pragma once

#import <Metal/Metal.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "devices.h"

namespace metal_double {

struct LibraryState {
  DeviceState* device = nullptr;
  std::shared_ptr<const metalane::backend::SourceText> source;
  metalane::MathMode math = metalane::MathMode::safe;
  std::string hash;  // of the text as it was handed over, and of what it was compiled for
  std::vector<metalane::KernelSignature> kernels;
};

struct FunctionState {
  std::shared_ptr<const LibraryState> library;
  std::string name;
  std::vector<metalane::ConstantValue> constants;
};
std::shared_ptr<const FunctionState> state_of(id<MTLFunction> function);

// The pipeline's key in archives: all that decides its code.
std::string pipeline_key(const FunctionState& function);
// Null, with `error` set, where it does not compile.
std::shared_ptr<const metalane::backend::Pipeline> compile(const FunctionState& function, NSError** error);
bool archive_holds(id<MTLBinaryArchive> archive, const std::string& key);

}  // namespace metal_double
