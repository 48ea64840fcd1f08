// The native CPU kernels of the GGML operators: who has which, for native_kernels.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {

// Routes by expert, and the lists below.
std::span<const NativeKernel> ggml_native_kernels();

// One file an instruction set, each compiled with its own flags (cmake/NativeKernels.cmake). They exist on
// the processors that have it.
std::span<const NativeKernel> ggml_native_kernels_portable();
std::span<const NativeKernel> ggml_native_kernels_avx2();
std::span<const NativeKernel> ggml_native_kernels_avx512();
std::span<const NativeKernel> ggml_native_kernels_neon();

}  // namespace metalane::cpu
