// One description a type: where a block's scales and quants lie and how a float comes of them. The arithmetic
// is that of the gguf package, operation by operation in float32, so that results agree bit for bit.
#include "core/ggml_decode.h"

#include <metalane/error.h>

#include <bit>
#include <cstring>
#include <string>

namespace metalane::core {
namespace {

static_assert(std::endian::native == std::endian::little, "files and blocks are little-endian");

std::uint16_t u16_at(const std::uint8_t* at) noexcept {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint32_t u32_at(const std::uint8_t* at) noexcept {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A half's exponent and mantissa are a float's, 112 binary orders too small; subnormals become normal by the
// product.
float half_at(const std::uint8_t* at) noexcept {
  const std::uint32_t half = u16_at(at);
  const std::uint32_t moved = (half & 0x7fff) << 13;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(moved) * 0x1p112f);
  if ((half & 0x7c00) == 0x7c00) bits = moved | 0x7f800000;  // infinite or NaN
  return std::bit_cast<float>(bits | (half & 0x8000) << 16);
}

float signed_float(int value) noexcept { return static_cast<float>(value); }

// The low and the high four bits of `bytes`: elements [0, count) and [count, 2 * count) of a group.
template <typename Store>
void for_nibbles(const std::uint8_t* bytes, int count, const Store& store) noexcept {
  for (int i = 0; i < count; ++i) {
    store(i, bytes[i] & 15);
    store(i + count, bytes[i] >> 4);
  }
}

// Steps of IQ4_NL and IQ4_XS, and of MXFP4 (e2m1, doubled).
constexpr std::int8_t iq4_steps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::int8_t e2m1_steps[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Eight 6-bit scales and minimums in 12 bytes, of Q4_K and Q5_K: those of groups 0 to 3 in the low six bits
// of bytes 0 to 3 and 4 to 7; those of groups 4 to 7 with four bits in bytes 8 to 11 and two in the tops of
// the others.
struct ScaleMinimum {
  float scale, minimum;
};
ScaleMinimum packed_scale_minimum(const std::uint8_t* packed, int group) noexcept {
  const int at = group & 3;
  if (group < 4) return {signed_float(packed[at] & 63), signed_float(packed[at + 4] & 63)};
  return {signed_float((packed[at + 8] & 15) | (packed[at] >> 2 & 48)),
          signed_float((packed[at + 8] >> 4) | (packed[at + 4] >> 2 & 48))};
}

template <GgmlType type>
void decode_block(const std::uint8_t* block, float* out) noexcept;

template <>
void decode_block<GgmlType::F32>(const std::uint8_t* block, float* out) noexcept {
  std::memcpy(out, block, sizeof *out);
}

template <>
void decode_block<GgmlType::F16>(const std::uint8_t* block, float* out) noexcept {
  *out = half_at(block);
}

template <>
void decode_block<GgmlType::BF16>(const std::uint8_t* block, float* out) noexcept {
  const std::uint32_t bits = static_cast<std::uint32_t>(u16_at(block)) << 16;
  std::memcpy(out, &bits, sizeof bits);  // not as a float: a signalling NaN stays one
}

// d, 16 bytes of nibbles.
template <>
void decode_block<GgmlType::Q4_0>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block);
  for_nibbles(block + 2, 16, [=](int i, int q) { out[i] = d * signed_float(q - 8); });
}

// d, m, 16 bytes of nibbles.
template <>
void decode_block<GgmlType::Q4_1>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block), m = half_at(block + 2);
  for_nibbles(block + 4, 16, [=](int i, int q) { out[i] = d * signed_float(q) + m; });
}

// d, fifth bits of 32 elements, 16 bytes of nibbles.
template <>
void decode_block<GgmlType::Q5_0>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block);
  const std::uint32_t high = u32_at(block + 2);
  for_nibbles(block + 6, 16, [=](int i, int q) {
    out[i] = d * signed_float((q | static_cast<int>(high >> i & 1) << 4) - 16);
  });
}

// d, m, fifth bits, 16 bytes of nibbles.
template <>
void decode_block<GgmlType::Q5_1>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block), m = half_at(block + 2);
  const std::uint32_t high = u32_at(block + 4);
  for_nibbles(block + 8, 16,
              [=](int i, int q) { out[i] = d * signed_float(q | static_cast<int>(high >> i & 1) << 4) + m; });
}

// d, 32 signed bytes.
template <>
void decode_block<GgmlType::Q8_0>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * signed_float(static_cast<std::int8_t>(block[2 + i]));
}

// 16 bytes of scale (low nibble) and minimum (high nibble), 64 bytes of 2-bit quants, d, dmin. In each half
// of 128 elements, element 32 * s + i has bits 2 * s of byte i.
template <>
void decode_block<GgmlType::Q2_K>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (int group = 0; group < 16; ++group) {
    const float dl = d * signed_float(block[group] & 15);
    const float ml = dmin * signed_float(block[group] >> 4);
    const std::uint8_t* const quants = block + 16 + 32 * (group / 8) + 16 * (group & 1);
    const int shift = group / 2 % 4 * 2;
    for (int i = 0; i < 16; ++i) out[16 * group + i] = dl * signed_float(quants[i] >> shift & 3) - ml;
  }
}

