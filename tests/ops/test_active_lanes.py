"""Which lanes meet at a simd_ or quad_ call that they reach by different calls, in different iterations, or not at all:
against NumPy, which runs each statement for a mask of lanes, as hardware that brings lanes together again does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from ops.stdlib_case import run_kernel

import metalane

# The case `with_barriers` has a simdgroup_barrier in each of two branches.
pytestmark = pytest.mark.metalane_check(allow="divergence")

THREADS, GROUP, WIDTH = 200, 80, 32  # threadgroups of 80, 80 and 40: simdgroups of 32, 32, 16 and of 32, 8

Mask = np.ndarray
Lanes = np.ndarray


def over(mask: Mask, values: np.ndarray | int, op: Callable = np.sum) -> np.ndarray:
    """`op` over the active lanes, for each of them; 0 elsewhere."""
    values = np.broadcast_to(values, mask.shape)
    return np.where(mask, op(values[mask]) if mask.any() else 0, 0)


def quads(mask: Mask, values: np.ndarray) -> np.ndarray:
    result = np.zeros(len(mask), np.int64)
    for first in range(0, len(mask), 4):
        result[first : first + 4] = over(mask[first : first + 4], values[first : first + 4])
    return result


def exclusive(mask: Mask, values: np.ndarray) -> np.ndarray:
    active = np.where(mask, values, 0)
    return np.where(mask, np.cumsum(active) - active, 0)


def votes(mask: Mask, condition: np.ndarray) -> np.ndarray:
    bits = sum(1 << k for k in range(len(mask)) if mask[k] and condition[k])
    return np.where(mask, bits % 2**32, 0)


@dataclass(frozen=True)
class Case:
    name: str
    lines: str  # of the kernel's body; result in s
    expected: Callable[[Lanes], np.ndarray]
    prelude: str = ""


def two_branches(lane: Lanes) -> np.ndarray:
    odd = lane % 2 == 1
    return over(odd, 1) + over(~odd, 100)


def changing_sides(lane: Lanes) -> np.ndarray:
    return sum(over((lane + k) % 2 == 1, 1 + k) for k in range(2))


def nested_calls(lane: Lanes) -> np.ndarray:
    def inner(active: Mask, x: np.ndarray, n: np.ndarray) -> np.ndarray:
        return sum(over(active & (k < n) & ((x + k) % 2 == 1), x) for k in range(5))

    looped = sum(inner((lane >> j) % 2 == 1, lane + j, 2 + lane % 3) for j in range(3))
    return looped + inner(lane >= 0, lane + 100, np.full_like(lane, 2))


def condition_of_while(lane: Lanes) -> np.ndarray:
    s, active, k = np.zeros_like(lane), lane >= 0, 0
    while True:
        active = active & (over(active, 1) > lane + 2 * k)
        if not active.any():
            return s
        s += over(active & (lane % 2 == k % 2), lane + k, np.max)
        k += 1


def increment_of_for(lane: Lanes) -> np.ndarray:
    s, k, inside = np.zeros_like(lane), np.zeros_like(lane), lane >= 0
    while True:
        inside = inside & (k < 8)
        if not inside.any():
            return s
        s += over(inside & (k % 3 != lane % 3), 10 + k)
        varied = inside & ((lane + k) % 2 == 1)
        k = k + np.where(varied, over(varied, 1) % 3 + 1, 1)


def do_with_continue(lane: Lanes) -> np.ndarray:
    s = np.zeros_like(lane)
    for k in range(1, 8):
        inside = (k == 1) | (k - 1 < 4 + lane % 3)
        s += over(inside & ((lane + k) % 3 != 0), k)
    return s


def conditionals(lane: Lanes) -> np.ndarray:
    odd, low, multiple = lane % 2 == 1, lane < 9, lane % 3 == 0
    first = over(odd, 1) + over(~odd & low, 7) + over(~odd & ~low, 70)
    # Short-circuit operands: who evaluates the right side.
    second = np.where(over(odd, lane == 3, np.any), 1000, 0)
    third = np.where(odd | over(~odd, lane < 12, np.all), 10000, 0)
    looped = sum(over(((lane + k) % 2 == 1) & multiple, 1) >= 3 for k in range(3))
    return first + second + third + 100000 * looped


def every_kind(active: Mask, x: np.ndarray) -> np.ndarray:
    s = votes(active, x % 2 == 1) % 65521
    s = s + exclusive(active, x) + quads(active, x) + over(active, x, np.max)
    first = np.flatnonzero(active)[:1]
    s = s + np.where(active, x[first].sum(), 0)
    last = np.flatnonzero(active)[-1:]
    s = s + np.where(active, x[last].sum(), 0)
    return np.where(active, s + over(active, 1) * 3, 0)


def switch_cases(lane: Lanes) -> np.ndarray:
    kind = lane % 4
    s = every_kind(kind == 0, lane) + every_kind(kind == 1, lane + 5)
    # Case 2 falls through to the last one; lanes above 20 have returned from the function by then.
    s = s + every_kind((kind == 2) & (lane <= 20), 2 * lane)
    return s + every_kind((kind == 3) | ((kind == 2) & (lane <= 20)), lane + 9)


def with_barriers(lane: Lanes) -> np.ndarray:
    return sum(over((lane + k) % 2 == 1, 1 + k) + over((lane + k) % 2 == 0, 50) for k in range(3))


def overloads(lane: Lanes) -> np.ndarray:
    thirds = lane % 3 == 0
    s = over(thirds, lane) + over(thirds, lane + 1)
    return s + over(~thirds, 2 * lane) + over(~thirds, 3 * lane + 1) + over(lane >= 0, 5)


def methods(lane: Lanes) -> np.ndarray:
    s = np.zeros_like(lane)
    for k in range(3):
        even = (lane + k) % 2 == 0
        s = s + over(even, lane, np.max) + over(~even, lane + 1, np.max)
    return s + over(lane % 4 == 0, lane) + over(lane % 4 == 1, lane)


def macros(lane: Lanes) -> np.ndarray:
    return sum(over((lane >> k) % 2 == 1, k + 1) for k in range(4)) + over(lane >= 0, 2)


def breaks_out_of_two(lane: Lanes) -> np.ndarray:
    """The inner loop ends early for some lanes, which come to it again while others are still in it."""
    s = np.zeros_like(lane)
    for j in range(3):
        inside = lane >= 0
        for k in range(4):
            s += over(inside, 1 + j)
            inside = inside & ~((lane + j) % 4 == k)
    return s


def returns_from_loop(lane: Lanes) -> np.ndarray:
    def first(active: Mask, limit: np.ndarray) -> np.ndarray:
        s = np.zeros_like(lane)
        for k in range(6):
            s += over(active, 1)
            active = active & (k < limit)
        return s

    return first(lane % 2 == 0, lane % 5) + first(lane % 2 == 1, lane % 3) + over(lane >= 0, 1000)


def fixed_counts(lane: Lanes) -> np.ndarray:
    """Three loops that look alike: all lanes take every iteration of the first, and two of the second."""
    s = np.zeros_like(lane)
    for j in range(lane.max() % 7 + 7):
        inside = j < 1 + lane % 7
        for k in range(3):
            s += over(inside, k + 1)
        for _ in range(2):
            s += over(inside, 10)
        for k in range(3):
            s += over(inside & (k <= lane % 3), 100)
    return s


def order_of_calls(lane: Lanes) -> np.ndarray:
    """The function stands first in the text and is called last: lanes that are behind come along first."""
    early = over(lane < 16, lane)
    return early + over(lane >= 0, lane + early)


CASES = [
    Case(
        "two_branches",
        "if (lane & 1) s = summed(1u); else s = summed(100u);",
        two_branches,
        "uint summed(uint x) { return simd_sum(x); }",
    ),
    Case(
        "changing_sides",
        "for (uint k = 0; k < 2; ++k) { if ((lane + k) & 1) s += simd_sum(1u + k); }",
        changing_sides,
    ),
    Case(
        "nested_calls",
        "s = nested_outer(lane);",
        nested_calls,
        """
