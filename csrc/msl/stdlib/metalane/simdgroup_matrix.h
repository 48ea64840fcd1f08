// metal_simdgroup_matrix: 8x8 matrices spread over the lanes of a simdgroup, two elements a lane.
//
// Lane l holds row (l / 16) * 4 + (l / 2) % 4, columns c and c + 1 with c = (l / 8 % 2) * 4 + (l % 2) * 2:
// the layout that Apple's GPUs have and that kernels rely on through thread_elements(). Load and store touch
// only their lane's elements and wait for nobody; products are collectives.
#ifndef METALANE_STDLIB_SIMDGROUP_MATRIX_H
#define METALANE_STDLIB_SIMDGROUP_MATRIX_H

#include "lanes.h"

METALANE_STDLIB_BEGIN
namespace detail {

constexpr int matrix_row(int lane) { return lane / 16 * 4 + lane / 2 % 4; }
constexpr int matrix_column(int lane) { return lane / 8 % 2 * 4 + lane % 2 * 2; }

}  // namespace detail

template <class T, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "a simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "a simdgroup_matrix is of float, half or bfloat");
  using storage_type = vec<T, 2>;

  simdgroup_matrix() = default;
  // `value` on the diagonal, zeros elsewhere.
  explicit simdgroup_matrix(T value) {
    const int lane = int(detail::current_lane());
    const int row = detail::matrix_row(lane), column = detail::matrix_column(lane);
    elements_ = storage_type(row == column ? value : T(0), row == column + 1 ? value : T(0));
  }
  // The calling lane's two elements, neighbours in a row.
  storage_type& thread_elements() { return elements_; }
  const storage_type& thread_elements() const { return elements_; }

 private:
  storage_type elements_;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int Cols, int Rows = Cols>
simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(detail::identity_t<T> value) {
  simdgroup_matrix<T, Cols, Rows> result;
  result.thread_elements() = vec<T, 2>(value);
  return result;
}
template <class T, int Cols, int Rows = Cols>
simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(detail::identity_t<T> value) {
  return simdgroup_matrix<T, Cols, Rows>(value);
}

namespace detail {

// Where the calling lane's element number `i` is in memory.
inline ulong element_offset(int i, ulong elements_per_row, ulong2 origin, bool transpose) {
  const int lane = int(current_lane());
  const ulong row = ulong(matrix_row(lane)), column = ulong(matrix_column(lane) + i);
  return (origin.y + (transpose ? column : row)) * elements_per_row + origin.x + (transpose ? row : column);
}

}  // namespace detail

// Memory is row-major, `elements_per_row` apart; the matrix starts at column origin.x of row origin.y.
// transpose: rows and columns of the matrix change places, not those of memory.
template <class T, class U>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, const U* source, ulong elements_per_row = 8,
                    ulong2 origin = 0, bool transpose = false) {
  static_assert(is_same_v<T, remove_cv_t<U>>, "simdgroup_load takes a pointer to the matrix's element type");
  for (int i = 0; i < 2; ++i) {
    matrix.thread_elements()[i] = source[detail::element_offset(i, elements_per_row, origin, transpose)];
  }
}
template <class T, class U>
void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, U* destination, ulong elements_per_row = 8,
                     ulong2 origin = 0, bool transpose = false) {
  static_assert(is_same_v<T, remove_cv_t<U>>, "simdgroup_store takes a pointer to the matrix's element type");
  for (int i = 0; i < 2; ++i) {
    destination[detail::element_offset(i, elements_per_row, origin, transpose)] = matrix.thread_elements()[i];
  }
}
namespace detail {

// A matrix is loaded and stored by all lanes at once on a GPU, and sources leave out the barrier between that
// and other use of the same threadgroup memory: lanes meet before a load from there and after a store.
inline void meet_for(site where, const void* memory) {
#if defined(METALANE_CHECK)
  constexpr ulong threadgroup_memory_limit = ulong(METALANE_CHECK_PITCH) << 10;
#else
  constexpr ulong threadgroup_memory_limit = 32 * 1024;
#endif
  const ulong offset = ulong(memory) - ulong(current_group()->threadgroup_memory);
  if (offset < threadgroup_memory_limit) meet(where);
}

// The site of a load before which lanes have met.
struct met_site {
  uint index;
};

}  // namespace detail

template <class M, class U, class... Rest>
void simdgroup_load(detail::site where, M& matrix, const U* source, const Rest&... rest) {
  detail::meet_for(where, source);
  simdgroup_load(matrix, source, rest...);
}
template <class M, class U, class... Rest>
void simdgroup_load(detail::met_site, M& matrix, const U* source, const Rest&... rest) {
  simdgroup_load(matrix, source, rest...);
}
template <class M, class U, class... Rest>
void simdgroup_store(detail::site where, const M& matrix, U* destination, const Rest&... rest) {
  simdgroup_store(matrix, destination, rest...);
  detail::meet_for(where, destination);
}

namespace detail {

template <class A, class B, class C>
struct matrix_operand {
  vec<A, 2> a;
  vec<B, 2> b;
  vec<C, 2> c;
};

// d = a * b + c. Sums are kept in float, start from c and run over k in order, each product and sum rounded;
// elements of lanes that are not active count as zero.
template <class D, class A, class B, class C>
void combine_matrix_product(const metalane_lanes* lanes) {
  using Operand = matrix_operand<A, B, C>;
  Operand operands[simd_width];
  gather(lanes, operands, Operand{vec<A, 2>(0), vec<B, 2>(0), vec<C, 2>(0)});
  float a[8][8], b[8][8], d[8][8];
  for (int lane = 0; lane < simd_width; ++lane) {
    const int row = matrix_row(lane), column = matrix_column(lane);
    for (int i = 0; i < 2; ++i) {
      a[row][column + i] = float(operands[lane].a.data[i]);
      b[row][column + i] = float(operands[lane].b.data[i]);
      d[row][column + i] = float(operands[lane].c.data[i]);
    }
  }
  for (int row = 0; row < 8; ++row) {
    for (int k = 0; k < 8; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for_active(lanes, [&](int lane) {
    const int row = matrix_row(lane), column = matrix_column(lane);
    put(lanes, lane, vec<D, 2>(D(d[row][column]), D(d[row][column + 1])));
  });
}

}  // namespace detail

template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(detail::site where, simdgroup_matrix<D, 8, 8>& d,
                                   const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b,
                                   const simdgroup_matrix<C, 8, 8>& c) {
  const detail::matrix_operand<A, B, C> operand = {a.thread_elements(), b.thread_elements(),
                                                   c.thread_elements()};
  d.thread_elements() =
      detail::rendezvous<vec<D, 2>>(where, operand, detail::combine_matrix_product<D, A, B, C>);
}
template <class D, class A, class B>
void simdgroup_multiply(detail::site where, simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                        const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(where, d, a, b, make_filled_simdgroup_matrix<D, 8>(D(0)));
}

METALANE_STDLIB_END

#endif
