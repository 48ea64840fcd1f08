// Mat-vec with GGML weights by integer dot products: inputs become three planes of signed bytes, 24 bits with
// a power of two for each run that shares a scale, and meet the bytes of native_ggml_quants.h. Rules on
// linkage: see native_ggml_blocks.h.
//
// An input is off by at most 2^-23 of the largest of its run. Sums over rows of weights are then about as
// accurate as float makes them, unless a few large inputs stand among small ones and meet weights of zero:
// such rows of inputs, and those that are not finite, are multiplied in float. That depends on the row alone.
//
// A worker makes planes when its first task needs them and keeps them in its scratch: slot t % slots belongs
// to tile t of the inputs.
//
// V has besides what native_ggml_quants.h asks for: on Ints, dot(sums, unsigned bytes, signed bytes),
// raised<bits>(x), plus(a, b), negative(x), load_ints(p), store_ints(p, x) and no_ints(); every(byte); for
// inputs magnitude(x), larger(a, b), largest(x) and digits(x, scale, high, middle, low): 16 bytes each of
// round(x * scale) = (high * 256 + middle) * 256 + low.
#pragma once

#include "backends/cpu/native_ggml_products.h"
#include "backends/cpu/native_ggml_quants.h"

namespace metalane::cpu {
namespace {

// The inputs that one part of a unit meets, by lane.
template <class Type>
struct alignas(64) InputPart {
  std::int8_t planes[3][Type::steps][64];  // high, middle, low
  // Where sums of products begin, by plane: what the weights' offset adds, taken off; where not `wide`, all
  // of it in the lowest.
  std::int32_t first_sums[3][16];
};

// A row of inputs. Behind it lie its parts, then, by the values of Type, the scale of the lowest digit and
// the sum for each group, zeros where a value is no scale or no minimum.
template <class Type>
struct alignas(64) InputRow {
  std::uint32_t units;
  bool in_float;

  static std::uint64_t bytes(std::uint32_t k) {
    const std::uint64_t units = pieces(k, Type::elements);
    return sizeof(InputRow) + units * Type::parts * sizeof(InputPart<Type>) +
           2 * padded(units) * sizeof(float);
  }
  InputPart<Type>* part(std::uint64_t i) { return reinterpret_cast<InputPart<Type>*>(this + 1) + i; }
  float* scales() { return reinterpret_cast<float*>(part(std::uint64_t{units} * Type::parts)); }
  float* sums() { return scales() + padded(units); }

  // A vector may begin with a unit's values and go on behind the last ones.
  static constexpr std::uint64_t padded(std::uint64_t units) {
    return (units * Type::values + 15) / 16 * 16 + 16;
  }
};

// A power of two, and its inverse, that brings inputs of at most `largest` to integers of at most
// 127 * (65536 + 256 + 1), which three signed bytes hold.
struct PlaneScale {
  float up, down;
  explicit PlaneScale(float largest) {
    const float bound = largest * 1.003963f;  // 2^23 / that integer
    const int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, bound) >> 23) - 127;
    const int shift = 22 - (exponent < -100 ? -100 : exponent);
    up = __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + shift) << 23);
    down = __builtin_bit_cast(float, static_cast<std::uint32_t>(127 - shift) << 23);
  }
};

// Whether planes do for a row: five standard deviations of its error are at most half of 1e-6 * sum |x|, the
// largest of each run left out. False where something is not finite.
struct Spread {
  double squares = 0, rest = 0;
  void add(std::uint32_t count, float largest, float sum) {
    squares += count * (double{largest} * largest);
    rest += double{sum} - largest;
  }
  bool suits_planes() const { return squares <= 2 * rest * rest; }
};

// By lane, `value` times the sums of a plane's digits.
template <class V, class Type>
inline typename V::Ints digit_sums(const InputPart<Type>& part, std::uint32_t plane, std::uint8_t value) {
  auto sums = V::no_ints();
  for (const auto& digits : part.planes[plane]) sums = V::dot(sums, V::every(value), V::load64(digits));
  return sums;
}

// Of sums by plane, what they mean: high * 65536 + middle * 256 + low.
template <class V>
inline typename V::Ints joined(typename V::Ints high, typename V::Ints middle, typename V::Ints low) {
  return V::plus(V::plus(V::template raised<16>(high), V::template raised<8>(middle)), low);
}

