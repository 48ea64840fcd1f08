// Places where a source counts on the lanes of a simdgroup to run in step.
#pragma once

#include <unordered_set>

#include "msl/syntax.h"

namespace metalane::msl {

// On a GPU the lanes of a simdgroup execute one instruction together, and shipped kernels count on it where
// one lane writes threadgroup memory with no barrier on either side:
//
//   sum += scores[lane];
//   if (lane == 0) scores[0] = maximum;  // others have read it
//   scale = scores[0];                   // and read it again
//
// Here lanes run one after another up to the next barrier or collective, the highest first: lane 0, which
// such places pick, writes behind the reads of all others. For what they read afterwards the lanes meet
// behind an `if` with a comparison with zero that writes threadgroup memory, and around loads and stores of
// matrices there (stdlib/metalane/simdgroup_matrix.h). A meeting is always allowed: lanes that are elsewhere
// are not waited for.
class Lockstep {
 public:
  explicit Lockstep(const Unit& unit);
  // Whether lanes meet before the statement that begins at `i`.
  bool meets_at(Index i) const { return meetings_.count(i) != 0; }
  // Whether lanes have met before the simdgroup_load at `i`: behind a barrier or another load.
  bool has_met(Index i) const { return met_loads_.count(i) != 0; }

 private:
  void meet_behind_writers();
  void meet_before_loads();
  bool picks_lane(Range condition) const;
  bool is_barrier(Index i) const;
  bool follows_meeting(Index i) const;

  const Unit& unit_;
  std::unordered_set<Index> meetings_;
  std::unordered_set<Index> met_loads_;
};

}  // namespace metalane::msl
