// What the private CPU device does for the double. In C++, since Objective-C++ with GCC's runtime catches no
// exception of C++.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"

namespace metal_double {

// Null, with `problem` filled, where it does not compile.
std::shared_ptr<const metalane::backend::Pipeline> compile_on(
    metalane::backend::Device& cpu, const metalane::backend::CompileRequest& request, std::string& problem);

// The kernels of a source; false, with `problem` filled, where it cannot be read.
bool inspect_on(metalane::backend::Device& cpu, const metalane::backend::SourceText& source,
                std::vector<metalane::KernelSignature>& kernels, std::string& problem);

// How launches ended: `code` of metalane::CommandBufferError, empty where they succeeded.
struct LaunchesEnd {
  std::string code, text, label;
};
// Runs them one after another and waits.
LaunchesEnd run_on(metalane::backend::Device& cpu, std::span<const metalane::backend::Launch> launches,
                   double time_limit);

}  // namespace metal_double
