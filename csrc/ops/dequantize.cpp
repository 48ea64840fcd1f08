// Checks of a decode on the host.
#include <metalane/error.h>
#include <metalane/ops/dequantize.h>

#include "core/ggml_decode.h"

namespace metalane {

void dequantize(std::span<const std::uint8_t> blocks, GgmlType type, std::span<float> out) {
  const GgmlTypeInfo& info = core::require_decodable("dequantize", type);
  if (blocks.size() % info.block_bytes != 0) {
    throw ArgumentError("dequantize", "length of blocks",
                        "a multiple of " + std::to_string(info.block_bytes) + ", the bytes of a block of " +
                            std::string(info.name),
                        std::to_string(blocks.size()));
  }
  const std::uint64_t count = blocks.size() / info.block_bytes;
  if (out.size() != count * info.block_length) {
    throw ArgumentError("dequantize", "length of out",
                        std::to_string(count * info.block_length) + ", the elements of the blocks",
                        std::to_string(out.size()));
  }
  const auto blocks_begin = reinterpret_cast<std::uintptr_t>(blocks.data());
  const auto out_begin = reinterpret_cast<std::uintptr_t>(out.data());
  if (!blocks.empty() && blocks_begin < out_begin + out.size_bytes() &&
      out_begin < blocks_begin + blocks.size()) {
    throw ArgumentError("dequantize", "out", "memory apart from the blocks", "memory that overlaps them");
  }
  core::decode_blocks(type, blocks.data(), count, out.data());
}

}  // namespace metalane
