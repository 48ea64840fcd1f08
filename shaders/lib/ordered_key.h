// Total order of float values and token ids for selections: larger value first, lower id first among equals.
#ifndef METALANE_LIB_ORDERED_KEY_H
#define METALANE_LIB_ORDERED_KEY_H

#include <metal_stdlib>
using namespace metal;

// A value and where it came from, comparable with integers only: a GPU may flush subnormal operands of a
// float comparison to zero, which would tie values that the CPU tells apart.
struct OrderedKey {
  uint key;
  uint id;
};

// Grows with the value; -0 and +0 are equal, NaN counts as -inf. Every value is above 0, which is left for
// "no value".
inline uint ordered_key(float value) {
  uint bits = as_type<uint>(value);
  const uint magnitude = bits & 0x7fffffffu;
  if (magnitude == 0u) bits = 0u;
  if (magnitude > 0x7f800000u) bits = 0xff800000u;
  return (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
}

inline bool precedes(OrderedKey a, OrderedKey b) { return a.key > b.key || (a.key == b.key && a.id < b.id); }

// The value itself, except that NaN becomes -inf.
inline float nan_to_negative_infinity(float value) {
  return (as_type<uint>(value) & 0x7fffffffu) > 0x7f800000u ? -INFINITY : value;
}

#endif
