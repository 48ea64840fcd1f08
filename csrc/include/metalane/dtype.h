// Element types of buffers.
#pragma once

#include <metalane/export.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace metalane {

enum class DType : std::uint8_t {
  float32,
  float16,
  bfloat16,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
};

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::uint8:
    case DType::int8:
      return 1;
    case DType::float16:
    case DType::bfloat16:
    case DType::uint16:
    case DType::int16:
      return 2;
    case DType::float32:
    case DType::uint32:
    case DType::int32:
      return 4;
    case DType::uint64:
    case DType::int64:
      return 8;
  }
  return 0;
}

// The type's name as Python spells it: "float32", "bfloat16", ...
METALANE_API std::string_view name_of(DType dtype) noexcept;

}  // namespace metalane
