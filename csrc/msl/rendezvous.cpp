// Names of rendezvous, and what their calls look like.
#include "msl/rendezvous.h"

#include <unordered_set>

namespace metalane::msl {

bool is_rendezvous(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {"threadgroup_barrier",
                                                             "simdgroup_barrier",
                                                             "__metal_wait_simdgroup_events",
                                                             "simd_sum",
                                                             "simd_product",
                                                             "simd_min",
                                                             "simd_max",
                                                             "simd_and",
                                                             "simd_or",
                                                             "simd_xor",
                                                             "simd_prefix_inclusive_sum",
                                                             "simd_prefix_exclusive_sum",
                                                             "simd_prefix_inclusive_product",
                                                             "simd_prefix_exclusive_product",
                                                             "simd_broadcast",
                                                             "simd_broadcast_first",
                                                             "simd_shuffle",
                                                             "simd_shuffle_up",
                                                             "simd_shuffle_down",
                                                             "simd_shuffle_xor",
                                                             "simd_shuffle_rotate_up",
                                                             "simd_shuffle_rotate_down",
                                                             "simd_shuffle_and_fill_up",
                                                             "simd_shuffle_and_fill_down",
                                                             "simd_ballot",
                                                             "simd_all",
                                                             "simd_any",
                                                             "simd_is_first",
                                                             "simd_active_threads_mask",
                                                             "quad_sum",
                                                             "quad_product",
                                                             "quad_min",
                                                             "quad_max",
                                                             "quad_and",
                                                             "quad_or",
                                                             "quad_xor",
                                                             "quad_prefix_inclusive_sum",
                                                             "quad_prefix_exclusive_sum",
                                                             "quad_prefix_inclusive_product",
                                                             "quad_prefix_exclusive_product",
                                                             "quad_broadcast",
                                                             "quad_broadcast_first",
                                                             "quad_shuffle",
                                                             "quad_shuffle_up",
                                                             "quad_shuffle_down",
                                                             "quad_shuffle_xor",
                                                             "quad_shuffle_rotate_up",
                                                             "quad_shuffle_rotate_down",
                                                             "quad_shuffle_and_fill_up",
                                                             "quad_shuffle_and_fill_down",
                                                             "quad_ballot",
                                                             "quad_all",
                                                             "quad_any",
                                                             "quad_is_first",
                                                             "quad_active_threads_mask",
                                                             "simdgroup_load",
                                                             "simdgroup_store",
                                                             "simdgroup_multiply",
                                                             "simdgroup_multiply_accumulate"};
  return names.count(name) != 0;
}

bool is_threadgroup_barrier(std::string_view name) { return name == "threadgroup_barrier"; }

bool is_matrix_access(std::string_view name) { return name == "simdgroup_load" || name == "simdgroup_store"; }

Index call_parenthesis(const Unit& unit, Index i) {
  Index open = i + 1;
  if (unit.is_at(open, "<") && unit.match(open) != no_index) open = unit.match(open) + 1;
  return unit.is_at(open, "(") ? open : no_index;
}

bool declares_next(const Token& token) {
  static const std::unordered_set<std::string_view> words = {"return",   "else", "do",  "case",
                                                             "template", "not",  "and", "or"};
  return token.is_identifier() && words.count(token.text) == 0;
}

}  // namespace metalane::msl
