// How blocks of each GGML type become bytes and factors for products with int8 planes
// (native_ggml_planes.h): one description a type, over a vector type `V`. Rules on linkage: see
// native_ggml_blocks.h, whose layouts and constants are used here.
//
// A unit is `parts` times 16 lanes with `steps` times four weights each. The lanes belong to `groups` runs of
// `group_length` weights with one scale, the first of which `group_at(part, group)` tells: runs of 32 have
// four lanes and a step for each half, runs of 16 have one lane and a step for each four. `offset` is to be
// taken off the unsigned bytes of the weights. `wide`: a lane's products with 24-bit inputs need more than 32
// bits.
//
// A row's scales and minimums are values of which each unit has `values`: its groups in turn, part by part,
// then perhaps others. `read(unit, chunk, i)` copies the factors of unit i of a chunk that lie scattered;
// `factors<V>(units, chunk, v)` then gives values 16 * v to 16 * v + 15 of the chunk. The products of
// minimums with the inputs' sums count with `minimum_sign`; groups have theirs `minimum_at` values behind
// their scales. `unpack<V>(unit, parts)` gives the bytes of a unit, 64 a step.
//
// V has besides what native_ggml_blocks.h asks for, on Bytes in four quarters of 16:
//   load16s(p, stride), repeat16(p), even_quarters(a, b) and odd_quarters(a, b); rotate<bits...>(x), each
//   quarter's 64-bit halves to the right; select(mask, a, b): a's bits where the mask has ones, else b's;
//   flip(x, mask); add_where(bits, x, byte): to byte i where bit i is set; look_up(table, i), i < 16;
//   transpose(x): word j of quarter q of x[i] becomes word i of quarter q of x[j]; turned<i>(x): word j + i
//   of each quarter becomes word j; rotate_words(x, bits), each 32 bits to the right;
// and for factors: spread4(p), four floats, each four times; eights(a, b), eight times each; permuted(x,
// places);
//   picked(p, places), of sixteen unsigned bytes; fields(p, first, second), bits of two of sixteen bytes for
//   each lane; half_powers(p), sixteen times 2 ^ (byte - 128).
#pragma once

#include "backends/cpu/native_ggml_blocks.h"

namespace metalane::cpu {
namespace {

// A number for each lane.
struct alignas(64) Lanes {
  std::uint32_t of[16] = {};
  constexpr explicit Lanes(std::uint32_t (*number)(std::uint32_t lane)) {
    for (std::uint32_t lane = 0; lane < 16; ++lane) of[lane] = number(lane);
  }
};

// For each lane some bits of a byte: `mask` of it, rotated to the right by `bits` within 32. A byte past 127
// stands for zeros.
struct BitField {
  Lanes byte, bits, mask;
};
constexpr std::uint32_t no_byte = 0x80;

// What is read ahead of a chunk of units. What a type does not need is not touched.
struct ChunkFactors {
  static constexpr std::uint32_t units = 8;
  alignas(64) std::uint16_t halves[2][32];  // where a type has minimums by themselves, those second
  alignas(64) float values[16];             // of the halves, where these are few
  alignas(64) std::uint8_t bytes[32];

