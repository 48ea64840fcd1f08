// metal_relational: tests of numbers, component by component, and choices by their results.
#ifndef METALANE_STDLIB_RELATIONAL_H
#define METALANE_STDLIB_RELATIONAL_H

#include "elementwise.h"
#include "limits.h"

METALANE_STDLIB_BEGIN

#define METALANE_TEST_1(name, ...)                                                            \
  template <class A, class V = detail::real_t<A>>                                             \
  constexpr detail::bools_t<V> name(const A& a) {                                             \
    return detail::map<detail::bools_t<V>>([](auto x) -> bool { return __VA_ARGS__; }, V(a)); \
  }
METALANE_TEST_1(isnan, x != x)
METALANE_TEST_1(isinf, __builtin_fabsf(float(x)) == __builtin_inff())
METALANE_TEST_1(isfinite, __builtin_fabsf(float(x)) < __builtin_inff())
METALANE_TEST_1(isnormal, __builtin_fabsf(float(x)) < __builtin_inff() &&
                              __builtin_fabsf(float(x)) >= float(numeric_limits<decltype(x)>::min()))
METALANE_TEST_1(signbit, (__builtin_bit_cast(uint32_t, float(x)) >> 31) != 0)
#undef METALANE_TEST_1

#define METALANE_TEST_2(name, ...)                                                                          \
  template <class A, class B, class V = detail::real_t<A, B>>                                               \
  constexpr detail::bools_t<V> name(const A& a, const B& b) {                                               \
    return detail::map<detail::bools_t<V>>([](auto x, auto y) -> bool { return __VA_ARGS__; }, V(a), V(b)); \
  }
METALANE_TEST_2(isordered, x == x && y == y)
METALANE_TEST_2(isunordered, x != x || y != y)
METALANE_TEST_2(isequal, x == y)
METALANE_TEST_2(isnotequal, x != y)
METALANE_TEST_2(isgreater, x > y)
METALANE_TEST_2(isgreaterequal, x >= y)
METALANE_TEST_2(isless, x < y)
METALANE_TEST_2(islessequal, x <= y)
METALANE_TEST_2(islessgreater, x<y || x> y)
#undef METALANE_TEST_2

constexpr bool all(bool x) { return x; }
constexpr bool any(bool x) { return x; }
template <int N>
constexpr bool all(vec<bool, N> v) {
  bool result = true;
  for (int i = 0; i < N; ++i) result = result && v.data[i];
  return result;
}
template <int N>
constexpr bool any(vec<bool, N> v) {
  bool result = false;
  for (int i = 0; i < N; ++i) result = result || v.data[i];
  return result;
}

// b where c holds, else a; c is one bool, or one for each component.
template <class A, class B, class C, class V = detail::common_t<A, B>>
constexpr V select(const A& a, const B& b, const C& c) {
  const V if_false(a), if_true(b);
  if constexpr (detail::is_vec<V> && detail::is_vec<detail::plain_t<C>>) {
    const detail::bools_t<V> condition(c);
    V result{};
    for (int i = 0; i < V::size; ++i) result.data[i] = condition.data[i] ? if_true.data[i] : if_false.data[i];
    return result;
  } else {
    return bool(c) ? if_true : if_false;
  }
}

METALANE_STDLIB_END

#endif
