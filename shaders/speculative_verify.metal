// Lossless verification of drafted tokens by rejection sampling: which of them the target model keeps, and the
// token that follows, so that what is emitted has the target's own distribution, whatever was drafted.
//
//   logits [L, R, V] --rows--> partials [L, R, S] --tokens--> accepted [L], next_tokens [L]
//
// L lanes, R rows a lane, V vocabulary in S shards, K candidates a position. Row r of a lane is the target's answer
// to the anchor and the lane's first r drafted tokens: it judges drafted token r, or gives the one after the last.
// Lane l has rows 0 to verify_rows[l] - 1 and one drafted token less; nothing past them is read.
//
//   p = softmax(row / temperature)    q = the proposal that token r was drawn from, given those before it
//   keep d where u < p(d) / q(d), else draw from max(p - q, 0); behind the last one kept draw from p
#include <metalane/lib/ordered_key.h>
#include <metalane/params/speculative_verify.h>

#include <metal_stdlib>
using namespace metal;

constexpr constant uint no_token = SPECULATIVE_NO_TOKEN;
constexpr constant uint shard_simdgroups = SPECULATIVE_SHARD_THREADS / 32;
constexpr constant uint lane_simdgroups = SPECULATIVE_LANE_THREADS / 32;
constexpr constant uint run_length = 16;  // neighbouring elements that one thread takes: a cache line of floats

// exp((value - largest) / temperature): 1 for the largest, so that no quotient of two zeros or infinities
// arises, whatever the temperature.
static float softmax_weight(float value, float largest, float temperature) {
  return value == largest ? 1.0f : exp((value - largest) / temperature);
}

template <typename T>
static float logit_of(device const T* logit) {
  return nan_to_negative_infinity(float(*logit));
}

static uint shards_of(constant SpeculativeVerifyParams& params) {
  return (params.vocabulary + SPECULATIVE_SHARD - 1) / SPECULATIVE_SHARD;
}

static uint rows_of(device const uint* verify_rows, uint lane, constant SpeculativeVerifyParams& params) {
  return min(verify_rows[lane], params.rows_per_lane);
}

// 0 for a greedy lane: what is not above 0, NaN included.
static float temperature_of(device const float* temperature, uint lane) {
  const float given = temperature[lane];
  return given > 0.0f ? min(given, FLT_MAX) : 0.0f;
}

// Threadgroup (lane, row, shard) -> the id of the shard's largest logit, the lowest among equals, and the sum of
// the softmax weights relative to it.
template <typename T>
kernel void speculative_verify_rows(device const T* logits [[buffer(0)]],
                                    device const uint* verify_rows [[buffer(1)]],
                                    device const float* temperature [[buffer(2)]],
                                    device uint* partial_ids [[buffer(3)]],
                                    device float* partial_sums [[buffer(4)]],
                                    constant SpeculativeVerifyParams& params [[buffer(5)]],
                                    uint group [[threadgroup_position_in_grid]],
                                    ushort thread_index [[thread_index_in_threadgroup]],
                                    ushort simd_lane [[thread_index_in_simdgroup]],
                                    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup OrderedKey largest[shard_simdgroups];
  threadgroup float sums[shard_simdgroups];
  const uint row = group / shards_of(params);
  const uint lane = row / params.rows_per_lane;
  if (row % params.rows_per_lane >= rows_of(verify_rows, lane, params)) return;
  const uint begin = group % shards_of(params) * SPECULATIVE_SHARD;
  const uint end = min(begin + SPECULATIVE_SHARD, params.vocabulary);
  device const T* values = logits + ulong(row) * params.vocabulary;

  OrderedKey best = {0u, no_token};
  for (uint run = begin + run_length * thread_index; run < end; run += run_length * SPECULATIVE_SHARD_THREADS) {
    const uint stop = min(run + run_length, end);
    for (uint id = run; id < stop; ++id) {
      const uint key = ordered_key(float(values[id]));
      if (key > best.key) best = {key, id};
    }
  }
  const uint key = simd_max(best.key);
  const uint id = simd_min(best.key == key ? best.id : no_token);
  if (simd_lane == 0) largest[simdgroup] = {key, id};
  threadgroup_barrier(mem_flags::mem_threadgroup);
  best = largest[0];
  for (uint i = 1; i < shard_simdgroups; ++i) {
    if (precedes(largest[i], best)) best = largest[i];
  }
  if (thread_index == 0) partial_ids[group] = best.id;

  const float t = temperature_of(temperature, lane);
  if (t == 0.0f) return;  // a greedy lane
  const float top = logit_of(values + best.id);
  float sum = 0.0f;
  for (uint run = begin + run_length * thread_index; run < end; run += run_length * SPECULATIVE_SHARD_THREADS) {
    const uint stop = min(run + run_length, end);
    for (uint i = run; i < stop; ++i) sum += softmax_weight(logit_of(values + i), top, t);
  }
  sum = simd_sum(sum);
  if (simd_lane == 0) sums[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index != 0) return;
  for (uint i = 1; i < shard_simdgroups; ++i) sum += sums[i];
  partial_sums[group] = sum;
}

