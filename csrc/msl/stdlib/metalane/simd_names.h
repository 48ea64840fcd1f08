// The names of <simd/simd.h>, which headers shared with an application use: simd_float4, vector_float4,
// simd::float4, matrix_float4x4.
#ifndef METALANE_STDLIB_SIMD_NAMES_H
#define METALANE_STDLIB_SIMD_NAMES_H

#include "matrix.h"

#define METALANE_SIMD_VECTOR(T, n)      \
  namespace simd {                      \
  using metal::T##n;                    \
  }                                     \
  using simd_##T##n = metal::vec<T, n>; \
  using vector_##T##n = metal::vec<T, n>;
#define METALANE_SIMD_VECTORS(T) \
  METALANE_SIMD_VECTOR(T, 2)     \
  METALANE_SIMD_VECTOR(T, 3)     \
  METALANE_SIMD_VECTOR(T, 4)
METALANE_SIMD_VECTORS(char)
METALANE_SIMD_VECTORS(uchar)
METALANE_SIMD_VECTORS(short)
METALANE_SIMD_VECTORS(ushort)
METALANE_SIMD_VECTORS(int)
METALANE_SIMD_VECTORS(uint)
METALANE_SIMD_VECTORS(long)
METALANE_SIMD_VECTORS(ulong)
METALANE_SIMD_VECTORS(half)
METALANE_SIMD_VECTORS(float)
#undef METALANE_SIMD_VECTORS
#undef METALANE_SIMD_VECTOR

#define METALANE_SIMD_MATRIX(T, columns, rows)                        \
  namespace simd {                                                    \
  using metal::T##columns##x##rows;                                   \
  }                                                                   \
  using simd_##T##columns##x##rows = metal::matrix<T, columns, rows>; \
  using matrix_##T##columns##x##rows = metal::matrix<T, columns, rows>;
#define METALANE_SIMD_MATRICES(T) \
  METALANE_SIMD_MATRIX(T, 2, 2)   \
  METALANE_SIMD_MATRIX(T, 2, 3)   \
  METALANE_SIMD_MATRIX(T, 2, 4)   \
  METALANE_SIMD_MATRIX(T, 3, 2)   \
  METALANE_SIMD_MATRIX(T, 3, 3)   \
  METALANE_SIMD_MATRIX(T, 3, 4)   \
  METALANE_SIMD_MATRIX(T, 4, 2)   \
  METALANE_SIMD_MATRIX(T, 4, 3)   \
  METALANE_SIMD_MATRIX(T, 4, 4)
METALANE_SIMD_MATRICES(half)
METALANE_SIMD_MATRICES(float)
#undef METALANE_SIMD_MATRICES
#undef METALANE_SIMD_MATRIX

#endif
