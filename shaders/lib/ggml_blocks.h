// How weights of each GGML type lie in memory, and how 16 of them become floats. One struct a type, named
// like it.
//
// A row of weights is a run of blocks. `unpack` gives the weights 16 * chunk to 16 * chunk + 15 of a row,
// with the bits that GGML's own decoding to float gives: each product and sum is rounded once, in the order
// written here. Blocks lie at multiples of their size, so most are aligned to two bytes only and are read as
// 16-bit words.
#ifndef METALANE_LIB_GGML_BLOCKS_H
#define METALANE_LIB_GGML_BLOCKS_H

#include <metalane/params/ggml_types.h>

#include <metal_stdlib>
using namespace metal;

// Weights 16 * chunk + 4 * i + j of a row are w[i][j].
typedef float4 GgmlChunk[4];

// Sixteen small unsigned integers, two to a word: element 2 * i in the low byte of pair[i], 2 * i + 1 in the
// high one.
struct GgmlPairs {
  ushort pair[8];
};

// The bits of 16 bytes that `mask` (the same in both of its bytes) keeps once they are shifted down.
inline GgmlPairs ggml_bits(device const ushort* bytes, ushort shift, ushort mask) {
  GgmlPairs q;
  for (ushort i = 0; i < 8; ++i) q.pair[i] = ushort(bytes[i] >> shift) & mask;
  return q;
}

// Puts further bits, shifted up by `up`, on top of those that `q` has.
inline void ggml_add_bits(thread GgmlPairs& q, GgmlPairs high, ushort up) {
  for (ushort i = 0; i < 8; ++i) q.pair[i] |= ushort(high.pair[i] << up);
}

// Puts bit i of `bits` on element i as its bit 4.
inline void ggml_add_fifth_bits(thread GgmlPairs& q, ushort bits) {
  for (ushort i = 0; i < 8; ++i) {
    q.pair[i] |= ushort(((bits >> (2 * i)) & 1) << 4) | ushort(((bits >> (2 * i + 1)) & 1) << 12);
  }
}

inline short ggml_element(GgmlPairs q, ushort i) { return short((q.pair[i / 2] >> (8 * (i % 2))) & 0xff); }

// scale * (q - offset)
inline void ggml_scaled(GgmlPairs q, float scale, short offset, thread GgmlChunk& w) {
  for (ushort i = 0; i < 16; ++i) w[i / 4][i % 4] = scale * float(ggml_element(q, i) - offset);
}

// scale * q + shift
inline void ggml_affine(GgmlPairs q, float scale, float shift, thread GgmlChunk& w) {
  for (ushort i = 0; i < 16; ++i) w[i / 4][i % 4] = scale * float(ggml_element(q, i)) + shift;
}

// scale * table[q]
inline void ggml_looked_up(GgmlPairs q, float scale, constant char* table, thread GgmlChunk& w) {
  for (ushort i = 0; i < 16; ++i) w[i / 4][i % 4] = scale * float(table[ggml_element(q, i)]);
}

inline float ggml_half(device const uchar* bytes) { return float(*(device const half*)bytes); }

// The level of a 4-bit weight of IQ4_NL and IQ4_XS.
constant char ggml_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// Twice the value of a 4-bit float with two bits of exponent and one of mantissa.
constant char ggml_fp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Types that are no blocks: one element after the other, of which a row has any number. `length` is the
// row's; what lies behind its end is 0 and is not read.
template <typename Element>
struct GgmlPlain {
  static inline float value(float element) { return element; }
  static inline float value(half element) { return float(element); }
  // bfloat16, as the upper half of a float.
  static inline float value(ushort element) { return as_type<float>(uint(element) << 16); }

  static inline void unpack(device const uchar* row, uint chunk, uint length, thread GgmlChunk& w) {
    device const Element* elements = (device const Element*)row + 16 * chunk;
    const uint here = length - 16 * chunk;
    for (ushort i = 0; i < 16; ++i) w[i / 4][i % 4] = i < here ? value(elements[i]) : 0.0f;
  }
};

struct F32 : GgmlPlain<float> {
  enum : uint { block_length = 1, block_bytes = 4 };
};

struct F16 : GgmlPlain<half> {
  enum : uint { block_length = 1, block_bytes = 2 };
};

struct BF16 : GgmlPlain<ushort> {
  enum : uint { block_length = 1, block_bytes = 2 };
};

// Types of 32 weights a block unpack its low (part 0) or high half (part 1), types of 256 one of 16 parts.
template <typename Block>
struct GgmlBlocks {
  static inline void unpack(device const uchar* row, uint chunk, uint, thread GgmlChunk& w) {
    const uint parts = Block::block_length / 16;
    Block::unpack_part(row + ulong(chunk / parts) * Block::block_bytes, ushort(chunk % parts), w);
  }
};

