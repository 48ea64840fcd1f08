// MSL's scalar types: short names of integers, half, and bfloat as a class that rounds after each operation.
#ifndef METALANE_STDLIB_SCALAR_H
#define METALANE_STDLIB_SCALAR_H

#include "type_traits.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
// An operation on two halves is done in float and rounded once: that is the half result exactly, since float
// has more than twice half's precision.
typedef _Float16 half;

static_assert(sizeof(ulong) == 8, "MSL's long has 64 bits");
static_assert(char(-1) < 0, "MSL's char is signed: compile with -fsigned-char");

METALANE_STDLIB_BEGIN

using ::half;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;

namespace detail {

constexpr uint16_t round_to_bfloat(float value) {
  const uint32_t word = __builtin_bit_cast(uint32_t, value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return uint16_t((word >> 16) | 0x40u);
  return uint16_t((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}
// A float that rounds to the same bfloat as `value`. Integers past 24 bits do not fit a float; the float
// below them with its last bit set keeps them on their side of any tie.
template <class T>
constexpr float float_near(T value) {
  if constexpr (is_integral_v<T> && sizeof(T) >= 4) {
    using U = make_unsigned_t<T>;
    const U magnitude = value < 0 ? U(0) - U(value) : U(value);
    if (magnitude >> 24) {
      const int shift = int(8 * sizeof(unsigned long long)) - 24 -
                        __builtin_clzll(static_cast<unsigned long long>(magnitude));
      const U kept = magnitude >> shift;
      const bool inexact = (kept << shift) != magnitude;
      const float rounded = float((kept | U(inexact)) << shift);
      return value < 0 ? -rounded : rounded;
    }
  }
  return float(value);
}

}  // namespace detail

// The upper half of a float. Converts to float exactly, from float to nearest even; NaN stays NaN. Two
// bfloats, or a bfloat and an integer, give a bfloat; a bfloat and a float give a float.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  template <class T, class = enable_if_t<is_arithmetic_v<T> && !is_same_v<T, bfloat>>>
  constexpr bfloat(T value) : bits(detail::round_to_bfloat(detail::float_near(value))) {}
  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }

  static constexpr bfloat from_bits(uint16_t bits) {
    bfloat result{};
    result.bits = bits;
    return result;
  }

  template <class T, class = enable_if_t<is_arithmetic_v<T>>>
  constexpr bfloat& operator+=(T other) {
    return *this = bfloat(*this + other);
  }
  template <class T, class = enable_if_t<is_arithmetic_v<T>>>
  constexpr bfloat& operator-=(T other) {
    return *this = bfloat(*this - other);
  }
  template <class T, class = enable_if_t<is_arithmetic_v<T>>>
  constexpr bfloat& operator*=(T other) {
    return *this = bfloat(*this * other);
  }
  template <class T, class = enable_if_t<is_arithmetic_v<T>>>
  constexpr bfloat& operator/=(T other) {
    return *this = bfloat(*this / other);
  }
  constexpr bfloat& operator++() { return *this += 1; }
  constexpr bfloat& operator--() { return *this -= 1; }
  constexpr bfloat operator++(int) {
    const bfloat old = *this;
    ++*this;
    return old;
  }
  constexpr bfloat operator--(int) {
    const bfloat old = *this;
    --*this;
    return old;
  }
  constexpr bfloat operator-() const { return from_bits(bits ^ 0x8000u); }
  constexpr bfloat operator+() const { return *this; }
};

namespace detail {
// What a bfloat and a T give together.
template <class T>
using bfloat_result_t = conditional_t<is_integral_v<T>, bfloat, float>;
template <class T>
constexpr bool joins_bfloat = is_arithmetic_v<T> && !is_same_v<T, bfloat>;
}  // namespace detail

#define METALANE_BFLOAT_ARITHMETIC(op)                                                      \
  constexpr bfloat operator op(bfloat a, bfloat b) { return bfloat(float(a) op float(b)); } \
  template <class T, class = enable_if_t<detail::joins_bfloat<T>>>                          \
  constexpr detail::bfloat_result_t<T> operator op(bfloat a, T b) {                         \
    return float(a) op float(detail::bfloat_result_t<T>(b));                                \
  }                                                                                         \
  template <class T, class = enable_if_t<detail::joins_bfloat<T>>>                          \
  constexpr detail::bfloat_result_t<T> operator op(T a, bfloat b) {                         \
    return float(detail::bfloat_result_t<T>(a)) op float(b);                                \
  }
METALANE_BFLOAT_ARITHMETIC(+)
METALANE_BFLOAT_ARITHMETIC(-)
METALANE_BFLOAT_ARITHMETIC(*)
METALANE_BFLOAT_ARITHMETIC(/)
#undef METALANE_BFLOAT_ARITHMETIC

#define METALANE_BFLOAT_COMPARE(op)                                               \
  constexpr bool operator op(bfloat a, bfloat b) { return float(a) op float(b); } \
  template <class T, class = enable_if_t<detail::joins_bfloat<T>>>                \
  constexpr bool operator op(bfloat a, T b) {                                     \
    return float(a) op float(detail::bfloat_result_t<T>(b));                      \
  }                                                                               \
  template <class T, class = enable_if_t<detail::joins_bfloat<T>>>                \
  constexpr bool operator op(T a, bfloat b) {                                     \
    return float(detail::bfloat_result_t<T>(a)) op float(b);                      \
  }
METALANE_BFLOAT_COMPARE(==)
METALANE_BFLOAT_COMPARE(!=)
METALANE_BFLOAT_COMPARE(<)
METALANE_BFLOAT_COMPARE(<=)
METALANE_BFLOAT_COMPARE(>)
METALANE_BFLOAT_COMPARE(>=)
#undef METALANE_BFLOAT_COMPARE

namespace detail {

// "condition ? (b, beside<type of c>{}) : (c, beside<type of b>{})": operands as they are, but a bfloat and a
// number of another type as what arithmetic makes of them. An operand of type void leaves the mark itself.
template <class Other>
struct beside {};
template <class T, class Other>
constexpr decltype(auto) operator,(T&& value, beside<Other>) {
  using A = remove_cvref_t<T>;
  using B = remove_cvref_t<Other>;
  if constexpr (is_same_v<A, bfloat> && joins_bfloat<B>) {
    return bfloat_result_t<B>(value);
  } else if constexpr (is_same_v<B, bfloat> && joins_bfloat<A>) {
    return bfloat_result_t<A>(value);
  } else if constexpr (is_lvalue_reference_v<T>) {
    return static_cast<T>(value);
  } else {
    return A(static_cast<T&&>(value));
  }
}

// Integer arithmetic that wraps: C++ promotes short operands to int, whose overflow is undefined.
template <class T>
struct wrapping : identity<T> {};
template <>
struct wrapping<bool> : identity<unsigned> {};
template <>
struct wrapping<char> : identity<unsigned> {};
template <>
struct wrapping<signed char> : identity<unsigned> {};
template <>
struct wrapping<unsigned char> : identity<unsigned> {};
template <>
struct wrapping<short> : identity<unsigned> {};
template <>
struct wrapping<unsigned short> : identity<unsigned> {};
template <>
struct wrapping<int> : identity<unsigned> {};
template <>
struct wrapping<long> : identity<unsigned long> {};
template <>
struct wrapping<long long> : identity<unsigned long long> {};
template <class T>
using wrapping_t = typename wrapping<T>::type;

// Division as on Metal: integers by zero give some value (here 0, and the dividend as remainder) instead of a
// trap; the smallest integer by -1 wraps.
template <class T>
constexpr T divide(T a, T b) {
  if constexpr (!is_integral_v<T>) {
    return a / b;
  } else {
    if (b == 0) return T(0);
    if constexpr (is_signed_v<T>) {
      if (b == T(-1)) return T(wrapping_t<T>(0) - wrapping_t<T>(a));
    }
    return T(a / b);
  }
}
template <class T>
constexpr T remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (is_signed_v<T>) {
    if (b == T(-1)) return T(0);
  }
  return T(a % b);
}

// The adapter writes `a / b` as `a / by * b` and `a /= b` as `a /= by = b`: operators of the same precedence
// and grouping, so that no expression need be parsed. To a C++ compiler an integer division by zero is
// undefined, and it does use that: GCC 12 at -O2 turns `z ? d : 0` as divisor into a jump to a trap.
template <class A>
struct dividend {
  const A& value;
};
template <class A>
struct modulated {
  const A& value;
};
template <class B>
struct divisor {
  const B& value;
};
struct by_t {
  template <class B>
  constexpr divisor<B> operator=(const B& value) const {
    return {value};
  }
};
constexpr by_t by{};

template <class T>
constexpr bool counts_as_integer = is_integral_v<T> || is_enum_v<remove_cv_t<T>>;
template <class A, class B>
constexpr bool are_integers = counts_as_integer<A> && counts_as_integer<B>;

template <class A>
constexpr dividend<A> operator/(const A& a, by_t) {
  return {a};
}
template <class A>
constexpr modulated<A> operator%(const A& a, by_t) {
  return {a};
}
template <class A, class B>
constexpr auto operator*(dividend<A> a, const B& b) -> decltype(a.value / b) {
  if constexpr (are_integers<A, B>) {
    return divide<decltype(a.value / b)>(a.value, b);
  } else {
    return a.value / b;
  }
}
template <class A, class B>
constexpr auto operator*(modulated<A> a, const B& b) -> decltype(a.value % b) {
  if constexpr (are_integers<A, B>) {
    return remainder<decltype(a.value % b)>(a.value, b);
  } else {
    return a.value % b;
  }
}
template <class A, class B>
constexpr decltype(auto) operator/=(A&& a, divisor<B> b) {
  if constexpr (are_integers<remove_cvref_t<A>, B>) {
    return a = remove_cvref_t<A>(a / by * b.value);
  } else {
    return static_cast<A&&>(a) /= b.value;
  }
}
template <class A, class B>
constexpr decltype(auto) operator%=(A&& a, divisor<B> b) {
  if constexpr (are_integers<remove_cvref_t<A>, B>) {
    return a = remove_cvref_t<A>(a % by * b.value);
  } else {
    return static_cast<A&&>(a) %= b.value;
  }
}

}  // namespace detail
METALANE_STDLIB_END

using metal::bfloat;

#endif
