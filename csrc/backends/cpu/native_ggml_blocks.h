// How blocks of each GGML type become floats with SIMD: one description a type, over a vector type `V` that
// the including file defines for its instruction set. Everything here has internal linkage and uses no inline
// function of another header: were one of those compiled with AVX-512 and merged by the linker, it would run
// on machines without.
//
// A description's `decode<V>(block, sink)` gives the block's weights, 16 at a time, to sink.even(at, w) and
// sink.odd(at, w) in turn, `at` being the first one's place in the block; sums that keep the two apart need
// not wait for each other. Weights have the bits of GGML's own decoding to float: each product and sum is
// rounded once, in its order. Layouts: shaders/lib/ggml_blocks.h.
//
// V has
//   Floats, 16 of them: zero(), splat(x), load(p), load_first(p, n) (zeros behind), store(p, x),
//     store_first(p, n, x), load_half(p), load_bf16(p), half(p) (one), add, multiply, multiply_add(a, b, c),
//     sum(x), repeat4(x, i): elements 4 * i to 4 * i + 3, four times each;
//   Ints, 16 of them: bytes(p) from unsigned bytes, down(x, bits), low(x, bits), to_floats(x);
//   tables: look_up16(table, i) with the low four bits of each index, look_up32(first, second, i, fifth) with
//   a
//     fifth bit that comes apart, look_up4(p, i) with the low two in four floats;
//   Bytes, 64 of them, in two halves: load64(p), load32_twice(p), down(x, first, second) (each half by its
//   own
//     number of bits; bits cross into the lower neighbour of a pair), keep(x, mask), up(x, bits) (of bytes
//     whose upper bits are clear), either(a, b), minus(x, byte), store64(p, x), signed_floats(p): 16 of them.
#pragma once

#include <metalane/params/ggml_types.h>

#include <cstdint>

namespace metalane::cpu {
namespace {

constexpr float kNibbles[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr float kNibblesPlus16[16] = {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
constexpr float kNibblesMinus8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr float kNibblesMinus16[16] = {-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1};
constexpr float kPairsOfBits[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
constexpr float kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kDoubledFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Of weights that are scale * level: the 16 that there are.
template <class V>
inline typename V::Floats scaled(const float* levels, float scale) {
  return V::multiply(V::load(levels), V::splat(scale));
}

// Of weights that are scale * q + shift.
template <class V>
inline typename V::Floats affine(const float* levels, float scale, float shift) {
  return V::add(scaled<V>(levels, scale), V::splat(shift));
}

// 32 weights in the low, then the high nibbles of 16 bytes.
template <class V, class Sink>
inline void decode_nibbles(const std::uint8_t* bytes, typename V::Floats table, std::uint32_t at,
                           Sink& sink) {
  const auto q = V::bytes(bytes);
  sink.even(at, V::look_up16(table, q));
  sink.odd(at + 16, V::look_up16(table, V::down(q, 4)));
}

// The same with a fifth bit each.
template <class V, class Sink>
inline void decode_fives(const std::uint8_t* bits, const std::uint8_t* bytes, typename V::Floats first,
                         typename V::Floats second, Sink& sink) {
  const auto q = V::bytes(bytes);
  sink.even(0, V::look_up32(first, second, q, bits));
  sink.odd(16, V::look_up32(first, second, V::down(q, 4), bits + 2));
}

// 64 weights of scale * q, whose signed bytes lie in `quants`; each 16 have their own scale.
template <class V, class Sink>
inline void multiply_16s(const std::int8_t* quants, const float* scales, std::uint32_t at, Sink& sink) {
  for (std::uint32_t i = 0; i < 64; i += 32) {
    sink.even(at + i, V::multiply(V::signed_floats(quants + i), V::splat(scales[i / 16])));
    sink.odd(at + i + 16, V::multiply(V::signed_floats(quants + i + 16), V::splat(scales[i / 16 + 1])));
  }
}

// The 6-bit scales and minimums of Q4_K and Q5_K, eight each.
struct ScalesAndMinimums {
  float scale[8], minimum[8];
};

inline void read_scales_and_minimums(const std::uint8_t* packed, float d, float dmin, ScalesAndMinimums& to) {
  for (int i = 0; i < 4; ++i) {
    to.scale[i] = d * static_cast<float>(packed[i] & 63);
    to.minimum[i] = -(dmin * static_cast<float>(packed[i + 4] & 63));
    to.scale[i + 4] = d * static_cast<float>((packed[i + 8] & 15) | (packed[i] >> 6 << 4));
    to.minimum[i + 4] = -(dmin * static_cast<float>((packed[i + 8] >> 4) | (packed[i + 4] >> 6 << 4)));
  }
}

struct Q4_0 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 18;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    decode_nibbles<V>(block + 2, scaled<V>(kNibblesMinus8, V::half(block)), 0, sink);
  }
};

struct Q4_1 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 20;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    decode_nibbles<V>(block + 4, affine<V>(kNibbles, V::half(block), V::half(block + 2)), 0, sink);
  }
};

struct Q5_0 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 22;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    const float d = V::half(block);
    decode_fives<V>(block + 2, block + 6, scaled<V>(kNibblesMinus16, d), scaled<V>(kNibbles, d), sink);
  }
};