template <class V, class Type>
void make_part(const float* unit, std::uint32_t left, std::uint32_t number, InputPart<Type>& part,
               float* scales, Spread& spread) {
  constexpr std::uint32_t length = Type::group_length;
  for (std::uint32_t group = 0; group < Type::groups; ++group) {
    const std::uint32_t at = Type::group_at(number, group);
    typename V::Floats x[length / 16];
    for (std::uint32_t i = 0; i < length / 16; ++i)
      x[i] = at < left ? V::load(unit + at + 16 * i) : V::zero();
    auto largest = V::magnitude(x[0]), sum = largest;
    if constexpr (length == 32) {
      const auto second = V::magnitude(x[1]);
      largest = V::larger(largest, second);
      sum = V::add(sum, second);
    }
    const float bound = V::largest(largest);
    spread.add(length, bound, V::sum(sum));
    const PlaneScale scale(bound);
    scales[group] = scale.down;
    for (std::uint32_t i = 0; i < length / 16; ++i) {
      std::int8_t digits[3][16];
      V::digits(x[i], scale.up, digits[0], digits[1], digits[2]);
      for (std::uint32_t plane = 0; plane < 3; ++plane) {
        for (std::uint32_t word = 0; word < 4; ++word) {
          std::int8_t* to;
          if constexpr (length == 32) {
            to = &part.planes[plane][i][16 * group + 4 * word];
          } else {
            to = &part.planes[plane][(word + 4 - Type::first_word(group)) % 4][4 * group];
          }
          __builtin_memcpy(to, digits[plane] + 4 * word, 4);
        }
      }
    }
  }
  typename V::Ints sums[3];
  for (std::uint32_t plane = 0; plane < 3; ++plane)
    sums[plane] = digit_sums<V>(part, plane, static_cast<std::uint8_t>(Type::offset));
  if constexpr (!Type::wide) sums[2] = joined<V>(sums[0], sums[1], sums[2]);
  for (std::uint32_t plane = 0; plane < 3; ++plane)
    V::store_ints(part.first_sums[plane], V::negative(sums[plane]));
}

template <class V, class Type>
void make_sums(const InputPart<Type>& part, const float* scales, float* sums) {
  alignas(64) std::int32_t digits[16];
  V::store_ints(digits,
                joined<V>(digit_sums<V>(part, 0, 1), digit_sums<V>(part, 1, 1), digit_sums<V>(part, 2, 1)));
  constexpr std::uint32_t lanes = 16 / Type::groups;
  for (std::uint32_t group = 0; group < Type::groups; ++group) {
    std::int32_t sum = 0;
    for (std::uint32_t i = 0; i < lanes; ++i) sum += digits[lanes * group + i];
    sums[group] = Type::minimum_sign * (static_cast<float>(sum) * scales[group]);
  }
}

template <class V, class Type>
void make_planes(const float* x, std::uint32_t k, InputRow<Type>& row) {
  Spread spread;
  row.units = pieces(k, Type::elements);
  __builtin_memset(row.scales(), 0, 2 * row.padded(row.units) * sizeof(float));
  for (std::uint32_t unit = 0; unit < row.units; ++unit) {
    const std::uint32_t at = unit * Type::elements;
    for (std::uint32_t i = 0; i < Type::parts; ++i) {
      InputPart<Type>& part = *row.part(std::uint64_t{unit} * Type::parts + i);
      const std::uint64_t value = std::uint64_t{unit} * Type::values + i * Type::groups;
      make_part<V>(x + at, k - at, i, part, row.scales() + value, spread);
      if (Type::has_minimum) make_sums<V>(part, row.scales() + value, row.sums() + value + Type::minimum_at);
    }
  }
  row.in_float = !spread.suits_planes();
}

// By lane, the products of a part of some rows of weights and of the inputs, in units of the lowest digit.
// Planes have sums of their own: one chain of them all would keep the processor's queue full of products that
// wait.
template <class V, class Type, std::uint32_t rows>
inline void products(const typename V::Bytes (&weights)[rows][Type::parts][Type::steps], std::uint32_t number,
                     const InputPart<Type>& x, typename V::Floats (&result)[rows]) {
  typename V::Ints sums[3][rows];
  for (std::uint32_t plane = 0; plane < 3; ++plane) {
    const bool begun = Type::offset != 0 && (Type::wide || plane == 2);
    for (auto& sum : sums[plane]) sum = begun ? V::load_ints(x.first_sums[plane]) : V::no_ints();
    for (std::uint32_t s = 0; s < Type::steps; ++s) {
      const auto digits = V::load64(x.planes[plane][s]);
      for (std::uint32_t r = 0; r < rows; ++r)
        sums[plane][r] = V::dot(sums[plane][r], weights[r][number][s], digits);
    }
  }
  for (std::uint32_t r = 0; r < rows; ++r) {
    if constexpr (Type::wide) {
      const auto upper = V::to_floats(V::plus(V::template raised<8>(sums[0][r]), sums[1][r]));
      result[r] = V::multiply_add(upper, V::splat(256.0f), V::to_floats(sums[2][r]));
    } else {
      result[r] = V::to_floats(joined<V>(sums[0][r], sums[1][r], sums[2][r]));
    }
  }
}

