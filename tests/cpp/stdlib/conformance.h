// Runs one expression of metal_stdlib over arrays, on scalars and on vectors; test_stdlib.py writes the
// cases.
#pragma once

#include <metal_stdlib>

namespace conformance {

template <class T, int N, class P>
metal::vec<T, N> load(const P* values) {
  metal::vec<T, N> result{};
  for (int i = 0; i < N; ++i) result[i] = values[i];
  return result;
}

// `count` is a multiple of N.
template <int N, class F, class T, class R>
void run_vectors(F f, const T* a, const T* b, const T* c, R* out, int count) {
  for (int i = 0; i < count; i += N) {
    const auto result = f(load<T, N>(a + i), load<T, N>(b + i), load<T, N>(c + i));
    static_assert(sizeof(result) == sizeof(metal::vec<R, N>), "a vector of the expected type");
    for (int j = 0; j < N; ++j) out[i + j] = result[j];
  }
}

template <class F, class T, class R>
void run(F f, const T* a, const T* b, const T* c, R* out, int count, int width) {
  switch (width) {
    case 2:
      return run_vectors<2>(f, a, b, c, out, count);
    case 3:
      return run_vectors<3>(f, a, b, c, out, count);
    case 4:
      return run_vectors<4>(f, a, b, c, out, count);
    default:
      for (int i = 0; i < count; ++i) out[i] = f(a[i], b[i], c[i]);
  }
}

}  // namespace conformance

#define CONFORMANCE_CASE(name, T, R, ...)                                                                  \
  extern "C" __attribute__((visibility("default"))) void name(const T* a, const T* b, const T* c, R* out,  \
                                                              int count, int width) {                      \
    using namespace metal;                                                                                 \
    conformance::run([](auto x, auto y, auto z) { return (void)y, (void)z, (__VA_ARGS__); }, a, b, c, out, \
                     count, width);                                                                        \
  }
