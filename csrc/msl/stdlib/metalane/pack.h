// metal_pack: normalised integers in one word to and from floats.
#ifndef METALANE_STDLIB_PACK_H
#define METALANE_STDLIB_PACK_H

#include "common.h"

METALANE_STDLIB_BEGIN
namespace detail {

// Value in [0, 1] or [-1, 1] as an integer of `bits` bits, rounded to nearest even; NaN gives 0. The product
// is exact in double.
inline uint to_unorm(float value, int bits) {
  return uint(__builtin_rint(double(smaller(larger(value, 0.0f), 1.0f)) * double((1u << bits) - 1)));
}
inline uint to_snorm(float value, int bits) {
  const float clamped = value != value ? 0.0f : smaller(larger(value, -1.0f), 1.0f);
  return uint(int(__builtin_rint(double(clamped) * double((1u << (bits - 1)) - 1)))) & ((1u << bits) - 1);
}
inline float from_unorm(uint field, int bits) {
  const uint mask = (1u << bits) - 1;
  return float(field & mask) / float(mask);
}
inline float from_snorm(uint field, int bits) {
  const int value = int(field << (32 - bits)) >> (32 - bits);
  return larger(float(value) / float((1u << (bits - 1)) - 1), -1.0f);
}
// The sRGB transfer function of IEC 61966-2-1.
inline float linear_from_srgb(float c) {
  return c <= 0.04045f ? c / 12.92f : __builtin_powf((c + 0.055f) / 1.055f, 2.4f);
}
inline float srgb_from_linear(float c) {
  const float clamped = smaller(larger(c, 0.0f), 1.0f);
  return clamped <= 0.0031308f ? clamped * 12.92f : 1.055f * __builtin_powf(clamped, 1.0f / 2.4f) - 0.055f;
}

}  // namespace detail

#define METALANE_PACK(T)                                                                      \
  inline uint pack_##T##_to_unorm4x8(T##4 v) {                                                \
    uint result = 0;                                                                          \
    for (int i = 0; i < 4; ++i) result |= detail::to_unorm(float(v[i]), 8) << (8 * i);        \
    return result;                                                                            \
  }                                                                                           \
  inline uint pack_##T##_to_snorm4x8(T##4 v) {                                                \
    uint result = 0;                                                                          \
    for (int i = 0; i < 4; ++i) result |= detail::to_snorm(float(v[i]), 8) << (8 * i);        \
    return result;                                                                            \
  }                                                                                           \
  inline uint pack_##T##_to_srgb_unorm4x8(T##4 v) {                                           \
    uint result = detail::to_unorm(float(v[3]), 8) << 24;                                     \
    for (int i = 0; i < 3; ++i) {                                                             \
      result |= detail::to_unorm(detail::srgb_from_linear(float(v[i])), 8) << (8 * i);        \
    }                                                                                         \
    return result;                                                                            \
  }                                                                                           \
  inline uint pack_##T##_to_unorm2x16(T##2 v) {                                               \
    return detail::to_unorm(float(v[0]), 16) | detail::to_unorm(float(v[1]), 16) << 16;       \
  }                                                                                           \
  inline uint pack_##T##_to_snorm2x16(T##2 v) {                                               \
    return detail::to_snorm(float(v[0]), 16) | detail::to_snorm(float(v[1]), 16) << 16;       \
  }                                                                                           \
  inline uint pack_##T##_to_unorm10a2(T##4 v) {                                               \
    return detail::to_unorm(float(v[0]), 10) | detail::to_unorm(float(v[1]), 10) << 10 |      \
           detail::to_unorm(float(v[2]), 10) << 20 | detail::to_unorm(float(v[3]), 2) << 30;  \
  }                                                                                           \
  inline uint pack_##T##_to_snorm10a2(T##4 v) {                                               \
    return detail::to_snorm(float(v[0]), 10) | detail::to_snorm(float(v[1]), 10) << 10 |      \
           detail::to_snorm(float(v[2]), 10) << 20 | detail::to_snorm(float(v[3]), 2) << 30;  \
  }                                                                                           \
  inline ushort pack_##T##_to_unorm565(T##3 v) {                                              \
    return ushort(detail::to_unorm(float(v[0]), 5) | detail::to_unorm(float(v[1]), 6) << 5 |  \
                  detail::to_unorm(float(v[2]), 5) << 11);                                    \
  }                                                                                           \
  inline T##4 unpack_unorm4x8_to_##T(uint word) {                                             \
    T##4 result;                                                                              \
    for (int i = 0; i < 4; ++i) result[i] = T(detail::from_unorm(word >> (8 * i), 8));        \
    return result;                                                                            \
  }                                                                                           \
  inline T##4 unpack_snorm4x8_to_##T(uint word) {                                             \
    T##4 result;                                                                              \
    for (int i = 0; i < 4; ++i) result[i] = T(detail::from_snorm(word >> (8 * i), 8));        \
    return result;                                                                            \
  }                                                                                           \
  inline T##4 unpack_unorm4x8_srgb_to_##T(uint word) {                                        \
    T##4 result;                                                                              \
    for (int i = 0; i < 3; ++i) {                                                             \
      result[i] = T(detail::linear_from_srgb(detail::from_unorm(word >> (8 * i), 8)));        \
    }                                                                                         \
    result[3] = T(detail::from_unorm(word >> 24, 8));                                         \
    return result;                                                                            \
  }                                                                                           \
  inline T##2 unpack_unorm2x16_to_##T(uint word) {                                            \
    return T##2(T(detail::from_unorm(word, 16)), T(detail::from_unorm(word >> 16, 16)));      \
  }                                                                                           \
  inline T##2 unpack_snorm2x16_to_##T(uint word) {                                            \
    return T##2(T(detail::from_snorm(word, 16)), T(detail::from_snorm(word >> 16, 16)));      \
  }                                                                                           \
  inline T##4 unpack_unorm10a2_to_##T(uint word) {                                            \
    return T##4(T(detail::from_unorm(word, 10)), T(detail::from_unorm(word >> 10, 10)),       \
                T(detail::from_unorm(word >> 20, 10)), T(detail::from_unorm(word >> 30, 2))); \
  }                                                                                           \
  inline T##4 unpack_snorm10a2_to_##T(uint word) {                                            \
    return T##4(T(detail::from_snorm(word, 10)), T(detail::from_snorm(word >> 10, 10)),       \
                T(detail::from_snorm(word >> 20, 10)), T(detail::from_snorm(word >> 30, 2))); \
  }                                                                                           \
  inline T##3 unpack_unorm565_to_##T(ushort word) {                                           \
    return T##3(T(detail::from_unorm(word, 5)), T(detail::from_unorm(uint(word) >> 5, 6)),    \
                T(detail::from_unorm(uint(word) >> 11, 5)));                                  \
  }
METALANE_PACK(float)
METALANE_PACK(half)
#undef METALANE_PACK

METALANE_STDLIB_END

#endif