// Some units of a row of weights. Factors are read a chunk ahead: vectors loaded from what narrower stores
// have just written would wait for these to reach the cache.
template <class V, class Type>
struct Chunk {
  const std::uint8_t* units;
  std::uint32_t count, first_unit;
  ChunkFactors factors;
  std::uint8_t last[Type::bytes];  // a copy of a unit that the row has but a part of, zeros behind

  // From a unit of a row on.
  void read(const std::uint8_t* row, std::uint64_t row_bytes, std::uint32_t unit) {
    const std::uint64_t at = std::uint64_t{unit} * Type::bytes, left = row_bytes - at;
    units = row + at;
    first_unit = unit;
    if (left >= ChunkFactors::units * Type::bytes) {
      count = ChunkFactors::units;
    } else if (left >= Type::bytes) {
      count = static_cast<std::uint32_t>(left) / Type::bytes;
    } else {
      __builtin_memset(last, 0, sizeof last);
      __builtin_memcpy(last, units, left);
      units = last;
      count = 1;
    }
    if (count < ChunkFactors::units) __builtin_memset(factors.halves, 0, sizeof factors.halves);
    for (std::uint32_t u = 0; u < count; ++u) Type::read(units + u * Type::bytes, factors, u);
  }

  // Scales for all lanes' products with each input, and products of minimums added to `sums`.
  template <std::uint32_t inputs>
  void make_factors(InputRow<Type>* const* x, float (&scales)[inputs][ChunkFactors::units * Type::values],
                    typename V::Floats (&sums)[inputs]) {
    if constexpr (Type::values == 16) V::store(factors.values, factors.template sixteen<V>(0));
    const std::uint64_t first = std::uint64_t{first_unit} * Type::values;
    const float *x_scales[inputs], *x_sums[inputs];
    for (std::uint32_t i = 0; i < inputs; ++i) {
      x_scales[i] = x[i]->scales() + first;
      x_sums[i] = x[i]->sums() + first;
    }
    for (std::uint32_t at = 0; at < count * Type::values; at += 16) {
      const Values<V> values = Type::template factors<V>(units, factors, at / 16);
      for (std::uint32_t i = 0; i < inputs; ++i) {
        V::store(scales[i] + at, V::multiply(values.scales, V::load(x_scales[i] + at)));
        if constexpr (Type::has_minimum)
          sums[i] = V::multiply_add(values.minimums, V::load(x_sums[i] + at), sums[i]);
      }
    }
  }
};

// Adds the products of chunks that lie at the same place of some rows.
template <class V, class Type, std::uint32_t inputs, std::uint32_t rows>
inline void multiply_chunks(Chunk<V, Type> (&chunks)[rows], InputRow<Type>* const* x,
                            typename V::Floats (&sums)[rows][inputs],
                            typename V::Floats (&minimum_sums)[rows][inputs]) {
  alignas(64) float scales[rows][inputs][ChunkFactors::units * Type::values];
  for (std::uint32_t r = 0; r < rows; ++r)
    chunks[r].template make_factors<inputs>(x, scales[r], minimum_sums[r]);
  const InputPart<Type>* parts[inputs];
  for (std::uint32_t i = 0; i < inputs; ++i)
    parts[i] = x[i]->part(std::uint64_t{chunks[0].first_unit} * Type::parts);
  for (std::uint32_t u = 0; u < chunks[0].count; ++u) {
    typename V::Bytes weights[rows][Type::parts][Type::steps];
    for (std::uint32_t r = 0; r < rows; ++r)
      Type::template unpack<V>(chunks[r].units + u * Type::bytes, weights[r]);
    for (std::uint32_t p = 0; p < Type::parts; ++p) {
      for (std::uint32_t i = 0; i < inputs; ++i) {
        typename V::Floats result[rows];
        products<V, Type, rows>(weights, p, parts[i][u * Type::parts + p], result);
        for (std::uint32_t r = 0; r < rows; ++r) {
          const float* const scale = scales[r][i] + u * Type::values + p * Type::groups;
          const auto lanes = Type::groups == 16 ? V::load(scale) : V::spread4(scale);
          sums[r][i] = V::multiply_add(result[r], lanes, sums[r][i]);
        }
      }
    }
  }
}

