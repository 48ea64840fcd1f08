// Address spaces where declarations differ by them alone: the adapter gives them as numbers, since C++ types
// have none. 1 device, 2 constant, 3 threadgroup, 4 thread; 0 for what is no pointer and no reference.
#ifndef METALANE_STDLIB_SPACES_H
#define METALANE_STDLIB_SPACES_H

#include "type_traits.h"

METALANE_STDLIB_BEGIN
namespace detail {

// The first argument of a call that may mean several functions: the spaces of the object and of each
// argument.
template <int... Space>
struct spaces {
  template <int I>
  static constexpr int at = [] {
    const int all[] = {Space..., 0};
    return I < int(sizeof...(Space)) ? all[I] : 0;
  }();
};

// The first parameter of such a function: what stands at place I must be in Space, for each pair.
template <class Given, int... Pairs>
constexpr bool in_place = true;
template <class Given, int I, int Space, int... Pairs>
constexpr bool in_place<Given, I, Space, Pairs...> =
    Given::template at<I> == Space && in_place<Given, Pairs...>;

template <int... Pairs>
struct in {
  template <class Given, class = enable_if_t<in_place<Given, Pairs...>>>
  constexpr in(Given) {}
};
// The first parameter of a function that shares only its name with them.
struct anywhere {
  template <class Given>
  constexpr anywhere(Given) {}
};

// A pointer or reference type as argument of a template that is specialised by address space.
template <int Space, class T>
struct pointer_in {};

template <int Space, class T>
struct in_space : identity<T> {};
template <int Space, class T>
struct in_space<Space, T*> : identity<pointer_in<Space, T*>> {};
template <int Space, class T>
struct in_space<Space, T&> : identity<pointer_in<Space, T&>> {};
template <class T>
struct in_space<0, T*> : identity<T*> {};
template <class T>
struct in_space<0, T&> : identity<T&> {};
template <int Space, class T>
using in_space_t = typename in_space<Space, T>::type;

}  // namespace detail
METALANE_STDLIB_END

#endif
