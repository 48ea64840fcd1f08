// The table of GGML types as data.
#include <metalane/ggml_type.h>

#include <algorithm>
#include <array>

namespace metalane {
namespace {

constexpr std::optional<DType> plain_dtype(GgmlType type) {
  switch (type) {
    case GgmlType::F32:
      return DType::float32;
    case GgmlType::F16:
      return DType::float16;
    case GgmlType::BF16:
      return DType::bfloat16;
    case GgmlType::I8:
      return DType::int8;
    case GgmlType::I16:
      return DType::int16;
    case GgmlType::I32:
      return DType::int32;
    case GgmlType::I64:
      return DType::int64;
    default:
      return std::nullopt;
  }
}

// Whole blocks keep it: the largest power of two in their size, up to the word that kernels read at most.
constexpr std::uint32_t alignment_of(GgmlType type, std::uint32_t block_bytes) {
  const std::optional<DType> dtype = plain_dtype(type);
  return dtype ? static_cast<std::uint32_t>(size_of(*dtype)) : std::min(block_bytes & (0u - block_bytes), 4u);
}

#define METALANE_GGML_DECODES(name, id, length, bytes) \
  GgmlTypeInfo{GgmlType::name,                         \
               #name,                                  \
               length,                                 \
               bytes,                                  \
               alignment_of(GgmlType::name, bytes),    \
               true,                                   \
               plain_dtype(GgmlType::name)},
#define METALANE_GGML_IS_RAW(name, id, length, bytes) \
  GgmlTypeInfo{GgmlType::name,                        \
               #name,                                 \
               length,                                \
               bytes,                                 \
               alignment_of(GgmlType::name, bytes),   \
               false,                                 \
               plain_dtype(GgmlType::name)},
constexpr std::array table = {METALANE_GGML_WEIGHT_TYPES(METALANE_GGML_DECODES)
                                  METALANE_GGML_OTHER_TYPES(METALANE_GGML_IS_RAW)};
#undef METALANE_GGML_DECODES
#undef METALANE_GGML_IS_RAW

}  // namespace

std::span<const GgmlTypeInfo> ggml_types() noexcept { return table; }

const GgmlTypeInfo* find_ggml_type(GgmlType type) noexcept {
  const auto* const found = std::find_if(table.begin(), table.end(),
                                         [type](const GgmlTypeInfo& info) { return info.type == type; });
  return found != table.end() ? found : nullptr;
}

const GgmlTypeInfo* find_ggml_type(std::string_view name) noexcept {
  const auto* const found = std::find_if(table.begin(), table.end(),
                                         [name](const GgmlTypeInfo& info) { return info.name == name; });
  return found != table.end() ? found : nullptr;
}

}  // namespace metalane