  void read_half(const std::uint8_t* p, std::uint32_t i, std::uint32_t which = 0) {
    __builtin_memcpy(&halves[which][i], p, sizeof halves[which][i]);
  }
  template <class V>
  typename V::Floats sixteen(std::uint32_t v, std::uint32_t which = 0) const {
    return V::load_half(reinterpret_cast<const std::uint8_t*>(halves[which] + 16 * v));
  }
};

template <class V>
struct Values {
  typename V::Floats scales, minimums;
};

template <std::uint32_t nbytes, bool minimum = false>
struct FourBlocks {
  static constexpr std::uint32_t parts = 1, steps = 2, groups = 4, group_length = 32;
  static constexpr std::uint32_t elements = 128, bytes = 4 * nbytes;
  static constexpr bool has_minimum = minimum, wide = false;
  static constexpr std::uint32_t values = 4, minimum_at = 0;
  static constexpr float minimum_sign = 1;
  static constexpr std::uint32_t group_at(std::uint32_t, std::uint32_t group) { return 32 * group; }
  static void read(const std::uint8_t* unit, ChunkFactors& chunk, std::uint32_t i) {
    for (std::uint32_t block = 0; block < 4; ++block) {
      chunk.read_half(unit + block * nbytes, 4 * i + block);
      if (minimum) chunk.read_half(unit + block * nbytes + 2, 4 * i + block, 1);
    }
  }
  template <class V>
  static Values<V> factors(const std::uint8_t*, const ChunkFactors& chunk, std::uint32_t v) {
    return {chunk.sixteen<V>(v), minimum ? chunk.sixteen<V>(v, 1) : V::zero()};
  }
  template <class V>
  static void nibbles(const std::uint8_t* quants, typename V::Bytes (&weights)[2]) {
    const auto packed = V::load16s(quants, nbytes);
    weights[0] = V::keep(packed, 15);
    weights[1] = V::keep(V::down(packed, 4, 4), 15);
  }
  template <class V>
  static void add_fifth_bits(const std::uint8_t* bits, typename V::Bytes (&weights)[2]) {
    std::uint64_t low = 0, high = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      std::uint32_t of_block;
      __builtin_memcpy(&of_block, bits + i * nbytes, sizeof of_block);
      low |= std::uint64_t{of_block & 0xffff} << (16 * i);
      high |= std::uint64_t{of_block >> 16} << (16 * i);
    }
    weights[0] = V::add_where(low, weights[0], 16);
    weights[1] = V::add_where(high, weights[1], 16);
  }
  template <class V>
  static void look_up(const std::uint8_t* table, typename V::Bytes (&weights)[2]) {
    for (auto& bytes : weights) bytes = V::look_up(table, bytes);
  }
};

// Super-blocks of eight times 32: part 0 has the even runs, part 1 the odd ones.
template <std::uint32_t nbytes>
struct EightRuns {
  static constexpr std::uint32_t parts = 2, steps = 2, groups = 4, group_length = 32;
  static constexpr std::uint32_t elements = 256, bytes = nbytes;
  static constexpr int offset = 0;
  static constexpr bool has_minimum = true, wide = false;
  static constexpr std::uint32_t values = 16, minimum_at = 8;
  static constexpr float minimum_sign = -1;
  static constexpr std::uint32_t group_at(std::uint32_t part, std::uint32_t group) {
    return 32 * (2 * group + part);
  }
  static void read(const std::uint8_t* block, ChunkFactors& chunk, std::uint32_t i) {
    chunk.read_half(block, 2 * i);
    chunk.read_half(block + 2, 2 * i + 1);
  }
  template <class V>
  static Values<V> factors(const std::uint8_t* blocks, const ChunkFactors& chunk, std::uint32_t v) {
    const auto codes = V::to_floats(V::fields(blocks + v * bytes, low, high));
    const auto both = V::multiply(codes, V::eights(chunk.values[2 * v], chunk.values[2 * v + 1]));
    return {both, both};
  }

 private:
  // Six-bit codes: scales in the lanes below 8, minimums in those above; the even runs, then the odd ones.
  // The first four of either have a byte, the others a nibble and the two bits at the top of one of those.
  static constexpr std::uint32_t run(std::uint32_t lane) { return 2 * (lane % 4) + lane / 4 % 2; }
  static constexpr std::uint32_t byte(std::uint32_t lane) { return 4 + 4 * (lane / 8) + run(lane) % 4; }
  static constexpr BitField low = {
      Lanes([](std::uint32_t lane) { return run(lane) < 4 ? byte(lane) : 12 + run(lane) % 4; }),
      Lanes([](std::uint32_t lane) { return run(lane) >= 4 && lane >= 8 ? 4u : 0u; }),
      Lanes([](std::uint32_t lane) { return run(lane) < 4 ? 0x3fu : 0x0fu; })};
  static constexpr BitField high = {
      Lanes([](std::uint32_t lane) { return run(lane) < 4 ? no_byte : byte(lane); }),
      Lanes([](std::uint32_t) { return 2u; }), Lanes([](std::uint32_t) { return 0x30u; })};
};

// Which run of 16 a lane has once vectors are transposed of which vector j holds runs 4 * j to 4 * j + 3.
constexpr std::uint32_t transposed_run(std::uint32_t lane) { return 4 * (lane % 4) + lane / 4; }
// Q2_K and Q3_K have, in the two bits at 2 * j of quarter q of their bytes, run two_bit_run(4 * q + j). So
// lane j of a quarter takes bits at 2 * j from each of its words, in turn, and begins with word j.
constexpr std::uint32_t two_bit_run(std::uint32_t lane) {
  return 8 * (lane / 8) + 2 * (lane % 4) + lane / 4 % 2;
}

// Super-blocks of sixteen times 16, a lane for each, which takes its four words in turn, from `first_word`
// on.
template <std::uint32_t (*run_of)(std::uint32_t lane), bool turned>
struct SixteenRuns {
  static constexpr std::uint32_t first_word(std::uint32_t lane) { return turned ? lane % 4 : 0; }
  static constexpr std::uint32_t parts = 1, steps = 4, groups = 16, group_length = 16, elements = 256;
  static constexpr std::uint32_t values = 16, minimum_at = 0;
  static constexpr float minimum_sign = -1;
  static constexpr Lanes lanes{run_of};
  static constexpr std::uint32_t group_at(std::uint32_t, std::uint32_t group) { return 16 * run_of(group); }
};

constexpr std::uint8_t kIq4Plus128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
constexpr std::uint8_t kDoubledFp4Plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <class Type>
struct Quants;

template <>
struct Quants<Q4_0> : FourBlocks<18> {
  static constexpr int offset = 8;
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    nibbles<V>(unit + 2, part[0]);
  }
};