uint nested_inner(uint x, uint n) {
  uint s = 0;
  for (uint k = 0; k < n; ++k)
    if ((x + k) & 1) s += simd_sum(x);
  return s;
}
uint nested_outer(uint lane) {
  uint s = 0;
  for (uint j = 0; j < 3; ++j) {
    if (((lane >> j) & 1) == 0) continue;
    s += nested_inner(lane + j, 2 + lane % 3);
  }
  return s + nested_inner(lane + 100, 2);
}""",
    ),
    Case(
        "condition_of_while",
        "uint k = 0; while (simd_sum(1u) > lane + 2 * k) { if (lane % 2 == k % 2) s += simd_max(lane + k); ++k; }",
        condition_of_while,
    ),
    Case(
        "increment_of_for",
        "for (uint k = 0; k < 8; k += (lane + k) & 1 ? simd_sum(1u) % 3 + 1 : 1) {"
        "  if (k % 3 == lane % 3) continue; s += simd_sum(10 + k); }",
        increment_of_for,
    ),
    Case(
        "do_with_continue",
        "uint k = 0; do { ++k; if ((lane + k) % 3 == 0) continue; s += simd_sum(k); } while (k < 4 + lane % 3);",
        do_with_continue,
    ),
    Case(
        "conditionals",
        "s = lane & 1 ? summed(1u) : lane < 9 ? summed(7u) : summed(70u);"
        "if ((lane & 1) && simd_any(lane == 3)) s += 1000;"
        "if ((lane & 1) || simd_all(lane < 12)) s += 10000;"
        "for (uint k = 0; k < 3; ++k) s += 100000 * (((lane + k) & 1) && lane % 3 == 0 && simd_sum(1u) >= 3);",
        conditionals,
    ),
    Case(
        "switch_cases",
        "s = switched(lane);",
        switch_cases,
        """
