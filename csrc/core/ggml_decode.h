// Blocks of GGML's types to float32.
#pragma once

#include <metalane/ggml_type.h>

#include <cstdint>

namespace metalane::core {

// The type's row of the table, for an entry point that decodes; throws ArgumentError naming the type and what
// can be done with it where it does not decode.
METALANE_API const GgmlTypeInfo& require_decodable(const char* op, GgmlType type);

// Decodes `block_count` blocks into block_count * block_length floats. Every bit pattern is a valid block.
// The type decodes (GgmlTypeInfo::decodes), and the memory does not overlap.
void decode_blocks(GgmlType type, const std::uint8_t* blocks, std::uint64_t block_count, float* out) noexcept;

}  // namespace metalane::core
