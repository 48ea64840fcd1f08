// metal_integer: bit counts and fields, wide products, saturating and averaging arithmetic.
#ifndef METALANE_STDLIB_INTEGER_H
#define METALANE_STDLIB_INTEGER_H

#include "common.h"

METALANE_STDLIB_BEGIN
namespace detail {

template <class T>
constexpr int width = int(8 * sizeof(T));
template <class T>
constexpr unsigned long long bits_of(T x) {
  return static_cast<make_unsigned_t<T>>(x);
}

template <class T>
constexpr T reverse_bits_of(T x) {
  unsigned long long bits = bits_of(x);
  bits = ((bits >> 1) & 0x5555555555555555ull) | ((bits & 0x5555555555555555ull) << 1);
  bits = ((bits >> 2) & 0x3333333333333333ull) | ((bits & 0x3333333333333333ull) << 2);
  bits = ((bits >> 4) & 0x0f0f0f0f0f0f0f0full) | ((bits & 0x0f0f0f0f0f0f0f0full) << 4);
  return T(__builtin_bswap64(bits) >> (64 - width<T>));
}

// The low `bits` bits; all of them from 64 on.
constexpr unsigned long long low_mask(unsigned bits) { return bits >= 64 ? ~0ull : (1ull << bits) - 1; }

// Bits [offset, offset + bits), sign-extended for signed types. What lies past the type is not read.
template <class T>
constexpr T extract(T x, unsigned offset, unsigned bits) {
  const unsigned total = width<T>;
  offset = offset < total ? offset : total;
  bits = bits < total - offset ? bits : total - offset;
  if (bits == 0) return T(0);
  const unsigned long long field = (bits_of(x) >> offset) & low_mask(bits);
  if constexpr (is_signed_v<T>) {
    return T(static_cast<long long>(field << (64 - bits)) >> (64 - bits));
  } else {
    return T(field);
  }
}
template <class T>
constexpr T insert(T base, T field, unsigned offset, unsigned bits) {
  const unsigned total = width<T>;
  if (offset >= total || bits == 0) return base;
  bits = bits < total - offset ? bits : total - offset;
  const unsigned long long mask = low_mask(bits) << offset;
  return T((bits_of(base) & ~mask) | ((bits_of(field) << offset) & mask));
}

// An integer type that holds every sum and product of two T.
template <class T>
using wider_t = conditional_t<sizeof(T) == 8, conditional_t<is_signed_v<T>, __int128, unsigned __int128>,
                              conditional_t<is_signed_v<T>, long long, unsigned long long>>;

template <class T>
constexpr T high_product(T a, T b) {
  return T((wider_t<T>(a) * wider_t<T>(b)) >> width<T>);
}
template <class T>
constexpr T saturated(wider_t<T> wide) {
  const wider_t<T> low = numeric_limits<T>::min(), high = numeric_limits<T>::max();
  return T(wide < low ? low : wide > high ? high : wide);
}
template <class T>
constexpr T subtract_saturated(T a, T b) {
  if constexpr (is_signed_v<T>) {
    return saturated<T>(wider_t<T>(a) - wider_t<T>(b));
  } else {
    return a < b ? T(0) : T(a - b);
  }
}
// a + b with the product's low bits, as they wrap.
template <class T>
constexpr T wrapped_sum(T a, T b) {
  return T(wrapping_t<T>(a) + wrapping_t<T>(b));
}
template <class T>
constexpr T rotated(T x, T amount) {
  const unsigned n = unsigned(bits_of(amount)) & unsigned(width<T> - 1);
  const unsigned long long bits = bits_of(x);
  return n == 0 ? x : T((bits << n) | (bits >> (unsigned(width<T>) - n)));
}
// The low 24 bits of an operand of mul24, with their sign.
template <class T>
constexpr T low24(T x) {
  return extract(x, 0, 24);
}

}  // namespace detail

METALANE_COMMON_1(popcount, integer_t, __builtin_popcountll(detail::bits_of(x)))
METALANE_COMMON_1(clz, integer_t,
                  x == 0 ? detail::width<T> : __builtin_clzll(detail::bits_of(x)) - (64 - detail::width<T>))
METALANE_COMMON_1(ctz, integer_t, x == 0 ? detail::width<T> : __builtin_ctzll(detail::bits_of(x)))
METALANE_COMMON_1(reverse_bits, integer_t, detail::reverse_bits_of(x))
METALANE_COMMON_2(mulhi, integer_t, detail::high_product(x, y))
METALANE_COMMON_3(madhi, integer_t, detail::wrapped_sum(detail::high_product(x, y), z))
METALANE_COMMON_2(mul24, integer_t,
                  detail::wrapping_t<T>(detail::low24(x)) * detail::wrapping_t<T>(detail::low24(y)))
METALANE_COMMON_3(mad24, integer_t,
                  detail::wrapping_t<T>(detail::low24(x)) * detail::wrapping_t<T>(detail::low24(y)) +
                      detail::wrapping_t<T>(z))
METALANE_COMMON_2(addsat, integer_t, detail::saturated<T>(detail::wider_t<T>(x) + detail::wider_t<T>(y)))
METALANE_COMMON_2(subsat, integer_t, detail::subtract_saturated(x, y))
METALANE_COMMON_3(madsat, integer_t,
                  detail::saturated<T>(detail::wider_t<T>(x) * detail::wider_t<T>(y) + detail::wider_t<T>(z)))
METALANE_COMMON_2(hadd, integer_t, (detail::wider_t<T>(x) + detail::wider_t<T>(y)) >> 1)
METALANE_COMMON_2(rhadd, integer_t, (detail::wider_t<T>(x) + detail::wider_t<T>(y) + 1) >> 1)
METALANE_COMMON_2(rotate, integer_t, detail::rotated(x, y))

// |x - y| without overflow: unsigned.
template <class A, class B, class V = detail::integer_t<A, B>,
          class R = detail::with_element_t<V, make_unsigned_t<detail::element_t<V>>>>
constexpr R absdiff(const A& a, const B& b) {
  return detail::map<R>(
      [](auto x, auto y) {
        using U = make_unsigned_t<decltype(x)>;
        return x < y ? U(U(y) - U(x)) : U(U(x) - U(y));
      },
      V(a), V(b));
}
template <class A, class V = detail::integer_t<A>>
constexpr V extract_bits(const A& a, uint offset, uint bits) {
  return detail::map<V>([=](auto x) { return detail::extract(x, offset, bits); }, V(a));
}
template <class A, class B, class V = detail::integer_t<A, B>>
constexpr V insert_bits(const A& base, const B& field, uint offset, uint bits) {
  return detail::map<V>([=](auto x, auto y) { return detail::insert(x, y, offset, bits); }, V(base),
                        V(field));
}

METALANE_STDLIB_END

#endif