template <>
struct Quants<Q4_1> : FourBlocks<20, true> {
  static constexpr int offset = 0;
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    nibbles<V>(unit + 4, part[0]);
  }
};

template <>
struct Quants<Q5_0> : FourBlocks<22> {
  static constexpr int offset = 16;
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    nibbles<V>(unit + 6, part[0]);
    add_fifth_bits<V>(unit + 2, part[0]);
  }
};

template <>
struct Quants<Q5_1> : FourBlocks<24, true> {
  static constexpr int offset = 0;
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    nibbles<V>(unit + 8, part[0]);
    add_fifth_bits<V>(unit + 4, part[0]);
  }
};

template <>
struct Quants<Q8_0> : FourBlocks<34> {
  static constexpr int offset = 128;
  static constexpr bool wide = true;
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    part[0][0] = V::flip(V::load16s(unit + 2, 34), 128);
    part[0][1] = V::flip(V::load16s(unit + 18, 34), 128);
  }
};

template <>
struct Quants<IQ4_NL> : FourBlocks<18> {
  static constexpr int offset = 128;
  static constexpr bool wide = true;
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    nibbles<V>(unit + 2, part[0]);
    look_up<V>(kIq4Plus128, part[0]);
  }
};

template <>
struct Quants<MXFP4> : FourBlocks<17> {
  static constexpr int offset = 12;
  static void read(const std::uint8_t* unit, ChunkFactors& chunk, std::uint32_t i) {
    for (std::uint32_t block = 0; block < 4; ++block) chunk.bytes[4 * i + block] = unit[17 * block];
  }
  template <class V>
  static Values<V> factors(const std::uint8_t*, const ChunkFactors& chunk, std::uint32_t v) {
    return {V::half_powers(chunk.bytes + 16 * v), V::zero()};
  }
  template <class V>
  static void unpack(const std::uint8_t* unit, typename V::Bytes (&part)[parts][steps]) {
    nibbles<V>(unit + 1, part[0]);
    look_up<V>(kDoubledFp4Plus12, part[0]);
  }
};

template <>
struct Quants<IQ4_XS> {
  static constexpr std::uint32_t parts = 2, steps = 2, groups = 4, group_length = 32, elements = 256;
  static constexpr std::uint32_t bytes = IQ4_XS::block_bytes;
  static constexpr int offset = 128;
  static constexpr bool has_minimum = false, wide = true;
  static constexpr std::uint32_t group_at(std::uint32_t part, std::uint32_t group) {
    return 32 * (4 * part + group);
  }
  static constexpr std::uint32_t values = 16, minimum_at = 0;
  static constexpr float minimum_sign = 0;
  static void read(const std::uint8_t* block, ChunkFactors& chunk, std::uint32_t i) {
    chunk.read_half(block, i);
  }
  template <class V>
  static Values<V> factors(const std::uint8_t* blocks, const ChunkFactors& chunk, std::uint32_t v) {
    const auto codes = V::to_floats(V::fields(blocks + v * bytes, low, high));
    return {V::multiply(V::add(codes, V::splat(-32.0f)), V::splat(chunk.values[v])), V::zero()};
  }
  template <class V>
  static void unpack(const std::uint8_t* block, typename V::Bytes (&part)[parts][steps]) {
    for (std::uint32_t p = 0; p < 2; ++p) {
      const auto packed = V::load64(block + 8 + 64 * p);
      part[p][0] = V::look_up(kIq4Plus128, V::keep(packed, 15));
      part[p][1] = V::look_up(kIq4Plus128, V::keep(V::down(packed, 4, 4), 15));
    }
  }