// The target's distribution over one row: p(id) = weight(id) / total.
template <typename T>
struct TargetRow {
  device const T* values;
  uint vocabulary;
  uint first;     // the id of the largest logit, the lowest among equals
  float largest;  // that logit
  float temperature;
  float total;
  bool certain;  // `first` has probability 1: in a greedy lane, and where no logit is above -inf

  float weight(uint id) const {
    if (certain) return id == first ? 1.0f : 0.0f;
    return id < vocabulary ? softmax_weight(logit_of(values + id), largest, temperature) : 0.0f;
  }
};

template <typename T>
static TargetRow<T> target_row(device const T* logits, device const uint* partial_ids,
                               device const float* partial_sums, float temperature, uint row,
                               constant SpeculativeVerifyParams& params) {
  TargetRow<T> result;
  result.values = logits + ulong(row) * params.vocabulary;
  result.vocabulary = params.vocabulary;
  result.temperature = temperature;
  OrderedKey best = {0u, no_token};
  const uint shards = shards_of(params);
  partial_ids += row * shards;
  partial_sums += row * shards;
  for (uint i = 0; i < shards; ++i) {
    // Below the vocabulary unless the kernel was given partials that speculative_verify_rows did not write.
    const uint id = min(partial_ids[i], params.vocabulary - 1);
    const OrderedKey mine = {ordered_key(float(result.values[id])), id};
    if (precedes(mine, best)) best = mine;
  }
  result.first = best.id;
  result.largest = logit_of(result.values + result.first);
  result.certain = temperature == 0.0f || result.largest == -INFINITY;
  result.total = result.certain ? 1.0f : 0.0f;
  if (result.certain) return result;
  for (uint i = 0; i < shards; ++i) result.total += partial_sums[i] * result.weight(partial_ids[i]);
  return result;
}

// What was proposed at one position: K ids and their probabilities. NaN and negative ones count as 0; an id that
// comes twice has the sum.
struct Proposal {
  device const uint* ids;
  device const float* probabilities;
  uint count;

  float probability(uint id) const {
    float sum = 0.0f;
    for (uint i = 0; i < count; ++i) {
      if (ids[i] == id && probabilities[i] > 0.0f) sum += min(probabilities[i], 1.0f);
    }
    return sum;
  }
};

static Proposal proposal_at(device const uint* candidates, device const float* probabilities, uint position,
                            constant SpeculativeVerifyParams& params) {
  const ulong first = ulong(position) * params.candidates;
  Proposal result;
  result.ids = candidates + first;
  result.probabilities = probabilities + first;
  result.count = params.candidates;
  return result;
}

// Tokens from whose weight something is taken away before a draw.
struct Reduction {
  threadgroup const uint* ids;
  threadgroup const float* amounts;
  uint count;

