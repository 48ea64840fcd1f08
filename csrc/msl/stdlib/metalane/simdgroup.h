// metal_simdgroup, the quadgroup functions and barriers: everything at which threads wait for each other.
//
// simd_* functions work on the active lanes of a simdgroup of 32, quad_* functions on those of each four
// lanes. The adapter gives each call its place in the text as first argument. A lane that is asked for but
// not active or not there yields the asking lane's own value; shuffles up and down leave the lanes at the
// edge unchanged.
#ifndef METALANE_STDLIB_SIMDGROUP_H
#define METALANE_STDLIB_SIMDGROUP_H

#include "lanes.h"

METALANE_STDLIB_BEGIN

inline void threadgroup_barrier(detail::site where, mem_flags flags, memory_order = memory_order_seq_cst,
                                thread_scope = thread_scope_threadgroup) {
  detail::note_barrier(where.index, uint(flags));
  detail::runtime()->threadgroup_barrier(detail::current_group(), where.index);
}
inline void simdgroup_barrier(detail::site where, mem_flags flags, memory_order = memory_order_seq_cst,
                              thread_scope = thread_scope_simdgroup) {
  detail::note_barrier(where.index, uint(flags) | METALANE_CHECK_SIMDGROUP);
  detail::meet(where);
}

// The votes of a group: bit i is lane i's.
template <class Group>
class group_vote {
 public:
  using vote_t = conditional_t<Group::width == 32, uint64_t, uint16_t>;
  explicit constexpr group_vote(vote_t votes = 0) : votes_(votes) {}
  template <class T, class = enable_if_t<is_integral_v<T>>>
  explicit constexpr operator T() const {
    return T(votes_);
  }
  constexpr bool all() const { return votes_ == vote_t((1ull << Group::width) - 1); }
  constexpr bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
};
using simd_vote = group_vote<detail::simd_lanes>;
using quad_vote = group_vote<detail::quad_lanes>;

// Helper threads exist in fragment functions only.
constexpr bool simd_is_helper_thread() { return false; }
constexpr bool quad_is_helper_thread() { return false; }

// Apple's header says by this name what its simd_ functions take, and kernels ask it: numbers of up to 32
// bits and vectors of them, without bfloat (the functions here take more). Read from compiler messages, not
// from a document.
template <class T, class = void>
struct __is_valid_simdgroup_type
    : bool_constant<is_arithmetic_v<detail::element_t<T>> && sizeof(detail::element_t<T>) <= 4 &&
                    !is_same_v<remove_cv_t<detail::element_t<T>>, bfloat>> {};

// The type that a lane passes on.
namespace detail {
template <class A>
using lane_t = number_t<A>;
}

#define METALANE_GROUP_REDUCTION(group, name, family, op)                                       \
  template <class A, class V = detail::family<A>>                                               \
  V group##_##name(detail::site where, const A& value) {                                        \
    return detail::rendezvous<V>(where, V(value),                                               \
                                 detail::combine_reduce<detail::group##_lanes, detail::op, V>); \
  }
#define METALANE_GROUP_PREFIX(group, name, op, inclusive)                                                  \
  template <class A, class V = detail::lane_t<A>>                                                          \
  V group##_prefix_##name(detail::site where, const A& value) {                                            \
    return detail::rendezvous<V>(where, V(value),                                                          \
                                 detail::combine_prefix<detail::group##_lanes, detail::op, inclusive, V>); \
  }
#define METALANE_GROUP_SHUFFLE(group, name, parameter, ...)                              \
  template <class A, class V = detail::lane_t<A>>                                        \
  V group##_##name(detail::site where, const A& value, parameter) {                      \
    const int base = detail::group_base<detail::group##_lanes>();                        \
    const int lane = int(detail::current_lane()) - base;                                 \
    constexpr int width = detail::group##_lanes::width;                                  \
    return detail::shuffle(where, V(value), detail::in_group<width>(base, __VA_ARGS__)); \
  }

namespace detail {
// A lane of the group as a lane of the simdgroup; -1 where the group has no such lane.
template <int Width>
int in_group(int base, int lane) {
  return lane >= 0 && lane < Width ? base + lane : -1;
}
}  // namespace detail

