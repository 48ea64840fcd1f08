// metal::numeric_limits of every scalar type.
#ifndef METALANE_STDLIB_LIMITS_H
#define METALANE_STDLIB_LIMITS_H

#include "constants.h"

METALANE_STDLIB_BEGIN

// Apple's header has the members in this base, and sources specialise it for their own types.
template <class T>
struct _numeric_limits_impl {
  static constexpr bool is_specialized = false;
};
template <class T>
struct numeric_limits : _numeric_limits_impl<T> {};
template <class T>
struct numeric_limits<const T> : numeric_limits<T> {};

namespace detail {

template <class T>
struct integer_limits {
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = is_signed_v<T>;
  static constexpr bool is_integer = true;
  static constexpr bool is_exact = true;
  static constexpr bool has_infinity = false;
  static constexpr bool has_quiet_NaN = false;
  static constexpr bool has_signaling_NaN = false;
  static constexpr bool has_denorm = false;
  static constexpr bool is_iec559 = false;
  static constexpr bool is_bounded = true;
  static constexpr bool is_modulo = !is_signed;
  static constexpr int digits = is_same_v<T, bool> ? 1 : int(8 * sizeof(T)) - is_signed;
  static constexpr int digits10 = digits * 643 / 2136;  // digits * log10(2)
  static constexpr int max_digits10 = 0;
  static constexpr int radix = 2;
  static constexpr int min_exponent = 0;
  static constexpr int min_exponent10 = 0;
  static constexpr int max_exponent = 0;
  static constexpr int max_exponent10 = 0;
  static constexpr T max() { return is_same_v<T, bool> ? T(1) : T(make_unsigned_t<T>(-1) >> is_signed); }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
  static constexpr T epsilon() { return T(0); }
  static constexpr T round_error() { return T(0); }
  static constexpr T infinity() { return T(0); }
  static constexpr T quiet_NaN() { return T(0); }
  static constexpr T signaling_NaN() { return T(0); }
  static constexpr T denorm_min() { return T(0); }
};

// A binary format of `Precision` bits (the hidden one included) and exponents Min to Max, as <float.h>
// counts.
template <class T, class Bits, int Precision, int Min, int Max>
struct real_limits {
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = true;
  static constexpr bool is_integer = false;
  static constexpr bool is_exact = false;
  static constexpr bool has_infinity = true;
  static constexpr bool has_quiet_NaN = true;
  static constexpr bool has_signaling_NaN = true;
  static constexpr bool has_denorm = true;
  static constexpr bool is_iec559 = true;
  static constexpr bool is_bounded = true;
  static constexpr bool is_modulo = false;
  static constexpr int digits = Precision;
  static constexpr int digits10 = (Precision - 1) * 643 / 2136;
  static constexpr int max_digits10 = 2 + Precision * 643 / 2136;
  static constexpr int radix = 2;
  static constexpr int min_exponent = Min;
  static constexpr int min_exponent10 = Min == -125 ? -37 : -4;
  static constexpr int max_exponent = Max;
  static constexpr int max_exponent10 = Max == 128 ? 38 : 4;
  static constexpr T max() { return from_bits(infinity_bits - 1); }
  static constexpr T min() { return from_bits(Bits(Bits(1) << (Precision - 1))); }
  static constexpr T lowest() { return -max(); }
  static constexpr T epsilon() { return from_bits(Bits(Bits(Max - Precision) << (Precision - 1))); }
  static constexpr T round_error() { return T(0.5f); }
  static constexpr T infinity() { return from_bits(infinity_bits); }
  static constexpr T quiet_NaN() { return from_bits(Bits(infinity_bits | Bits(1) << (Precision - 2))); }
  static constexpr T signaling_NaN() { return from_bits(Bits(infinity_bits | Bits(1) << (Precision - 3))); }
  static constexpr T denorm_min() { return from_bits(1); }

 private:
  static constexpr Bits infinity_bits = Bits(Bits(2 * Max - 1) << (Precision - 1));
  static constexpr T from_bits(Bits bits) { return __builtin_bit_cast(T, bits); }
};

}  // namespace detail

#define METALANE_INTEGER_LIMITS(T) \
  template <>                      \
  struct _numeric_limits_impl<T> : detail::integer_limits<T> {}
METALANE_INTEGER_LIMITS(bool);
METALANE_INTEGER_LIMITS(char);
METALANE_INTEGER_LIMITS(signed char);
METALANE_INTEGER_LIMITS(unsigned char);
METALANE_INTEGER_LIMITS(short);
METALANE_INTEGER_LIMITS(unsigned short);
METALANE_INTEGER_LIMITS(int);
METALANE_INTEGER_LIMITS(unsigned);
METALANE_INTEGER_LIMITS(long);
METALANE_INTEGER_LIMITS(unsigned long);
METALANE_INTEGER_LIMITS(long long);
METALANE_INTEGER_LIMITS(unsigned long long);
#undef METALANE_INTEGER_LIMITS
template <>
struct _numeric_limits_impl<float> : detail::real_limits<float, uint32_t, 24, -125, 128> {};
template <>
struct _numeric_limits_impl<half> : detail::real_limits<half, uint16_t, 11, -13, 16> {};
template <>
struct _numeric_limits_impl<bfloat> : detail::real_limits<bfloat, uint16_t, 8, -125, 128> {};

METALANE_STDLIB_END

#endif
