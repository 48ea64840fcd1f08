// How blocks of each GGML type become floats with SIMD: one description a type, over a vector type `V` that
// the including file defines for its instruction set. Everything here has internal linkage and uses no inline
// function of another header: were one of those compiled with AVX-512 and merged by the linker, it would run
// on machines without.
//
// Of blocks that lie side by side, 256 weights at most, a description's `prepare<V>(blocks, count, prepared)`
// reads what the weights are decoded with, factors above all; `decode<V>(blocks, prepared, i, sink)` then
// gives piece i of `piece_length` weights, 16 at a time, to sink.take(at, w), `at` being the first one's
// place in the piece. Weights have the bits of GGML's own decoding to float. Layouts:
// shaders/lib/ggml_blocks.h.
//
// V has
//   Floats, 16 of them: zero(), splat(x), load(p), load_first(p, n) (zeros behind), store(p, x),
//     store_first(p, n, x), load_half(p), load_bf16(p), half(p) (one), add, multiply, multiply_add(a, b, c),
//     multiply_subtract, sum(x), repeat4(x, i): elements 4 * i to 4 * i + 3, four times each;
//   Ints, 16 of them: bytes(p) from unsigned bytes, down(x, bits), low(x, bits), to_floats(x);
//   tables: look_up16(table, i) with the low four bits of each index, look_up32(first, second, i, fifth) with
//   a
//     fifth bit that comes apart, look_up4(p, i) with the low two in four floats;
//   Bytes, 64 of them, in two halves: load64(p), load32_twice(p), down(x, first, second) (each half by its
//   own
//     number of bits, up where that is negative; what comes out of a byte is in its neighbours), keep(x,
//     mask), select(mask, a, b) (a's bits where the mask has ones, else b's), minus(x, byte), store64(p, x),
//     signed_floats(p): 16 of them;
//   factors: two_halves(p, to) (four floats may be written), eight_halves(p, stride, to), eights(p): each of
//   two halves eight times, fields(p, first, second): of two
//     of sixteen bytes for each lane.
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

// Weights come from scales in memory: the processor then repeats one for all lanes as it loads it. Left to
// itself, the compiler takes it out of the register that was stored, by shuffles, of which there is one a
// cycle.
template <class Stored>
inline void through_memory(Stored& stored) {
  __asm__("" : "+m"(stored));
}

// A number for each lane.
struct alignas(64) Lanes {
  std::uint32_t of[16] = {};
  constexpr explicit Lanes(std::uint32_t (*number)(std::uint32_t lane)) {
    for (std::uint32_t lane = 0; lane < 16; ++lane) of[lane] = number(lane);
  }
};

// For each lane some bits of one of sixteen bytes: `mask` of it, rotated to the right by `bits` within 32.
struct BitField {
  Lanes byte, bits, mask;
};

// Of weights that are scale * level: the 16 that there are.
template <class V>
inline typename V::Floats scaled(const float* levels, const float& scale) {
  return V::multiply(V::load(levels), V::splat(scale));
}

// Of weights that are scale * q + shift. Scales are a half by at most six bits and q has at most five, so
// that the product is exact and one rounding gives the bits of two.
template <class V>
inline typename V::Floats affine(const float* levels, const float& scale, const float& shift) {
  return V::multiply_add(V::load(levels), V::splat(scale), V::splat(shift));
}

// 32 weights in the low, then the high nibbles of 16 bytes.
template <class V, class Sink>
inline void decode_nibbles(const std::uint8_t* bytes, typename V::Floats table, Sink& sink) {
  const auto q = V::bytes(bytes);
  sink.take(0, V::look_up16(table, q));
  sink.take(16, V::look_up16(table, V::down(q, 4)));
}

// The same with a fifth bit each, which come first.
template <class V, class Sink>
inline void decode_fives(const std::uint8_t* bits, typename V::Floats first, typename V::Floats second,
                         Sink& sink) {
  const auto q = V::bytes(bits + 4);
  sink.take(0, V::look_up32(first, second, q, bits));
  sink.take(16, V::look_up32(first, second, V::down(q, 4), bits + 2));
}

// What eight blocks of 32 begin with.
struct EightFactors {
  alignas(32) float scale[8];
  alignas(32) float shift[8];
};

