// vec<T, N> and packed vectors: components by name, index and swizzle, constructors, element-wise operators.
//
// A swizzle is a member function, v.xy(): as a data member with its own assignment it would make unions of
// vectors non-assignable.
#ifndef METALANE_STDLIB_VEC_H
#define METALANE_STDLIB_VEC_H

#include <initializer_list>

#include "scalar.h"
#include "swizzle.h"

METALANE_STDLIB_BEGIN

template <class T, int N>
struct vec;
template <class V>
struct packed_vector;

namespace detail {

// Calls that are compiled, because nothing says they are not made, end the compilation with these words.
[[gnu::error("more values in the braces than the vector has components")]] void excess_values();

template <class T, int N>
struct swizzled;
template <class V, class T, class... I>
constexpr V pick(const T* data, I... order) {
  return V(data[order]...);
}

// The components under their names. `data` comes first: it is the member that constant evaluation sees.
template <class T, int N>
struct components;
template <class T>
struct components<T, 2> {
  union {
    T data[2];
    __extension__ struct {
      T x, y;
    };
    __extension__ struct {
      T r, g;
    };
  };
  METALANE_SWIZZLES_2(x, y)
  METALANE_SWIZZLES_2(r, g)
};
template <class T>
struct components<T, 3> {
  union {
    T data[3];
    __extension__ struct {
      T x, y, z;
    };
    __extension__ struct {
      T r, g, b;
    };
  };
  METALANE_SWIZZLES_3(x, y, z)
  METALANE_SWIZZLES_3(r, g, b)
};
template <class T>
struct components<T, 4> {
  union {
    T data[4];
    __extension__ struct {
      T x, y, z, w;
    };
    __extension__ struct {
      T r, g, b, a;
    };
  };
  METALANE_SWIZZLES_4(x, y, z, w)
  METALANE_SWIZZLES_4(r, g, b, a)
};

template <class T>
constexpr bool is_number = is_arithmetic_v<T> || is_enum_v<T>;

// Components that a constructor argument of type T brings; far out of range for what is no argument at all.
template <class T>
constexpr int component_count = is_number<T> ? 1 : 1000;
template <class T, int N>
constexpr int component_count<vec<T, N>> = N;
template <class T, int N>
constexpr int component_count<swizzled<T, N>> = N;
template <class V>
constexpr int component_count<packed_vector<V>> = component_count<V>;

}  // namespace detail

// As in Metal a vector of three is as large and as aligned as one of four.
template <class T, int N>
struct alignas(sizeof(T) * (N == 3 ? 4 : N)) vec : detail::components<T, N> {
  static_assert(N >= 2 && N <= 4, "a vector has 2, 3 or 4 components");
  using detail::components<T, N>::data;
  using element_type = T;
  static constexpr int size = N;

  vec() = default;
  // A scalar stands for all components, also implicitly: `v * 2`, `float4 v = 0`.
  template <class S, class = enable_if_t<detail::is_number<S>>>
  constexpr vec(S scalar) : detail::components<T, N>{} {
    for (int i = 0; i < N; ++i) data[i] = T(scalar);
  }
  // Scalars and smaller vectors in any grouping; components that a braced list leaves out are zero.
  template <class A, class B, class... Rest,
            class = enable_if_t<((detail::component_count<A> + detail::component_count<B>)+... +
                                 detail::component_count<Rest>) <= N>>
  constexpr vec(const A& a, const B& b, const Rest&... rest) : detail::components<T, N>{} {
    int next = 0;
    append(next, a);
    append(next, b);
    (append(next, rest), ...);
  }
  // A braced list of scalars fills from the front: float4 v = {x} is (x, 0, 0, 0). Written out, because GCC
  // 12 at -O2 leaves a loop over the list as it is, in memory.
  constexpr vec(std::initializer_list<T> list) : detail::components<T, N>{} {
    const T* from = list.begin();
    const int count = int(list.size());
    if (__builtin_constant_p(count > N) && count > N) detail::excess_values();
    if (count > 0) data[0] = from[0];
    if (count > 1) data[1] = from[1];
    if constexpr (N > 2) {
      if (count > 2) data[2] = from[2];
    }
    if constexpr (N > 3) {
      if (count > 3) data[3] = from[3];
    }
  }
  template <class U, class = enable_if_t<!is_same_v<T, U>>>
  explicit constexpr vec(const vec<U, N>& other) : detail::components<T, N>{} {
    for (int i = 0; i < N; ++i) data[i] = T(other.data[i]);
  }
  template <class U, class = enable_if_t<!is_same_v<T, U>>>
  explicit constexpr vec(const packed_vector<vec<U, N>>& other) : vec(vec<U, N>(other)) {}

