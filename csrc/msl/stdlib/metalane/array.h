// metal::array: a fixed-size array as a value.
#ifndef METALANE_STDLIB_ARRAY_H
#define METALANE_STDLIB_ARRAY_H

#include "type_traits.h"

METALANE_STDLIB_BEGIN

template <class T, size_t N>
struct array {
  using value_type = T;
  using size_type = size_t;
  using iterator = T*;
  using const_iterator = const T*;

  T elements[N];

  constexpr T& operator[](size_t index) { return elements[index]; }
  constexpr const T& operator[](size_t index) const { return elements[index]; }
  constexpr T& front() { return elements[0]; }
  constexpr const T& front() const { return elements[0]; }
  constexpr T& back() { return elements[N - 1]; }
  constexpr const T& back() const { return elements[N - 1]; }
  constexpr T* data() { return elements; }
  constexpr const T* data() const { return elements; }
  constexpr T* begin() { return elements; }
  constexpr const T* begin() const { return elements; }
  constexpr const T* cbegin() const { return elements; }
  constexpr T* end() { return elements + N; }
  constexpr const T* end() const { return elements + N; }
  constexpr const T* cend() const { return elements + N; }
  static constexpr size_t size() { return N; }
  static constexpr size_t max_size() { return N; }
  static constexpr bool empty() { return N == 0; }
  constexpr void fill(const T& value) {
    for (size_t i = 0; i < N; ++i) elements[i] = value;
  }
};
template <class T, class... U>
array(T, U...) -> array<T, 1 + sizeof...(U)>;

METALANE_STDLIB_END

#endif
