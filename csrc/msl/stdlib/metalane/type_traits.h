// metal_type_traits: the traits that kernels use, without the host's standard library.
#ifndef METALANE_STDLIB_TYPE_TRAITS_H
#define METALANE_STDLIB_TYPE_TRAITS_H

#include <stddef.h>

#include "runtime.h"

METALANE_STDLIB_BEGIN

struct bfloat;

template <class T, T Value>
struct integral_constant {
  static constexpr T value = Value;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return Value; }
  constexpr T operator()() const { return Value; }
};
template <bool Value>
using bool_constant = integral_constant<bool, Value>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool Condition, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool Condition, class T = void>
using enable_if_t = typename enable_if<Condition, T>::type;

template <bool Condition, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool Condition, class T, class F>
using conditional_t = typename conditional<Condition, T, F>::type;

template <class...>
using void_t = void;

namespace detail {
template <class T>
struct identity {
  using type = T;
};
// A parameter of this type takes what converts to T and leaves deduction of T to the other parameters.
template <class T>
using identity_t = typename identity<T>::type;
}  // namespace detail

template <class T>
struct remove_reference : detail::identity<T> {};
template <class T>
struct remove_reference<T&> : detail::identity<T> {};
template <class T>
struct remove_reference<T&&> : detail::identity<T> {};
template <class T>
struct remove_const : detail::identity<T> {};
template <class T>
struct remove_const<const T> : detail::identity<T> {};
template <class T>
struct remove_volatile : detail::identity<T> {};
template <class T>
struct remove_volatile<volatile T> : detail::identity<T> {};
template <class T>
struct remove_cv : detail::identity<T> {};
template <class T>
struct remove_cv<const T> : detail::identity<T> {};
template <class T>
struct remove_cv<volatile T> : detail::identity<T> {};
template <class T>
struct remove_cv<const volatile T> : detail::identity<T> {};
template <class T>
struct remove_pointer : detail::identity<T> {};
template <class T>
struct remove_pointer<T*> : detail::identity<T> {};
template <class T>
struct remove_pointer<T* const> : detail::identity<T> {};
template <class T>
struct remove_extent : detail::identity<T> {};
template <class T>
struct remove_extent<T[]> : detail::identity<T> {};
template <class T, size_t N>
struct remove_extent<T[N]> : detail::identity<T> {};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;
template <class T>
using remove_const_t = typename remove_const<T>::type;
template <class T>
using remove_volatile_t = typename remove_volatile<T>::type;
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <class T>
using remove_extent_t = typename remove_extent<T>::type;
template <class T>
using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;
// Types have no address space here.
template <class T>
struct remove_addrspace : detail::identity<T> {};
template <class T>
using remove_addrspace_t = T;
template <class T>
struct remove_all_extents : detail::identity<T> {};
template <class T>
struct remove_all_extents<T[]> : remove_all_extents<T> {};
template <class T, size_t N>
struct remove_all_extents<T[N]> : remove_all_extents<T> {};
template <class T>
using remove_all_extents_t = typename remove_all_extents<T>::type;

#define METALANE_ADDS(name, ...)                  \
  template <class T>                              \
  struct name : detail::identity<__VA_ARGS__> {}; \
  template <class T>                              \
  using name##_t = __VA_ARGS__
METALANE_ADDS(add_const, const T);
METALANE_ADDS(add_volatile, volatile T);
METALANE_ADDS(add_cv, const volatile T);
METALANE_ADDS(add_pointer, remove_reference_t<T>*);
METALANE_ADDS(add_lvalue_reference, T&);
METALANE_ADDS(add_rvalue_reference, T&&);
#undef METALANE_ADDS
template <class T>
T&& declval();

// The first trait that decides, as in C++: later ones are not instantiated.
template <class... Traits>
struct conjunction : true_type {};
template <class Trait>
struct conjunction<Trait> : Trait {};
template <class Trait, class... Rest>
struct conjunction<Trait, Rest...> : conditional_t<bool(Trait::value), conjunction<Rest...>, Trait> {};
template <class... Traits>
struct disjunction : false_type {};
template <class Trait>
struct disjunction<Trait> : Trait {};
template <class Trait, class... Rest>
struct disjunction<Trait, Rest...> : conditional_t<bool(Trait::value), Trait, disjunction<Rest...>> {};
template <class Trait>
struct negation : bool_constant<!bool(Trait::value)> {};
template <class... Traits>
constexpr bool conjunction_v = conjunction<Traits...>::value;
template <class... Traits>
constexpr bool disjunction_v = disjunction<Traits...>::value;
template <class Trait>
constexpr bool negation_v = negation<Trait>::value;
// The names that Metal's own headers use, and kernels borrow.
template <class... Traits>
using _conjunction = conjunction<Traits...>;
template <class... Traits>
using _disjunction = disjunction<Traits...>;