  template <class I>
  constexpr T& operator[](I index) {
    return data[index];
  }
  template <class I>
  constexpr const T& operator[](I index) const {
    return data[index];
  }

#define METALANE_VEC_OPERATOR(op, ...)                      \
  friend constexpr vec operator op(vec a, vec b) {          \
    for (int i = 0; i < N; ++i) a.data[i] = T(__VA_ARGS__); \
    return a;                                               \
  }                                                         \
  constexpr vec& operator op## = (vec b) { return *this = *this op b; }
  METALANE_VEC_OPERATOR(+, wrap(a.data[i]) + wrap(b.data[i]))
  METALANE_VEC_OPERATOR(-, wrap(a.data[i]) - wrap(b.data[i]))
  METALANE_VEC_OPERATOR(*, wrap(a.data[i]) * wrap(b.data[i]))
  METALANE_VEC_OPERATOR(/, detail::divide(a.data[i], b.data[i]))
  METALANE_VEC_OPERATOR(%, detail::remainder(a.data[i], b.data[i]))
  METALANE_VEC_OPERATOR(&, a.data[i] & b.data[i])
  METALANE_VEC_OPERATOR(|, a.data[i] | b.data[i])
  METALANE_VEC_OPERATOR(^, a.data[i] ^ b.data[i])
  // A shift takes its amount modulo the width of the component.
  METALANE_VEC_OPERATOR(<<, wrap(a.data[i]) << (b.data[i] & T(8 * sizeof(T) - 1)))
  METALANE_VEC_OPERATOR(>>, a.data[i] >> (b.data[i] & T(8 * sizeof(T) - 1)))
#undef METALANE_VEC_OPERATOR

#define METALANE_VEC_COMPARE(op)                                               \
  friend constexpr vec<bool, N> operator op(vec a, vec b) {                    \
    vec<bool, N> result{};                                                     \
    for (int i = 0; i < N; ++i) result.data[i] = bool(a.data[i] op b.data[i]); \
    return result;                                                             \
  }
  METALANE_VEC_COMPARE(==)
  METALANE_VEC_COMPARE(!=)
  METALANE_VEC_COMPARE(<)
  METALANE_VEC_COMPARE(<=)
  METALANE_VEC_COMPARE(>)
  METALANE_VEC_COMPARE(>=)
  METALANE_VEC_COMPARE(&&)
  METALANE_VEC_COMPARE(||)
#undef METALANE_VEC_COMPARE

  // For its words: a condition is one truth value.
  template <class Bool, class = enable_if_t<is_same_v<Bool, bool>>>
  explicit constexpr operator Bool() const {
    static_assert(sizeof(Bool) == 0, "a vector is no condition: use all(), any() or select()");
    return false;
  }

  // A plain vector, whatever kind of vector or swizzle it is asked of.
  constexpr vec value() const { return *this; }
  constexpr vec operator+() const { return *this; }
  constexpr vec operator-() const {
    vec result{};
    for (int i = 0; i < N; ++i) result.data[i] = T(-wrap(data[i]));
    return result;
  }
  constexpr vec operator~() const {
    vec result{};
    for (int i = 0; i < N; ++i) result.data[i] = T(~data[i]);
    return result;
  }
  constexpr vec<bool, N> operator!() const {
    vec<bool, N> result{};
    for (int i = 0; i < N; ++i) result.data[i] = !data[i];
    return result;
  }
  constexpr vec& operator++() { return *this += vec(1); }
  constexpr vec& operator--() { return *this -= vec(1); }
  constexpr vec operator++(int) {
    const vec old = *this;
    ++*this;
    return old;
  }
  constexpr vec operator--(int) {
    const vec old = *this;
    --*this;
    return old;
  }

 private:
  static constexpr detail::wrapping_t<T> wrap(T value) { return detail::wrapping_t<T>(value); }
  template <class A>
  constexpr void append(int& next, const A& a) {
    if constexpr (detail::is_number<A>) {
      data[next++] = T(a);
    } else {
      for (int i = 0; i < detail::component_count<A>; ++i) data[next++] = T(a.data[i]);
    }
  }
};