// d f16 | 16 bytes: weight i in the low nibble of byte i, weight 16 + i in the high one; d * (q - 8)
struct Q4_0 : GgmlBlocks<Q4_0> {
  enum : uint { block_length = 32, block_bytes = 18 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    ggml_scaled(ggml_bits((device const ushort*)(block + 2), 4 * part, 0x0f0f), ggml_half(block), 8, w);
  }
};

// d f16 | m f16 | nibbles as in Q4_0; d * q + m
struct Q4_1 : GgmlBlocks<Q4_1> {
  enum : uint { block_length = 32, block_bytes = 20 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    ggml_affine(ggml_bits((device const ushort*)(block + 4), 4 * part, 0x0f0f), ggml_half(block),
                ggml_half(block + 2), w);
  }
};

// d f16 | fifth bits u32, weight i's in bit i | nibbles as in Q4_0; d * (q - 16)
struct Q5_0 : GgmlBlocks<Q5_0> {
  enum : uint { block_length = 32, block_bytes = 22 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    GgmlPairs q = ggml_bits((device const ushort*)(block + 6), 4 * part, 0x0f0f);
    ggml_add_fifth_bits(q, ((device const ushort*)(block + 2))[part]);
    ggml_scaled(q, ggml_half(block), 16, w);
  }
};

// d f16 | m f16 | fifth bits and nibbles as in Q5_0; d * q + m
struct Q5_1 : GgmlBlocks<Q5_1> {
  enum : uint { block_length = 32, block_bytes = 24 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    GgmlPairs q = ggml_bits((device const ushort*)(block + 8), 4 * part, 0x0f0f);
    ggml_add_fifth_bits(q, ((device const ushort*)(block + 4))[part]);
    ggml_affine(q, ggml_half(block), ggml_half(block + 2), w);
  }
};

// d f16 | 32 signed bytes; d * q
struct Q8_0 : GgmlBlocks<Q8_0> {
  enum : uint { block_length = 32, block_bytes = 34 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    device const ushort* words = (device const ushort*)(block + 2) + 8 * part;
    const float d = ggml_half(block);
    for (ushort i = 0; i < 8; ++i) {
      const char2 q = as_type<char2>(words[i]);
      w[i / 2][2 * (i % 2)] = d * float(q.x);
      w[i / 2][2 * (i % 2) + 1] = d * float(q.y);
    }
  }
};

// 16 bytes of scale (low nibble) and minimum (high nibble), one a part | 64 bytes: part p in the bits 2 * (p
// % 8 / 2) of the 16 bytes at 32 * (p / 8) + 16 * (p % 2) | d f16 | dmin f16; d * scale * q - dmin * minimum
struct Q2_K : GgmlBlocks<Q2_K> {
  enum : uint { block_length = 256, block_bytes = 84 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    const uchar scale = block[part];
    device const ushort* words = (device const ushort*)(block + 16 + 32 * (part / 8) + 16 * (part % 2));
    ggml_affine(ggml_bits(words, 2 * (part % 8 / 2), 0x0303), ggml_half(block + 80) * float(scale & 0xf),
                -(ggml_half(block + 82) * float(scale >> 4)), w);
  }
};

// 32 bytes of third bits: part p's in bit p / 2 of the 16 bytes at 16 * (p % 2), set where 4 is not taken off
// | 64 bytes as in Q2_K | 12 bytes of 6-bit scales | d f16; d * (scale - 32) * (q - 4)
struct Q3_K : GgmlBlocks<Q3_K> {
  enum : uint { block_length = 256, block_bytes = 110 };

  // Scale j: four low bits in a nibble of byte j % 8 (low for j < 8), two high ones in byte 8 + j % 4.
  static inline short scale(device const uchar* scales, ushort j) {
    const ushort low = (scales[j % 8] >> (4 * (j / 8))) & 0xf;
    const ushort high = (scales[8 + j % 4] >> (2 * (j / 4))) & 3;
    return short(low | (high << 4)) - 32;
  }

  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    device const ushort* words = (device const ushort*)(block + 32 + 32 * (part / 8) + 16 * (part % 2));
    GgmlPairs q = ggml_bits(words, 2 * (part % 8 / 2), 0x0303);
    ggml_add_bits(q, ggml_bits((device const ushort*)(block + 16 * (part % 2)), part / 2, 0x0101), 2);
    ggml_scaled(q, ggml_half(block + 108) * float(scale(block + 96, part)), 4, w);
  }
};

// The 6-bit scale (x) and minimum (y) of 32 weights, of which Q4_K and Q5_K pack eight each into 12 bytes:
// the first four in the low bits of bytes 0 to 3 and 4 to 7, the last four in the nibbles of bytes 8 to 11,
// their two upper bits on top of the first.
inline float2 ggml_scale_and_minimum(device const uchar* scales, ushort j) {
  if (j < 4) return float2(scales[j] & 63, scales[j + 4] & 63);
  return float2((scales[j + 4] & 0xf) | ((scales[j - 4] >> 6) << 4),
                (scales[j + 4] >> 4) | ((scales[j] >> 6) << 4));
}