#define METALANE_GROUP(group)                                                                                \
  METALANE_GROUP_REDUCTION(group, sum, lane_t, add_op)                                                       \
  METALANE_GROUP_REDUCTION(group, product, lane_t, multiply_op)                                              \
  METALANE_GROUP_REDUCTION(group, min, lane_t, min_op)                                                       \
  METALANE_GROUP_REDUCTION(group, max, lane_t, max_op)                                                       \
  METALANE_GROUP_REDUCTION(group, and, integer_t, and_op)                                                    \
  METALANE_GROUP_REDUCTION(group, or, integer_t, or_op)                                                      \
  METALANE_GROUP_REDUCTION(group, xor, integer_t, xor_op)                                                    \
  METALANE_GROUP_PREFIX(group, inclusive_sum, add_op, true)                                                  \
  METALANE_GROUP_PREFIX(group, exclusive_sum, add_op, false)                                                 \
  METALANE_GROUP_PREFIX(group, inclusive_product, multiply_op, true)                                         \
  METALANE_GROUP_PREFIX(group, exclusive_product, multiply_op, false)                                        \
  METALANE_GROUP_SHUFFLE(group, broadcast, ushort from, (void(lane), from))                                  \
  METALANE_GROUP_SHUFFLE(group, shuffle, ushort from, (void(lane), from))                                    \
  METALANE_GROUP_SHUFFLE(group, shuffle_xor, ushort mask, lane ^ mask)                                       \
  METALANE_GROUP_SHUFFLE(group, shuffle_up, ushort delta, delta > lane ? lane : lane - delta)                \
  METALANE_GROUP_SHUFFLE(group, shuffle_down, ushort delta, delta >= width - lane ? lane : lane + delta)     \
  METALANE_GROUP_SHUFFLE(group, shuffle_rotate_up, ushort delta, (lane - delta) & (width - 1))               \
  METALANE_GROUP_SHUFFLE(group, shuffle_rotate_down, ushort delta, (lane + delta) & (width - 1))             \
  /* Lanes that have no neighbour `delta` below take `filling` of the block's upper lanes (up), and */       \
  /* the other way round (down). `modulo`: the width of blocks, a power of two. */                           \
  template <class A, class B, class V = detail::common_t<A, B>>                                              \
  V group##_shuffle_and_fill_up(detail::site where, const A& value, const B& filling, ushort delta,          \
                                ushort modulo = detail::group##_lanes::width) {                              \
    return detail::shuffle_and_fill_up<detail::group##_lanes>(where, V(value), V(filling), delta, modulo);   \
  }                                                                                                          \
  template <class A, class B, class V = detail::common_t<A, B>>                                              \
  V group##_shuffle_and_fill_down(detail::site where, const A& value, const B& filling, ushort delta,        \
                                  ushort modulo = detail::group##_lanes::width) {                            \
    return detail::shuffle_and_fill_down<detail::group##_lanes>(where, V(value), V(filling), delta, modulo); \
  }                                                                                                          \
  template <class A, class V = detail::lane_t<A>>                                                            \
  V group##_broadcast_first(detail::site where, const A& value) {                                            \
    return detail::rendezvous<V>(where, V(value), detail::combine_first<detail::group##_lanes, V>);          \
  }                                                                                                          \
  inline group##_vote group##_ballot(detail::site where, bool condition) {                                   \
    return group##_vote(group##_vote::vote_t(detail::ballot<detail::group##_lanes>(where, condition)));      \
  }                                                                                                          \
  inline group##_vote group##_active_threads_mask(detail::site where) {                                      \
    return group##_ballot(where, true);                                                                      \
  }                                                                                                          \
  inline bool group##_any(detail::site where, bool condition) {                                              \
    return detail::ballot<detail::group##_lanes>(where, condition) != 0;                                     \
  }                                                                                                          \
  inline bool group##_all(detail::site where, bool condition) {                                              \
    return detail::ballot<detail::group##_lanes>(where, !condition) == 0;                                    \
  }                                                                                                          \
  inline bool group##_is_first(detail::site where) {                                                         \
    const uint active = detail::ballot<detail::group##_lanes>(where, true);                                  \
    return uint(__builtin_ctz(active)) == detail::current_lane() % detail::group##_lanes::width;             \
  }
METALANE_GROUP(simd)
METALANE_GROUP(quad)
#undef METALANE_GROUP
#undef METALANE_GROUP_SHUFFLE
#undef METALANE_GROUP_PREFIX
#undef METALANE_GROUP_REDUCTION

METALANE_STDLIB_END

#endif
