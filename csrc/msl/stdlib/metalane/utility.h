// metal_utility and metal_initializer_list: what generic code moves, swaps and counts with.
#ifndef METALANE_STDLIB_UTILITY_H
#define METALANE_STDLIB_UTILITY_H

// The compiler itself knows std::initializer_list, whose header is a freestanding one: `for (int k : {1,
// 2})`.
#include <initializer_list>

#include "type_traits.h"

METALANE_STDLIB_BEGIN

using std::initializer_list;

template <class T>
constexpr remove_reference_t<T>&& move(T&& value) {
  return static_cast<remove_reference_t<T>&&>(value);
}
// With two type parameters, so that a kernel's own swap(T&, T&) is the better match where both are seen.
template <class T, class U, class = enable_if_t<is_same_v<T, U>>>
constexpr void swap(T& a, U& b) {
  T old = metal::move(a);
  a = metal::move(b);
  b = metal::move(old);
}

template <class T, T... Values>
struct integer_sequence {
  using value_type = T;
  static constexpr size_t size() { return sizeof...(Values); }
};
namespace detail {
// Both compilers have a built-in for 0, 1, ..., N - 1, under names of their own.
#if defined(__clang__)
template <class T, T N>
using counted_t = __make_integer_seq<integer_sequence, T, N>;
#else
template <class T, T N>
using counted_t = integer_sequence<T, __integer_pack(N)...>;
#endif
}  // namespace detail
template <class T, T N>
using make_integer_sequence = detail::counted_t<T, N>;
template <size_t... Values>
using index_sequence = integer_sequence<size_t, Values...>;
template <size_t N>
using make_index_sequence = make_integer_sequence<size_t, N>;
template <class... T>
using index_sequence_for = make_index_sequence<sizeof...(T)>;

METALANE_STDLIB_END

#endif
