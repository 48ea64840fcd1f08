// DFlash2 selector: parameter structs, slot numbers and constants. Included by the shader, by C++ and by
// the native CPU kernels; Python's dataclasses are compared with it field by field.
#ifndef METALANE_PARAMS_DFLASH2_SELECTOR_H
#define METALANE_PARAMS_DFLASH2_SELECTOR_H

#include <metalane/params_abi.h>

#define DFLASH2_MAX_LANES 4
#define DFLASH2_SHARDS 8
#define DFLASH2_CANDIDATES 16
#define DFLASH2_SELECTOR_RANK 256
#define DFLASH2_MAX_POSITIONS 15
#define DFLASH2_VERIFY_COSTS 65

METALANE_PARAMS_BEGIN

struct DFlash2SelectorParams {
  uint32_t anchor[DFLASH2_MAX_LANES];
  float temperature[DFLASH2_MAX_LANES];
  uint32_t lanes;
  uint32_t rows_per_lane;
  uint32_t vocabulary;
  uint32_t sampling_mask;
};

struct DFlash2VerifyRowsParams {
  float slope;
  float intercept[DFLASH2_MAX_POSITIONS];
  float cost[DFLASH2_VERIFY_COSTS - 1];
  float cost_64;
  uint32_t lanes;
  uint32_t rows_per_lane;
  uint32_t every_row;
  uint32_t maximum[DFLASH2_MAX_LANES];
};

METALANE_PARAMS_END

#endif