// outputs[i][r] = input i times row r. With several inputs, whose planes the first cache does not hold, some
// rows at a time share what is loaded of them; the last row stands for those that are not there.
template <class V, class Type, std::uint32_t inputs>
void multiply_planes(const std::uint8_t* weight, std::uint64_t row_bytes, std::uint32_t n_rows,
                     InputRow<Type>* const* x, float* const* outputs) {
  constexpr std::uint32_t rows = inputs == 1 ? 1 : inputs == 8 ? 4 : 2;
  Chunk<V, Type> chunks[2][rows];
  const auto read = [&](std::uint32_t which, std::uint32_t first_row, std::uint32_t unit) {
    for (std::uint32_t r = 0; r < rows; ++r)
      chunks[which][r].read(weight + least(first_row + r, n_rows - 1) * row_bytes, row_bytes, unit);
  };
  const std::uint32_t units = pieces(row_bytes, Type::bytes);
  if (n_rows != 0 && units != 0) read(0, 0, 0);
  std::uint32_t number = 0;
  for (std::uint32_t first_row = 0; first_row < n_rows; first_row += rows) {
    typename V::Floats sums[rows][inputs], minimum_sums[rows][inputs];
    for (std::uint32_t r = 0; r < rows; ++r) {
      for (std::uint32_t i = 0; i < inputs; ++i) sums[r][i] = minimum_sums[r][i] = V::zero();
    }
    for (std::uint32_t unit = 0; unit < units;) {
      auto& current = chunks[number++ % 2];
      unit += current[0].count;
      if (unit < units) {
        read(number % 2, first_row, unit);
      } else if (first_row + rows < n_rows) {
        read(number % 2, first_row + rows, 0);
      }
      multiply_chunks<V, Type, inputs, rows>(current, x, sums, minimum_sums);
    }
    for (std::uint32_t r = 0; r < rows; ++r) {
      const std::uint32_t row = least(first_row + r, n_rows - 1);
      for (std::uint32_t i = 0; i < inputs; ++i)
        outputs[i][row] = V::sum(Type::has_minimum ? V::add(sums[r][i], minimum_sums[r][i]) : sums[r][i]);
    }
  }
}

// What a worker keeps in its scratch while it works on a launch: planes of some tiles of inputs.
template <class Type, std::uint32_t inputs>
struct PlaneCache {
  static constexpr std::uint32_t most_slots = 16 / inputs;
  std::uint32_t k, slots;

  PlaneCache(std::uint32_t k, std::uint64_t tiles)
      : k(k), slots(tiles < most_slots ? static_cast<std::uint32_t>(tiles) : most_slots) {}
  std::uint64_t bytes() const {
    return kScratchHeader + std::uint64_t{slots} * inputs * InputRow<Type>::bytes(k);
  }

  // Planes of tile `tile`, whose first `count` inputs are there and stand for the others.
  template <class V>
  void find(std::uint8_t* scratch, std::uint64_t tile, std::uint32_t count, const float* const* x,
            InputRow<Type>** rows) const {
    static_assert(sizeof(std::uint64_t) * most_slots <= kScratchHeader);
    const std::uint64_t slot = tile % slots;
    auto* const kept = reinterpret_cast<std::uint64_t*>(scratch) + slot;  // a tile's number + 1
    std::uint8_t* const first = scratch + kScratchHeader + slot * inputs * InputRow<Type>::bytes(k);
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const std::uint32_t at = least(i, count - 1);
      rows[i] = reinterpret_cast<InputRow<Type>*>(first + at * InputRow<Type>::bytes(k));
      if (*kept != tile + 1 && at == i) make_planes<V>(x[i], k, *rows[i]);
    }
    *kept = tile + 1;
  }
};

