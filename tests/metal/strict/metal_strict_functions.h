// Functions of metal_stdlib for metal_strict.h: each by the exact types that Metal overloads it for, so that
// calls which are ambiguous there are so here.
#ifndef METAL_STRICT_FUNCTIONS_H
#define METAL_STRICT_FUNCTIONS_H

namespace metal {

#define STRICT_SIZES(F, name, T) F(name, T) F(name, T##2) F(name, T##3) F(name, T##4)
#define STRICT_VECTORS(F, name, T) F(name, T##2) F(name, T##3) F(name, T##4)
#define STRICT_REALS(F, name) \
  STRICT_SIZES(F, name, float) STRICT_SIZES(F, name, half) STRICT_SIZES(F, name, bfloat)
#define STRICT_INTEGERS(F, name) \
  STRICT_SIZES(F, name, char)    \
  STRICT_SIZES(F, name, uchar)   \
  STRICT_SIZES(F, name, short)   \
  STRICT_SIZES(F, name, ushort)  \
  STRICT_SIZES(F, name, int)     \
  STRICT_SIZES(F, name, uint)    \
  STRICT_SIZES(F, name, long)    \
  STRICT_SIZES(F, name, ulong)
#define STRICT_INTEGER_VECTORS(F, name) \
  STRICT_VECTORS(F, name, char)         \
  STRICT_VECTORS(F, name, uchar)        \
  STRICT_VECTORS(F, name, short)        \
  STRICT_VECTORS(F, name, ushort)       \
  STRICT_VECTORS(F, name, int)          \
  STRICT_VECTORS(F, name, uint)         \
  STRICT_VECTORS(F, name, long)         \
  STRICT_VECTORS(F, name, ulong)
#define STRICT_REAL_VECTORS(F, name) \
  STRICT_VECTORS(F, name, float) STRICT_VECTORS(F, name, half) STRICT_VECTORS(F, name, bfloat)

// Operators of vectors.
template <class V>
struct with_bool;
template <class T, int N>
struct with_bool<vec<T, N>> {
  typedef vec<bool, N> type;
};
#define STRICT_OPERATOR(name, V) V operator name(V, V);
#define STRICT_COMPARISON(name, V) typename with_bool<V>::type operator name(V, V);
#define STRICT_UNARY(name, V) V operator name(V);
#define STRICT_ASSIGNMENT(name, V)                         \
  __private V& operator name(__private V&, identity_t<V>); \
  __global V& operator name(__global V&, identity_t<V>);   \
  __local V& operator name(__local V&, identity_t<V>);
#define STRICT_NUMBER_OPERATORS(VECTORS) \
  VECTORS(STRICT_OPERATOR, +)            \
  VECTORS(STRICT_OPERATOR, -)            \
  VECTORS(STRICT_OPERATOR, *)            \
  VECTORS(STRICT_OPERATOR, /)            \
  VECTORS(STRICT_UNARY, -)               \
  VECTORS(STRICT_ASSIGNMENT, +=)         \
  VECTORS(STRICT_ASSIGNMENT, -=)         \
  VECTORS(STRICT_ASSIGNMENT, *=)         \
  VECTORS(STRICT_ASSIGNMENT, /=)         \
  VECTORS(STRICT_COMPARISON, <)          \
  VECTORS(STRICT_COMPARISON, <=)         \
  VECTORS(STRICT_COMPARISON, >)          \
  VECTORS(STRICT_COMPARISON, >=)         \
  VECTORS(STRICT_COMPARISON, ==)         \
  VECTORS(STRICT_COMPARISON, !=)
STRICT_NUMBER_OPERATORS(STRICT_REAL_VECTORS)
STRICT_NUMBER_OPERATORS(STRICT_INTEGER_VECTORS)
#define STRICT_BIT_OPERATORS(VECTORS) \
  VECTORS(STRICT_OPERATOR, %)         \
  VECTORS(STRICT_OPERATOR, &)         \
  VECTORS(STRICT_OPERATOR, |)         \
  VECTORS(STRICT_OPERATOR, ^)         \
  VECTORS(STRICT_OPERATOR, <<)        \
  VECTORS(STRICT_OPERATOR, >>)        \
  VECTORS(STRICT_UNARY, ~)            \
  VECTORS(STRICT_ASSIGNMENT, %=)      \
  VECTORS(STRICT_ASSIGNMENT, &=)      \
  VECTORS(STRICT_ASSIGNMENT, |=)      \
  VECTORS(STRICT_ASSIGNMENT, ^=)      \
  VECTORS(STRICT_ASSIGNMENT, <<=)     \
  VECTORS(STRICT_ASSIGNMENT, >>=)
STRICT_BIT_OPERATORS(STRICT_INTEGER_VECTORS)
#define STRICT_BOOL_VECTORS(F, name) STRICT_VECTORS(F, name, bool)
STRICT_BOOL_VECTORS(STRICT_OPERATOR, &)
STRICT_BOOL_VECTORS(STRICT_OPERATOR, |)
STRICT_BOOL_VECTORS(STRICT_OPERATOR, &&)
STRICT_BOOL_VECTORS(STRICT_OPERATOR, ||)
STRICT_BOOL_VECTORS(STRICT_UNARY, !)
STRICT_BOOL_VECTORS(STRICT_OPERATOR, ==)
STRICT_BOOL_VECTORS(STRICT_OPERATOR, !=)

// metal_math, metal_common, metal_integer, metal_relational.
#define STRICT_1(name, V) V name(V);
#define STRICT_2(name, V) V name(V, V);
#define STRICT_3(name, V) V name(V, V, V);
#define STRICT_MATH                  \
  STRICT_REALS(STRICT_1, acos)       \
  STRICT_REALS(STRICT_1, acosh)      \
  STRICT_REALS(STRICT_1, asin)       \
  STRICT_REALS(STRICT_1, asinh)      \
  STRICT_REALS(STRICT_1, atan)       \
  STRICT_REALS(STRICT_1, atanh)      \
  STRICT_REALS(STRICT_1, ceil)       \
  STRICT_REALS(STRICT_1, cos)        \
  STRICT_REALS(STRICT_1, cosh)       \
  STRICT_REALS(STRICT_1, cospi)      \
  STRICT_REALS(STRICT_1, exp)        \
  STRICT_REALS(STRICT_1, exp2)       \
  STRICT_REALS(STRICT_1, exp10)      \
  STRICT_REALS(STRICT_1, fabs)       \
  STRICT_REALS(STRICT_1, floor)      \
  STRICT_REALS(STRICT_1, fract)      \
  STRICT_REALS(STRICT_1, log)        \
  STRICT_REALS(STRICT_1, log2)       \
  STRICT_REALS(STRICT_1, log10)      \
  STRICT_REALS(STRICT_1, rint)       \
  STRICT_REALS(STRICT_1, round)      \
  STRICT_REALS(STRICT_1, rsqrt)      \
  STRICT_REALS(STRICT_1, sin)        \
  STRICT_REALS(STRICT_1, sinh)       \
  STRICT_REALS(STRICT_1, sinpi)      \
  STRICT_REALS(STRICT_1, sqrt)       \
  STRICT_REALS(STRICT_1, tan)        \
  STRICT_REALS(STRICT_1, tanh)       \
  STRICT_REALS(STRICT_1, tanpi)      \
  STRICT_REALS(STRICT_1, trunc)      \
  STRICT_REALS(STRICT_1, saturate)   \
  STRICT_REALS(STRICT_1, sign)       \
  STRICT_REALS(STRICT_2, atan2)      \
  STRICT_REALS(STRICT_2, copysign)   \
  STRICT_REALS(STRICT_2, divide)     \
  STRICT_REALS(STRICT_2, fdim)       \
  STRICT_REALS(STRICT_2, fmax)       \
  STRICT_REALS(STRICT_2, fmin)       \
  STRICT_REALS(STRICT_2, fmod)       \
  STRICT_REALS(STRICT_2, pow)        \
  STRICT_REALS(STRICT_2, powr)       \
  STRICT_REALS(STRICT_2, step)       \
  STRICT_REALS(STRICT_2, nextafter)  \
  STRICT_REALS(STRICT_3, fma)        \
  STRICT_REALS(STRICT_3, mix)        \
  STRICT_REALS(STRICT_3, smoothstep) \
  STRICT_REALS(STRICT_3, fmedian3)   \
  STRICT_REALS(STRICT_3, fmin3)      \
  STRICT_REALS(STRICT_3, fmax3)

STRICT_MATH
namespace fast {
STRICT_MATH
STRICT_REALS(STRICT_1, abs)
STRICT_REALS(STRICT_2, max)
STRICT_REALS(STRICT_2, min)
STRICT_REALS(STRICT_3, clamp)
}  // namespace fast
namespace precise {
STRICT_MATH
STRICT_REALS(STRICT_1, abs)
STRICT_REALS(STRICT_2, max)
STRICT_REALS(STRICT_2, min)
STRICT_REALS(STRICT_3, clamp)
}  // namespace precise
STRICT_REALS(STRICT_1, abs)
STRICT_INTEGERS(STRICT_1, abs)
STRICT_REALS(STRICT_2, max)
STRICT_INTEGERS(STRICT_2, max)
STRICT_REALS(STRICT_2, min)
STRICT_INTEGERS(STRICT_2, min)
STRICT_REALS(STRICT_3, clamp)
STRICT_INTEGERS(STRICT_3, clamp)
STRICT_REALS(STRICT_3, max3)
STRICT_INTEGERS(STRICT_3, max3)
STRICT_REALS(STRICT_3, median3)
STRICT_INTEGERS(STRICT_3, median3)
STRICT_REALS(STRICT_3, min3)
STRICT_INTEGERS(STRICT_3, min3)
STRICT_INTEGERS(STRICT_1, clz)
STRICT_INTEGERS(STRICT_1, ctz)
STRICT_INTEGERS(STRICT_1, popcount)
STRICT_INTEGERS(STRICT_1, reverse_bits)
STRICT_INTEGERS(STRICT_2, absdiff)
STRICT_INTEGERS(STRICT_2, addsat)
STRICT_INTEGERS(STRICT_2, hadd)
STRICT_INTEGERS(STRICT_2, mulhi)
STRICT_INTEGERS(STRICT_2, rhadd)
STRICT_INTEGERS(STRICT_2, rotate)
STRICT_INTEGERS(STRICT_2, subsat)
STRICT_INTEGERS(STRICT_3, madhi)
STRICT_INTEGERS(STRICT_3, madsat)
#define STRICT_WITH_BOOL(name, V) V name(V, V, typename with_bool<V>::type);
STRICT_REAL_VECTORS(STRICT_WITH_BOOL, select)
STRICT_INTEGER_VECTORS(STRICT_WITH_BOOL, select)
template <class T>
T select(T, identity_t<T>, bool);
#define STRICT_TEST(name, V) typename with_bool<V>::type name(V);
#define STRICT_TESTS(name) \
  bool name(float);        \
  bool name(half);         \
  bool name(bfloat);       \
  STRICT_REAL_VECTORS(STRICT_TEST, name)
STRICT_TESTS(isnan)
STRICT_TESTS(isinf)
STRICT_TESTS(isfinite)
STRICT_TESTS(isnormal)
STRICT_TESTS(signbit)
template <int N>
bool all(vec<bool, N>);
template <int N>
bool any(vec<bool, N>);
template <class T, int N>
T dot(vec<T, N>, vec<T, N>);
template <class T, int N>
T length(vec<T, N>);
template <class T, int N>
vec<T, N> normalize(vec<T, N>);
template <class T>
vec<T, 3> cross(vec<T, 3>, vec<T, 3>);
template <class To, class From, class = enable_if_t<sizeof(To) == sizeof(From)>>
To as_type(From);
template <class T>
T extract_bits(T, uint offset, uint bits);
template <class T>
T insert_bits(T base, identity_t<T> insert, uint offset, uint bits);
template <class T, class E>
T ldexp(T, E);
float modf(float, __private float&);
half modf(half, __private half&);
float frexp(float, __private int&);
float sincos(float, __private float& cosine);

template <class T>
struct numeric_limits {
  static constexpr T min() { return T(); }
  static constexpr T max() { return T(); }
  static constexpr T lowest() { return T(); }
  static constexpr T epsilon() { return T(); }
  static constexpr T infinity() { return T(); }
  static constexpr T quiet_NaN() { return T(); }
};

// What threads of a threadgroup do together.
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define STRICT_COLLECTIVE(name) \
  template <class T>            \
  T name(T);
#define STRICT_COLLECTIVES(prefix)                     \
  STRICT_COLLECTIVE(prefix##_sum)                      \
  STRICT_COLLECTIVE(prefix##_product)                  \
  STRICT_COLLECTIVE(prefix##_min)                      \
  STRICT_COLLECTIVE(prefix##_max)                      \
  STRICT_COLLECTIVE(prefix##_and)                      \
  STRICT_COLLECTIVE(prefix##_or)                       \
  STRICT_COLLECTIVE(prefix##_xor)                      \
  STRICT_COLLECTIVE(prefix##_broadcast_first)          \
  STRICT_COLLECTIVE(prefix##_prefix_inclusive_sum)     \
  STRICT_COLLECTIVE(prefix##_prefix_exclusive_sum)     \
  STRICT_COLLECTIVE(prefix##_prefix_inclusive_product) \
  STRICT_COLLECTIVE(prefix##_prefix_exclusive_product) \
  STRICT_SHUFFLE(prefix##_broadcast)                   \
  STRICT_SHUFFLE(prefix##_shuffle)                     \
  STRICT_SHUFFLE(prefix##_shuffle_down)                \
  STRICT_SHUFFLE(prefix##_shuffle_up)                  \
  STRICT_SHUFFLE(prefix##_shuffle_xor)                 \
  STRICT_SHUFFLE(prefix##_shuffle_rotate_down)         \
  STRICT_SHUFFLE(prefix##_shuffle_rotate_up)           \
  bool prefix##_all(bool);                             \
  bool prefix##_any(bool);                             \
  bool prefix##_is_first();
#define STRICT_SHUFFLE(name) \
  template <class T>         \
  T name(T, ushort);
STRICT_COLLECTIVES(simd)
STRICT_COLLECTIVES(quad)
template <class T>
T simd_shuffle_and_fill_down(T, T fill, ushort);
template <class T>
T simd_shuffle_and_fill_up(T, T fill, ushort);
struct simd_vote {
  operator ulong() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();

template <class T, int columns, int rows>
simdgroup_matrix<T, columns, rows> make_filled_simdgroup_matrix(identity_t<T>);
#define STRICT_MATRIX_MEMORY(space)                                                                     \
  template <class T>                                                                                    \
  void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const space T*, ulong elements_per_row = 8, \
                      ulong2 origin = ulong2(0), bool transpose = false);                               \
  template <class T>                                                                                    \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T*, ulong elements_per_row = 8,                 \
                       ulong2 origin = ulong2(0), bool transpose = false);
STRICT_MATRIX_MEMORY(__global)
STRICT_MATRIX_MEMORY(__local)
template <class D, class A, class B>
void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8>&, __private const simdgroup_matrix<A, 8, 8>&,
                        __private const simdgroup_matrix<B, 8, 8>&);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>&,
                                   __private const simdgroup_matrix<A, 8, 8>&,
                                   __private const simdgroup_matrix<B, 8, 8>&,
                                   __private const simdgroup_matrix<C, 8, 8>&);

// metal_atomic.
enum memory_order { memory_order_relaxed };
#define STRICT_ATOMICS(space)                                                                        \
  template <class T>                                                                                 \
  void atomic_store_explicit(volatile space atomic<T>*, identity_t<T>, memory_order);                \
  template <class T>                                                                                 \
  T atomic_load_explicit(const volatile space atomic<T>*, memory_order);                             \
  template <class T>                                                                                 \
  T atomic_exchange_explicit(volatile space atomic<T>*, identity_t<T>, memory_order);                \
  template <class T>                                                                                 \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, __private T*, identity_t<T>, \
                                             memory_order, memory_order);                            \
  STRICT_ATOMIC(space, add)                                                                          \
  STRICT_ATOMIC(space, and)                                                                          \
  STRICT_ATOMIC(space, max)                                                                          \
  STRICT_ATOMIC(space, min)                                                                          \
  STRICT_ATOMIC(space, or)                                                                           \
  STRICT_ATOMIC(space, sub)                                                                          \
  STRICT_ATOMIC(space, xor)
#define STRICT_ATOMIC(space, name) \
  template <class T>               \
  T atomic_fetch_##name##_explicit(volatile space atomic<T>*, identity_t<T>, memory_order);
STRICT_ATOMICS(__global)
STRICT_ATOMICS(__local)

}  // namespace metal

using metal::as_type;

#endif