 private:
  // Codes of the eight runs: nibbles from byte 4 on, and above them pairs of bits from byte 2 on.
  static constexpr BitField low = {Lanes([](std::uint32_t lane) { return 4 + lane % 8 / 2; }),
                                   Lanes([](std::uint32_t lane) { return 4 * (lane % 2); }),
                                   Lanes([](std::uint32_t) { return 0x0fu; })};
  static constexpr BitField high = {Lanes([](std::uint32_t lane) { return 2 + lane % 8 / 4; }),
                                    Lanes([](std::uint32_t lane) { return (28 + 2 * (lane % 4)) % 32; }),
                                    Lanes([](std::uint32_t) { return 0x30u; })};
};

template <>
struct Quants<Q4_K> : EightRuns<Q4_K::block_bytes> {
  template <class V>
  static void unpack(const std::uint8_t* block, typename V::Bytes (&part)[parts][steps]) {
    const auto low = V::load64(block + 16), high = V::load64(block + 80);
    const typename V::Bytes packed[2] = {V::even_quarters(low, high), V::odd_quarters(low, high)};
    for (std::uint32_t step = 0; step < 2; ++step) {
      part[0][step] = V::keep(packed[step], 15);
      part[1][step] = V::keep(V::down(packed[step], 4, 4), 15);
    }
  }
};

template <>
struct Quants<Q5_K> : EightRuns<Q5_K::block_bytes> {
  template <class V>
  static void unpack(const std::uint8_t* block, typename V::Bytes (&part)[parts][steps]) {
    const auto low = V::load64(block + 48), high = V::load64(block + 112);
    const typename V::Bytes packed[2] = {V::even_quarters(low, high), V::odd_quarters(low, high)};
    for (std::uint32_t step = 0; step < 2; ++step) {
      // Quarter q has run 2 * q in the low nibbles and 2 * q + 1 in the high ones: their bits come to bit 4.
      const auto bits = V::repeat16(block + 16 + 16 * step);
      const auto even = V::template rotate<60, 62, 0, 2>(bits), odd = V::template rotate<61, 63, 1, 3>(bits);
      part[0][step] = V::keep(V::select(15, packed[step], even), 31);
      part[1][step] = V::keep(V::select(15, V::down(packed[step], 4, 4), odd), 31);
    }
  }
};

template <>
struct Quants<Q2_K> : SixteenRuns<two_bit_run, true> {
  static constexpr std::uint32_t bytes = Q2_K::block_bytes;
  static constexpr int offset = 0;
  static constexpr bool has_minimum = true, wide = false;
  static void read(const std::uint8_t* block, ChunkFactors& chunk, std::uint32_t i) {
    chunk.read_half(block + 80, 2 * i);
    chunk.read_half(block + 82, 2 * i + 1);
  }
  template <class V>
  static Values<V> factors(const std::uint8_t* blocks, const ChunkFactors& chunk, std::uint32_t v) {
    const auto codes = V::picked(blocks + v * bytes, lanes);
    return {V::multiply(V::to_floats(V::low(codes, 4)), V::splat(chunk.values[2 * v])),
            V::multiply(V::to_floats(V::down(codes, 4)), V::splat(chunk.values[2 * v + 1]))};
  }
  template <class V>
  static void unpack(const std::uint8_t* block, typename V::Bytes (&part)[parts][steps]) {
    const auto packed = V::load64(block + 16);
    const typename V::Bytes turned[4] = {packed, V::template turned<1>(packed), V::template turned<2>(packed),
                                         V::template turned<3>(packed)};
    for (std::uint32_t step = 0; step < 4; ++step)
      part[0][step] = V::keep(V::rotate_words(turned[step], two_bits), 3);
  }

