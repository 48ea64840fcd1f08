// Sizes of metadata values.
#pragma once

#include <metalane/gguf.h>

namespace metalane::core {

// Bytes of a number or boolean; 0 for strings and arrays, whose sizes the file tells.
std::uint64_t size_of(GgufValueType type) noexcept;
// Bytes that a value of this type takes at least.
std::uint64_t least_size(GgufValueType type) noexcept;

}  // namespace metalane::core
