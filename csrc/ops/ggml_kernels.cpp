// See ggml_kernels.h.
#include "ops/ggml_kernels.h"

#include <metalane/error.h>

#include <array>
#include <vector>

namespace metalane::ops {

namespace {

// How shaders/*_ggml.metal name them: `T` stands for the type.
constexpr std::array<std::string_view, ggml_kernel_kinds> kNames = {
    "embedding_gather_T",         "quantized_matmul_mv_T_1",
    "quantized_matmul_mv_T_2",    "quantized_matmul_mv_T_4",
    "quantized_matmul_mv_T_8",    "quantized_matmul_mm_T",
    "quantized_matmul_mm_simd_T", "quantized_matmul_id_mv_T",
    "quantized_matmul_id_mm_T",   "quantized_matmul_id_mm_T_slotted",
};

using KernelsOfType = std::vector<core::BuiltinPipeline>;

}  // namespace

std::string ggml_kernel_name(GgmlKernel kernel, GgmlType type) {
  std::string name(kNames[static_cast<std::size_t>(kernel)]);
  const std::string_view type_name = find_ggml_type(type)->name;
  return name.replace(name.find('T'), 1, type_name);
}

const core::BuiltinPipeline& ggml_kernel(GgmlKernel kernel, GgmlType type) {
  static const std::vector<KernelsOfType> all = [] {
    std::vector<KernelsOfType> kernels;
    for (const GgmlTypeInfo& info : ggml_types()) {
      if (!info.decodes) continue;
      KernelsOfType& of_type = kernels.emplace_back();
      for (std::size_t kind = 0; kind < ggml_kernel_kinds; ++kind) {
        of_type.emplace_back(ggml_kernel_name(static_cast<GgmlKernel>(kind), info.type));
      }
    }
    return kernels;
  }();
  // Types that decode stand first in the table.
  const auto place = static_cast<std::size_t>(find_ggml_type(type) - ggml_types().data());
  return all[place][static_cast<std::size_t>(kernel)];
}

std::uint64_t ggml_row_bytes(const GgmlTypeInfo& type, std::uint64_t k) {
  return k / type.block_length * type.block_bytes;
}

std::array<DType, 2> ggml_weight_dtypes(const GgmlTypeInfo& type) {
  return {DType::uint8, type.dtype.value_or(DType::uint8)};
}

void check_row_length(const char* op, const char* argument, const GgmlTypeInfo& type, std::uint64_t k) {
  constexpr std::uint64_t most = 0x7fffffff;
  if (k != 0 && k <= most && k % type.block_length == 0) return;
  throw ArgumentError(op, argument,
                      type.block_length == 1
                          ? "1 to " + std::to_string(most)
                          : "a multiple of " + std::to_string(type.block_length) + ", the block length of " +
                                std::string(type.name) + ", below 2^31",
                      std::to_string(k));
}

}  // namespace metalane::ops
