// metal_geometric: dot products, lengths and directions of vectors.
#ifndef METALANE_STDLIB_GEOMETRIC_H
#define METALANE_STDLIB_GEOMETRIC_H

#include "math.h"

METALANE_STDLIB_BEGIN
namespace detail {

template <class... A>
using vector_t = enable_if_t<is_vec<common_t<A...>>, common_t<A...>>;

// Component by component in order; half and bfloat in float.
template <class T, int N>
constexpr accumulator_t<T> dot_product(const vec<T, N>& a, const vec<T, N>& b) {
  using Sum = accumulator_t<T>;
  Sum sum = Sum(a.data[0]) * Sum(b.data[0]);
  for (int i = 1; i < N; ++i) sum = Sum(sum + Sum(a.data[i]) * Sum(b.data[i]));
  return sum;
}

}  // namespace detail

template <class A, class B, class V = detail::vector_t<A, B>>
constexpr detail::element_t<V> dot(const A& a, const B& b) {
  return detail::element_t<V>(detail::dot_product(V(a), V(b)));
}
template <class A, class V = detail::vector_t<A>>
constexpr detail::element_t<V> length_squared(const A& a) {
  return dot(a, a);
}
template <class A, class V = detail::vector_t<A>>
inline detail::element_t<V> length(const A& a) {
  return detail::element_t<V>(__builtin_sqrtf(detail::dot_product(V(a), V(a))));
}
template <class A, class B, class V = detail::vector_t<A, B>>
constexpr detail::element_t<V> distance_squared(const A& a, const B& b) {
  return length_squared(V(a) - V(b));
}
template <class A, class B, class V = detail::vector_t<A, B>>
inline detail::element_t<V> distance(const A& a, const B& b) {
  return length(V(a) - V(b));
}
template <class A, class V = detail::vector_t<A>>
inline V normalize(const A& a) {
  const V v(a);
  const float scale = 1.0f / __builtin_sqrtf(detail::dot_product(v, v));
  return detail::map<V>([=](auto x) { return decltype(x)(float(x) * scale); }, v);
}
template <class A, class B, class V = detail::vector_t<A, B>>
constexpr V cross(const A& a, const B& b) {
  static_assert(V::size == 3, "cross takes vectors of three components");
  const V p(a), q(b);
  using T = detail::element_t<V>;
  return V(T(p.data[1] * q.data[2] - p.data[2] * q.data[1]), T(p.data[2] * q.data[0] - p.data[0] * q.data[2]),
           T(p.data[0] * q.data[1] - p.data[1] * q.data[0]));
}
template <class A, class B, class C, class V = detail::vector_t<A, B, C>>
constexpr V faceforward(const A& n, const B& incident, const C& reference) {
  return dot(reference, incident) < detail::element_t<V>(0) ? V(n) : -V(n);
}
template <class A, class B, class V = detail::vector_t<A, B>>
constexpr V reflect(const A& incident, const B& n) {
  return V(incident) - V(n) * V(detail::element_t<V>(2) * dot(n, incident));
}
template <class A, class B, class V = detail::vector_t<A, B>>
inline V refract(const A& incident, const B& n, detail::identity_t<detail::element_t<V>> eta) {
  using T = detail::element_t<V>;
  const float cosine = float(dot(n, incident));
  const float ratio = float(eta);
  const float k = 1.0f - ratio * ratio * (1.0f - cosine * cosine);
  if (k < 0.0f) return V(0);
  return V(incident) * V(eta) - V(n) * V(T(ratio * cosine + __builtin_sqrtf(k)));
}

#define METALANE_GEOMETRIC_NAMES           \
  using METALANE_ISA_NS::cross;            \
  using METALANE_ISA_NS::distance;         \
  using METALANE_ISA_NS::distance_squared; \
  using METALANE_ISA_NS::dot;              \
  using METALANE_ISA_NS::faceforward;      \
  using METALANE_ISA_NS::length;           \
  using METALANE_ISA_NS::length_squared;   \
  using METALANE_ISA_NS::normalize;        \
  using METALANE_ISA_NS::reflect;          \
  using METALANE_ISA_NS::refract;
namespace precise {
METALANE_GEOMETRIC_NAMES
}
namespace fast {
METALANE_GEOMETRIC_NAMES
}
#undef METALANE_GEOMETRIC_NAMES

METALANE_STDLIB_END

#endif