namespace detail {
template <class T>
struct decay_array : remove_cv<T> {};
template <class T>
struct decay_array<T[]> : identity<T*> {};
template <class T, size_t N>
struct decay_array<T[N]> : identity<T*> {};
template <class R, class... A>
struct decay_array<R(A...)> : identity<R (*)(A...)> {};
}  // namespace detail
template <class T>
struct decay : detail::decay_array<remove_reference_t<T>> {};
template <class T>
using decay_t = typename decay<T>::type;

// A trait as MSL has it: the struct, its `value`, and the _v variable.
#define METALANE_TRAIT(name, ...)                    \
  template <class T>                                 \
  struct name : bool_constant<bool(__VA_ARGS__)> {}; \
  template <class T>                                 \
  constexpr bool name##_v = bool(__VA_ARGS__)

template <class A, class B>
constexpr bool is_same_v = false;
template <class A>
constexpr bool is_same_v<A, A> = true;
template <class A, class B>
struct is_same : bool_constant<is_same_v<A, B>> {};

namespace detail {
template <class T, class... List>
constexpr bool one_of = (is_same_v<remove_cv_t<T>, List> || ...);
template <class T>
constexpr bool is_pointer_type = false;
template <class T>
constexpr bool is_pointer_type<T*> = true;
template <class T>
constexpr bool is_array_type = false;
template <class T>
constexpr bool is_array_type<T[]> = true;
template <class T, size_t N>
constexpr bool is_array_type<T[N]> = true;
template <class T>
constexpr bool is_lvalue_reference_type = false;
template <class T>
constexpr bool is_lvalue_reference_type<T&> = true;
template <class T>
constexpr bool is_rvalue_reference_type = false;
template <class T>
constexpr bool is_rvalue_reference_type<T&&> = true;
template <class T>
constexpr bool is_integer = one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int,
                                   unsigned, long, unsigned long, long long, unsigned long long>;
template <class T>
constexpr bool is_real = one_of<T, float, _Float16, bfloat, double>;
template <class T>
constexpr bool is_signed_type = is_real<T>;
#define METALANE_SIGNED(T) \
  template <>              \
  inline constexpr bool is_signed_type<T> = true
METALANE_SIGNED(char);
METALANE_SIGNED(signed char);
METALANE_SIGNED(short);
METALANE_SIGNED(int);
METALANE_SIGNED(long);
METALANE_SIGNED(long long);
#undef METALANE_SIGNED
}  // namespace detail

METALANE_TRAIT(is_void, is_same_v<remove_cv_t<T>, void>);
METALANE_TRAIT(is_integral, detail::is_integer<T>);
METALANE_TRAIT(is_floating_point, detail::is_real<T>);
METALANE_TRAIT(is_arithmetic, detail::is_integer<T> || detail::is_real<T>);
METALANE_TRAIT(is_fundamental, detail::is_integer<T> || detail::is_real<T> || is_void_v<T>);
METALANE_TRAIT(is_signed, detail::is_signed_type<remove_cv_t<T>>);
METALANE_TRAIT(is_unsigned, detail::is_integer<T> && !detail::is_signed_type<remove_cv_t<T>>);
METALANE_TRAIT(is_enum, __is_enum(T));
METALANE_TRAIT(is_union, __is_union(T));
METALANE_TRAIT(is_class, __is_class(T));
METALANE_TRAIT(is_pointer, detail::is_pointer_type<remove_cv_t<T>>);
METALANE_TRAIT(is_array, detail::is_array_type<T>);
METALANE_TRAIT(is_lvalue_reference, detail::is_lvalue_reference_type<T>);
METALANE_TRAIT(is_rvalue_reference, detail::is_rvalue_reference_type<T>);
METALANE_TRAIT(is_reference, is_lvalue_reference_v<T> || is_rvalue_reference_v<T>);
METALANE_TRAIT(is_const, !is_same_v<T, remove_const_t<T>>);
METALANE_TRAIT(is_volatile, !is_same_v<T, remove_volatile_t<T>>);
METALANE_TRAIT(is_scalar, is_arithmetic_v<T> || is_enum_v<T> || is_pointer_v<T>);
METALANE_TRAIT(is_null_pointer, is_same_v<remove_cv_t<T>, decltype(nullptr)>);
// A function is what const does not apply to, references aside.
METALANE_TRAIT(is_function, !is_reference_v<T> && !is_const_v<const T>);
METALANE_TRAIT(is_object, !is_function_v<T> && !is_reference_v<T> && !is_void_v<T>);
METALANE_TRAIT(is_compound, !is_fundamental_v<T>);
METALANE_TRAIT(is_empty, __is_empty(T));
METALANE_TRAIT(is_final, __is_final(T));
METALANE_TRAIT(is_default_constructible, __is_constructible(T));
METALANE_TRAIT(is_copy_constructible, __is_constructible(T, const T&));
METALANE_TRAIT(is_move_constructible, __is_constructible(T, T&&));
METALANE_TRAIT(is_trivially_default_constructible, __is_trivially_constructible(T));
METALANE_TRAIT(is_trivially_copy_constructible, __is_trivially_constructible(T, const T&));
METALANE_TRAIT(is_copy_assignable, __is_assignable(T&, const T&));
METALANE_TRAIT(is_trivially_copy_assignable, __is_trivially_assignable(T&, const T&));
METALANE_TRAIT(is_trivially_copyable, __is_trivially_copyable(T));
METALANE_TRAIT(is_standard_layout, __is_standard_layout(T));
METALANE_TRAIT(is_trivial, __is_trivial(T));
#undef METALANE_TRAIT

