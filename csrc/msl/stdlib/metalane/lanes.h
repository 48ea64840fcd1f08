// What simd_* and quad_* functions share: gathering the operands of the lanes that take part, and handing out
// results.
//
// The executor calls a combine function once for the active lanes of a simdgroup. Results of other lanes are
// left alone.
#ifndef METALANE_STDLIB_LANES_H
#define METALANE_STDLIB_LANES_H

#include "atomic.h"
#include "elementwise.h"

METALANE_STDLIB_BEGIN
namespace detail {

constexpr int simd_width = METALANE_SIMD_WIDTH;

inline uint current_lane() { return current_group()->current_thread % simd_width; }

inline bool is_active(const metalane_lanes* lanes, int lane) { return (lanes->active >> lane) & 1u; }

// f(lane) for each active lane, in order. All lanes active is the common case, and one that vectorises.
template <class F>
void for_active(const metalane_lanes* lanes, F f) {
  if (lanes->active == ~0u) {
    for (int lane = 0; lane < simd_width; ++lane) f(lane);
    return;
  }
  for (uint rest = lanes->active; rest != 0; rest &= rest - 1) f(__builtin_ctz(rest));
}

// Operands of all lanes, `fill` where a lane is not active.
template <class T>
void gather(const metalane_lanes* lanes, T (&values)[simd_width], const T& fill) {
  if (lanes->active != ~0u) {
    for (int i = 0; i < simd_width; ++i) values[i] = fill;
  }
  for_active(lanes, [&](int lane) { __builtin_memcpy(&values[lane], lanes->operands[lane], sizeof(T)); });
}
template <class T>
void put(const metalane_lanes* lanes, int lane, const T& value) {
  __builtin_memcpy(lanes->operands[lane], &value, sizeof(T));
}

// One rendezvous. A result takes no more bytes than the operand, in whose place it comes.
template <class R, class T>
R rendezvous(site where, const T& operand, metalane_combine combine) {
  static_assert(sizeof(R) <= sizeof(T), "the result of a simdgroup function takes its operand's place");
  T place = operand;
  runtime()->simd_collective(current_group(), where.index, combine, &place);
  R result;
  __builtin_memcpy(&result, &place, sizeof(R));
  return result;
}

// The groups of lanes that a function works within.
struct simd_lanes {
  static constexpr int width = 32;
};
struct quad_lanes {
  static constexpr int width = 4;
};
template <class Group>
uint group_mask(int base) {
  return (~0u >> (simd_width - Group::width)) << base;
}

// Reductions: `neutral(first)` stands for lanes that are not active, given the first operand that is.
struct add_op {
  template <class T>
  static T neutral(const T&) {
    return -T(0);  // of floats the negative zero, so that a sum of negative zeros stays one
  }
  template <class T>
  static T apply(const T& a, const T& b) {
    if constexpr (is_integral_v<T>) {
      return T(wrapping_t<T>(a) + wrapping_t<T>(b));
    } else {
      return T(a + b);
    }
  }
};
struct multiply_op {
  template <class T>
  static T neutral(const T&) {
    return T(1);
  }
  template <class T>
  static T apply(const T& a, const T& b) {
    if constexpr (is_integral_v<T>) {
      return T(wrapping_t<T>(a) * wrapping_t<T>(b));
    } else {
      return T(a * b);
    }
  }
};
struct xor_op {
  template <class T>
  static T neutral(const T&) {
    return T(0);
  }
  template <class T>
  static T apply(const T& a, const T& b) {
    return T(a ^ b);
  }
};
struct repeatable_op {
  template <class T>
  static T neutral(const T& first) {
    return first;
  }
};
struct and_op : repeatable_op {
  template <class T>
  static T apply(const T& a, const T& b) {
    return T(a & b);
  }
};
struct or_op : repeatable_op {
  template <class T>
  static T apply(const T& a, const T& b) {
    return T(a | b);
  }
};
struct min_op : repeatable_op {
  template <class T>
  static T apply(const T& a, const T& b) {
    return map<T>([](auto x, auto y) { return smaller(x, y); }, a, b);
  }
};
struct max_op : repeatable_op {
  template <class T>
  static T apply(const T& a, const T& b) {
    return map<T>([](auto x, auto y) { return larger(x, y); }, a, b);
  }
};

template <int Stride, class Op, class T>
void fold(T* values) {
  for (int i = 0; i < Stride; ++i) values[i] = Op::apply(values[i], values[i + Stride]);
  if constexpr (Stride > 1) fold<Stride / 2, Op>(values);
}

// Halves are folded upon each other: lane i with lane i + 16, then i + 8, 4, 2, 1 (a quad: 2, 1). The order
// is fixed, whatever lanes are active, and every lane gets the same result.
template <class Group, class Op, class T>
void combine_reduce(const metalane_lanes* lanes) {
  T values[simd_width];
  gather(lanes, values, T(0));
  for (int base = 0; base < simd_width; base += Group::width) {
    const uint active = lanes->active & group_mask<Group>(base);
    if (active != group_mask<Group>(base)) {
      const T neutral = Op::neutral(active != 0 ? values[__builtin_ctz(active)] : T(0));
      for (int i = base; i < base + Group::width; ++i) {
        if (!is_active(lanes, i)) values[i] = neutral;
      }
    }
    fold<Group::width / 2, Op>(values + base);
  }
  for_active(lanes, [&](int lane) { put(lanes, lane, values[lane / Group::width * Group::width]); });
}

// Sums and products of the active lanes before one's own (and with it, when inclusive), in lane order.
template <class Group, class Op, bool Inclusive, class T>
void combine_prefix(const metalane_lanes* lanes) {
  T values[simd_width];
  gather(lanes, values, T(0));
  uint group = 0;  // the mask of the group that `sum` belongs to
  T sum = T(0);
  for_active(lanes, [&](int lane) {
    const uint own_group = group_mask<Group>(lane / Group::width * Group::width);
    const bool first = group != own_group;
    const T before = first ? T(is_same_v<Op, add_op> ? 0 : 1) : sum;
    sum = first ? values[lane] : Op::apply(sum, values[lane]);
    group = own_group;
    put(lanes, lane, Inclusive ? sum : before);
  });
}

// The operand of the lowest active lane of each group.
template <class Group, class T>
void combine_first(const metalane_lanes* lanes) {
  T values[simd_width];
  gather(lanes, values, T(0));
  for_active(lanes, [&](int lane) {
    const uint active = lanes->active & group_mask<Group>(lane / Group::width * Group::width);
    put(lanes, lane, values[__builtin_ctz(active)]);
  });
}

// A value and the lane whose value is wanted.
template <class T>
struct shuffle_operand {
  T value;
  int lane;
};
// A lane that is not active or not there gives the asking lane its own value back.
template <class T>
void combine_shuffle(const metalane_lanes* lanes) {
  shuffle_operand<T> operands[simd_width];
  gather(lanes, operands, shuffle_operand<T>{T(0), 0});
  for_active(lanes, [&](int lane) {
    const int from = operands[lane].lane;
    const bool there = from >= 0 && from < simd_width && is_active(lanes, from);
    if (!there) note_absent_lane(lane, from);
    put(lanes, lane, operands[there ? from : lane].value);
  });
}
template <class T>
T shuffle(site where, const T& value, int lane) {
  return rendezvous<T>(where, shuffle_operand<T>{value, lane}, combine_shuffle<T>);
}

template <class T>
struct fill_operand {
  T value;
  T filling;
  int lane;
  int filling_lane;
};
// The value of `lane` where that is not negative, else the filling of `filling_lane`.
template <class T>
void combine_fill(const metalane_lanes* lanes) {
  fill_operand<T> operands[simd_width];
  gather(lanes, operands, fill_operand<T>{T(0), T(0), 0, 0});
  for_active(lanes, [&](int lane) {
    const fill_operand<T>& own = operands[lane];
    const int from = own.lane >= 0 ? own.lane : own.filling_lane;
    const bool there = from >= 0 && from < simd_width && is_active(lanes, from);
    if (!there) note_absent_lane(lane, from);
    put(lanes, lane, !there ? own.value : own.lane >= 0 ? operands[from].value : operands[from].filling);
  });
}

template <class Group>
int group_base() {
  return int(current_lane()) / Group::width * Group::width;
}
// The lane `delta` below or above within blocks of `block` lanes, or -1.
inline int lane_below(uint delta, uint block) {
  const uint at = current_lane() % block;
  return delta <= at ? int(current_lane() - delta) : -1;
}
inline int lane_above(uint delta, uint block) {
  const uint at = current_lane() % block;
  return delta < block - at ? int(current_lane() + delta) : -1;
}
// Blocks are powers of two up to the group's width; any other number counts as the whole group.
template <class Group>
uint valid_block(uint block) {
  return block >= 2 && block <= uint(Group::width) && (block & (block - 1)) == 0 ? block : uint(Group::width);
}

template <class Group, class T>
T shuffle_and_fill_up(site where, const T& value, const T& filling, uint delta, uint modulo) {
  const uint block = valid_block<Group>(modulo);
  const int lane = lane_below(delta, block);
  const int filling_lane = delta > block ? -1 : int(current_lane() + block - delta);
  return rendezvous<T>(where, fill_operand<T>{value, filling, lane, filling_lane}, combine_fill<T>);
}
template <class Group, class T>
T shuffle_and_fill_down(site where, const T& value, const T& filling, uint delta, uint modulo) {
  const uint block = valid_block<Group>(modulo);
  const int lane = lane_above(delta, block);
  const int filling_lane = delta > block ? -1 : int(current_lane() + delta - block);
  return rendezvous<T>(where, fill_operand<T>{value, filling, lane, filling_lane}, combine_fill<T>);
}

// Bit i: lane i of the group is active and its operand holds. Operand and result have 32 bits.
template <class Group>
void combine_ballot(const metalane_lanes* lanes) {
  uint operands[simd_width];
  gather(lanes, operands, 0u);
  uint votes = 0;
  for (int i = 0; i < simd_width; ++i) votes |= operands[i] << i;
  for_active(lanes, [&](int lane) {
    const int base = lane / Group::width * Group::width;
    put(lanes, lane, (votes & group_mask<Group>(base)) >> base);
  });
}
template <class Group>
uint ballot(site where, bool condition) {
  return rendezvous<uint>(where, uint(condition), combine_ballot<Group>);
}

// Nothing passes between lanes: waiting is all.
inline void combine_nothing(const metalane_lanes*) {}
inline void meet(site where) {
  runtime()->simd_collective(current_group(), where.index, combine_nothing, nullptr);
}

}  // namespace detail

METALANE_STDLIB_END

#endif
