// DFlash2 selector: 16 candidates a position, scores of every candidate pair, one coherent path a lane, and
// how many of its rows to verify.
//
//   logits f32 [L, R, V] --top16--> partials [L, P, 8, 16] --edges--> candidates, unary [L, P, 16]
//                                                                     edges [L, P, 16, 16]
//   candidates, unary, edges --path--> tokens [L, P] --verify_rows--> rows [L]
//
// L lanes, R rows a lane, P = R - 1 positions, V vocabulary. Row 0 of a lane is its anchor's; position p
// reads row p + 1.
#include <metalane/lib/ordered_key.h>
#include <metalane/params/dflash2_selector.h>

#include <metal_stdlib>
using namespace metal;

constexpr constant uint top16_threads = 256;
constexpr constant uint candidates_each = DFLASH2_CANDIDATES;
constexpr constant uint no_id = 0xffffffffu;

// One shard of one row of logits: `length` elements from `begin`, taken four at a time.
struct Shard {
  ulong row;  // index of the row's first logit
  uint begin;
  uint length;
};

static Shard shard_of(uint threadgroup_index, constant DFlash2SelectorParams& params) {
  const uint positions = params.rows_per_lane - 1;
  const uint shard = threadgroup_index % DFLASH2_SHARDS;
  const uint lane = threadgroup_index / DFLASH2_SHARDS / positions;
  const uint position = threadgroup_index / DFLASH2_SHARDS % positions;
  const uint quotient = params.vocabulary / DFLASH2_SHARDS;
  const uint remainder = params.vocabulary % DFLASH2_SHARDS;
  Shard result;
  result.row = ulong(lane * params.rows_per_lane + position + 1) * params.vocabulary;
  result.begin = shard * quotient + min(shard, remainder);
  result.length = quotient + (shard < remainder ? 1u : 0u);
  return result;
}

// The first in order of the quads first, first + stride, ... of a shard; `none` where there are none.
static OrderedKey best_of_quads(device const float* logits, Shard shard, uint first, uint stride,
                                OrderedKey none) {
  OrderedKey best = none;
  device const float* values = logits + shard.row + shard.begin;
  for (uint offset = first * 4; offset < shard.length; offset += stride * 4) {
    if (shard.length - offset >= 4) {
      // Rows of an odd vocabulary start anywhere: a packed vector asks only for its element's alignment.
      const float4 quad = float4(*reinterpret_cast<device const packed_float4*>(values + offset));
      for (uint i = 0; i < 4; ++i) {
        const uint key = ordered_key(quad[i]);
        if (key > best.key) best = {key, shard.begin + offset + i};
      }
    } else {
      for (uint i = offset; i < shard.length; ++i) {
        const uint key = ordered_key(values[i]);
        if (key > best.key) best = {key, shard.begin + i};
      }
    }
  }
  return best;
}

// How many of 16 sorted entries stand before `mine`, by bisection.
static uint preceding(threadgroup const OrderedKey* sorted, OrderedKey mine) {
  uint count = 0;
  for (uint step = candidates_each / 2; step > 0; step /= 2) {
    if (precedes(sorted[count + step - 1], mine)) count += step;
  }
  return count + (precedes(sorted[count], mine) ? 1u : 0u);
}

// The place among 8 sorted lists of 16 of the entry that is number `self` of them.
static uint place_among_lists(threadgroup const OrderedKey* lists, uint self) {
  const OrderedKey mine = lists[self];
  uint place = self % candidates_each;
  for (uint list = 0; list < 8; ++list) {
    if (list != self / candidates_each) place += preceding(lists + list * candidates_each, mine);
  }
  return place;
}

// The 16 first of 256 entries, one a thread.
struct Tournament {
  OrderedKey entry[top16_threads];
  OrderedKey kept[top16_threads / 2];  // the 16 first of every 32 entries, sorted
  uint kept_tag[top16_threads / 2];
  OrderedKey first[candidates_each];
  uint first_tag[candidates_each];  // what the thread of each gave with its entry
};