  // The lowest id from `from` on, or no_token.
  uint next_from(uint from) const {
    uint next = no_token;
    for (uint i = 0; i < count; ++i) {
      if (ids[i] >= from) next = min(next, ids[i]);
    }
    return next;
  }
  float reduced(float weight, uint id) const {
    for (uint i = 0; i < count; ++i) {
      if (ids[i] == id) return max(weight - amounts[i], 0.0f);
    }
    return weight;
  }
};

// This thread's share of the sum of reduced weights of tokens [begin, end), which a simdgroup adds up.
template <typename T>
static float partial_weight(thread const TargetRow<T>& row, thread const Reduction& reduction, uint begin,
                            uint end, uint simd_lane) {
  float sum = 0.0f;
  uint next = reduction.next_from(begin);
  for (uint run = begin + run_length * simd_lane; run < end; run += run_length * 32) {
    const uint stop = min(run + run_length, end);
    if (next < run) next = reduction.next_from(run);
    for (uint id = run; id < stop; ++id) {
      float weight = row.weight(id);
      if (id == next) {
        weight = reduction.reduced(weight, id);
        next = reduction.next_from(id + 1);
      }
      sum += weight;
    }
  }
  return sum;
}

// The first token, by id, at which the running sum of reduced weights exceeds `uniform_value` of their total;
// no_token where all of them are 0. Every thread calls it.
//
// A range of tokens is cut into one part a simdgroup, the part that holds the token is cut again, and so on: by
// eighths, so that everything after the first cut reads an eighth of what the first did. A part is chosen only
// where its sum is above 0, and then one of its own parts has a sum above 0: rounding moves the boundaries
// between tokens, but never to one whose weight is 0.
template <typename T>
static uint draw(thread const TargetRow<T>& row, thread const Reduction& reduction, float uniform_value,
                 threadgroup float* sums, uint simd_lane, uint simdgroup) {
  uint begin = 0;
  uint end = row.vocabulary;
  float target = 0.0f;
  bool scaled = false;
  while (!scaled || end - begin > run_length) {
    const uint part = (end - begin + lane_simdgroups - 1) / lane_simdgroups;
    const uint mine = min(begin + part * simdgroup, end);
    const float sum = simd_sum(partial_weight(row, reduction, mine, min(mine + part, end), simd_lane));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_lane == 0) sums[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!scaled) {
      float total = 0.0f;
      for (uint i = 0; i < lane_simdgroups; ++i) total += sums[i];
      if (total == 0.0f) return no_token;
      target = uniform_value * total;
      scaled = true;
    }
    float before = 0.0f;
    uint chosen = 0;
    float before_chosen = 0.0f;
    for (uint i = 0; i < lane_simdgroups && before <= target; ++i) {
      if (sums[i] > 0.0f) {
        chosen = i;
        before_chosen = before;
      }
      before += sums[i];
    }
    target -= before_chosen;
    begin += part * chosen;
    end = min(begin + part, end);
  }
  uint chosen = begin;
  float running = 0.0f;
  for (uint id = begin; id < end && running <= target; ++id) {
    const float weight = reduction.reduced(row.weight(id), id);
    if (weight > 0.0f) chosen = id;
    running += weight;
  }
  return chosen;
}

// A uniform in [0, 1); NaN and negatives count as 0.
static float uniform_of(device const float* uniforms, uint index) {
  const float given = uniforms[index];
  return given > 0.0f ? given : 0.0f;
}

