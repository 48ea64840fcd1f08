// metal_math: elementary functions. half and bfloat are computed in float and rounded once.
#ifndef METALANE_STDLIB_MATH_H
#define METALANE_STDLIB_MATH_H

#include "common.h"

METALANE_STDLIB_BEGIN
namespace detail {

// sin and cos of pi * x. Reduction to [-1/2, 1/2] is exact, so zeros and extremes are.
inline float sin_pi(float x) {
  float r = x - 2.0f * __builtin_rintf(0.5f * x);
  if (__builtin_fabsf(r) > 0.5f) r = __builtin_copysignf(1.0f, r) - r;
  return __builtin_copysignf(__builtin_sinf(3.14159265358979f * r), r);
}
inline float cos_pi(float x) {
  const float r = __builtin_fabsf(x - 2.0f * __builtin_rintf(0.5f * x));
  if (r < 0.25f) return __builtin_cosf(3.14159265358979f * r);
  return __builtin_sinf(3.14159265358979f * (0.5f - r));
}
// Correctly rounded, as Metal's table asks of rsqrt: two roundings in double are too small to reach a tie of
// floats (every float of two binades was compared with exact integer arithmetic).
inline float reciprocal_root(float x) { return float(1.0 / __builtin_sqrt(double(x))); }
inline float tan_pi(float x) { return sin_pi(x) / cos_pi(x); }

// The neighbour of a in the direction of b, on a's own grid.
template <class T>
T next_after(T a, T b) {
  using Bits = conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  if (a != a || b != b) return T(__builtin_nanf(""));
  if (a == b) return b;
  Bits bits = __builtin_bit_cast(Bits, a);
  constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1));
  if (a == T(0)) {
    bits = Bits((b < T(0) ? sign : 0) | 1u);
  } else {
    bits = Bits((a < b) == (a > T(0)) ? bits + 1 : bits - 1);
  }
  return __builtin_bit_cast(T, bits);
}

// Rounding to odd keeps what a second rounding, to fewer bits, needs to know: on which side of a tie the
// exact value is. `magnitude_missed` is what the exact value has beyond |rounded|, or its sign at least.
template <class Bits, class T>
T rounded_to_odd(T rounded, double magnitude_missed) {
  Bits bits = __builtin_bit_cast(Bits, rounded);
  if (magnitude_missed < 0) --bits;
  return magnitude_missed == 0 ? rounded : __builtin_bit_cast(T, Bits(bits | 1u));
}
inline double sum_to_odd(double a, double b) {
  const double sum = a + b;
  if (!(__builtin_fabs(sum) < __builtin_inf())) return sum;
  const double part = sum - a;
  const double missed = (a - (sum - part)) + (b - part);  // a + b - sum, exactly
  return rounded_to_odd<uint64_t>(sum, sum < 0 ? -missed : missed);
}
inline float float_to_odd(double value) {
  const float rounded = float(value);
  if (!(__builtin_fabs(value) < __builtin_inf())) return rounded;
  return rounded_to_odd<uint32_t>(rounded, __builtin_fabs(value) - __builtin_fabs(double(rounded)));
}

// x * y + z, rounded once. In double a product of two halves or bfloats is exact. So is a half's sum, unless
// the smaller term is too small to matter.
template <class T>
T fused(T x, T y, T z) {
  if constexpr (is_same_v<T, half>) {
    return T(double(x) * double(y) + double(z));
  } else if constexpr (is_same_v<T, bfloat>) {
    return T(float_to_odd(sum_to_odd(double(float(x)) * double(float(y)), double(float(z)))));
  } else {
    return T(__builtin_fmaf(float(x), float(y), float(z)));
  }
}

// x - floor(x), less than 1 also where that would round up to it.
template <class T>
T fraction(T x) {
  if (__builtin_fabsf(float(x)) == __builtin_inff()) return T(0);
  const T below_one = T(T(1) - T(numeric_limits<T>::epsilon() / T(2)));
  const T result = T(x - T(__builtin_floorf(float(x))));
  return result > below_one ? below_one : result;
}

inline float power_of_nonnegative(float x, float y) {
  return x < 0.0f ? __builtin_nanf("") : __builtin_powf(x, y);
}

}  // namespace detail