template <class V>
inline void read_halves(const std::uint8_t* first, std::uint32_t stride, std::uint32_t count, float* to) {
  if (count == 8) return V::eight_halves(first, stride, to);
  for (std::uint32_t i = 0; i < count; ++i) to[i] = V::half(first + i * stride);
}

// Blocks of 32 weights that begin with a scale and perhaps a shift.
template <std::uint32_t bytes, bool shifted = false>
struct Blocks32 {
  static constexpr std::uint32_t block_length = 32, block_bytes = bytes, piece_length = 32;
  using Prepared = EightFactors;
  template <class V>
  static void prepare(const std::uint8_t* blocks, std::uint32_t count, Prepared& to) {
    read_halves<V>(blocks, bytes, count, to.scale);
    if (shifted) read_halves<V>(blocks + 2, bytes, count, to.shift);
  }
};

struct Q4_0 : Blocks32<18> {
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    decode_nibbles<V>(blocks + i * block_bytes + 2, scaled<V>(kNibblesMinus8, factors.scale[i]), sink);
  }
};

struct Q4_1 : Blocks32<20, true> {
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    decode_nibbles<V>(blocks + i * block_bytes + 4, affine<V>(kNibbles, factors.scale[i], factors.shift[i]),
                      sink);
  }
};

struct Q5_0 : Blocks32<22> {
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    decode_fives<V>(blocks + i * block_bytes + 2, scaled<V>(kNibblesMinus16, factors.scale[i]),
                    scaled<V>(kNibbles, factors.scale[i]), sink);
  }
};

struct Q5_1 : Blocks32<24, true> {
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    decode_fives<V>(blocks + i * block_bytes + 4, affine<V>(kNibbles, factors.scale[i], factors.shift[i]),
                    affine<V>(kNibblesPlus16, factors.scale[i], factors.shift[i]), sink);
  }
};

struct Q8_0 : Blocks32<34> {
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    const auto* quants = reinterpret_cast<const std::int8_t*>(blocks + i * block_bytes + 2);
    sink.take(0, V::multiply(V::signed_floats(quants), V::splat(factors.scale[i])));
    sink.take(16, V::multiply(V::signed_floats(quants + 16), V::splat(factors.scale[i])));
  }
};

struct IQ4_NL : Blocks32<18> {
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    decode_nibbles<V>(blocks + i * block_bytes + 2, scaled<V>(kIq4Levels, factors.scale[i]), sink);
  }
};

struct MXFP4 {
  static constexpr std::uint32_t block_length = 32, block_bytes = 17, piece_length = 32;
  using Prepared = EightFactors;
  // Scales are 2 ^ (e - 128), subnormal for e < 2.
  template <class V>
  static void prepare(const std::uint8_t* blocks, std::uint32_t count, Prepared& to) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t e = blocks[i * block_bytes];
      to.scale[i] = __builtin_bit_cast(float, e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t* blocks, const Prepared& factors, std::uint32_t i, Sink& sink) {
    decode_nibbles<V>(blocks + i * block_bytes + 1, scaled<V>(kDoubledFp4, factors.scale[i]), sink);
  }
};

struct Q2_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 84, piece_length = 128;
  struct Prepared {
    alignas(64) float weights[64];  // the four that each part of 16 has
  };
  template <class V>
  static void prepare(const std::uint8_t* block, std::uint32_t, Prepared& to) {
    const auto packed = V::bytes(block);
    float halves[4];
    V::two_halves(block + 80, halves);
    through_memory(halves);
    const auto scales = V::multiply(V::to_floats(V::low(packed, 4)), V::splat(halves[0]));
    const auto minimums = V::multiply(V::to_floats(V::down(packed, 4)), V::splat(halves[1]));
    for (std::uint32_t i = 0; i < 4; ++i) {
      V::store(to.weights + 16 * i,
               V::multiply_subtract(V::repeat4(scales, i), V::load(kPairsOfBits), V::repeat4(minimums, i)));
    }
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, const Prepared& tables, std::uint32_t half, Sink& sink) {
    const auto first = V::bytes(block + 16 + 32 * half), second = V::bytes(block + 32 + 32 * half);
#pragma GCC unroll 4
    for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
      const float* const weights = tables.weights + 32 * half + 8 * quarter;
      sink.take(32 * quarter, V::look_up4(weights, V::down(first, 2 * quarter)));
      sink.take(32 * quarter + 16, V::look_up4(weights + 4, V::down(second, 2 * quarter)));
    }
  }
};

