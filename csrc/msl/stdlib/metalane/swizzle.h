// The member functions v.xy(), v.wzyx(), v.rgb(): every choice of two, three or four components.
//
// Each level of macros appends one letter to the name and one number to the order of components. A vector
// that can be written gives detail::swizzled (value and target), any other a plain vector.
#ifndef METALANE_STDLIB_SWIZZLE_H
#define METALANE_STDLIB_SWIZZLE_H

#define METALANE_SWIZZLE(count, name, ...)                                                \
  constexpr swizzled<T, count> name() & { return swizzled<T, count>(data, __VA_ARGS__); } \
  constexpr vec<T, count> name() const& { return pick<vec<T, count>>(data, __VA_ARGS__); }

#define METALANE_SWIZZLE_LETTERS_2(count, name, A, B, ...) \
  METALANE_SWIZZLE(count, name##A, __VA_ARGS__, 0)         \
  METALANE_SWIZZLE(count, name##B, __VA_ARGS__, 1)
#define METALANE_SWIZZLE_LETTERS_3(count, name, A, B, C, ...) \
  METALANE_SWIZZLE_LETTERS_2(count, name, A, B, __VA_ARGS__)  \
  METALANE_SWIZZLE(count, name##C, __VA_ARGS__, 2)
#define METALANE_SWIZZLE_LETTERS_4(count, name, A, B, C, D, ...) \
  METALANE_SWIZZLE_LETTERS_3(count, name, A, B, C, __VA_ARGS__)  \
  METALANE_SWIZZLE(count, name##D, __VA_ARGS__, 3)

#define METALANE_SWIZZLE_THIRD_2(name, A, B, ...)              \
  METALANE_SWIZZLE_LETTERS_2(3, name, A, B, __VA_ARGS__)       \
  METALANE_SWIZZLE_LETTERS_2(4, name##A, A, B, __VA_ARGS__, 0) \
  METALANE_SWIZZLE_LETTERS_2(4, name##B, A, B, __VA_ARGS__, 1)
#define METALANE_SWIZZLE_THIRD_3(name, A, B, C, ...)              \
  METALANE_SWIZZLE_LETTERS_3(3, name, A, B, C, __VA_ARGS__)       \
  METALANE_SWIZZLE_LETTERS_3(4, name##A, A, B, C, __VA_ARGS__, 0) \
  METALANE_SWIZZLE_LETTERS_3(4, name##B, A, B, C, __VA_ARGS__, 1) \
  METALANE_SWIZZLE_LETTERS_3(4, name##C, A, B, C, __VA_ARGS__, 2)
#define METALANE_SWIZZLE_THIRD_4(name, A, B, C, D, ...)              \
  METALANE_SWIZZLE_LETTERS_4(3, name, A, B, C, D, __VA_ARGS__)       \
  METALANE_SWIZZLE_LETTERS_4(4, name##A, A, B, C, D, __VA_ARGS__, 0) \
  METALANE_SWIZZLE_LETTERS_4(4, name##B, A, B, C, D, __VA_ARGS__, 1) \
  METALANE_SWIZZLE_LETTERS_4(4, name##C, A, B, C, D, __VA_ARGS__, 2) \
  METALANE_SWIZZLE_LETTERS_4(4, name##D, A, B, C, D, __VA_ARGS__, 3)

#define METALANE_SWIZZLE_SECOND_2(name, A, B, ...)        \
  METALANE_SWIZZLE_LETTERS_2(2, name, A, B, __VA_ARGS__)  \
  METALANE_SWIZZLE_THIRD_2(name##A, A, B, __VA_ARGS__, 0) \
  METALANE_SWIZZLE_THIRD_2(name##B, A, B, __VA_ARGS__, 1)
#define METALANE_SWIZZLE_SECOND_3(name, A, B, C, ...)        \
  METALANE_SWIZZLE_LETTERS_3(2, name, A, B, C, __VA_ARGS__)  \
  METALANE_SWIZZLE_THIRD_3(name##A, A, B, C, __VA_ARGS__, 0) \
  METALANE_SWIZZLE_THIRD_3(name##B, A, B, C, __VA_ARGS__, 1) \
  METALANE_SWIZZLE_THIRD_3(name##C, A, B, C, __VA_ARGS__, 2)
#define METALANE_SWIZZLE_SECOND_4(name, A, B, C, D, ...)        \
  METALANE_SWIZZLE_LETTERS_4(2, name, A, B, C, D, __VA_ARGS__)  \
  METALANE_SWIZZLE_THIRD_4(name##A, A, B, C, D, __VA_ARGS__, 0) \
  METALANE_SWIZZLE_THIRD_4(name##B, A, B, C, D, __VA_ARGS__, 1) \
  METALANE_SWIZZLE_THIRD_4(name##C, A, B, C, D, __VA_ARGS__, 2) \
  METALANE_SWIZZLE_THIRD_4(name##D, A, B, C, D, __VA_ARGS__, 3)

#define METALANE_SWIZZLES_2(A, B)       \
  METALANE_SWIZZLE_SECOND_2(A, A, B, 0) \
  METALANE_SWIZZLE_SECOND_2(B, A, B, 1)
#define METALANE_SWIZZLES_3(A, B, C)       \
  METALANE_SWIZZLE_SECOND_3(A, A, B, C, 0) \
  METALANE_SWIZZLE_SECOND_3(B, A, B, C, 1) \
  METALANE_SWIZZLE_SECOND_3(C, A, B, C, 2)
#define METALANE_SWIZZLES_4(A, B, C, D)       \
  METALANE_SWIZZLE_SECOND_4(A, A, B, C, D, 0) \
  METALANE_SWIZZLE_SECOND_4(B, A, B, C, D, 1) \
  METALANE_SWIZZLE_SECOND_4(C, A, B, C, D, 2) \
  METALANE_SWIZZLE_SECOND_4(D, A, B, C, D, 3)

#endif
