// Shadow memory of the checker: for each word, who wrote it last and two that read it since.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace metalane::cpu {

// An access, in 64 bits: segment (32) | instruction (16) | thread (10) | turn (5) | atomic (1). A segment is
// what a simdgroup runs between two rendezvous; segments are numbered from 1 in the order in which they run.
// `turn` counts how often the thread came to the instruction in this segment, up to 31; in a far reader's
// entry it is the distance from the first one instead. 0 is nobody.
class Mark {
 public:
  constexpr Mark() = default;
  constexpr Mark(std::uint32_t segment, std::uint32_t instruction, std::uint32_t thread, std::uint32_t turn,
                 bool atomic)
      : bits_(std::uint64_t{segment} << 32 | instruction << 16 | thread << 6 | turn << 1 |
              (atomic ? 1u : 0u)) {}

  constexpr bool empty() const noexcept { return bits_ == 0; }
  constexpr std::uint32_t segment() const noexcept { return static_cast<std::uint32_t>(bits_ >> 32); }
  constexpr std::uint32_t instruction() const noexcept {
    return static_cast<std::uint32_t>(bits_ >> 16) & 0xffffu;
  }
  constexpr std::uint32_t thread() const noexcept { return static_cast<std::uint32_t>(bits_ >> 6) & 1023u; }
  constexpr std::uint32_t simdgroup() const noexcept { return thread() / 32; }
  constexpr std::uint32_t turn() const noexcept { return static_cast<std::uint32_t>(bits_ >> 1) & 31u; }
  constexpr bool atomic() const noexcept { return (bits_ & 1u) != 0; }
  constexpr Mark with_turn(std::uint32_t turn) const noexcept {
    Mark mark;
    mark.bits_ = (bits_ & ~std::uint64_t{62}) | turn << 1;
    return mark;
  }

 private:
  std::uint64_t bits_ = 0;
};

// What is known of 1, 2 or 4 bytes.
struct Cell {
  Mark writer;
  Mark reader;
  Mark far_reader;  // of another group, simdgroup or lane than `reader`: the farthest kind there was
};

// Cells for one range of memory, made when they are first asked for. A chunk begins with a cell a word and is
// split where an access is smaller, or stands across words.
class ShadowMemory {
 public:
  explicit ShadowMemory(std::uint64_t nbytes)
      : nbytes_(nbytes), chunks_((nbytes + chunk_bytes - 1) / chunk_bytes) {}
  std::uint64_t nbytes() const noexcept { return nbytes_; }

  struct Cells {
    Cell* first;
    std::uint32_t count;
    std::uint32_t shift;  // each is of 1 << shift bytes
  };
  // The cells of [offset, offset + nbytes), up to the end of the chunk that `offset` is in.
  Cells at(std::uint64_t offset, std::uint64_t nbytes) {
    Chunk& chunk = chunks_[offset / chunk_bytes];
    const std::uint64_t within = offset % chunk_bytes;
    const std::uint64_t length = within + nbytes <= chunk_bytes ? nbytes : chunk_bytes - within;
    const std::uint64_t mask = (std::uint64_t{1} << chunk.shift) - 1;
    if (chunk.cells == nullptr || ((within | length) & mask) != 0) [[unlikely]]
      prepare(chunk, within | length);
    return {chunk.cells.get() + (within >> chunk.shift), static_cast<std::uint32_t>(length >> chunk.shift),
            chunk.shift};
  }
  // The cell that is these bytes, where there is one.
  const Cell* only(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
    const Chunk& chunk = chunks_[offset / chunk_bytes];
    const std::uint64_t bytes = std::uint64_t{1} << chunk.shift;
    if (nbytes != bytes || (offset & (bytes - 1)) != 0 || chunk.cells == nullptr) return nullptr;
    return chunk.cells.get() + ((offset % chunk_bytes) >> chunk.shift);
  }
  // Whether at() would have to make or split cells: host code that no signal may leave.
  bool is_ready(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
    const std::uint64_t first = offset / chunk_bytes, last = (offset + nbytes - 1) / chunk_bytes;
    const Chunk& chunk = chunks_[first];
    return first == last && chunk.cells != nullptr &&
           ((offset | nbytes) & ((std::uint64_t{1} << chunk.shift) - 1)) == 0;
  }

 private:
  static constexpr std::uint64_t chunk_bytes = 4096;
  struct Chunk {
    std::unique_ptr<Cell[]> cells;
    std::uint32_t shift = 2;
  };
  void prepare(Chunk& chunk, std::uint64_t alignment);

  std::uint64_t nbytes_;
  std::vector<Chunk> chunks_;
};

}  // namespace metalane::cpu