template <class T, class... A>
constexpr bool is_constructible_v = __is_constructible(T, A...);
template <class T, class... A>
struct is_constructible : bool_constant<is_constructible_v<T, A...>> {};
template <class T, class U>
constexpr bool is_assignable_v = __is_assignable(T, U);
template <class T, class U>
struct is_assignable : bool_constant<is_assignable_v<T, U>> {};
template <class T>
struct alignment_of : integral_constant<size_t, alignof(T)> {};
template <class T>
constexpr size_t alignment_of_v = alignof(T);

template <class Base, class Derived>
constexpr bool is_base_of_v = __is_base_of(Base, Derived);
template <class Base, class Derived>
struct is_base_of : bool_constant<is_base_of_v<Base, Derived>> {};

namespace detail {
template <class To>
void take(To);
template <class From, class To, class = void>
constexpr bool converts = false;
template <class From, class To>
constexpr bool converts<From, To, void_t<decltype(take<To>(declval<From>()))>> = true;
}  // namespace detail
template <class From, class To>
constexpr bool is_convertible_v = detail::converts<From, To>;
template <class From, class To>
struct is_convertible : bool_constant<is_convertible_v<From, To>> {};

// The type of `true ? a : b`, from left to right.
template <class... T>
struct common_type;
template <class T>
struct common_type<T> : decay<T> {};
template <class A, class B>
struct common_type<A, B> : decay<decltype(true ? declval<A>() : declval<B>())> {};
template <class A, class B, class... Rest>
struct common_type<A, B, Rest...> : common_type<typename common_type<A, B>::type, Rest...> {};
template <class... T>
using common_type_t = typename common_type<T...>::type;

namespace detail {
template <class T>
struct signedness : identity<T> {
  using signed_type = T;
  using unsigned_type = T;
};
#define METALANE_SIGNEDNESS(T, S, U) \
  template <>                        \
  struct signedness<T> {             \
    using signed_type = S;           \
    using unsigned_type = U;         \
  }
METALANE_SIGNEDNESS(char, char, unsigned char);
METALANE_SIGNEDNESS(signed char, signed char, unsigned char);
METALANE_SIGNEDNESS(unsigned char, signed char, unsigned char);
METALANE_SIGNEDNESS(short, short, unsigned short);
METALANE_SIGNEDNESS(unsigned short, short, unsigned short);
METALANE_SIGNEDNESS(int, int, unsigned);
METALANE_SIGNEDNESS(unsigned, int, unsigned);
METALANE_SIGNEDNESS(long, long, unsigned long);
METALANE_SIGNEDNESS(unsigned long, long, unsigned long);
METALANE_SIGNEDNESS(long long, long long, unsigned long long);
METALANE_SIGNEDNESS(unsigned long long, long long, unsigned long long);
#undef METALANE_SIGNEDNESS
}  // namespace detail
template <class T>
struct make_signed : detail::identity<typename detail::signedness<T>::signed_type> {};
template <class T>
struct make_unsigned : detail::identity<typename detail::signedness<T>::unsigned_type> {};
template <class T>
using make_signed_t = typename make_signed<T>::type;
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;

template <class T>
struct underlying_type {
  using type = __underlying_type(T);
};
template <class T>
using underlying_type_t = typename underlying_type<T>::type;

METALANE_STDLIB_END

#endif