// d f16 | dmin f16 | 12 bytes of scales and minimums | 128 bytes: 32 weights in the low, then 32 in the high
// nibbles of each 32 bytes; d * scale * q - dmin * minimum
struct Q4_K : GgmlBlocks<Q4_K> {
  enum : uint { block_length = 256, block_bytes = 144 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    const float2 factor = ggml_scale_and_minimum(block + 4, part / 2);
    device const ushort* words = (device const ushort*)(block + 16 + 32 * (part / 4) + 16 * (part % 2));
    ggml_affine(ggml_bits(words, 4 * (part / 2 % 2), 0x0f0f), ggml_half(block) * factor.x,
                -(ggml_half(block + 2) * factor.y), w);
  }
};

// As Q4_K, with 32 bytes of fifth bits before the nibbles: those of the weights 32 * s + i in bit s of byte i
struct Q5_K : GgmlBlocks<Q5_K> {
  enum : uint { block_length = 256, block_bytes = 176 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    const float2 factor = ggml_scale_and_minimum(block + 4, part / 2);
    device const ushort* words = (device const ushort*)(block + 48 + 32 * (part / 4) + 16 * (part % 2));
    GgmlPairs q = ggml_bits(words, 4 * (part / 2 % 2), 0x0f0f);
    ggml_add_bits(q, ggml_bits((device const ushort*)(block + 16 + 16 * (part % 2)), part / 2, 0x0101), 4);
    ggml_affine(q, ggml_half(block) * factor.x, -(ggml_half(block + 2) * factor.y), w);
  }
};

// 128 bytes of low nibbles | 64 bytes of upper bit pairs | 16 signed scales, one a part | d f16. Each half of
// a block has four quarters of 32 weights: nibbles of quarter k in the low (k < 2) or high ones of the 32
// bytes at 32 * (k % 2), upper bits in the bits 2 * k of its 32 bytes; d * scale * (q - 32)
struct Q6_K : GgmlBlocks<Q6_K> {
  enum : uint { block_length = 256, block_bytes = 210 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    const ushort half_block = part / 8, quarter = part % 8 / 2, side = 16 * (part % 2);
    device const ushort* low = (device const ushort*)(block + 64 * half_block + 32 * (quarter % 2) + side);
    device const ushort* high = (device const ushort*)(block + 128 + 32 * half_block + side);
    GgmlPairs q = ggml_bits(low, 4 * (quarter / 2), 0x0f0f);
    ggml_add_bits(q, ggml_bits(high, 2 * quarter, 0x0303), 4);
    ggml_scaled(q, ggml_half(block + 208) * float(((device const char*)block)[192 + part]), 32, w);
  }
};

// As Q4_0, with a table of levels; d * level[q]
struct IQ4_NL : GgmlBlocks<IQ4_NL> {
  enum : uint { block_length = 32, block_bytes = 18 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    ggml_looked_up(ggml_bits((device const ushort*)(block + 2), 4 * part, 0x0f0f), ggml_half(block),
                   ggml_iq4_levels, w);
  }
};

// d f16 | upper scale bits u16, two each | lower scale bits, a nibble each | 8 times 16 bytes of nibbles as
// in Q4_0; d * (scale - 32) * level[q]
struct IQ4_XS : GgmlBlocks<IQ4_XS> {
  enum : uint { block_length = 256, block_bytes = 136 };
  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    const ushort run = part / 2;
    const ushort low = (block[4 + run / 2] >> (4 * (run % 2))) & 0xf;
    const ushort high = (*(device const ushort*)(block + 2) >> (2 * run)) & 3;
    const float scale = ggml_half(block) * float(short(low | (high << 4)) - 32);
    ggml_looked_up(ggml_bits((device const ushort*)(block + 8 + 16 * run), 4 * (part % 2), 0x0f0f), scale,
                   ggml_iq4_levels, w);
  }
};

// exponent u8 | 16 bytes of nibbles as in Q4_0, at odd addresses; 2 ^ (exponent - 128) * doubled[q]
struct MXFP4 : GgmlBlocks<MXFP4> {
  enum : uint { block_length = 32, block_bytes = 17 };

  // 2 ^ (e - 128), subnormal for e < 2.
  static inline float half_power(uint e) { return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

  static inline void unpack_part(device const uchar* block, ushort part, thread GgmlChunk& w) {
    GgmlPairs q;
    for (ushort i = 0; i < 8; ++i) {
      const ushort2 bytes = ushort2(block[1 + 2 * i], block[2 + 2 * i]) >> ushort(4 * part);
      q.pair[i] = (bytes.x & 0xf) | ((bytes.y & 0xf) << 8);
    }
    ggml_looked_up(q, half_power(block[0]), ggml_fp4_doubled, w);
  }
};

#define GGML_AGREES_WITH_TABLE(type, id, length, bytes) \
  static_assert(type::block_length == length && type::block_bytes == bytes, #type);
METALANE_GGML_WEIGHT_TYPES(GGML_AGREES_WITH_TABLE)
#undef GGML_AGREES_WITH_TABLE

#endif