#define METALANE_REAL_1(name, ...)                 \
  template <class A, class V = detail::real_t<A>>  \
  inline V name(const A& a) {                      \
    return detail::map<V>(                         \
        [](auto component) {                       \
          const float x = float(component);        \
          return decltype(component)(__VA_ARGS__); \
        },                                         \
        V(a));                                     \
  }
METALANE_REAL_1(acos, __builtin_acosf(x))
METALANE_REAL_1(acosh, __builtin_acoshf(x))
METALANE_REAL_1(asin, __builtin_asinf(x))
METALANE_REAL_1(asinh, __builtin_asinhf(x))
METALANE_REAL_1(atan, __builtin_atanf(x))
METALANE_REAL_1(atanh, __builtin_atanhf(x))
METALANE_REAL_1(ceil, __builtin_ceilf(x))
METALANE_REAL_1(cos, __builtin_cosf(x))
METALANE_REAL_1(cosh, __builtin_coshf(x))
METALANE_REAL_1(cospi, detail::cos_pi(x))
METALANE_REAL_1(exp, __builtin_expf(x))
METALANE_REAL_1(exp2, __builtin_exp2f(x))
METALANE_REAL_1(exp10, __builtin_powf(10.0f, x))
METALANE_REAL_1(floor, __builtin_floorf(x))
METALANE_REAL_1(log, __builtin_logf(x))
METALANE_REAL_1(log2, __builtin_log2f(x))
METALANE_REAL_1(log10, __builtin_log10f(x))
METALANE_REAL_1(rint, __builtin_rintf(x))
METALANE_REAL_1(round, __builtin_roundf(x))
METALANE_REAL_1(rsqrt, detail::reciprocal_root(x))
METALANE_REAL_1(sin, __builtin_sinf(x))
METALANE_REAL_1(sinh, __builtin_sinhf(x))
METALANE_REAL_1(sinpi, detail::sin_pi(x))
METALANE_REAL_1(sqrt, __builtin_sqrtf(x))
METALANE_REAL_1(tan, __builtin_tanf(x))
METALANE_REAL_1(tanh, __builtin_tanhf(x))
METALANE_REAL_1(tanpi, detail::tan_pi(x))
METALANE_REAL_1(trunc, __builtin_truncf(x))
#undef METALANE_REAL_1

#define METALANE_REAL_2(name, ...)                            \
  template <class A, class B, class V = detail::real_t<A, B>> \
  inline V name(const A& a, const B& b) {                     \
    return detail::map<V>(                                    \
        [](auto first, auto second) {                         \
          const float x = float(first), y = float(second);    \
          return decltype(first)(__VA_ARGS__);                \
        },                                                    \
        V(a), V(b));                                          \
  }
METALANE_REAL_2(atan2, __builtin_atan2f(x, y))
METALANE_REAL_2(copysign, __builtin_copysignf(x, y))
METALANE_REAL_2(divide, x / y)
METALANE_REAL_2(fdim, __builtin_fdimf(x, y))
METALANE_REAL_2(fmod, __builtin_fmodf(x, y))
METALANE_REAL_2(pow, __builtin_powf(x, y))
METALANE_REAL_2(powr, detail::power_of_nonnegative(x, y))
#undef METALANE_REAL_2

METALANE_COMMON_1(fract, real_t, detail::fraction(x))
METALANE_COMMON_2(nextafter, real_t, detail::next_after(x, y))
METALANE_COMMON_3(fma, real_t, detail::fused(x, y, z))

template <class A, class V = detail::real_t<A>>
inline V sincos(const A& a, V& cosine) {
  cosine = cos(a);
  return sin(a);
}
// The integral part, with the sign of a, goes to `whole`; the rest is returned.
template <class A, class V = detail::real_t<A>>
inline V modf(const A& a, V& whole) {
  whole = trunc(a);
  return detail::map<V>(
      [](auto x, auto w) {
        using T = decltype(x);
        return T(__builtin_copysignf(__builtin_fabsf(float(x)) == __builtin_inff() ? 0.0f : float(T(x - w)),
                                     float(x)));
      },
      V(a), whole);
}
template <class A, class V = detail::real_t<A>>
inline V frexp(const A& a, detail::with_element_t<V, int>& exponent) {
  exponent = detail::map<detail::with_element_t<V, int>>(
      [](auto x) {
        int e = 0;
        if (__builtin_fabsf(float(x)) < __builtin_inff()) __builtin_frexpf(float(x), &e);
        return e;
      },
      V(a));
  return detail::map<V>(
      [](auto x) {
        int e = 0;
        return decltype(x)(__builtin_frexpf(float(x), &e));
      },
      V(a));
}
template <class A, class V = detail::real_t<A>>
inline V ldexp(const A& a, const detail::with_element_t<V, int>& exponent) {
  return detail::map<V>([](auto x, int e) { return decltype(x)(__builtin_ldexpf(float(x), e)); }, V(a),
                        exponent);
}
// FP_ILOGB0 for zeros, FP_ILOGBNAN for NaN, INT_MAX for infinities.
template <class A, class V = detail::real_t<A>>
inline detail::with_element_t<V, int> ilogb(const A& a) {
  return detail::map<detail::with_element_t<V, int>>([](auto x) { return __builtin_ilogbf(float(x)); }, V(a));
}

