// What simd_* and quad_* functions share: gathering the operands of the lanes that take part, and handing out
// results.
//
// The executor calls a combine function once for the active lanes of a simdgroup. Results of other lanes are
// left alone.
#ifndef METALANE_STDLIB_LANES_H
#define METALANE_STDLIB_LANES_H

#include "elementwise.h"
#include "atomic.h"

METALANE_STDLIB_BEGIN
namespace detail {

constexpr int simd_width = METALANE_SIMD_WIDTH;

inline uint current_lane() { return current_group()->current_thread % simd_width; }

inline bool is_active(const metalane_lanes* lanes, int lane) { return (lanes->active >> lane) & 1u; }

// Operands of all lanes, `fill` where a lane is not active.
template <class T>
void gather(const metalane_lanes* lanes, T (&values)[simd_width], const T& fill) {
  for (int i = 0; i < simd_width; ++i) values[i] = fill;
  for (int i = 0; i < simd_width; ++i) {
    if (is_active(lanes, i)) __builtin_memcpy(&values[i], lanes->in + i * sizeof(T), sizeof(T));
  }
}
template <class T>
void put(const metalane_lanes* lanes, int lane, const T& value) {
  __builtin_memcpy(lanes->out + lane * lanes->bytes, &value, sizeof(T));
}
// One rendezvous. Operand and result share their place, so both have the operand's size.
template <class T>
T rendezvous(site where, T operand, metalane_combine combine, const void* context = nullptr) {
  static_assert(sizeof(T) <= METALANE_MAX_LANE_BYTES, "the operand of a simdgroup function is too large");
  runtime()->simd_collective(current_group(), where.index, sizeof(T), &operand, &operand, combine, context);
  return operand;
}

// The groups of lanes that a function works within.
struct simd_lanes {
  static constexpr int width = 32;
};
struct quad_lanes {
  static constexpr int width = 4;
};

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

template <class T>
T first_operand(const metalane_lanes* lanes, uint active) {
  T first;
  __builtin_memcpy(&first, lanes->in + __builtin_ctz(active) * sizeof(T), sizeof(T));
  return first;
}

// Halves are folded upon each other: lane i with lane i + 16, then i + 8, 4, 2, 1 (a quad: 2, 1). The order is
// fixed, whatever lanes are active, and every lane gets the same result.
template <class Group, class Op, class T>
void combine_reduce(const metalane_lanes* lanes, const void*) {
  T values[simd_width];
  constexpr int width = Group::width;
  if constexpr (width == simd_width) {
    gather(lanes, values, Op::neutral(first_operand<T>(lanes, lanes->active)));
  } else {
    gather(lanes, values, T(0));
    for (int base = 0; base < simd_width; base += width) {
      const uint active = lanes->active & (((1u << width) - 1u) << base);
      if (active == 0) continue;
      const T neutral = Op::neutral(first_operand<T>(lanes, active));
      for (int i = base; i < base + width; ++i) {
        if (!is_active(lanes, i)) values[i] = neutral;
      }
    }
  }
  for (int base = 0; base < simd_width; base += width) {
    T* const group = values + base;
    for (int stride = width / 2; stride > 0; stride /= 2) {
      for (int i = 0; i < stride; ++i) group[i] = Op::apply(group[i], group[i + stride]);
    }
  }
  for (int i = 0; i < simd_width; ++i) {
    if (is_active(lanes, i)) put(lanes, i, values[i / width * width]);
  }
}

// Sums and products of the active lanes before one's own (and with it, when inclusive), in lane order.
template <class Group, class Op, bool Inclusive, class T>
void combine_prefix(const metalane_lanes* lanes, const void*) {
  T values[simd_width];
  gather(lanes, values, T(0));
  for (int base = 0; base < simd_width; base += Group::width) {
    bool first = true;
    T sum = T(0);
    for (int i = base; i < base + Group::width; ++i) {
      if (!is_active(lanes, i)) continue;
      const T before = first ? (is_same_v<Op, add_op> ? T(0) : T(1)) : sum;
      sum = first ? values[i] : Op::apply(sum, values[i]);
      first = false;
      put(lanes, i, Inclusive ? sum : before);
    }
  }
}

// The operand of the lowest active lane of each group.
template <class Group, class T>
void combine_first(const metalane_lanes* lanes, const void*) {
  T values[simd_width];
  gather(lanes, values, T(0));
  for (int base = 0; base < simd_width; base += Group::width) {
    int first = -1;
    for (int i = base; i < base + Group::width; ++i) {
      if (!is_active(lanes, i)) continue;
      if (first < 0) first = i;
      put(lanes, i, values[first]);
    }
  }
}

// A value and the lane whose value is wanted.
template <class T>
struct shuffle_operand {
  T value;
  int lane;
};
// A lane that is not active or not there gives the asking lane its own value back.
template <class T>
void combine_shuffle(const metalane_lanes* lanes, const void*) {
  shuffle_operand<T> operands[simd_width];
  gather(lanes, operands, shuffle_operand<T>{T(0), 0});
  for (int i = 0; i < simd_width; ++i) {
    if (!is_active(lanes, i)) continue;
    const int from = operands[i].lane;
    const bool there = from >= 0 && from < simd_width && is_active(lanes, from);
    put(lanes, i, operands[there ? from : i].value);
  }
}
template <class T>
T shuffle(site where, const T& value, int lane) {
  return rendezvous(where, shuffle_operand<T>{value, lane}, combine_shuffle<T>).value;
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
void combine_fill(const metalane_lanes* lanes, const void*) {
  fill_operand<T> operands[simd_width];
  gather(lanes, operands, fill_operand<T>{T(0), T(0), 0, 0});
  for (int i = 0; i < simd_width; ++i) {
    if (!is_active(lanes, i)) continue;
    const int from = operands[i].lane >= 0 ? operands[i].lane : operands[i].filling_lane;
    const bool there = from >= 0 && from < simd_width && is_active(lanes, from);
    put(lanes, i, !there ? operands[i].value : operands[i].lane >= 0 ? operands[from].value : operands[from].filling);
  }
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
  return rendezvous(where, fill_operand<T>{value, filling, lane, filling_lane}, combine_fill<T>).value;
}
template <class Group, class T>
T shuffle_and_fill_down(site where, const T& value, const T& filling, uint delta, uint modulo) {
  const uint block = valid_block<Group>(modulo);
  const int lane = lane_above(delta, block);
  const int filling_lane = delta > block ? -1 : int(current_lane() + delta - block);
  return rendezvous(where, fill_operand<T>{value, filling, lane, filling_lane}, combine_fill<T>).value;
}

// Bit i: lane i of the group is active and its operand holds. Operand and result have 32 bits.
template <class Group>
void combine_ballot(const metalane_lanes* lanes, const void*) {
  uint operands[simd_width];
  gather(lanes, operands, 0u);
  uint votes = 0;
  for (int i = 0; i < simd_width; ++i) votes |= uint(operands[i] != 0) << i;
  for (int i = 0; i < simd_width; ++i) {
    if (!is_active(lanes, i)) continue;
    const int base = i / Group::width * Group::width;
    const uint mask = Group::width == 32 ? ~0u : (1u << Group::width) - 1u;
    put(lanes, i, (votes >> base) & mask);
  }
}
template <class Group>
uint ballot(site where, bool condition) {
  return rendezvous(where, uint(condition), combine_ballot<Group>);
}

// Nothing passes between lanes: waiting is all.
inline void combine_nothing(const metalane_lanes*, const void*) {}

}  // namespace detail

METALANE_STDLIB_END

#endif