uint every_kind(uint x) {
  uint s = uint(ulong(simd_vote::vote_t(simd_ballot(x & 1)))) % 65521;
  s += simd_prefix_exclusive_sum(x) + quad_sum(x) + simd_max(x) + simd_broadcast_first(x);
  const uint active = uint(ulong(simd_vote::vote_t(simd_active_threads_mask())));
  s += simd_shuffle(x, ushort(31 - clz(active)));
  return s + 3 * simd_sum(1u);
}
uint switched(uint lane) {
  uint s = 0;
  switch (lane % 4) {
    case 0: return every_kind(lane);
    case 1: s = every_kind(lane + 5); break;
    case 2:
      if (lane > 20) return 0;
      s = every_kind(2 * lane);
    default: s += every_kind(lane + 9);
  }
  return s;
}""",
    ),
    Case(
        "with_barriers",
        "for (uint k = 0; k < 3; ++k) {"
        "  if ((lane + k) & 1) s += barred(1 + k); else s += barred(50);"
        "  threadgroup_barrier(mem_flags::mem_threadgroup); }",
        with_barriers,
        "uint barred(uint x) { simdgroup_barrier(mem_flags::mem_none); return simd_sum(x); }",
    ),
    Case(
        "overloads",
        "s = lane % 3 == 0 ? pairwise(uint2(lane, lane + 1)) : pairwise(uint2(2 * lane, 3 * lane + 1));"
        "s += pairwise(5u);",
        overloads,
        "uint pairwise(uint x) { return simd_sum(x); }\n"
        "uint pairwise(uint2 v) { const uint x = pairwise(v.x); return x + pairwise(v.y); }",
    ),
    Case(
        "methods",
        "largest<uint> ops[2] = {{0}, {1}}; thread largest<uint>* op = ops;"
        "for (uint k = 0; k < 3; ++k)"
        "  if ((lane + k) % 2) s += ops[k - k + 1].of(lane); else s += (*op).template of<uint>(lane);"
        "if (lane % 4 == 0) s += largest<uint>::total(lane); else if (lane % 4 == 1) s += largest<uint>::total(lane);",
        methods,
        """
template <typename T> struct largest {
  T more;
  template <typename U> T of(U x) const thread { return simd_max(T(x) + more); }
  static T total(T x) { return simd_sum(x); }
};""",
    ),
    Case(
        "macros",
        "for (uint k = 0; k < 4; ++k) { if (((lane >> k) & 1) == 0) continue; ADD_SUM(k + 1) } ADD_SUM(2u)",
        macros,
        "#define ADD_SUM(x) do { s += simd_sum(x); } while (false);",
    ),
    Case(
        "breaks_out_of_two",
        "for (uint j = 0; j < 3; ++j)"
        "  for (uint k = 0; k < 4; ++k) { s += simd_sum(1 + j); if ((lane + j) % 4 == k) break; }",
        breaks_out_of_two,
    ),
    Case(
        "returns_from_loop",
        "if (lane & 1) s = counted(lane % 3); else s = counted(lane % 5); s += simd_sum(1000u);",
        returns_from_loop,
        """
uint counted(uint limit) {
  uint s = 0;
  for (uint k = 0; k < 6; ++k) {
    s += simd_sum(1u);
    if (k >= limit) return s;
  }
  return s;
}""",
    ),
    Case(
        "fixed_counts",
        "for (uint j = 0; j < 1 + lane % 7; ++j) {"
        "  for (int k = 0; k < 6 / 2; ++k) s += simd_sum(uint(k) + 1);"
        "  for (int k = 0; k < 3; k++) { if (k == int(lane % 3)) k++; if (k < 3) s += simd_sum(10u); }"
        "  for (int k = 0; k < 3; ++k) { s += simd_sum(100u); if (k == int(lane % 3)) break; } }",
        fixed_counts,
    ),
    Case(
        "order_of_calls",
        "uint early = 0; if (lane < 16) early = simd_sum(lane); s = early + last_of_all(lane + early);",
        order_of_calls,
        "uint last_of_all(uint x) { return simd_sum(x); }",
    ),
]


@pytest.fixture(scope="module")
def results(device: metalane.Device) -> np.ndarray:
    """Each case in a function of its own, all in one kernel."""
    parts = [case.prelude for case in CASES]
    parts += [f"uint case_{case.name}(uint lane) {{ uint s = 0; {case.lines} return s; }}" for case in CASES]
    calls = [f"out[{k} * n + i] = case_{case.name}(t % 32);" for k, case in enumerate(CASES)]
    got = run_kernel(
        device,
        "active_lanes",
        "\n".join(parts),
        {},
        {"out": (len(CASES) * THREADS, "uint")},
        calls,
        threads=THREADS,
        threads_per_threadgroup=GROUP,
        attributes="uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]",
    )
    return got["out"].reshape(len(CASES), THREADS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_meets(results: np.ndarray, case: Case) -> None:
    row = results[CASES.index(case)]
    for start in range(0, THREADS, GROUP):
        size = min(GROUP, THREADS - start)
        for first in range(0, size, WIDTH):
            lane = np.arange(min(WIDTH, size - first))
            given = row[start + first :][: len(lane)]
            np.testing.assert_array_equal(
                given, case.expected(lane), f"{case.name}, lanes {start + first}..."
            )