// A block whose parts of 16 have signed bytes and scales.
struct SixteenParts {
  alignas(64) std::int8_t quants[256];
  alignas(64) float scales[16];
};

// Parts 2 * pair and 2 * pair + 1.
template <class V, class Sink>
inline void decode_parts(const SixteenParts& parts, std::uint32_t pair, Sink& sink) {
  const std::int8_t* const quants = parts.quants + 32 * pair;
  sink.take(0, V::multiply(V::signed_floats(quants), V::splat(parts.scales[2 * pair])));
  sink.take(16, V::multiply(V::signed_floats(quants + 16), V::splat(parts.scales[2 * pair + 1])));
}

struct Q3_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 110, piece_length = 32;
  using Prepared = SixteenParts;
  template <class V>
  static void prepare(const std::uint8_t* block, std::uint32_t, Prepared& to) {
    const auto codes = V::to_floats(V::fields(block + 94, low, high));
    V::store(to.scales, V::multiply(V::add(codes, V::splat(-32.0f)), V::splat(V::half(block + 108))));
    const auto third_bits = V::load32_twice(block);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // 64 weights: two quarters of a half block
      const auto two_bits = V::down(V::load32_twice(block + 32 + 32 * (i / 2)), 4 * (i % 2), 4 * (i % 2) + 2);
      const auto third = V::down(third_bits, 2 * i - 2, 2 * i - 1);
      V::store64(to.quants + 64 * i, V::minus(V::keep(V::select(3, two_bits, third), 7), 4));
    }
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t*, const Prepared& parts, std::uint32_t pair, Sink& sink) {
    decode_parts<V>(parts, pair, sink);
  }

 private:
  // Six-bit codes of sixteen parts, in bytes 2 to 13 of the last sixteen: nibbles of the first eight bytes,
  // and above them pairs of bits of the other four.
  static constexpr BitField low = {Lanes([](std::uint32_t lane) { return 2 + lane % 8; }),
                                   Lanes([](std::uint32_t lane) { return 4 * (lane / 8); }),
                                   Lanes([](std::uint32_t) { return 0x0fu; })};
  static constexpr BitField high = {Lanes([](std::uint32_t lane) { return 10 + lane % 4; }),
                                    Lanes([](std::uint32_t lane) { return (28 + 2 * (lane / 4)) % 32; }),
                                    Lanes([](std::uint32_t) { return 0x30u; })};
};

// Factors of the eight runs of 32 of Q4_K and Q5_K: scales, then minimums to be added.
struct RunFactors {
  alignas(64) float of[16];

  template <class V>
  void read(const std::uint8_t* block) {
    const auto halves = V::multiply(V::eights(block), V::load(kScalesThenMinimums));
    V::store(of, V::multiply(V::to_floats(V::fields(block, low, high)), halves));
  }
  const float& scale(std::uint32_t run) const { return of[run]; }
  const float& minimum(std::uint32_t run) const { return of[8 + run]; }

 private:
  static constexpr float kScalesThenMinimums[16] = {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1};
  // Six-bit codes in bytes 4 to 15: the first four of either have a byte, the others a nibble and the two
  // bits at the top of one of those.
  static constexpr BitField low = {
      Lanes([](std::uint32_t lane) { return lane % 8 < 4 ? 4 + 4 * (lane / 8) + lane % 8 : 8 + lane % 8; }),
      Lanes([](std::uint32_t lane) { return lane % 8 < 4 || lane < 8 ? 0u : 4u; }),
      Lanes([](std::uint32_t lane) { return lane % 8 < 4 ? 0x3fu : 0x0fu; })};
  static constexpr BitField high = {Lanes([](std::uint32_t lane) { return 4 + 4 * (lane / 8) + lane % 4; }),
                                    Lanes([](std::uint32_t) { return 2u; }),
                                    Lanes([](std::uint32_t lane) { return lane % 8 < 4 ? 0u : 0x30u; })};
};

