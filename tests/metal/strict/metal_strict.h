// The Metal Shading Language as declarations for Clang's C++ for OpenCL, whose type system knows address
// spaces.
//
// Only types are checked, nothing is run, so functions have no bodies.
#ifndef METAL_STRICT_H
#define METAL_STRICT_H

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define threadgroup __local
// strict_check.py makes `thread` __private, after it has looked at it. What names no address space points to
// OpenCL's generic one, which all but constant memory converts to: strict_check.py finds that in the syntax
// tree. Words of OpenCL that are plain names in Metal.
#define global strict_global
#define local strict_local
#define generic strict_generic
#define read_only strict_read_only
#define write_only strict_write_only
#define read_write strict_read_write
#define pipe strict_pipe
#define uniform strict_uniform
#define atomic_int strict_atomic_int
#define atomic_uint strict_atomic_uint
#define atomic_long strict_atomic_long
#define atomic_ulong strict_atomic_ulong
#define atomic_float strict_atomic_float

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define HALF_MAX 0x1.ffcp15h
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffffu
#define M_PI_F 3.14159265358979323846f
#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL_VERSION__ 320

namespace metal {

// What a function of the library does with `T` alone.
template <class T>
struct type_identity {
  typedef T type;
};
template <class T>
using identity_t = typename type_identity<T>::type;
template <bool condition, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool condition, class T = void>
using enable_if_t = typename enable_if<condition, T>::type;
template <class A, class B>
struct is_same {
  static constexpr __constant bool value = false;
};
template <class A>
struct is_same<A, A> {
  static constexpr __constant bool value = true;
};
template <class A, class B>
constexpr __constant bool is_same_v = is_same<A, B>::value;
template <bool condition, class A, class B>
struct conditional {
  typedef A type;
};
template <class A, class B>
struct conditional<false, A, B> {
  typedef B type;
};
template <bool condition, class A, class B>
using conditional_t = typename conditional<condition, A, B>::type;

// Converts both ways like Metal's own type, without a conversion to or from integers that float has not.
struct bfloat {
  ushort bits;
  bfloat() = default;
  bfloat(float value);
  operator float() const;
  operator float() const __constant;
};

template <class T, int N>
struct vec;
template <class T, int N>
struct packed_vec;
template <class V, bool assignable>
struct swizzle;

// Components that an argument of a vector's constructor gives.
template <class A>
struct width {
  static constexpr __constant int value = 1;
};
template <class T, int N>
struct width<vec<T, N>> {
  static constexpr __constant int value = N;
};
template <class T, int N>
struct width<packed_vec<T, N>> {
  static constexpr __constant int value = N;
};
template <class V, bool assignable>
struct width<swizzle<V, assignable>> {
  static constexpr __constant int value = width<V>::value;
};

// Several components of a vector: a value, and one that is assigned to where no component comes twice.
template <class V, bool assignable>
struct swizzle {
  operator V() const;
  operator V() const __constant;
};
template <class V>
struct swizzle<V, true> : swizzle<V, false> {
  void operator=(V);
  void operator+=(V);
  void operator-=(V);
  void operator*=(V);
  void operator/=(V);
};

// STRICT_SWIZZLES_2, _3 and _4 declare all swizzles of a vector; strict_check.py writes them.
#define STRICT_VECTOR(N, alignment, components, colours) \
  template <class T>                                     \
  struct alignas(alignment * sizeof(T)) vec<T, N> {      \
    union {                                              \
      struct {                                           \
        T components;                                    \
      };                                                 \
      struct {                                           \
        T colours;                                       \
      };                                                 \
      T data[alignment];                                 \
      STRICT_SWIZZLES_##N                                \
    };                                                   \
    STRICT_VECTOR_MEMBERS(N)                             \
  };
#define STRICT_COMMA ,
#define STRICT_SUBSCRIPT(space)   \
  space T& operator[](int) space; \
  space const T& operator[](int) const space;
#define STRICT_VECTOR_MEMBERS(N)                                                                    \
  vec() = default;                                                                                  \
  vec(const vec&) = default;                                                                        \
  vec(__constant const vec&);                                                                       \
  vec& operator=(const vec&) = default;                                                             \
  template <class V, class = enable_if_t<is_same<V, vec>::value>>                                   \
  void operator=(__constant const V&);                                                              \
  constexpr vec(T all) : data{all} {}                                                               \
  constexpr vec(T all) __constant : data{all} {}                                                    \
  template <class A, class B, class... More,                                                        \
            class = enable_if_t<sum(width<A>::value, width<B>::value, width<More>::value...) == N>> \
  constexpr vec(A, B, More...) : data{} {}                                                          \
  template <class A, class B, class... More,                                                        \
            class = enable_if_t<sum(width<A>::value, width<B>::value, width<More>::value...) == N>> \
  constexpr vec(A, B, More...) __constant : data{} {}                                               \
  template <class U, class = enable_if_t<!is_same<T, U>::value>>                                    \
  explicit vec(vec<U, N>);                                                                          \
  template <class U, bool assignable, class = enable_if_t<!is_same<T, U>::value>>                   \
  explicit vec(swizzle<vec<U, N>, assignable>);                                                     \
  template <class U, class = enable_if_t<!is_same<T, U>::value>>                                    \
  explicit vec(packed_vec<U, N>);                                                                   \
  STRICT_SUBSCRIPT()                                                                                \
  STRICT_SUBSCRIPT(__global)                                                                        \
  STRICT_SUBSCRIPT(__local)                                                                         \
  __constant const T& operator[](int) const __constant;

constexpr int sum() { return 0; }
template <class... More>
constexpr int sum(int first, More... more) {
  return first + sum(more...);
}
STRICT_VECTOR(2, 2, x STRICT_COMMA y, r STRICT_COMMA g)
STRICT_VECTOR(3, 4, x STRICT_COMMA y STRICT_COMMA z, r STRICT_COMMA g STRICT_COMMA b)
STRICT_VECTOR(4, 4, x STRICT_COMMA y STRICT_COMMA z STRICT_COMMA w,
              r STRICT_COMMA g STRICT_COMMA b STRICT_COMMA a)
#undef STRICT_VECTOR
#undef STRICT_VECTOR_MEMBERS
#undef STRICT_COMMA

template <class T, int N>
struct packed_vec {
  T data[N];
  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  packed_vec(__constant const packed_vec&);
  packed_vec(vec<T, N>);
  packed_vec& operator=(const packed_vec&) = default;
  void operator=(vec<T, N>);
  template <class... A, class = enable_if_t<sizeof...(A) == N>>
  packed_vec(A...);
  operator vec<T, N>() const;
  operator vec<T, N>() const __constant;
  STRICT_SUBSCRIPT()
  STRICT_SUBSCRIPT(__global)
  STRICT_SUBSCRIPT(__local)
  __constant const T& operator[](int) const __constant;
};

template <class T, int columns, int rows = columns>
struct matrix {
  vec<T, rows> data[columns];
  matrix() = default;
  explicit matrix(T diagonal);
  template <class A, class B, class... More>
  matrix(A, B, More...);
#define STRICT_COLUMN(space)                 \
  space vec<T, rows>& operator[](int) space; \
  space const vec<T, rows>& operator[](int) const space;
  STRICT_COLUMN()
  STRICT_COLUMN(__global)
  STRICT_COLUMN(__local)
  __constant const vec<T, rows>& operator[](int) const __constant;
#undef STRICT_COLUMN
};
template <class T, int C, int R>
vec<T, R> operator*(matrix<T, C, R>, identity_t<vec<T, C>>);
template <class T, int C, int R>
vec<T, C> operator*(identity_t<vec<T, R>>, matrix<T, C, R>);
template <class T, int C, int R, int K>
matrix<T, C, R> operator*(matrix<T, K, R>, matrix<T, C, K>);
template <class T, int C, int R>
matrix<T, C, R> operator*(matrix<T, C, R>, identity_t<T>);
template <class T, int C, int R>
matrix<T, C, R> operator*(identity_t<T>, matrix<T, C, R>);
template <class T, int C, int R>
matrix<T, C, R> operator+(matrix<T, C, R>, matrix<T, C, R>);
template <class T, int C, int R>
matrix<T, C, R> operator-(matrix<T, C, R>, matrix<T, C, R>);

template <class T, int columns, int rows>
struct simdgroup_matrix {
  T elements[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
  vec<T, 2>& thread_elements();
  const vec<T, 2>& thread_elements() const;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T>
struct atomic {
  T value;
};
typedef atomic<bool> atomic_bool;
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<long> atomic_long;
typedef atomic<ulong> atomic_ulong;
typedef atomic<float> atomic_float;

template <class T, int N>
struct array {
  T data[N];
  STRICT_SUBSCRIPT()
  STRICT_SUBSCRIPT(__global)
  STRICT_SUBSCRIPT(__local)
  __constant const T& operator[](int) const __constant;
  constexpr size_t size() const { return N; }
};
#undef STRICT_SUBSCRIPT

#define STRICT_NAMES(T)                   \
  typedef vec<T, 2> T##2;                 \
  typedef vec<T, 3> T##3;                 \
  typedef vec<T, 4> T##4;                 \
  typedef packed_vec<T, 2> packed_##T##2; \
  typedef packed_vec<T, 3> packed_##T##3; \
  typedef packed_vec<T, 4> packed_##T##4;
STRICT_NAMES(bool)
STRICT_NAMES(char)
STRICT_NAMES(uchar)
STRICT_NAMES(short)
STRICT_NAMES(ushort)
STRICT_NAMES(int)
STRICT_NAMES(uint)
STRICT_NAMES(long)
STRICT_NAMES(ulong)
STRICT_NAMES(half)
STRICT_NAMES(bfloat)
STRICT_NAMES(float)
#undef STRICT_NAMES
#define STRICT_MATRIX(T, rows)            \
  typedef matrix<T, 2, rows> T##2x##rows; \
  typedef matrix<T, 3, rows> T##3x##rows; \
  typedef matrix<T, 4, rows> T##4x##rows;
#define STRICT_MATRICES(T) STRICT_MATRIX(T, 2) STRICT_MATRIX(T, 3) STRICT_MATRIX(T, 4)
STRICT_MATRICES(half)
STRICT_MATRICES(float)
#undef STRICT_MATRICES
#undef STRICT_MATRIX

}  // namespace metal

#include "metal_strict_functions.h"

using metal::bfloat;
#define STRICT_GLOBAL(T) \
  using metal::T##2;     \
  using metal::T##3;     \
  using metal::T##4;
STRICT_GLOBAL(bool)
STRICT_GLOBAL(char)
STRICT_GLOBAL(uchar)
STRICT_GLOBAL(short)
STRICT_GLOBAL(ushort)
STRICT_GLOBAL(int)
STRICT_GLOBAL(uint)
STRICT_GLOBAL(long)
STRICT_GLOBAL(ulong)
STRICT_GLOBAL(half)
STRICT_GLOBAL(bfloat)
STRICT_GLOBAL(float)
#undef STRICT_GLOBAL

// A variable of a kernel in threadgroup memory: strict_check.py writes its declaration as a reference to one.
template <class T>
T& strict_threadgroup_variable();

#endif