namespace detail {

// What v.xy() gives on a vector that can be written: the value, and where it came from. Assignment to the
// call's result writes through; a variable or argument that holds one is a plain vector. Where nothing is
// assigned, v.xy().value() is the vector itself, which templates of the user deduce as such.
template <class T, int N>
struct swizzled : vec<T, N> {
  using value_type = vec<T, N>;

  constexpr swizzled(value_type value) : value_type(value), target_(nullptr), order_() {}
  template <class... I>
  constexpr swizzled(T* target, I... order)
      : value_type(target[order]...), target_(target), order_{static_cast<unsigned char>(order)...} {}
  constexpr swizzled(const swizzled&) = default;

  // v.xyz[i] = x writes through as well.
  template <class I>
  constexpr T& operator[](I index) && {
    return target_ != nullptr ? target_[order_[index]] : this->data[index];
  }
  template <class I>
  constexpr T& operator[](I index) & {
    return this->data[index];
  }
  template <class I>
  constexpr const T& operator[](I index) const& {
    return this->data[index];
  }

  constexpr swizzled& operator=(value_type value) & {
    value_type::operator=(value);
    return *this;
  }
  constexpr swizzled& operator=(const swizzled& other) & { return *this = value_type(other); }
  constexpr value_type operator=(value_type value) && {
    if (target_ != nullptr) {
      for (int i = 0; i < N; ++i) target_[order_[i]] = value.data[i];
    }
    return value;
  }
  constexpr value_type operator=(const swizzled& other) && {
    return static_cast<swizzled&&>(*this) = value_type(other);
  }

#define METALANE_SWIZZLED_ASSIGN(op)                                                    \
  constexpr swizzled& operator op## = (value_type b) & {                                \
    return *this = static_cast<const value_type&>(*this) op b;                          \
  }                                                                                     \
  constexpr value_type operator op## = (value_type b) && {                              \
    return static_cast<swizzled&&>(*this) = static_cast<const value_type&>(*this) op b; \
  }
  METALANE_SWIZZLED_ASSIGN(+)
  METALANE_SWIZZLED_ASSIGN(-)
  METALANE_SWIZZLED_ASSIGN(*)
  METALANE_SWIZZLED_ASSIGN(/)
  METALANE_SWIZZLED_ASSIGN(%)
  METALANE_SWIZZLED_ASSIGN(&)
  METALANE_SWIZZLED_ASSIGN(|)
  METALANE_SWIZZLED_ASSIGN(^)
  METALANE_SWIZZLED_ASSIGN(<<)
  METALANE_SWIZZLED_ASSIGN(>>)
#undef METALANE_SWIZZLED_ASSIGN

  constexpr swizzled& operator++() & { return *this += value_type(1); }
  constexpr swizzled& operator--() & { return *this -= value_type(1); }
  constexpr value_type operator++() && { return static_cast<swizzled&&>(*this) += value_type(1); }
  constexpr value_type operator--() && { return static_cast<swizzled&&>(*this) -= value_type(1); }
  constexpr value_type operator++(int) && {
    const value_type old = *this;
    ++static_cast<swizzled&&>(*this);
    return old;
  }
  constexpr value_type operator--(int) && {
    const value_type old = *this;
    --static_cast<swizzled&&>(*this);
    return old;
  }

 private:
  T* target_;
  unsigned char order_[N];
};

// The vector or scalar type behind an argument: swizzles and packed vectors count as vec.
template <class T>
struct plain : identity<T> {};
template <class T, int N>
struct plain<swizzled<T, N>> : identity<vec<T, N>> {};
template <class V>
struct plain<packed_vector<V>> : identity<V> {};
template <class T>
using plain_t = typename plain<remove_cvref_t<T>>::type;

template <class T>
constexpr bool is_vec = false;
template <class T, int N>
constexpr bool is_vec<vec<T, N>> = true;

template <class T>
struct element : identity<T> {};
template <class T, int N>
struct element<vec<T, N>> : identity<T> {};
template <class T>
using element_t = typename element<plain_t<T>>::type;

// `T` with its scalar replaced: with_element_t<float4, bool> is bool4.
template <class T, class U>
struct with_element : identity<U> {};
template <class T, int N, class U>
struct with_element<vec<T, N>, U> : identity<vec<U, N>> {};
template <class T, class U>
using with_element_t = typename with_element<plain_t<T>, U>::type;

}  // namespace detail

