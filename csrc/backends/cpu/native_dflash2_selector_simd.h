// Top-16 and edge scores, written over a vector type `V` that the including file defines for its instruction
// set. Everything here has internal linkage and uses no inline function of another header: were one of those
// compiled with AVX-512 and merged by the linker, it would run on machines without.
//
// V has width and tile_rows (how many rows of a tile of sums the registers hold); Floats; zero(), splat(x),
// load(p), store(p, x), load_bf16(p); max(fresh, bound), which is bound where fresh is NaN; multiply(a, b),
// multiply_add(a, b, c); sum(x), largest(x); at_least(x, y) and above(x, y), not 0 where any element is.
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

// The first 16 in order (value descending, id ascending) of what was offered. Values are never NaN.
struct FirstSixteen {
  float values[kEach];
  std::uint32_t ids[kEach];
  std::uint32_t count = 0;

  bool takes(float value, std::uint32_t id) const {
    if (count < kEach) return true;
    const float last = values[kEach - 1];
    return value > last || (value == last && id < ids[kEach - 1]);
  }
  void insert(float value, std::uint32_t id) {
    std::uint32_t place = count < kEach ? count++ : kEach - 1;
    while (place > 0 && (values[place - 1] < value || (values[place - 1] == value && ids[place - 1] > id))) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
      --place;
    }
    values[place] = value;
    ids[place] = id;
  }
};

constexpr std::uint32_t kBlock = 128;  // elements whose largest is kept; 16 blocks are read twice

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

inline void offer_one_by_one(const float* values, std::uint32_t begin, std::uint32_t end, FirstSixteen& list) {
  for (std::uint32_t id = begin; id < end; ++id) {
    const float value = values[id] != values[id] ? kNegativeInfinity : values[id];
    if (list.takes(value, id)) list.insert(value, id);
  }
}

// Offers a whole block; vectors in which nothing can enter cost one comparison.
template <typename V>
void offer_block(const float* values, std::uint32_t begin, FirstSixteen& list) {
  std::uint32_t id = begin;
  if (list.count < kEach) {
    offer_one_by_one(values, begin, begin + kEach, list);
    id += kEach;
  }
  const std::uint32_t end = begin + kBlock;
  while (id < end) {
    // Equal values enter only where their ids are lower. -inf never has to enter a full list otherwise, so
    // that NaN, which no comparison selects, needs no care unless the last value is -inf.
    const float last = list.values[kEach - 1];
    if (last == kNegativeInfinity) return offer_one_by_one(values, id, end, list);
    const typename V::Floats bound = V::splat(last);
    const bool ties_enter = begin < list.ids[kEach - 1];
    for (; id < end; id += V::width) {
      const typename V::Floats loaded = V::load(values + id);
      const std::uint32_t entering = ties_enter ? V::at_least(loaded, bound) : V::above(loaded, bound);
      if (entering != 0) break;
    }
    if (id >= end) return;
    offer_one_by_one(values, id, id + V::width, list);
    id += V::width;
  }
}

// The 16 first elements of values[begin, end), in order.
//
// The 16 blocks whose largest elements stand first hold all of them: an element of another block stands
// behind 16 others. So one pass at the speed of memory keeps the 16 first blocks by largest element, and a
// second visits those, the most promising first, which keeps ascending and constant rows cheap as well.
template <typename V>
FirstSixteen first_sixteen(const float* values, std::uint32_t begin, std::uint32_t end) {
  FirstSixteen blocks;
  const std::uint32_t whole_blocks = (end - begin) / kBlock;
  for (std::uint32_t block = 0; block < whole_blocks; ++block) {
    const float largest = largest_of_block<V>(values + begin + block * kBlock);
    if (blocks.takes(largest, block)) blocks.insert(largest, block);
  }
  FirstSixteen result;
  for (std::uint32_t i = 0; i < blocks.count; ++i) {
    const std::uint32_t block_begin = begin + blocks.ids[i] * kBlock;
    if (result.takes(blocks.values[i], block_begin)) offer_block<V>(values, block_begin, result);
  }
  offer_one_by_one(values, begin + whole_blocks * kBlock, end, result);
  return result;
}

// Task (lane, position, shard): see dflash2_select_top16 in the shader.
template <typename V>
void top16(const NativeLaunch& launch, std::uint32_t task) {
  const auto& params = launch.params<DFlash2SelectorParams>(3);
  const std::uint32_t positions = params.rows_per_lane - 1;
  const std::uint32_t shard = task % kShards;
  const std::uint64_t row = std::uint64_t{task / kShards / positions} * params.rows_per_lane +
                            task / kShards % positions + 1;
  const std::uint32_t quotient = params.vocabulary / kShards;
  const std::uint32_t remainder = params.vocabulary % kShards;
  const std::uint32_t begin = shard * quotient + (shard < remainder ? shard : remainder);
  const std::uint32_t end = begin + quotient + (shard < remainder ? 1 : 0);
  const FirstSixteen list = first_sixteen<V>(launch.buffer<const float>(0) + row * params.vocabulary, begin, end);
  std::uint32_t* ids = launch.buffer<std::uint32_t>(1) + std::uint64_t{task} * kEach;
  float* values = launch.buffer<float>(2) + std::uint64_t{task} * kEach;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    ids[i] = i < list.count ? list.ids[i] : kNoId;
    values[i] = i < list.count ? list.values[i] : kNegativeInfinity;
  }
}

// The 16 first of a position's 8 sorted partial lists, ids kept below the vocabulary.
inline FirstSixteen merged_shards(const NativeLaunch& launch, std::uint32_t group, std::uint32_t vocabulary) {
  const std::uint64_t offset = std::uint64_t{group} * kShards * kEach;
  const std::uint32_t* ids = launch.buffer<const std::uint32_t>(0) + offset;
  const float* values = launch.buffer<const float>(1) + offset;
  std::uint32_t heads[kShards] = {};
  FirstSixteen result;
  for (result.count = 0; result.count < kEach; ++result.count) {
    std::uint32_t best = 0;
    for (std::uint32_t shard = 1; shard < kShards; ++shard) {
      const std::uint32_t a = shard * kEach + heads[shard];
      const std::uint32_t b = best * kEach + heads[best];
      if (values[a] > values[b] || (values[a] == values[b] && ids[a] < ids[b])) best = shard;
    }
    const std::uint32_t taken = best * kEach + heads[best];
    result.values[result.count] = values[taken];
    result.ids[result.count] = ids[taken] < vocabulary ? ids[taken] : vocabulary - 1;
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
  const FirstSixteen candidates = merged_shards(launch, task, params.vocabulary);
  const FirstSixteen before = position == 0 ? candidates : merged_shards(launch, task - 1, params.vocabulary);
  std::uint32_t* candidate_ids = launch.buffer<std::uint32_t>(2) + std::uint64_t{task} * kEach;
  float* unary = launch.buffer<float>(3) + std::uint64_t{task} * kEach;
  float* scores = launch.buffer<float>(4) + std::uint64_t{task} * kEach * kEach;
  const auto* hidden = launch.buffer<const std::uint16_t>(5) + (lane * params.rows_per_lane + position + 1) * kRank;
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