// Every thread calls it. Entries must differ; results hold until the next call.
static void play(threadgroup Tournament& tournament, uint thread_index, OrderedKey mine, uint tag) {
  tournament.entry[thread_index] = mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint block = thread_index / 32;
  uint rank = 0;
  for (uint i = 0; i < 32; ++i) rank += precedes(tournament.entry[block * 32 + i], mine) ? 1u : 0u;
  if (rank < candidates_each) {
    tournament.kept[block * candidates_each + rank] = mine;
    tournament.kept_tag[block * candidates_each + rank] = tag;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < top16_threads / 2) {
    const uint place = place_among_lists(tournament.kept, thread_index);
    if (place < candidates_each) {
      tournament.first[place] = tournament.kept[thread_index];
      tournament.first_tag[place] = tournament.kept_tag[thread_index];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Threadgroup (lane, position, shard) -> the shard's 16 first in order, sorted; places that a shard of fewer
// than 16 elements leaves have value -inf and id 2^32 - 1, behind every real one.
//
// A tournament of subsets. The 256 threads hold 256 disjoint subsets; an element among the 16 first can only
// be in one of the 16 subsets whose best stand first. Those 16 are cut into 256 again, sixteen times
// smaller, until one thread holds one element. The work does not depend on the values: no append, no atomic.
//
//   round 0: thread t holds quads t, t + 256, t + 512, ...     (neighbouring threads load neighbouring quads)
//   round 1: quads w, w + 4096, ... of a winner's              (w = winner + 256 * (t % 16))
//   last:    one element of 16 winners x 4 quads x 4
kernel void dflash2_select_top16(device const float* logits [[buffer(0)]],
                                 device uint* partial_ids [[buffer(1)]],
                                 device float* partial_values [[buffer(2)]],
                                 constant DFlash2SelectorParams& params [[buffer(3)]],
                                 uint group [[threadgroup_position_in_grid]],
                                 uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup Tournament tournament;

  const Shard shard = shard_of(group, params);
  const uint quads = shard.length / 4 + (shard.length % 4 != 0 ? 1u : 0u);
  const OrderedKey none = {0u, no_id - thread_index};  // behind every value
  uint first = thread_index;
  uint stride = top16_threads;
  while (true) {
    play(tournament, thread_index, best_of_quads(logits, shard, first, stride, none), first);
    if (quads <= 4 * stride) break;  // no subset has more than four quads
    first = tournament.first_tag[thread_index / 16] + stride * (thread_index % 16);
    stride *= 16;
  }

  const uint quad = tournament.first_tag[thread_index / 16] + stride * (thread_index % 16 / 4);
  const uint element = quad * 4 + thread_index % 4;
  device const float* row = logits + shard.row;
  OrderedKey mine = none;
  if (element < shard.length) {
    mine.id = shard.begin + element;
    mine.key = ordered_key(row[mine.id]);
  }
  play(tournament, thread_index, mine, 0u);
  if (thread_index < candidates_each) {
    const OrderedKey found = tournament.first[thread_index];
    const uint out = group * candidates_each + thread_index;
    partial_ids[out] = found.key != 0u ? found.id : no_id;
    partial_values[out] = found.key != 0u ? nan_to_negative_infinity(row[found.id]) : -INFINITY;
  }
}

constexpr constant uint partials_each = DFLASH2_SHARDS * DFLASH2_CANDIDATES;
constexpr constant uint chunk_quads = 16;                // 64 of the 256 ranks are staged at once
constexpr constant uint staged_pitch = chunk_quads + 1;  // in float4: keeps the 16 rows in different banks

static float4 load_bfloat4(device const bfloat* values) {
  return float4(float(values[0]), float(values[1]), float(values[2]), float(values[3]));
}

// Threadgroup (lane, position) -> its candidates, their logits, and
// edges[a][b] = sum over r of A[predecessor a][r] * H[r] * B[candidate b][r], thread 16 a + b.
//
// Candidates of this position and of the one before (the predecessors) are both merged here, from
// 8 shards x 16, because another threadgroup's result cannot be awaited. Four sums run over r mod 4 in
// ascending order with fused multiply-adds and are added pairwise.
kernel void dflash2_select_edges(device const uint* partial_ids [[buffer(0)]],
                                 device const float* partial_values [[buffer(1)]],
                                 device uint* candidates [[buffer(2)]], device float* unary [[buffer(3)]],
                                 device float* edges [[buffer(4)]],
                                 device const bfloat* selector_hidden [[buffer(5)]],
                                 device const bfloat* predecessor_codebook [[buffer(6)]],
                                 device const bfloat* successor_codebook [[buffer(7)]],
                                 constant DFlash2SelectorParams& params [[buffer(8)]],
                                 uint group [[threadgroup_position_in_grid]],
                                 uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup OrderedKey partials[2 * partials_each];  // this position's, then those of the one before
  threadgroup uint merged[2 * candidates_each];
  threadgroup float4 scaled_predecessor[candidates_each * staged_pitch];
  threadgroup float4 successor[candidates_each * staged_pitch];

  const uint positions = params.rows_per_lane - 1;
  const uint lane = group / positions;
  const uint position = group % positions;
  const uint half_index = thread_index / partials_each;
  const uint slot = thread_index % partials_each;
  const bool anchored = half_index == 1 && position == 0;  // the anchor precedes every first candidate
  const uint source = (anchored ? group : group - half_index) * partials_each + slot;
  const float value = partial_values[source];
  partials[thread_index] = {ordered_key(value), partial_ids[source]};
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint place = place_among_lists(partials + half_index * partials_each, slot);
  if (place < candidates_each) {
    const uint id = partials[thread_index].id;
    merged[half_index * candidates_each + place] = anchored ? params.anchor[lane] : id;
    if (half_index == 0) {
      candidates[group * candidates_each + place] = id;
      unary[group * candidates_each + place] = nan_to_negative_infinity(value);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint row = thread_index / 16;
  const uint column = thread_index % 16;
  device const bfloat* hidden =
      selector_hidden + (lane * params.rows_per_lane + position + 1) * DFLASH2_SELECTOR_RANK;
  // Below the vocabulary unless the kernel was given partials that top16 did not write.
  const uint last_id = params.vocabulary - 1;
  device const bfloat* from =
      predecessor_codebook + ulong(min(merged[candidates_each + row], last_id)) * DFLASH2_SELECTOR_RANK;
  device const bfloat* to = successor_codebook + ulong(min(merged[row], last_id)) * DFLASH2_SELECTOR_RANK;
  float4 sum = float4(0.0f);
  for (uint chunk = 0; chunk < DFLASH2_SELECTOR_RANK; chunk += 4 * chunk_quads) {
    const uint r = chunk + 4 * column;
    scaled_predecessor[row * staged_pitch + column] = load_bfloat4(from + r) * load_bfloat4(hidden + r);
    successor[row * staged_pitch + column] = load_bfloat4(to + r);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < chunk_quads; ++i) {
      sum = fma(scaled_predecessor[row * staged_pitch + i], successor[column * staged_pitch + i], sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  edges[group * (candidates_each * candidates_each) + thread_index] = (sum.x + sum.y) + (sum.z + sum.w);
}

// What a position's scores come to.
struct Scores {
  float score[DFLASH2_CANDIDATES];
  float largest;
  uint first_largest;
};

// score[b] = unary[b] + edges[b], NaN counted as -inf.
static Scores position_scores(device const float* unary, device const float* edges) {
  Scores result;
  result.largest = -INFINITY;
  result.first_largest = 0;
  for (uint b = 0; b < candidates_each; ++b) {
    const float score = nan_to_negative_infinity(unary[b] + edges[b]);
    result.score[b] = score;
    if (score > result.largest) {
      result.largest = score;
      result.first_largest = b;
    }
  }
  return result;
}

// exp((score - largest) / temperature): 1 for the largest, so that no quotient of two zeros or infinities
// arises, whatever the temperature.
static float softmax_weight(float score, float largest, float temperature) {
  return score == largest ? 1.0f : exp((score - largest) / temperature);
}

// Thread (lane): walks the positions; each step's scores are those of the token chosen before.
kernel void dflash2_select_path(device const uint* candidates [[buffer(0)]],
                                device const float* unary [[buffer(1)]],
                                device const float* edges [[buffer(2)]],
                                device const float* uniforms [[buffer(3)]], device uint* tokens [[buffer(4)]],
                                device float* proposal_probabilities [[buffer(5)]],
                                device float* confidence [[buffer(6)]],
                                constant DFlash2SelectorParams& params [[buffer(7)]],
                                uint lane [[thread_position_in_grid]]) {
  if (lane >= params.lanes) return;
  const uint positions = params.rows_per_lane - 1;
  const bool sampled = ((params.sampling_mask >> lane) & 1u) != 0u;
  const float temperature = sampled ? params.temperature[lane] : 1.0f;
  uint predecessor = 0;  // every row of the first position's edges is the anchor's
  for (uint position = 0; position < positions; ++position) {
    const uint step = lane * positions + position;
    const Scores scores = position_scores(unary + step * candidates_each,
                                          edges + (step * candidates_each + predecessor) * candidates_each);
    const bool empty = scores.largest == -INFINITY;  // then index 0 is certain, with confidence 1/16
    float weight[DFLASH2_CANDIDATES];
    float total = 0.0f;
    for (uint b = 0; b < candidates_each; ++b) {
      weight[b] = softmax_weight(scores.score[b], scores.largest, temperature);
      total += weight[b];
    }
    uint chosen = scores.first_largest;
    if (sampled && !empty) {
      const float given = uniforms[step];
      const float uniform_value = given > 0.0f ? given : 0.0f;  // NaN and negatives count as 0
      float running = 0.0f;
      bool found = false;
      for (uint b = 0; b < candidates_each && !found; ++b) {
        const float probability = weight[b] / total;
        running += probability;
        if (probability > 0.0f) chosen = b;  // the last one stands where no sum exceeds the uniform
        found = running > uniform_value;
      }
    }
    const bool one_hot = !sampled || empty;
    for (uint b = 0; b < candidates_each; ++b) {
      const float probability = one_hot ? (b == chosen ? 1.0f : 0.0f) : weight[b] / total;
      proposal_probabilities[step * candidates_each + b] = probability;
    }
    confidence[step] = weight[chosen] / total;
    tokens[step] = candidates[step * candidates_each + chosen];
    predecessor = chosen;
  }
}

// log(c / (1 - c)) with c clamped to [1e-6, 1 - 1e-6], NaN to the lower bound. The bounds' logits are
// constants because 1 - 1e-6 is no float: its neighbour would be 1.3 % off in 1 - c.
static float clamped_logit(float c) {
  constexpr float largest_logit = 13.8155096f;
  if (!(c > 1e-6f)) return -largest_logit;
  if (c > 0.999999f) return largest_logit;
  return log(c / (1.0f - c));
}

// A positive float as mantissa * 2^exponent, mantissa in [1, 2), from its bits: exact for subnormals too.
struct Cost {
  float mantissa;
  int exponent;
};

static Cost cost_of(constant DFlash2VerifyRowsParams& params, uint rows) {
  const float cost = rows < DFLASH2_VERIFY_COSTS - 1 ? params.cost[rows] : params.cost_64;
  const uint bits = as_type<uint>(cost);
  uint fraction = bits & 0x7fffffu;
  int exponent = int(bits >> 23);
  if (exponent == 0) {
    const int shift = int(clz(fraction)) - 8;
    fraction = (fraction << shift) & 0x7fffffu;
    exponent = 1 - shift;
  }
  Cost result;
  result.mantissa = as_type<float>(0x3f800000u | fraction);
  result.exponent = exponent;
  return result;
}

// 2^exponent, kept within +-2^60: far past the quotient of any two sums of at most 64 tokens.
static float bounded_power_of_two(int exponent) {
  return as_type<float>(uint(clamp(exponent, -60, 60) + 127) << 23);
}

// a / x > b / y, by products that neither overflow nor vanish.
static bool better_ratio(float a, Cost x, float b, Cost y) {
  return a * y.mantissa * bounded_power_of_two(y.exponent - x.exponent) > b * x.mantissa;
}

// The chance that position `position` of a lane is accepted, given that all before it were.
static float accept_chance(device const float* confidence, constant DFlash2VerifyRowsParams& params,
                           uint lane, uint position) {
  const float c = confidence[lane * (params.rows_per_lane - 1) + position];
  return 1.0f / (1.0f + exp(-(params.slope * clamped_logit(c) + params.intercept[position])));
}

// One thread. Rows of a lane are worth 1 + survive[0] + survive[1] + ...; survive never grows along a lane,
// so the best way to spend a total is to add, one by one, the row of the largest survive (a merge of sorted
// lists). Every total from one row a lane to every lane's maximum is tried, and the best ratio to its cost
// wins. Ties: the lower lane's row first; fewer rows in total.
kernel void dflash2_select_verify_rows(device const float* confidence [[buffer(0)]],
                                       device uint* verify_rows [[buffer(1)]],
                                       constant DFlash2VerifyRowsParams& params [[buffer(2)]],
                                       uint thread_index [[thread_position_in_grid]]) {
  if (thread_index != 0) return;
  uint rows[DFLASH2_MAX_LANES];
  uint best_rows[DFLASH2_MAX_LANES];
  float survive[DFLASH2_MAX_LANES];  // what the lane's next row is worth; below 0: it has no next row
  for (uint lane = 0; lane < params.lanes; ++lane) {
    rows[lane] = params.every_row != 0 ? params.maximum[lane] : 1u;
    best_rows[lane] = rows[lane];
    survive[lane] = rows[lane] < params.maximum[lane] ? accept_chance(confidence, params, lane, 0) : -1.0f;
  }
  uint total = params.lanes;
  float tokens = float(params.lanes);
  float best_tokens = tokens;
  Cost best_cost = cost_of(params, total);
  while (true) {
    uint next = 0;
    for (uint lane = 1; lane < params.lanes; ++lane) {
      if (survive[lane] > survive[next]) next = lane;
    }
    if (survive[next] < 0.0f) break;
    tokens += survive[next];
    total += 1;
    rows[next] += 1;
    survive[next] = rows[next] < params.maximum[next]
                        ? survive[next] * accept_chance(confidence, params, next, rows[next] - 1)
                        : -1.0f;
    const Cost cost = cost_of(params, total);
    if (better_ratio(tokens, cost, best_tokens, best_cost)) {
      best_tokens = tokens;
      best_cost = cost;
      for (uint lane = 0; lane < params.lanes; ++lane) best_rows[lane] = rows[lane];
    }
  }
  for (uint lane = 0; lane < params.lanes; ++lane) verify_rows[lane] = best_rows[lane];
}