// Packed vectors: components side by side, aligned as one of them. They are loaded to and stored from `vec`;
// V as template argument lets argument-dependent look-up find vec's operators.
template <class V>
struct packed_vector : detail::components<typename V::element_type, V::size> {
  using T = typename V::element_type;
  static constexpr int N = V::size;
  using detail::components<T, N>::data;

  packed_vector() = default;
  constexpr packed_vector(const V& v) : detail::components<T, N>{} {
    for (int i = 0; i < N; ++i) data[i] = v.data[i];
  }
  template <class S, class = enable_if_t<detail::is_number<S>>>
  constexpr packed_vector(S scalar) : packed_vector(V(scalar)) {}
  template <class A, class B, class... Rest,
            class = decltype(V(declval<A>(), declval<B>(), declval<Rest>()...))>
  constexpr packed_vector(const A& a, const B& b, const Rest&... rest) : packed_vector(V(a, b, rest...)) {}
  constexpr packed_vector(std::initializer_list<T> list) : packed_vector(V(list)) {}
  template <class U, class = enable_if_t<!is_same_v<T, U>>>
  explicit constexpr packed_vector(const vec<U, N>& other) : packed_vector(V(other)) {}
  template <class U, class = enable_if_t<!is_same_v<T, U>>>
  explicit constexpr packed_vector(const packed_vector<vec<U, N>>& other) : packed_vector(V(other)) {}
  constexpr operator V() const {
    V result{};
    for (int i = 0; i < N; ++i) result.data[i] = data[i];
    return result;
  }

  template <class I>
  constexpr T& operator[](I index) {
    return data[index];
  }
  template <class I>
  constexpr const T& operator[](I index) const {
    return data[index];
  }

#define METALANE_PACKED_ASSIGN(op) \
  constexpr packed_vector& operator op## = (const V& b) { return *this = packed_vector(V(*this) op b); }
  METALANE_PACKED_ASSIGN(+)
  METALANE_PACKED_ASSIGN(-)
  METALANE_PACKED_ASSIGN(*)
  METALANE_PACKED_ASSIGN(/)
  METALANE_PACKED_ASSIGN(%)
  METALANE_PACKED_ASSIGN(&)
  METALANE_PACKED_ASSIGN(|)
  METALANE_PACKED_ASSIGN(^)
  METALANE_PACKED_ASSIGN(<<)
  METALANE_PACKED_ASSIGN(>>)
#undef METALANE_PACKED_ASSIGN
  constexpr V operator-() const { return -V(*this); }
  constexpr V operator+() const { return V(*this); }
  constexpr V operator~() const { return ~V(*this); }
  constexpr vec<bool, N> operator!() const { return !V(*this); }
};

template <class T, int N>
using packed_vec = packed_vector<vec<T, N>>;

METALANE_STDLIB_END

// The names: float4, packed_float4, and so on, in metal and at global scope as Metal has them.
#define METALANE_VEC_NAMES(T)             \
  METALANE_STDLIB_BEGIN                   \
  using T##2 = vec<T, 2>;                 \
  using T##3 = vec<T, 3>;                 \
  using T##4 = vec<T, 4>;                 \
  using packed_##T##2 = packed_vec<T, 2>; \
  using packed_##T##3 = packed_vec<T, 3>; \
  using packed_##T##4 = packed_vec<T, 4>; \
  METALANE_STDLIB_END                     \
  using metal::T##2;                      \
  using metal::T##3;                      \
  using metal::T##4;                      \
  using metal::packed_##T##2;             \
  using metal::packed_##T##3;             \
  using metal::packed_##T##4;
METALANE_VEC_NAMES(bool)
METALANE_VEC_NAMES(char)
METALANE_VEC_NAMES(uchar)
METALANE_VEC_NAMES(short)
METALANE_VEC_NAMES(ushort)
METALANE_VEC_NAMES(int)
METALANE_VEC_NAMES(uint)
METALANE_VEC_NAMES(long)
METALANE_VEC_NAMES(ulong)
METALANE_VEC_NAMES(half)
METALANE_VEC_NAMES(float)
METALANE_VEC_NAMES(bfloat)
#undef METALANE_VEC_NAMES

#endif
