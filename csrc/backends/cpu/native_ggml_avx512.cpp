// GGML products with AVX-512.
#include "backends/cpu/native_ggml.h"

#if defined(__x86_64__)
#include "backends/cpu/native_ggml_avx512.h"
#include "backends/cpu/native_ggml_products.h"

namespace metalane::cpu {

std::span<const NativeKernel> ggml_native_kernels_avx512() { return ggml_kernels_of<Avx512>; }

}  // namespace metalane::cpu
#endif
