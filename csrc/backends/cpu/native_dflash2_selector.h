// The DFlash2 selector's native CPU kernels: who has which, for native_kernels.cpp.
#pragma once

#include <span>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {

// Best instruction set first for each kernel name.
std::span<const NativeKernel> dflash2_selector_native_kernels();

// One file an instruction set, each compiled with its own flags (cmake/NativeKernels.cmake); the algorithms
// stand in native_dflash2_selector_simd.h. The AVX pair exists on x86-64 only.
void dflash2_top16_portable(const NativeLaunch& launch, std::uint32_t task);
void dflash2_edges_portable(const NativeLaunch& launch, std::uint32_t task);
void dflash2_top16_avx2(const NativeLaunch& launch, std::uint32_t task);
void dflash2_edges_avx2(const NativeLaunch& launch, std::uint32_t task);
void dflash2_top16_avx512(const NativeLaunch& launch, std::uint32_t task);
void dflash2_edges_avx512(const NativeLaunch& launch, std::uint32_t task);

}  // namespace metalane::cpu
