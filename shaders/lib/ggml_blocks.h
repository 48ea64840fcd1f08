// Unpacking of GGML's types: one description a type, for every kernel that reads weights.
//
//   GgmlBlock<id>::length, ::bytes     of a block, as in the table (metalane/params/ggml_types.h)
//   GgmlBlock<id>::unit                elements that unpack() gives: 16, or 1 for plain numbers
//   GgmlBlock<id>::unpack(block, part, q)
//                                      elements [unit * part, unit * (part + 1)) of a block: the integers q
//                                      (exact in half and float), and what makes weights of them:
//
//   weight = scale * q + offset
//
// rounded after the product and after the sum, is the gguf package's float32, bit for bit. Types without a
// minimum have the offset -0, which changes no sum, not even a sum of zeros. A block's address is even, if
// its bytes are.
#ifndef METALANE_LIB_GGML_BLOCKS_H
#define METALANE_LIB_GGML_BLOCKS_H

#include <metalane/params/ggml_types.h>

#include <metal_stdlib>
using namespace metal;

struct GgmlScale {
  float scale;
  float offset;
};

#define METALANE_GGML_ID(name, id, block_length, block_bytes) constant constexpr uint ggml_##name = id;
METALANE_GGML_WEIGHT_TYPES(METALANE_GGML_ID)
#undef METALANE_GGML_ID

template <uint id>
struct GgmlBlock;

// Steps of IQ4_NL and IQ4_XS, and of MXFP4 (e2m1, doubled).
constant constexpr char ggml_iq4_steps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
constant constexpr char ggml_e2m1_steps[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline float ggml_half(device const uchar* at) { return float(*(device const half*)at); }

inline uint ggml_u32(device const uchar* at) {
  device const ushort* const halves = (device const ushort*)at;
  return uint(halves[0]) | uint(halves[1]) << 16;
}

// Eight 6-bit scales (x) and minimums (y) in 12 bytes, of Q4_K and Q5_K.
inline float2 ggml_packed_scale_minimum(device const uchar* packed, uint group) {
  const uint at = group & 3;
  if (group < 4) return float2(packed[at] & 63, packed[at + 4] & 63);
  return float2((packed[at + 8] & 15) | ((packed[at] >> 2) & 48),
                (packed[at + 8] >> 4) | ((packed[at + 4] >> 2) & 48));
}

// Members that every description starts with.
#define METALANE_GGML_SIZES(name, id, block_length, block_bytes)        \
  struct GgmlSizes_##name {                                             \
    static constant constexpr uint length = block_length;               \
    static constant constexpr uint bytes = block_bytes;                 \
    static constant constexpr uint unit = (block_length) == 1 ? 1 : 16; \
  };
METALANE_GGML_WEIGHT_TYPES(METALANE_GGML_SIZES)
#undef METALANE_GGML_SIZES

// Plain numbers: the weight itself, as a product and a sum that change nothing.
template <>
struct GgmlBlock<ggml_F32> : GgmlSizes_F32 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint, thread T* q) {
    q[0] = T(*(device const float*)block);
    return {1.0f, -0.0f};
  }
};

template <>
struct GgmlBlock<ggml_F16> : GgmlSizes_F16 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint, thread T* q) {
    q[0] = T(*(device const half*)block);
    return {1.0f, -0.0f};
  }
};

template <>
struct GgmlBlock<ggml_BF16> : GgmlSizes_BF16 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint, thread T* q) {
    q[0] = T(as_type<float>(uint(*(device const ushort*)block) << 16));
    return {1.0f, -0.0f};
  }
};

// d, 16 bytes of nibbles: low ones are elements 0 to 15, high ones 16 to 31.
template <>
struct GgmlBlock<ggml_Q4_0> : GgmlSizes_Q4_0 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    for (uint i = 0; i < 16; ++i) q[i] = T(int((block[2 + i] >> (4 * part)) & 15) - 8);
    return {ggml_half(block), -0.0f};
  }
};

// d, m, nibbles.
template <>
struct GgmlBlock<ggml_Q4_1> : GgmlSizes_Q4_1 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    for (uint i = 0; i < 16; ++i) q[i] = T(int((block[4 + i] >> (4 * part)) & 15));
    return {ggml_half(block), ggml_half(block + 2)};
  }
};

// d, fifth bits of 32 elements, nibbles.
template <>
struct GgmlBlock<ggml_Q5_0> : GgmlSizes_Q5_0 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    const uint high = ggml_u32(block + 2) >> (16 * part);
    for (uint i = 0; i < 16; ++i) {
      q[i] = T(int(((block[6 + i] >> (4 * part)) & 15) | ((high >> i) & 1) << 4) - 16);
    }
    return {ggml_half(block), -0.0f};
  }
};

// d, m, fifth bits, nibbles.
template <>
struct GgmlBlock<ggml_Q5_1> : GgmlSizes_Q5_1 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    const uint high = ggml_u32(block + 4) >> (16 * part);
    for (uint i = 0; i < 16; ++i) {
      q[i] = T(int(((block[8 + i] >> (4 * part)) & 15) | ((high >> i) & 1) << 4));
    }
    return {ggml_half(block), ggml_half(block + 2)};
  }
};

// d, 32 signed bytes.
template <>
struct GgmlBlock<ggml_Q8_0> : GgmlSizes_Q8_0 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    device const char* const quants = (device const char*)(block + 2 + 16 * part);
    for (uint i = 0; i < 16; ++i) q[i] = T(int(quants[i]));
    return {ggml_half(block), -0.0f};
  }
};

