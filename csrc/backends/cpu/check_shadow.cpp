// Chunks of shadow memory: made, and split into smaller cells.
#include "backends/cpu/check_shadow.h"

#include <algorithm>
#include <bit>

namespace metalane::cpu {

void ShadowMemory::prepare(Chunk& chunk, std::uint64_t alignment) {
  const auto wanted = std::min(chunk.shift, static_cast<std::uint32_t>(std::countr_zero(alignment | 4)));
  if (chunk.cells == nullptr) {
    chunk.shift = wanted;
    chunk.cells = std::make_unique<Cell[]>(chunk_bytes >> wanted);
    return;
  }
  const std::uint32_t parts = 1u << (chunk.shift - wanted);
  auto cells = std::make_unique<Cell[]>(chunk_bytes >> wanted);
  for (std::uint64_t i = 0; i < chunk_bytes >> wanted; ++i) cells[i] = chunk.cells[i / parts];
  chunk.cells = std::move(cells);
  chunk.shift = wanted;
}

}  // namespace metalane::cpu