struct Q4_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 144, piece_length = 64;
  using Prepared = RunFactors;
  template <class V>
  static void prepare(const std::uint8_t* block, std::uint32_t, Prepared& to) {
    to.read<V>(block);
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, const Prepared& factors, std::uint32_t i, Sink& sink) {
    // Two runs: low and high nibbles of 32 bytes.
    const auto low = affine<V>(kNibbles, factors.scale(2 * i), factors.minimum(2 * i));
    const auto high = affine<V>(kNibbles, factors.scale(2 * i + 1), factors.minimum(2 * i + 1));
    const auto first = V::bytes(block + 16 + 32 * i), second = V::bytes(block + 32 + 32 * i);
    sink.take(0, V::look_up16(low, first));
    sink.take(16, V::look_up16(low, second));
    sink.take(32, V::look_up16(high, V::down(first, 4)));
    sink.take(48, V::look_up16(high, V::down(second, 4)));
  }
};

struct Q5_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 176, piece_length = 32;
  struct Prepared {
    RunFactors factors;
    alignas(64) std::int8_t quants[256];
  };
  template <class V>
  static void prepare(const std::uint8_t* block, std::uint32_t, Prepared& to) {
    to.factors.read<V>(block);
    const auto fifth_bits = V::load32_twice(block + 16);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // two runs
      const auto nibbles = V::down(V::load32_twice(block + 48 + 32 * i), 0, 4);
      const auto fifth = V::down(fifth_bits, 2 * i - 4, 2 * i - 3);
      V::store64(to.quants + 64 * i, V::keep(V::select(15, nibbles, fifth), 31));
    }
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t*, const Prepared& prepared, std::uint32_t run, Sink& sink) {
    const std::int8_t* const quants = prepared.quants + 32 * run;
    const auto scale = V::splat(prepared.factors.scale(run));
    const auto minimum = V::splat(prepared.factors.minimum(run));
    sink.take(0, V::multiply_add(V::signed_floats(quants), scale, minimum));
    sink.take(16, V::multiply_add(V::signed_floats(quants + 16), scale, minimum));
  }
};

struct Q6_K {
  static constexpr std::uint32_t block_length = 256, block_bytes = 210, piece_length = 32;
  using Prepared = SixteenParts;
  template <class V>
  static void prepare(const std::uint8_t* block, std::uint32_t, Prepared& to) {
    V::store(to.scales, V::multiply(V::signed_floats(reinterpret_cast<const std::int8_t*>(block + 192)),
                                    V::splat(V::half(block + 208))));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // 64 weights: two quarters of a half block
      const auto low = V::down(V::load64(block + 64 * (i / 2)), 4 * (i % 2), 4 * (i % 2));
      const auto high =
          V::down(V::load32_twice(block + 128 + 32 * (i / 2)), 4 * (i % 2) - 4, 4 * (i % 2) - 2);
      V::store64(to.quants + 64 * i, V::minus(V::keep(V::select(15, low, high), 63), 32));
    }
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t*, const Prepared& parts, std::uint32_t pair, Sink& sink) {
    decode_parts<V>(parts, pair, sink);
  }
};

struct IQ4_XS {
  static constexpr std::uint32_t block_length = 256, block_bytes = 136, piece_length = 32;
  struct Prepared {
    alignas(64) float scales[16];  // of eight runs of 32
  };
  template <class V>
  static void prepare(const std::uint8_t* block, std::uint32_t, Prepared& to) {
    const auto codes = V::to_floats(V::fields(block, low, high));
    V::store(to.scales, V::multiply(V::add(codes, V::splat(-32.0f)), V::splat(V::half(block))));
  }
  template <class V, class Sink>
  static void decode(const std::uint8_t* block, const Prepared& prepared, std::uint32_t run, Sink& sink) {
    decode_nibbles<V>(block + 8 + 16 * run, scaled<V>(kIq4Levels, prepared.scales[run]), sink);
  }

 private:
  // Six-bit codes of eight runs: nibbles from byte 4 on, and above them pairs of bits from byte 2 on.
  static constexpr BitField low = {Lanes([](std::uint32_t lane) { return 4 + lane % 8 / 2; }),
                                   Lanes([](std::uint32_t lane) { return 4 * (lane % 2); }),
                                   Lanes([](std::uint32_t) { return 0x0fu; })};
  static constexpr BitField high = {Lanes([](std::uint32_t lane) { return 2 + lane % 8 / 4; }),
                                    Lanes([](std::uint32_t lane) { return (28 + 2 * (lane % 4)) % 32; }),
                                    Lanes([](std::uint32_t) { return 0x30u; })};
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
