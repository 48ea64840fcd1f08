// Top-16 and edge scores, written over a vector type `V` that the including file defines for its instruction
// set. Everything here has internal linkage and uses no inline function of another header: were one of those
// compiled with AVX-512 and merged by the linker, it would run on machines without.
//
// V has width and tile_rows (how many rows of a tile of sums the registers hold); Floats; zero(), splat(x),
// load(p), store(p, x), load_bf16(p); max(fresh, bound), which is bound where fresh is NaN; multiply(a, b),
// multiply_add(a, b, c); sum(x), largest(x); at_least(x, y), bit i set where x[i] >= y[i]; and List, which is
// FirstSixteen or a faster one with the same members.
#pragma once

#include <metalane/ops/dflash2_selector_params.h>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {
namespace {

constexpr std::uint32_t kShards = DFLASH2_SHARDS;
constexpr std::uint32_t kEach = DFLASH2_CANDIDATES;
constexpr std::uint32_t kRank = DFLASH2_SELECTOR_RANK;
constexpr std::uint32_t kNoId = 0xffffffffu;
constexpr float kNegativeInfinity = -__builtin_inff();

// Values and their ids, in order (value descending, id ascending) once filled; values are never NaN.
struct Sixteen {
  float values[kEach];
  std::uint32_t ids[kEach];
};

// The 16 first in order of what was offered; places that nothing took hold -inf and kNoId, behind everything.
class FirstSixteen {
 public:
  FirstSixteen() {
    for (std::uint32_t i = 0; i < kEach; ++i) {
      sixteen_.values[i] = kNegativeInfinity;
      sixteen_.ids[i] = kNoId;
    }
  }
  float last() const { return sixteen_.values[kEach - 1]; }
  bool takes(float value, std::uint32_t id) const {
    return value > last() || (value == last() && id < sixteen_.ids[kEach - 1]);
  }
  // Of something that takes() accepts.
  void insert(float value, std::uint32_t id) {
    std::uint32_t place = kEach - 1;
    while (place > 0 && (sixteen_.values[place - 1] < value ||
                         (sixteen_.values[place - 1] == value && sixteen_.ids[place - 1] > id))) {
      sixteen_.values[place] = sixteen_.values[place - 1];
      sixteen_.ids[place] = sixteen_.ids[place - 1];
      --place;
    }
    sixteen_.values[place] = value;
    sixteen_.ids[place] = id;
  }
  Sixteen sixteen() const { return sixteen_; }

 private:
  Sixteen sixteen_;
};

template <typename List>
void offer(float value, std::uint32_t id, List& list) {
  const float number = value != value ? kNegativeInfinity : value;
  if (list.takes(number, id)) list.insert(number, id);
}

constexpr std::uint32_t kBlock = 128;   // elements whose largest is kept; 16 blocks are read twice
constexpr std::uint32_t kAhead = 1024;  // elements between a load and its prefetch

template <typename V>
float largest_of_block(const float* block) {
  typename V::Floats first = V::splat(kNegativeInfinity);
  typename V::Floats second = first;
  for (std::uint32_t i = 0; i < kBlock; i += 2 * V::width) {
    first = V::max(V::load(block + i), first);
    second = V::max(V::load(block + i + V::width), second);
  }
  return V::largest(V::max(first, second));
}

// Offers the elements of a whole block that are at least `bound`.
template <typename V>
void offer_block(const float* values, std::uint32_t begin, float bound, typename V::List& list) {
  for (std::uint32_t id = begin; id < begin + kBlock; id += V::width) {
    const float least = bound > list.last() ? bound : list.last();
    if (least == kNegativeInfinity) {  // where NaN counts as -inf no comparison finds it
      for (std::uint32_t i = id; i < id + V::width; ++i) offer(values[i], i, list);
      continue;
    }
    for (std::uint32_t left = V::at_least(V::load(values + id), V::splat(least)); left != 0;
         left &= left - 1) {
      const std::uint32_t i = id + static_cast<std::uint32_t>(__builtin_ctz(left));
      if (list.takes(values[i], i)) list.insert(values[i], i);
    }
  }
}

// The 16 first elements of values[begin, end), in order.
//
// The 16 blocks whose largest elements stand first hold all of them: an element of another block stands
// behind 16 others. So one pass at the speed of memory keeps the 16 first blocks by largest element, and a
// second visits those, the most promising first, which keeps ascending and constant rows cheap as well.
template <typename V>
Sixteen first_sixteen(const float* values, std::uint32_t begin, std::uint32_t end) {
  typename V::List blocks;
  const std::uint32_t whole_blocks = (end - begin) / kBlock;
  for (std::uint32_t block = 0; block < whole_blocks; ++block) {
    const float* elements = values + begin + block * kBlock;
    for (std::uint32_t i = 0; i < kBlock; i += 16) __builtin_prefetch(elements + kAhead + i);
    const float largest = largest_of_block<V>(elements);
    if (blocks.takes(largest, block)) blocks.insert(largest, block);
  }
  const Sixteen visited = blocks.sixteen();
  typename V::List result;
  for (std::uint32_t i = 0; i < kEach && visited.ids[i] != kNoId; ++i) {
    const std::uint32_t block_begin = begin + visited.ids[i] * kBlock;
    if (result.takes(visited.values[i], block_begin))
      offer_block<V>(values, block_begin, blocks.last(), result);
  }
  for (std::uint32_t id = begin + whole_blocks * kBlock; id < end; ++id) offer(values[id], id, result);
  return result.sixteen();
}

// Task (lane, position, shard): see dflash2_select_top16 in the shader.
template <typename V>
void top16(const NativeLaunch& launch, std::uint32_t task) {
  const auto& params = launch.params<DFlash2SelectorParams>(3);
  const std::uint32_t positions = params.rows_per_lane - 1;
  const std::uint32_t shard = task % kShards;
  const std::uint64_t row =
      std::uint64_t{task / kShards / positions} * params.rows_per_lane + task / kShards % positions + 1;
  const std::uint32_t quotient = params.vocabulary / kShards;
  const std::uint32_t remainder = params.vocabulary % kShards;
  const std::uint32_t begin = shard * quotient + (shard < remainder ? shard : remainder);
  const std::uint32_t end = begin + quotient + (shard < remainder ? 1 : 0);
  const Sixteen list = first_sixteen<V>(launch.buffer<const float>(0) + row * params.vocabulary, begin, end);
  std::uint32_t* ids = launch.buffer<std::uint32_t>(1) + std::uint64_t{task} * kEach;
  float* values = launch.buffer<float>(2) + std::uint64_t{task} * kEach;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    ids[i] = list.ids[i];
    values[i] = list.values[i];
  }
}

