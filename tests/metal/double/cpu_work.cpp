// See cpu_work.h.
#include "cpu_work.h"

#include <metalane/error.h>

#include <semaphore>

namespace metal_double {

using metalane::backend::Completion;
using metalane::backend::Launch;

std::shared_ptr<const metalane::backend::Pipeline> compile_on(
    metalane::backend::Device& cpu, const metalane::backend::CompileRequest& request, std::string& problem) {
  try {
    return cpu.compile(request);
  } catch (const metalane::Error& error) {
    problem = error.what();
    return nullptr;
  }
}

bool inspect_on(metalane::backend::Device& cpu, const metalane::backend::SourceText& source,
                std::vector<metalane::KernelSignature>& kernels, std::string& problem) {
  try {
    kernels = cpu.inspect(source);
    return true;
  } catch (const metalane::Error& error) {
    problem = error.what();
    return false;
  }
}

LaunchesEnd run_on(metalane::backend::Device& cpu, std::span<const Launch> launches, double time_limit) {
  try {
    const auto submission = cpu.open({.concurrent = false});
    for (const Launch& launch : launches) submission->dispatch(launch);
    std::binary_semaphore ended(0);
    std::exception_ptr error;
    submission->commit(time_limit, [&](Completion completion) {
      error = completion.error;
      ended.release();
    });
    ended.acquire();
    if (error != nullptr) std::rethrow_exception(error);
    return {};
  } catch (const metalane::CommandBufferError& error) {
    return {error.code(), error.what(), error.label()};
  } catch (const metalane::Error& error) {
    return {"device", error.what(), ""};
  }
}

}  // namespace metal_double
