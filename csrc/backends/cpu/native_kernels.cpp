// Joins the families' lists of native kernels: one line a family.
#include <algorithm>
#include <vector>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {

std::span<const NativeKernel> memory_native_kernels();
std::span<const NativeKernel> dflash2_selector_native_kernels();
std::span<const NativeKernel> ggml_native_kernels();

std::span<const NativeKernel> native_kernels() {
  static const std::vector<NativeKernel> all = [] {
    std::vector<NativeKernel> result;
    for (const auto family :
         {memory_native_kernels(), dflash2_selector_native_kernels(), ggml_native_kernels()}) {
      result.insert(result.end(), family.begin(), family.end());
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const NativeKernel& a, const NativeKernel& b) { return a.isa > b.isa; });
    return result;
  }();
  return all;
}

}  // namespace metalane::cpu