// Threadgroup (lane): tests the drafted tokens, one a thread, and draws what follows the last one kept. The
// uniforms of a lane are one a drafted token, and behind those of all R - 1 the one of the draw.
template <typename T>
kernel void speculative_verify_tokens(
    device const T* logits [[buffer(0)]], device const uint* verify_rows [[buffer(1)]],
    device const float* temperature [[buffer(2)]], device const uint* partial_ids [[buffer(3)]],
    device const float* partial_sums [[buffer(4)]], device const uint* tokens [[buffer(5)]],
    device const uint* candidates [[buffer(6)]], device const float* proposal_probabilities [[buffer(7)]],
    device const float* uniforms [[buffer(8)]], device uint* accepted [[buffer(9)]],
    device uint* next_tokens [[buffer(10)]],
    device atomic_uint* status_rows_without_a_distribution [[buffer(11)]],
    constant SpeculativeVerifyParams& params [[buffer(12)]], uint lane [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]], ushort simd_lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint first_rejected[lane_simdgroups];
  threadgroup uint reduced_ids[SPECULATIVE_MAX_CANDIDATES];
  threadgroup float reduced_amounts[SPECULATIVE_MAX_CANDIDATES];
  threadgroup float sums[lane_simdgroups];
  const uint rows = rows_of(verify_rows, lane, params);
  if (rows == 0) {
    if (thread_index == 0) {
      accepted[lane] = 0;
      next_tokens[lane] = no_token;
    }
    return;
  }
  const float t = temperature_of(temperature, lane);
  const uint drafted = rows - 1;
  const uint first_row = lane * params.rows_per_lane;
  const uint first_position = lane * (params.rows_per_lane - 1);

  bool rejected = false;
  if (thread_index < drafted) {
    const uint position = first_position + thread_index;
    const TargetRow<T> row =
        target_row(logits, partial_ids, partial_sums, t, first_row + thread_index, params);
    const uint token = tokens[position];
    const Proposal proposal = proposal_at(candidates, proposal_probabilities, position, params);
    // A token that its own proposal cannot give says nothing: it is dropped for a draw from p.
    const float q = row.certain ? 1.0f : proposal.probability(token);
    const float u = row.certain ? 0.0f : uniform_of(uniforms, first_row + thread_index);
    rejected = !(q > 0.0f && u * q * row.total < row.weight(token));
  }
  const uint rejected_here = simd_min(rejected ? uint(thread_index) : drafted);
  if (simd_lane == 0) first_rejected[simdgroup] = rejected_here;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint kept = drafted;
  for (uint i = 0; i < lane_simdgroups; ++i) kept = min(kept, first_rejected[i]);

  const TargetRow<T> row = target_row(logits, partial_ids, partial_sums, t, first_row + kept, params);
  uint next = row.first;
  if (!row.certain) {
    Reduction reduction;
    reduction.ids = reduced_ids;
    reduction.amounts = reduced_amounts;
    reduction.count = 0;
    if (kept < drafted) {
      const uint position = first_position + kept;
      const Proposal proposal = proposal_at(candidates, proposal_probabilities, position, params);
      if (proposal.probability(tokens[position]) > 0.0f) reduction.count = params.candidates;
      if (thread_index < reduction.count) {
        reduced_ids[thread_index] = proposal.ids[thread_index];
        reduced_amounts[thread_index] = proposal.probability(proposal.ids[thread_index]) * row.total;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float u = uniform_of(uniforms, first_row + params.rows_per_lane - 1);
    next = draw(row, reduction, u, sums, simd_lane, simdgroup);
    if (next == no_token) {  // q is at least p everywhere, by rounding: no residual is left
      reduction.count = 0;
      next = draw(row, reduction, u, sums, simd_lane, simdgroup);
    }
  }
  if (thread_index <= kept) {
    const TargetRow<T> judge =
        target_row(logits, partial_ids, partial_sums, t, first_row + thread_index, params);
    if (judge.largest == -INFINITY) {
      atomic_fetch_add_explicit(status_rows_without_a_distribution, 1u, memory_order_relaxed);
    }
  }
  if (thread_index == 0) {
    accepted[lane] = kept;
    next_tokens[lane] = next;
  }
}

#define INSTANTIATE(name, T)                                                                                    \
  template [[host_name("speculative_verify_rows_" #name)]] kernel decltype(speculative_verify_rows<T>)          \
      speculative_verify_rows<T>;                                                                               \
  template [[host_name("speculative_verify_tokens_" #name)]] kernel decltype(speculative_verify_tokens<T>)      \
      speculative_verify_tokens<T>;

INSTANTIATE(F32, float)
INSTANTIATE(F16, half)
INSTANTIATE(BF16, bfloat)
