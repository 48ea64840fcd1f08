// The element types of GGML: what a block of each holds, and what metalane can do with it.
#pragma once

#include <metalane/dtype.h>
#include <metalane/export.h>
#include <metalane/params/ggml_types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace metalane {

// Valued as in GGUF files. A value of another number is no type: entry points refuse it.
enum class GgmlType : std::uint32_t {
#define METALANE_GGML_ENUMERATOR(name, id, block_length, block_bytes) name = id,
  METALANE_GGML_WEIGHT_TYPES(METALANE_GGML_ENUMERATOR) METALANE_GGML_OTHER_TYPES(METALANE_GGML_ENUMERATOR)
#undef METALANE_GGML_ENUMERATOR
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;
  std::uint32_t block_length;  // elements of a block; rows are whole blocks
  std::uint32_t block_bytes;
  std::uint32_t alignment;     // of a block's address, for kernels that read its halves and words
  bool decodes;                // dequantize() takes it
  std::optional<DType> dtype;  // for types whose elements are plain numbers that buffers can hold
};

// All of them: first those that decode, each group in the table's order.
METALANE_API std::span<const GgmlTypeInfo> ggml_types() noexcept;
// Null where there is no such type.
METALANE_API const GgmlTypeInfo* find_ggml_type(GgmlType type) noexcept;
METALANE_API const GgmlTypeInfo* find_ggml_type(std::string_view name) noexcept;

}  // namespace metalane