// 16 bytes of scale (low nibble) and minimum (high nibble), 64 bytes of 2-bit quants, d, dmin. In each half
// of 128 elements, element 32 * s + i has bits 2 * s of byte i.
template <>
struct GgmlBlock<ggml_Q2_K> : GgmlSizes_Q2_K {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    device const uchar* const quants = block + 16 + 32 * (part / 8) + 16 * (part & 1);
    const uint shift = part / 2 % 4 * 2;
    for (uint i = 0; i < 16; ++i) q[i] = T(int((quants[i] >> shift) & 3));
    return {ggml_half(block + 80) * float(block[part] & 15),
            -(ggml_half(block + 82) * float(block[part] >> 4))};
  }
};

// 32 bytes of third bits (bit g of byte i: element 32 * g + i; clear: less four), 64 bytes of 2-bit quants as
// in Q2_K, 16 6-bit scales in 12 bytes (four low bits in nibbles, two high ones behind), d.
template <>
struct GgmlBlock<ggml_Q3_K> : GgmlSizes_Q3_K {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    device const uchar* const quants = block + 32 + 32 * (part / 8) + 16 * (part & 1);
    device const uchar* const third_bits = block + 16 * (part & 1);
    const uint shift = part / 2 % 4 * 2;
    for (uint i = 0; i < 16; ++i) {
      q[i] = T(int((quants[i] >> shift) & 3) - (((third_bits[i] >> (part / 2)) & 1) != 0 ? 0 : 4));
    }
    device const uchar* const scales = block + 96;
    const int low = (scales[part % 8] >> (4 * (part / 8))) & 15;
    const int high = (scales[8 + part % 4] >> (2 * (part / 4))) & 3;
    return {ggml_half(block + 108) * float((low | high << 4) - 32), -0.0f};
  }
};

// d, dmin, packed scales and minimums, 128 bytes of nibbles: 32 bytes for each two groups of 32.
template <>
struct GgmlBlock<ggml_Q4_K> : GgmlSizes_Q4_K {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    const uint group = part / 2;
    device const uchar* const quants = block + 16 + 32 * (group / 2) + 16 * (part & 1);
    for (uint i = 0; i < 16; ++i) q[i] = T(int((quants[i] >> (4 * (group & 1))) & 15));
    const float2 packed = ggml_packed_scale_minimum(block + 4, group);
    return {ggml_half(block) * packed.x, -(ggml_half(block + 2) * packed.y)};
  }
};

// As Q4_K, with 32 bytes of fifth bits (bit g of byte i: element 32 * g + i) before the nibbles.
template <>
struct GgmlBlock<ggml_Q5_K> : GgmlSizes_Q5_K {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    const uint group = part / 2, side = 16 * (part & 1);
    device const uchar* const quants = block + 48 + 32 * (group / 2) + side;
    device const uchar* const fifth_bits = block + 16 + side;
    for (uint i = 0; i < 16; ++i) {
      q[i] = T(int(((quants[i] >> (4 * (group & 1))) & 15) | ((fifth_bits[i] >> group) & 1) << 4));
    }
    const float2 packed = ggml_packed_scale_minimum(block + 4, group);
    return {ggml_half(block) * packed.x, -(ggml_half(block + 2) * packed.y)};
  }
};

// 128 bytes of low nibbles, 64 bytes of two high bits, 16 signed scales, d. In each half of 128 elements,
// element 32 * s + i has nibble s / 2 of byte 32 * (s % 2) + i and bits 2 * s of high byte i.
template <>
struct GgmlBlock<ggml_Q6_K> : GgmlSizes_Q6_K {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    const uint half_block = part / 8, quarter = part / 2 % 4, side = 16 * (part & 1);
    device const uchar* const low = block + 64 * half_block + 32 * (quarter & 1) + side;
    device const uchar* const high = block + 128 + 32 * half_block + side;
    for (uint i = 0; i < 16; ++i) {
      q[i] = T(int(((low[i] >> (4 * (quarter / 2))) & 15) | ((high[i] >> (2 * quarter)) & 3) << 4) - 32);
    }
    const char scale = *(device const char*)(block + 192 + part);
    return {ggml_half(block + 208) * float(scale), -0.0f};
  }
};

// d, nibbles that choose steps.
template <>
struct GgmlBlock<ggml_IQ4_NL> : GgmlSizes_IQ4_NL {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    for (uint i = 0; i < 16; ++i) q[i] = T(int(ggml_iq4_steps[(block[2 + i] >> (4 * part)) & 15]));
    return {ggml_half(block), -0.0f};
  }
};

// d, two high bits of eight scales, their low nibbles in four bytes, 128 bytes of nibbles that choose steps.
template <>
struct GgmlBlock<ggml_IQ4_XS> : GgmlSizes_IQ4_XS {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    const uint group = part / 2;
    device const uchar* const quants = block + 8 + 16 * group;
    for (uint i = 0; i < 16; ++i) q[i] = T(int(ggml_iq4_steps[(quants[i] >> (4 * (part & 1))) & 15]));
    const int low = (block[4 + group / 2] >> (4 * (group & 1))) & 15;
    const int high = (*(device const ushort*)(block + 2) >> (2 * group)) & 3;
    return {ggml_half(block) * float((low | high << 4) - 32), -0.0f};
  }
};

// An exponent (e8m0, here halved since the steps are doubled), nibbles that choose steps.
template <>
struct GgmlBlock<ggml_MXFP4> : GgmlSizes_MXFP4 {
  template <typename T>
  static GgmlScale unpack(device const uchar* block, uint part, thread T* q) {
    for (uint i = 0; i < 16; ++i) q[i] = T(int(ggml_e2m1_steps[(block[1 + i] >> (4 * part)) & 15]));
    const uint exponent = block[0];
    // Exponents 0 and 1 make subnormal scales.
    return {as_type<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23), -0.0f};
  }
};

#endif