 private:
  static constexpr Lanes two_bits{[](std::uint32_t lane) { return 2 * (lane % 4); }};
};

template <>
struct Quants<Q3_K> : SixteenRuns<two_bit_run, true> {
  static constexpr std::uint32_t bytes = Q3_K::block_bytes;
  static constexpr int offset = 4;
  static constexpr bool has_minimum = false, wide = false;
  static void read(const std::uint8_t* block, ChunkFactors& chunk, std::uint32_t i) {
    chunk.read_half(block + 108, i);
  }
  template <class V>
  static Values<V> factors(const std::uint8_t* blocks, const ChunkFactors& chunk, std::uint32_t v) {
    const auto codes = V::to_floats(V::fields(blocks + v * bytes + 94, low, high));
    return {V::multiply(V::add(codes, V::splat(-32.0f)), V::splat(chunk.values[v])), V::zero()};
  }
  template <class V>
  static void unpack(const std::uint8_t* block, typename V::Bytes (&part)[parts][steps]) {
    const auto packed = V::load64(block + 32), bits = V::load32_twice(block);
    const typename V::Bytes turned[4] = {packed, V::template turned<1>(packed), V::template turned<2>(packed),
                                         V::template turned<3>(packed)};
    const typename V::Bytes turned_bits[4] = {bits, V::template turned<1>(bits), V::template turned<2>(bits),
                                              V::template turned<3>(bits)};
    for (std::uint32_t step = 0; step < 4; ++step) {
      part[0][step] = V::keep(V::select(3, V::rotate_words(turned[step], two_bits),
                                        V::rotate_words(turned_bits[step], third_bit)),
                              7);
    }
  }

 private:
  // The two bits of a lane, and its third, bit 4 * half + lane % 4 of a byte, to bit 2.
  static constexpr Lanes two_bits{[](std::uint32_t lane) { return 2 * (lane % 4); }};
  static constexpr Lanes third_bit{[](std::uint32_t lane) { return (30 + 4 * (lane / 8) + lane % 4) % 32; }};
  // Six-bit codes of sixteen runs in bytes 96 to 107: nibbles of the first eight, and above them pairs of
  // bits of the others.
  static constexpr BitField low = {Lanes([](std::uint32_t lane) { return 2 + two_bit_run(lane) % 8; }),
                                   Lanes([](std::uint32_t lane) { return 4 * (two_bit_run(lane) / 8); }),
                                   Lanes([](std::uint32_t) { return 0x0fu; })};
  static constexpr BitField high = {
      Lanes([](std::uint32_t lane) { return 10 + two_bit_run(lane) % 4; }),
      Lanes([](std::uint32_t lane) { return (28 + 2 * (two_bit_run(lane) / 4)) % 32; }),
      Lanes([](std::uint32_t) { return 0x30u; })};
};

template <>
struct Quants<Q6_K> : SixteenRuns<transposed_run, false> {
  static constexpr std::uint32_t bytes = Q6_K::block_bytes;
  static constexpr int offset = 32;
  static constexpr bool has_minimum = false, wide = true;
  static void read(const std::uint8_t* block, ChunkFactors& chunk, std::uint32_t i) {
    chunk.read_half(block + 208, i);
  }
  template <class V>
  static Values<V> factors(const std::uint8_t* blocks, const ChunkFactors& chunk, std::uint32_t v) {
    const auto scales = V::signed_floats(reinterpret_cast<const std::int8_t*>(blocks + v * bytes + 192));
    return {V::multiply(V::permuted(scales, lanes), V::splat(chunk.values[v])), V::zero()};
  }
  template <class V>
  static void unpack(const std::uint8_t* block, typename V::Bytes (&part)[parts][steps]) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      // Bits 2 * q and 2 * q + 1 for run pair q: they come to bits 4 and 5.
      const auto low = V::load64(block + 64 * half), bits = V::load32_twice(block + 128 + 32 * half);
      const auto first = V::template rotate<60, 60, 62, 62>(bits),
                 second = V::template rotate<0, 0, 2, 2>(bits);
      part[0][2 * half] = V::keep(V::select(15, low, first), 63);
      part[0][2 * half + 1] = V::keep(V::select(15, V::down(low, 4, 4), second), 63);
    }
    V::transpose(part[0]);
  }
};

}  // namespace
}  // namespace metalane::cpu
