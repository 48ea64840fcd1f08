// Lossless verification of drafted tokens: parameter struct and limits. Included by the shader and by C++;
// Python's dataclass is compared with it field by field.
#ifndef METALANE_PARAMS_SPECULATIVE_VERIFY_H
#define METALANE_PARAMS_SPECULATIVE_VERIFY_H

#include <metalane/params_abi.h>

#define SPECULATIVE_SHARD 16384  // tokens of a row that one threadgroup reads
#define SPECULATIVE_SHARD_THREADS 64
#define SPECULATIVE_LANE_THREADS 256
#define SPECULATIVE_MAX_ROWS 256        // one thread tests one drafted token
#define SPECULATIVE_MAX_CANDIDATES 256  // one thread keeps one
#define SPECULATIVE_NO_TOKEN 0xffffffffu

METALANE_PARAMS_BEGIN

struct SpeculativeVerifyParams {
  uint32_t lanes;
  uint32_t rows_per_lane;
  uint32_t vocabulary;
  uint32_t candidates;
};

METALANE_PARAMS_END

#endif
