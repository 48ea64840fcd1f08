// Rows of a verification packed one behind another: parameter structs and limits. Included by the shader and
// by C++; Python's dataclasses are compared with it field by field.
#ifndef METALANE_PARAMS_SPECULATIVE_ROWS_H
#define METALANE_PARAMS_SPECULATIVE_ROWS_H

#include <metalane/params_abi.h>

#define SPECULATIVE_ROWS_THREADS 256
#define SPECULATIVE_ROWS_MAX_GRIDS 16
#define SPECULATIVE_ROWS_NOWHERE 0xffffffffu
#define SCATTER_ROWS_ELEMENTS 1024  // of a row that one threadgroup copies

METALANE_PARAMS_BEGIN

struct SpeculativeRowsParams {
  uint32_t lanes;
  uint32_t rows_per_lane;
  uint32_t n_grids;
  uint32_t padding;
  uint32_t weight_tiles[SPECULATIVE_ROWS_MAX_GRIDS];
  uint32_t input_rows[SPECULATIVE_ROWS_MAX_GRIDS];
};

struct ScatterRowsParams {
  uint32_t row_length;
  uint32_t rows;
};

METALANE_PARAMS_END

#endif