// The same as multiply_piece, whose inputs these planes are of.
template <class V, class Type, std::uint32_t inputs>
void multiply_piece_planes(const std::uint8_t* weight, std::uint32_t n_rows, std::uint32_t k,
                           const float* const* x, InputRow<Quants<Type>>* const* planes,
                           float* const* outputs) {
  multiply_planes<V, Quants<Type>, inputs>(weight, row_bytes<Type>(k), n_rows, planes, outputs);
  for (std::uint32_t i = 0; i < inputs; ++i) {
    if (planes[i]->in_float) multiply_piece<V, Type, 1>(weight, n_rows, k, x + i, outputs + i);
  }
}

template <class Type, std::uint32_t inputs>
std::uint64_t mv_scratch(const NativeLaunch& launch) {
  const MatVec<Type, inputs> product(launch);
  return PlaneCache<Quants<Type>, inputs>(product.params.k, std::uint64_t{product.tiles} * product.batches)
      .bytes();
}

template <class V, class Type, std::uint32_t inputs>
void mv_planes(const NativeLaunch& launch, std::uint32_t task) {
  const MatVec<Type, inputs> product(launch);
  const MatVecTask<Type, inputs> part(launch, product, task);
  const PlaneCache<Quants<Type>, inputs> cache(product.params.k,
                                               std::uint64_t{product.tiles} * product.batches);
  InputRow<Quants<Type>>* planes[inputs];
  cache.template find<V>(launch.scratch, part.batch * product.tiles + part.tile, part.count, part.input,
                         planes);
  multiply_piece_planes<V, Type, inputs>(part.weight, part.rows, product.params.k, part.input, planes,
                                         part.outputs);
}

template <class Type>
std::uint64_t id_mv_scratch(const NativeLaunch& launch) {
  const RoutedMatVec<Type> product(launch);
  return PlaneCache<Quants<Type>, 1>(product.params.k, product.params.n_tokens).bytes();
}

template <class V, class Type>
void id_mv_planes(const NativeLaunch& launch, std::uint32_t task) {
  const RoutedMatVec<Type> product(launch);
  routed_task(launch, product, task,
              [&](const std::uint8_t* weight, std::uint32_t n_rows, std::uint32_t token, const float* input,
                  float* output) {
                const PlaneCache<Quants<Type>, 1> cache(product.params.k, product.params.n_tokens);
                InputRow<Quants<Type>>* planes;
                cache.template find<V>(launch.scratch, token, 1, &input, &planes);
                multiply_piece_planes<V, Type, 1>(weight, n_rows, product.params.k, &input, &planes, &output);
              });
}

#define METALANE_PLANES_OF_TYPE(type)                                                         \
  {"quantized_matmul_mv_" #type "_1", V::isa, &mv_tasks<type, 1>, &mv_planes<V, type, 1>,     \
   &mv_scratch<type, 1>},                                                                     \
      {"quantized_matmul_mv_" #type "_2", V::isa, &mv_tasks<type, 2>, &mv_planes<V, type, 2>, \
       &mv_scratch<type, 2>},                                                                 \
      {"quantized_matmul_mv_" #type "_4", V::isa, &mv_tasks<type, 4>, &mv_planes<V, type, 4>, \
       &mv_scratch<type, 4>},                                                                 \
      {"quantized_matmul_mv_" #type "_8", V::isa, &mv_tasks<type, 8>, &mv_planes<V, type, 8>, \
       &mv_scratch<type, 8>},                                                                 \
  {                                                                                           \
    "quantized_matmul_id_mv_" #type, V::isa, &id_mv_tasks<type>, &id_mv_planes<V, type>,      \
        &id_mv_scratch<type>                                                                  \
  }

// The kernels that V's instruction set has integer dot products for.
template <class V>
constexpr NativeKernel plane_kernels_of[] = {
    METALANE_PLANES_OF_TYPE(Q4_0),  METALANE_PLANES_OF_TYPE(Q4_1),   METALANE_PLANES_OF_TYPE(Q5_0),
    METALANE_PLANES_OF_TYPE(Q5_1),  METALANE_PLANES_OF_TYPE(Q8_0),   METALANE_PLANES_OF_TYPE(Q2_K),
    METALANE_PLANES_OF_TYPE(Q3_K),  METALANE_PLANES_OF_TYPE(Q4_K),   METALANE_PLANES_OF_TYPE(Q5_K),
    METALANE_PLANES_OF_TYPE(Q6_K),  METALANE_PLANES_OF_TYPE(IQ4_NL), METALANE_PLANES_OF_TYPE(IQ4_XS),
    METALANE_PLANES_OF_TYPE(MXFP4),
};

#undef METALANE_PLANES_OF_TYPE

}  // namespace
}  // namespace metalane::cpu
