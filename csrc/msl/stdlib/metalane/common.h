// metal_common and the parts of metal_integer and metal_math that all number types share: min, max, clamp,
// abs.
#ifndef METALANE_STDLIB_COMMON_H
#define METALANE_STDLIB_COMMON_H

#include "relational.h"

METALANE_STDLIB_BEGIN
namespace detail {

// Of a NaN and a number, the number.
template <class T>
constexpr T smaller(T a, T b) {
  return b < a || a != a ? b : a;
}
template <class T>
constexpr T larger(T a, T b) {
  return a < b || a != a ? b : a;
}
template <class T>
constexpr T median(T a, T b, T c) {
  return larger(smaller(a, b), smaller(larger(a, b), c));
}
template <class T>
constexpr T absolute(T a) {
  if constexpr (is_same_v<T, bfloat>) {
    return bfloat::from_bits(a.bits & 0x7fffu);
  } else if constexpr (is_floating_point_v<T>) {
    return T(__builtin_fabsf(float(a)));
  } else if constexpr (is_signed_v<T>) {
    return a < 0 ? T(wrapping_t<T>(0) - wrapping_t<T>(a)) : a;
  } else {
    return a;
  }
}

}  // namespace detail

#define METALANE_COMMON_1(name, family, ...)      \
  template <class A, class V = detail::family<A>> \
  constexpr V name(const A& a) {                  \
    return detail::map<V>(                        \
        [](auto x) {                              \
          using T = decltype(x);                  \
          return T(__VA_ARGS__);                  \
        },                                        \
        V(a));                                    \
  }
#define METALANE_COMMON_2(name, family, ...)                  \
  template <class A, class B, class V = detail::family<A, B>> \
  constexpr V name(const A& a, const B& b) {                  \
    return detail::map<V>(                                    \
        [](auto x, auto y) {                                  \
          using T = decltype(x);                              \
          return T(__VA_ARGS__);                              \
        },                                                    \
        V(a), V(b));                                          \
  }
#define METALANE_COMMON_3(name, family, ...)                              \
  template <class A, class B, class C, class V = detail::family<A, B, C>> \
  constexpr V name(const A& a, const B& b, const C& c) {                  \
    return detail::map<V>(                                                \
        [](auto x, auto y, auto z) {                                      \
          using T = decltype(x);                                          \
          return T(__VA_ARGS__);                                          \
        },                                                                \
        V(a), V(b), V(c));                                                \
  }

METALANE_COMMON_1(abs, common_t, detail::absolute(x))
METALANE_COMMON_1(fabs, real_t, detail::absolute(x))
METALANE_COMMON_2(min, common_t, detail::smaller(x, y))
METALANE_COMMON_2(max, common_t, detail::larger(x, y))
METALANE_COMMON_2(fmin, real_t, detail::smaller(x, y))
METALANE_COMMON_2(fmax, real_t, detail::larger(x, y))
METALANE_COMMON_3(min3, common_t, detail::smaller(detail::smaller(x, y), z))
METALANE_COMMON_3(max3, common_t, detail::larger(detail::larger(x, y), z))
METALANE_COMMON_3(median3, common_t, detail::median(x, y, z))
METALANE_COMMON_3(fmin3, real_t, detail::smaller(detail::smaller(x, y), z))
METALANE_COMMON_3(fmax3, real_t, detail::larger(detail::larger(x, y), z))
METALANE_COMMON_3(fmedian3, real_t, detail::median(x, y, z))
METALANE_COMMON_3(clamp, common_t, detail::smaller(detail::larger(x, y), z))
METALANE_COMMON_1(saturate, real_t, detail::smaller(detail::larger(x, T(0)), T(1)))
// Zeros keep their sign; a NaN gives 0.
METALANE_COMMON_1(sign, real_t, x > T(0) ? T(1) : x < T(0) ? T(-1) : x == x ? x : T(0))
METALANE_COMMON_2(step, real_t, y < x ? T(0) : T(1))
// x + (y - x) * a, each operation rounded to the type.
METALANE_COMMON_3(mix, real_t, x + T(T(y - x) * z))

template <class A, class B, class C, class V = detail::real_t<A, B, C>>
constexpr V smoothstep(const A& edge0, const B& edge1, const C& value) {
  const V low(edge0);
  const V t = saturate((V(value) - low) / (V(edge1) - low));
  return t * t * (V(3) - V(2) * t);
}

METALANE_STDLIB_END

#endif
