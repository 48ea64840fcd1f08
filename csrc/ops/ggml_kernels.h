// The built-in kernels of the GGML operators: one of each kind a type.
#pragma once

#include <metalane/ggml_type.h>

#include <array>
#include <cstdint>
#include <string>

#include "core/registry.h"

namespace metalane::ops {

enum class GgmlKernel : std::uint8_t {
  gather,
  mv_1,  // mat-vec for up to 1, 2, 4, 8 input rows
  mv_2,
  mv_4,
  mv_8,
  mm,
  mm_simd,
  id_mv,
  id_mm,
  id_mm_slotted,
};
inline constexpr std::size_t ggml_kernel_kinds = 10;

// `type` decodes.
std::string ggml_kernel_name(GgmlKernel kernel, GgmlType type);
const core::BuiltinPipeline& ggml_kernel(GgmlKernel kernel, GgmlType type);

// Bytes of a row of `k` elements of a type; k is a whole number of blocks.
std::uint64_t ggml_row_bytes(const GgmlTypeInfo& type, std::uint64_t k);

// What weights of a type may be called: bytes, or what they are where that is plain numbers.
std::array<DType, 2> ggml_weight_dtypes(const GgmlTypeInfo& type);

// Throw ArgumentError: `op` takes this many elements a row of the type.
void check_row_length(const char* op, const char* argument, const GgmlTypeInfo& type, std::uint64_t k);

}  // namespace metalane::ops