// 32 bytes of third bits (bit g of byte i: element 32 * g + i; set: nothing is taken off, clear: four), 64
// bytes of 2-bit quants as in Q2_K, 16 6-bit scales in 12 bytes (four low bits in nibbles, two high ones
// behind), d.
template <>
void decode_block<GgmlType::Q3_K>(const std::uint8_t* block, float* out) noexcept {
  const std::uint8_t* const scales = block + 96;
  const float d = half_at(block + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = scales[group % 8] >> 4 * (group / 8) & 15;
    const int high = scales[8 + group % 4] >> 2 * (group / 4) & 3;
    const float dl = d * signed_float((low | high << 4) - 32);
    const std::uint8_t* const quants = block + 32 + 32 * (group / 8) + 16 * (group & 1);
    const std::uint8_t* const third_bits = block + 16 * (group & 1);
    const int shift = group / 2 % 4 * 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (quants[i] >> shift & 3) - ((third_bits[i] >> group / 2 & 1) != 0 ? 0 : 4);
      out[16 * group + i] = dl * signed_float(q);
    }
  }
}

// d, dmin, packed scales and minimums, 128 bytes of nibbles: 32 bytes for each two groups.
template <>
void decode_block<GgmlType::Q4_K>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const auto [scale, minimum] = packed_scale_minimum(block + 4, group);
    const float dl = d * scale, ml = dmin * minimum;
    const std::uint8_t* const quants = block + 16 + 32 * (group / 2);
    const int shift = 4 * (group & 1);
    for (int i = 0; i < 32; ++i) out[32 * group + i] = dl * signed_float(quants[i] >> shift & 15) - ml;
  }
}

// As Q4_K, with 32 bytes of fifth bits (bit g of byte i: element 32 * g + i) before the nibbles.
template <>
void decode_block<GgmlType::Q5_K>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block), dmin = half_at(block + 2);
  const std::uint8_t* const fifth_bits = block + 16;
  for (int group = 0; group < 8; ++group) {
    const auto [scale, minimum] = packed_scale_minimum(block + 4, group);
    const float dl = d * scale, ml = dmin * minimum;
    const std::uint8_t* const quants = block + 48 + 32 * (group / 2);
    const int shift = 4 * (group & 1);
    for (int i = 0; i < 32; ++i) {
      const int q = (quants[i] >> shift & 15) | (fifth_bits[i] >> group & 1) << 4;
      out[32 * group + i] = dl * signed_float(q) - ml;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of two high bits, 16 signed scales, d. In each half of 128 elements,
// element 32 * s + i has nibble s / 2 of byte 32 * (s % 2) + i and bits 2 * s of high byte i.
template <>
void decode_block<GgmlType::Q6_K>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block + 208);
  for (int group = 0; group < 16; ++group) {
    const float dl = d * signed_float(static_cast<std::int8_t>(block[192 + group]));
    const int half = group / 8, part = group / 2 % 4, side = 16 * (group & 1);
    const std::uint8_t* const low = block + 64 * half + 32 * (part & 1) + side;
    const std::uint8_t* const high = block + 128 + 32 * half + side;
    for (int i = 0; i < 16; ++i) {
      const int q = (low[i] >> 4 * (part / 2) & 15) | (high[i] >> 2 * part & 3) << 4;
      out[16 * group + i] = dl * signed_float(q - 32);
    }
  }
}

// d, 16 bytes of nibbles that choose steps.
template <>
void decode_block<GgmlType::IQ4_NL>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block);
  for_nibbles(block + 2, 16, [=](int i, int q) { out[i] = d * signed_float(iq4_steps[q]); });
}

// d, two high bits of eight scales, their low nibbles in four bytes, 128 bytes of nibbles that choose steps.
template <>
void decode_block<GgmlType::IQ4_XS>(const std::uint8_t* block, float* out) noexcept {
  const float d = half_at(block);
  const int high = u16_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const int low = block[4 + group / 2] >> 4 * (group & 1) & 15;
    const float dl = d * signed_float((low | (high >> 2 * group & 3) << 4) - 32);
    float* const group_out = out + 32 * group;
    for_nibbles(block + 8 + 16 * group, 16,
                [=](int i, int q) { group_out[i] = dl * signed_float(iq4_steps[q]); });
  }
}

// An exponent (e8m0, here halved since the steps are doubled), 16 bytes of nibbles that choose steps.
// Exponents 0 and 1 make subnormal scales.
template <>
void decode_block<GgmlType::MXFP4>(const std::uint8_t* block, float* out) noexcept {
  const std::uint32_t exponent = block[0];
  const float d = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  for_nibbles(block + 1, 16, [=](int i, int q) { out[i] = d * signed_float(e2m1_steps[q]); });
}

std::string decodable_names() {
  std::string names;
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (info.decodes) names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
  return names;
}

}  // namespace

const GgmlTypeInfo& require_decodable(const char* op, GgmlType type) {
  const GgmlTypeInfo* const info = find_ggml_type(type);
  if (info != nullptr && info->decodes) return *info;
  throw ArgumentError(op, "ggml_type", "one of " + decodable_names(),
                      info != nullptr
                          ? std::string(info->name) + " (its tensors can be listed and loaded as they are)"
                          : "the number " + std::to_string(static_cast<std::uint32_t>(type)));
}

void decode_blocks(GgmlType type, const std::uint8_t* blocks, std::uint64_t block_count,
                   float* out) noexcept {
  switch (type) {
#define METALANE_DECODE_CASE(name, id, block_length, block_bytes)                         \
  case GgmlType::name:                                                                    \
    for (std::uint64_t i = 0; i < block_count; ++i) {                                     \
      decode_block<GgmlType::name>(blocks + i * (block_bytes), out + i * (block_length)); \
    }                                                                                     \
    return;
    METALANE_GGML_WEIGHT_TYPES(METALANE_DECODE_CASE)
#undef METALANE_DECODE_CASE
    default:
      return;
  }
}

}  // namespace metalane::core
