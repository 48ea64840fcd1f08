// How library functions take scalars and vectors alike: the common type of their arguments, and the loop.
#ifndef METALANE_STDLIB_ELEMENTWISE_H
#define METALANE_STDLIB_ELEMENTWISE_H

#include "vec.h"

METALANE_STDLIB_BEGIN
namespace detail {

// The common type of arguments: the vector among them, else what C++ arithmetic gives, but without promotion
// of equal types. No member `type` for anything that is no number, so that overloads for other types stand.
template <class A, class B, class = void>
struct common_pair {};
template <class A>
struct common_pair<A, A, enable_if_t<is_number<A> || is_vec<A>>> : identity<A> {};
template <class A, class B>
struct common_pair<A, B, enable_if_t<is_number<A> && is_number<B> && !is_same_v<A, B>>>
    : identity<decltype(A() + B())> {};
template <class A, class B>
struct common_pair<A, B, enable_if_t<is_vec<A> && is_number<B>>> : identity<A> {};
template <class A, class B>
struct common_pair<A, B, enable_if_t<is_number<A> && is_vec<B>>> : identity<B> {};

template <class A>
using number_t = typename common_pair<plain_t<A>, plain_t<A>>::type;
template <class A, class B>
using pair_t = typename common_pair<plain_t<A>, plain_t<B>>::type;
// Without a member `type` too where some pair has none: a base class would make that a hard error.
template <class, class... A>
struct common {};
template <class A>
struct common<void_t<number_t<A>>, A> : identity<number_t<A>> {};
template <class A, class B, class... Rest>
struct common<void_t<pair_t<A, B>>, A, B, Rest...> : common<void, pair_t<A, B>, Rest...> {};
template <class... A>
using common_t = typename common<void, A...>::type;

// The common type for functions of real numbers, where integers count as float.
template <class V>
using as_real_t = conditional_t<is_floating_point_v<element_t<V>>, V, with_element_t<V, float>>;
template <class... A>
using real_t = as_real_t<common_t<A...>>;
// Only vectors of integers and integers; only real ones.
template <class... A>
using integer_t = enable_if_t<is_integral_v<element_t<common_t<A...>>>, common_t<A...>>;
template <class V>
using bools_t = with_element_t<V, bool>;

// f of each component. R: the result's type; arguments have as many components.
template <class R, class F, class... V>
constexpr R map(F f, const V&... v) {
  if constexpr (is_vec<R>) {
    R result{};
    for (int i = 0; i < R::size; ++i) result.data[i] = f(v.data[i]...);
    return result;
  } else {
    return f(v...);
  }
}

// Sums of products of short floats are kept in float and rounded once.
template <class T>
using accumulator_t = conditional_t<is_floating_point_v<T>, float, T>;

}  // namespace detail

// The bits of one type as another of the same size.
template <class To, class From>
constexpr To as_type(const From& from) {
  using Value = detail::plain_t<From>;
  static_assert(sizeof(To) == sizeof(Value), "as_type needs types of the same size");
  const Value value = from;
  return __builtin_bit_cast(To, value);
}

METALANE_STDLIB_END
using metal::as_type;

#endif