struct Q5_1 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 24;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    const float d = V::half(block), m = V::half(block + 2);
    decode_fives<V>(block + 4, block + 8, affine<V>(kNibbles, d, m), affine<V>(kNibblesPlus16, d, m), sink);
  }
};

struct Q8_0 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 34;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    const auto d = V::splat(V::half(block));
    const auto* quants = reinterpret_cast<const std::int8_t*>(block + 2);
    sink.even(0, V::multiply(V::signed_floats(quants), d));
    sink.odd(16, V::multiply(V::signed_floats(quants + 16), d));
  }
};

struct Q2_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 84;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    // The four weights that each part of 16 has.
    const auto packed = V::bytes(block);
    const auto scales = V::multiply(V::splat(V::half(block + 80)), V::to_floats(V::low(packed, 4)));
    const auto shifts = V::multiply(V::splat(-V::half(block + 82)), V::to_floats(V::down(packed, 4)));
    alignas(64) float tables[64];
    for (std::uint32_t i = 0; i < 4; ++i) {
      V::store(tables + 16 * i,
               V::add(V::multiply(V::repeat4(scales, i), V::load(kPairsOfBits)), V::repeat4(shifts, i)));
    }
    for (std::uint32_t half = 0; half < 2; ++half) {
      const auto first = V::bytes(block + 16 + 32 * half), second = V::bytes(block + 32 + 32 * half);
#pragma GCC unroll 4
      for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
        const std::uint32_t part = 8 * half + 2 * quarter;
        sink.even(16 * part, V::look_up4(tables + 4 * part, V::down(first, 2 * quarter)));
        sink.odd(16 * part + 16, V::look_up4(tables + 4 * part + 4, V::down(second, 2 * quarter)));
      }
    }
  }
};

struct Q3_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 110;

  static void read_scales(const std::uint8_t* packed, float d, float* scales) {
    for (int j = 0; j < 16; ++j) {
      const int low = packed[j % 8] >> (4 * (j / 8)) & 15, high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
      scales[j] = d * static_cast<float>((low | high << 4) - 32);
    }
  }

  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    float scales[16];
    read_scales(block + 96, V::half(block + 108), scales);
    const auto third_bits = V::load32_twice(block);
    alignas(64) std::int8_t quants[64];
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {  // 64 weights: two quarters of a half block
      const std::uint32_t shift = 4 * (i % 2);
      const auto low = V::keep(V::down(V::load32_twice(block + 32 + 32 * (i / 2)), shift, shift + 2), 3);
      const auto high = V::up(V::keep(V::down(third_bits, 2 * i, 2 * i + 1), 1), 2);
      V::store64(quants, V::minus(V::either(low, high), 4));
      multiply_16s<V>(quants, scales + 4 * i, 64 * i, sink);
    }
  }
};

struct Q4_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 144;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    ScalesAndMinimums factors;
    read_scales_and_minimums(block + 4, V::half(block), V::half(block + 2), factors);
    for (std::uint32_t run = 0; run < 4; ++run) {
      const auto low = affine<V>(kNibbles, factors.scale[2 * run], factors.minimum[2 * run]);
      const auto high = affine<V>(kNibbles, factors.scale[2 * run + 1], factors.minimum[2 * run + 1]);
      const auto first = V::bytes(block + 16 + 32 * run), second = V::bytes(block + 32 + 32 * run);
      sink.even(64 * run, V::look_up16(low, first));
      sink.odd(64 * run + 16, V::look_up16(low, second));
      sink.even(64 * run + 32, V::look_up16(high, V::down(first, 4)));
      sink.odd(64 * run + 48, V::look_up16(high, V::down(second, 4)));
    }
  }
};

struct Q5_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 176;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    ScalesAndMinimums factors;
    read_scales_and_minimums(block + 4, V::half(block), V::half(block + 2), factors);
    const auto fifth_bits = V::load32_twice(block + 16);
    alignas(64) std::int8_t quants[64];
