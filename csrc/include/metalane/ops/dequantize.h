// Blocks of GGML's types to float32, on the host.
#pragma once

#include <metalane/export.h>
#include <metalane/ggml_type.h>

#include <cstdint>
#include <span>

namespace metalane {

// Decodes whole blocks into `out`, as many floats as they hold elements. The result is the gguf package's,
// bit for bit; which NaN comes of a NaN or infinite scale is the processor's choice. Throws ArgumentError: a
// type that does not decode, a length that is no whole number of blocks, an `out` of another length or that
// overlaps the blocks.
METALANE_API void dequantize(std::span<const std::uint8_t> blocks, GgmlType type, std::span<float> out);

}  // namespace metalane
