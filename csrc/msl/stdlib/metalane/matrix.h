// metal_matrix: matrices of float and half as columns, with their products, transpose and determinant.
#ifndef METALANE_STDLIB_MATRIX_H
#define METALANE_STDLIB_MATRIX_H

#include "geometric.h"

METALANE_STDLIB_BEGIN

template <class T, int Cols, int Rows = Cols>
struct matrix {
  static_assert(Cols >= 2 && Cols <= 4 && Rows >= 2 && Rows <= 4, "a matrix has 2 to 4 columns and rows");
  using column_type = vec<T, Rows>;
  column_type columns[Cols];

  matrix() = default;
  // The scalar on the diagonal, zeros elsewhere.
  template <class S, class = enable_if_t<detail::is_number<S>>>
  explicit constexpr matrix(S diagonal) : columns{} {
    for (int c = 0; c < Cols && c < Rows; ++c) columns[c].data[c] = T(diagonal);
  }
  // All columns, or all components column by column.
  template <class A, class B, class... Rest,
            class = enable_if_t<((detail::component_count<A> + detail::component_count<B>)+... +
                                 detail::component_count<Rest>) == Cols * Rows>>
  constexpr matrix(const A& a, const B& b, const Rest&... rest) : columns{} {
    int next = 0;
    append(next, a);
    append(next, b);
    (append(next, rest), ...);
  }
  // Columns in braces: float2x2 m = {{1, 2}, {3, 4}}.
  template <int N = Cols, class = enable_if_t<N == 2>>
  constexpr matrix(column_type a, column_type b) : columns{a, b} {}
  template <int N = Cols, class = enable_if_t<N == 3>>
  constexpr matrix(column_type a, column_type b, column_type c) : columns{a, b, c} {}
  template <int N = Cols, class = enable_if_t<N == 4>>
  constexpr matrix(column_type a, column_type b, column_type c, column_type d) : columns{a, b, c, d} {}
  template <class U, class = enable_if_t<!is_same_v<T, U>>>
  explicit constexpr matrix(const matrix<U, Cols, Rows>& other) : columns{} {
    for (int c = 0; c < Cols; ++c) columns[c] = column_type(other.columns[c]);
  }

  template <class I>
  constexpr column_type& operator[](I column) {
    return columns[column];
  }
  template <class I>
  constexpr const column_type& operator[](I column) const {
    return columns[column];
  }

  friend constexpr matrix operator+(matrix a, const matrix& b) {
    for (int c = 0; c < Cols; ++c) a.columns[c] += b.columns[c];
    return a;
  }
  friend constexpr matrix operator-(matrix a, const matrix& b) {
    for (int c = 0; c < Cols; ++c) a.columns[c] -= b.columns[c];
    return a;
  }
  friend constexpr matrix operator-(matrix a) {
    for (int c = 0; c < Cols; ++c) a.columns[c] = -a.columns[c];
    return a;
  }
  friend constexpr matrix operator*(matrix a, T scalar) {
    for (int c = 0; c < Cols; ++c) a.columns[c] *= scalar;
    return a;
  }
  friend constexpr matrix operator*(T scalar, const matrix& a) { return a * scalar; }
  friend constexpr column_type operator*(const matrix& a, const vec<T, Cols>& v) {
    column_type result = a.columns[0] * v.data[0];
    for (int c = 1; c < Cols; ++c) result += a.columns[c] * v.data[c];
    return result;
  }
  friend constexpr vec<T, Cols> operator*(const column_type& v, const matrix& a) {
    vec<T, Cols> result{};
    for (int c = 0; c < Cols; ++c) result.data[c] = dot(v, a.columns[c]);
    return result;
  }
  friend constexpr bool operator==(const matrix& a, const matrix& b) {
    bool equal = true;
    for (int c = 0; c < Cols; ++c) equal = equal && all(a.columns[c] == b.columns[c]);
    return equal;
  }
  friend constexpr bool operator!=(const matrix& a, const matrix& b) { return !(a == b); }
  constexpr matrix& operator+=(const matrix& b) { return *this = *this + b; }
  constexpr matrix& operator-=(const matrix& b) { return *this = *this - b; }
  constexpr matrix& operator*=(T scalar) { return *this = *this * scalar; }
  constexpr matrix& operator*=(const matrix<T, Cols, Cols>& b) { return *this = *this * b; }

 private:
  template <class A>
  constexpr void append(int& next, const A& a) {
    if constexpr (detail::is_number<A>) {
      columns[next / Rows].data[next % Rows] = T(a);
      ++next;
    } else {
      for (int i = 0; i < detail::component_count<A>; ++i, ++next) {
        columns[next / Rows].data[next % Rows] = T(a.data[i]);
      }
    }
  }
};

template <class T, int Inner, int Rows, int Cols>
constexpr matrix<T, Cols, Rows> operator*(const matrix<T, Inner, Rows>& a, const matrix<T, Cols, Inner>& b) {
  matrix<T, Cols, Rows> result{};
  for (int c = 0; c < Cols; ++c) result.columns[c] = a * b.columns[c];
  return result;
}

template <class T, int Cols, int Rows>
constexpr matrix<T, Rows, Cols> transpose(const matrix<T, Cols, Rows>& a) {
  matrix<T, Rows, Cols> result{};
  for (int c = 0; c < Cols; ++c) {
    for (int r = 0; r < Rows; ++r) result.columns[r].data[c] = a.columns[c].data[r];
  }
  return result;
}

namespace detail {

// Laplace expansion along the first column, in the accumulator's type.
template <class Sum, class T, int N>
constexpr Sum minor_determinant(const matrix<T, N, N>& m, int column, unsigned rows) {
  if (column == N) return Sum(1);
  Sum sum(0);
  bool negative = false;
  for (int r = 0; r < N; ++r) {
    if (((rows >> r) & 1u) == 0) continue;
    const Sum term =
        Sum(m.columns[column].data[r]) * minor_determinant<Sum>(m, column + 1, rows & ~(1u << r));
    sum = negative ? sum - term : sum + term;
    negative = !negative;
  }
  return sum;
}

}  // namespace detail

template <class T, int N>
constexpr T determinant(const matrix<T, N, N>& m) {
  return T(detail::minor_determinant<detail::accumulator_t<T>>(m, 0, (1u << N) - 1));
}

METALANE_STDLIB_END

#define METALANE_MATRIX_NAME(T, C, R) \
  METALANE_STDLIB_BEGIN               \
  using T##C##x##R = matrix<T, C, R>; \
  METALANE_STDLIB_END                 \
  using metal::T##C##x##R;
#define METALANE_MATRIX_NAMES(T) \
  METALANE_MATRIX_NAME(T, 2, 2)  \
  METALANE_MATRIX_NAME(T, 2, 3)  \
  METALANE_MATRIX_NAME(T, 2, 4)  \
  METALANE_MATRIX_NAME(T, 3, 2)  \
  METALANE_MATRIX_NAME(T, 3, 3)  \
  METALANE_MATRIX_NAME(T, 3, 4)  \
  METALANE_MATRIX_NAME(T, 4, 2)  \
  METALANE_MATRIX_NAME(T, 4, 3)  \
  METALANE_MATRIX_NAME(T, 4, 4)
METALANE_MATRIX_NAMES(float)
METALANE_MATRIX_NAMES(half)
#undef METALANE_MATRIX_NAMES
#undef METALANE_MATRIX_NAME

#endif