#pragma GCC unroll 4
    for (std::uint32_t run = 0; run < 4; ++run) {
      const auto low = V::keep(V::down(V::load32_twice(block + 48 + 32 * run), 0, 4), 15);
      const auto high = V::up(V::keep(V::down(fifth_bits, 2 * run, 2 * run + 1), 1), 4);
      V::store64(quants, V::either(low, high));
      for (std::uint32_t i = 0; i < 2; ++i) {
        const auto scale = V::splat(factors.scale[2 * run + i]);
        const auto minimum = V::splat(factors.minimum[2 * run + i]);
        const std::uint32_t at = 64 * run + 32 * i;
        sink.even(at, V::add(V::multiply(V::signed_floats(quants + 32 * i), scale), minimum));
        sink.odd(at + 16, V::add(V::multiply(V::signed_floats(quants + 32 * i + 16), scale), minimum));
      }
    }
  }
};

struct Q6_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 210;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    alignas(64) float scales[16];
    V::store(scales, V::multiply(V::signed_floats(reinterpret_cast<const std::int8_t*>(block + 192)),
                                 V::splat(V::half(block + 208))));
    alignas(64) std::int8_t quants[64];
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {  // 64 weights: two quarters of a half block
      const std::uint32_t shift = 4 * (i % 2);
      const auto low = V::keep(V::down(V::load64(block + 64 * (i / 2)), shift, shift), 15);
      const auto high = V::keep(V::down(V::load32_twice(block + 128 + 32 * (i / 2)), shift, shift + 2), 3);
      V::store64(quants, V::minus(V::either(low, V::up(high, 4)), 32));
      multiply_16s<V>(quants, scales + 4 * i, 64 * i, sink);
    }
  }
};

struct IQ4_NL {
  static constexpr std::uint32_t block_length = 32, block_bytes = 18;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    decode_nibbles<V>(block + 2, scaled<V>(kIq4Levels, V::half(block)), 0, sink);
  }
};

struct IQ4_XS {
  static constexpr std::uint32_t block_length = 256, block_bytes = 136;
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    const float d = V::half(block);
    for (std::uint32_t run = 0; run < 8; ++run) {
      const int low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
      const int high = block[2 + run / 4] >> (2 * (run % 4)) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      decode_nibbles<V>(block + 8 + 16 * run, scaled<V>(kIq4Levels, scale), 32 * run, sink);
    }
  }
};

struct MXFP4 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 17;

  // 2 ^ (e - 128), subnormal for e < 2.
  static float half_power(std::uint32_t e) {
    return __builtin_bit_cast(float, e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }

  template <class V, class Sink>
  static void decode(const std::uint8_t* block, Sink& sink) {
    decode_nibbles<V>(block + 1, scaled<V>(kDoubledFp4, half_power(block[0])), 0, sink);
  }
};

// Types that are no blocks, 16 elements at a time; of the last ones of a row fewer may be there.
struct F32 {
  static constexpr std::uint32_t block_length = 1, block_bytes = 4;
  template <class V>
  static typename V::Floats sixteen(const std::uint8_t* elements) {
    return V::load(reinterpret_cast<const float*>(elements));
  }
};

struct F16 {
  static constexpr std::uint32_t block_length = 1, block_bytes = 2;
  template <class V>
  static typename V::Floats sixteen(const std::uint8_t* elements) {
    return V::load_half(elements);
  }
};

struct BF16 {
  static constexpr std::uint32_t block_length = 1, block_bytes = 2;
  template <class V>
  static typename V::Floats sixteen(const std::uint8_t* elements) {
    return V::load_bf16(elements);
  }
};

#define METALANE_AGREES_WITH_TABLE(type, id, length, bytes) \
  static_assert(type::block_length == length && type::block_bytes == bytes, #type);
METALANE_GGML_WEIGHT_TYPES(METALANE_AGREES_WITH_TABLE)
#undef METALANE_AGREES_WITH_TABLE

template <class Type>
constexpr std::uint64_t row_bytes(std::uint32_t k) {
  return std::uint64_t{k / Type::block_length} * Type::block_bytes;
}

// The next at most 16 elements of a row of plain numbers, zeros behind the `n` that there are.
template <class V, class Type>
inline typename V::Floats first_of_sixteen(const std::uint8_t* elements, std::uint32_t n) {
  std::uint8_t copy[16 * Type::block_bytes] = {};
  __builtin_memcpy(copy, elements, n * Type::block_bytes);
  return Type::template sixteen<V>(copy);
}

}  // namespace
}  // namespace metalane::cpu