// The 16 first of a position's 8 sorted partial lists, ids kept below the vocabulary.
inline Sixteen merged_shards(const NativeLaunch& launch, std::uint32_t group, std::uint32_t vocabulary) {
  const std::uint64_t offset = std::uint64_t{group} * kShards * kEach;
  const std::uint32_t* ids = launch.buffer<const std::uint32_t>(0) + offset;
  const float* values = launch.buffer<const float>(1) + offset;
  std::uint32_t heads[kShards] = {};
  Sixteen result;
  for (std::uint32_t place = 0; place < kEach; ++place) {
    std::uint32_t best = 0;
    for (std::uint32_t shard = 1; shard < kShards; ++shard) {
      const std::uint32_t a = shard * kEach + heads[shard];
      const std::uint32_t b = best * kEach + heads[best];
      if (values[a] > values[b] || (values[a] == values[b] && ids[a] < ids[b])) best = shard;
    }
    const std::uint32_t taken = best * kEach + heads[best];
    result.values[place] = values[taken];
    result.ids[place] = ids[taken] < vocabulary ? ids[taken] : vocabulary - 1;
    ++heads[best];
  }
  return result;
}

// edges[a][b] of tile_rows predecessors and four candidates. Each score is the sum over r of left * right in
// `width` partial sums (r mod width, ascending r), added as V::sum does.
template <typename V>
void score_tile(const float* left, const std::uint16_t* const* right, float* edges) {
  constexpr std::uint32_t columns = 4;
  typename V::Floats sums[V::tile_rows][columns];
  for (std::uint32_t a = 0; a < V::tile_rows; ++a) {
    for (std::uint32_t b = 0; b < columns; ++b) sums[a][b] = V::zero();
  }
  for (std::uint32_t r = 0; r < kRank; r += V::width) {
    typename V::Floats to[columns];
    for (std::uint32_t b = 0; b < columns; ++b) to[b] = V::load_bf16(right[b] + r);
    for (std::uint32_t a = 0; a < V::tile_rows; ++a) {
      const typename V::Floats from = V::load(left + a * kRank + r);
      for (std::uint32_t b = 0; b < columns; ++b) sums[a][b] = V::multiply_add(from, to[b], sums[a][b]);
    }
  }
  for (std::uint32_t a = 0; a < V::tile_rows; ++a) {
    for (std::uint32_t b = 0; b < columns; ++b) edges[a * kEach + b] = V::sum(sums[a][b]);
  }
}

// Task (lane, position): see dflash2_select_edges in the shader.
template <typename V>
void edges(const NativeLaunch& launch, std::uint32_t task) {
  const auto& params = launch.params<DFlash2SelectorParams>(8);
  const std::uint32_t positions = params.rows_per_lane - 1;
  const std::uint32_t lane = task / positions;
  const std::uint32_t position = task % positions;
  const Sixteen candidates = merged_shards(launch, task, params.vocabulary);
  const Sixteen before = position == 0 ? candidates : merged_shards(launch, task - 1, params.vocabulary);
  std::uint32_t* candidate_ids = launch.buffer<std::uint32_t>(2) + std::uint64_t{task} * kEach;
  float* unary = launch.buffer<float>(3) + std::uint64_t{task} * kEach;
  float* scores = launch.buffer<float>(4) + std::uint64_t{task} * kEach * kEach;
  const auto* hidden =
      launch.buffer<const std::uint16_t>(5) + (lane * params.rows_per_lane + position + 1) * kRank;
  const auto* predecessors = launch.buffer<const std::uint16_t>(6);
  const auto* successors = launch.buffer<const std::uint16_t>(7);

  alignas(64) float scaled[kEach * kRank];  // A[predecessor a][r] * H[r]
  const std::uint16_t* to[kEach];
  for (std::uint32_t i = 0; i < kEach; ++i) {
    candidate_ids[i] = candidates.ids[i];
    unary[i] = candidates.values[i];
    to[i] = successors + std::uint64_t{candidates.ids[i]} * kRank;
    const std::uint32_t id = position == 0 ? params.anchor[lane] : before.ids[i];
    const std::uint16_t* from = predecessors + std::uint64_t{id} * kRank;
    for (std::uint32_t r = 0; r < kRank; r += V::width) {
      V::store(scaled + i * kRank + r, V::multiply(V::load_bf16(from + r), V::load_bf16(hidden + r)));
    }
  }
  for (std::uint32_t b = 0; b < kEach; b += 4) {
    for (std::uint32_t a = 0; a < kEach; a += V::tile_rows) {
      score_tile<V>(scaled + a * kRank, to + b, scores + a * kEach + b);
    }
  }
}

}  // namespace
}  // namespace metalane::cpu