#define METALANE_MATH_NAMES          \
  using METALANE_ISA_NS::acos;       \
  using METALANE_ISA_NS::acosh;      \
  using METALANE_ISA_NS::asin;       \
  using METALANE_ISA_NS::asinh;      \
  using METALANE_ISA_NS::atan;       \
  using METALANE_ISA_NS::atan2;      \
  using METALANE_ISA_NS::atanh;      \
  using METALANE_ISA_NS::ceil;       \
  using METALANE_ISA_NS::copysign;   \
  using METALANE_ISA_NS::cos;        \
  using METALANE_ISA_NS::cosh;       \
  using METALANE_ISA_NS::cospi;      \
  using METALANE_ISA_NS::divide;     \
  using METALANE_ISA_NS::exp;        \
  using METALANE_ISA_NS::exp10;      \
  using METALANE_ISA_NS::exp2;       \
  using METALANE_ISA_NS::abs;        \
  using METALANE_ISA_NS::fabs;       \
  using METALANE_ISA_NS::fdim;       \
  using METALANE_ISA_NS::floor;      \
  using METALANE_ISA_NS::fma;        \
  using METALANE_ISA_NS::clamp;      \
  using METALANE_ISA_NS::max;        \
  using METALANE_ISA_NS::max3;       \
  using METALANE_ISA_NS::median3;    \
  using METALANE_ISA_NS::min;        \
  using METALANE_ISA_NS::min3;       \
  using METALANE_ISA_NS::mix;        \
  using METALANE_ISA_NS::fmax;       \
  using METALANE_ISA_NS::fmax3;      \
  using METALANE_ISA_NS::fmedian3;   \
  using METALANE_ISA_NS::fmin;       \
  using METALANE_ISA_NS::fmin3;      \
  using METALANE_ISA_NS::fmod;       \
  using METALANE_ISA_NS::fract;      \
  using METALANE_ISA_NS::frexp;      \
  using METALANE_ISA_NS::ilogb;      \
  using METALANE_ISA_NS::ldexp;      \
  using METALANE_ISA_NS::log;        \
  using METALANE_ISA_NS::log10;      \
  using METALANE_ISA_NS::log2;       \
  using METALANE_ISA_NS::modf;       \
  using METALANE_ISA_NS::nextafter;  \
  using METALANE_ISA_NS::pow;        \
  using METALANE_ISA_NS::powr;       \
  using METALANE_ISA_NS::rint;       \
  using METALANE_ISA_NS::round;      \
  using METALANE_ISA_NS::rsqrt;      \
  using METALANE_ISA_NS::saturate;   \
  using METALANE_ISA_NS::sign;       \
  using METALANE_ISA_NS::sin;        \
  using METALANE_ISA_NS::sincos;     \
  using METALANE_ISA_NS::sinh;       \
  using METALANE_ISA_NS::sinpi;      \
  using METALANE_ISA_NS::smoothstep; \
  using METALANE_ISA_NS::sqrt;       \
  using METALANE_ISA_NS::step;       \
  using METALANE_ISA_NS::tan;        \
  using METALANE_ISA_NS::tanh;       \
  using METALANE_ISA_NS::tanpi;      \
  using METALANE_ISA_NS::trunc;
// Metal's precise:: and fast:: variants. All are as precise as the default ones here.
namespace precise {
METALANE_MATH_NAMES
}
namespace fast {
METALANE_MATH_NAMES
}
#undef METALANE_MATH_NAMES

METALANE_STDLIB_END

#endif
