"""simd_ and quad_ functions on the CPU device: every type, whole and partial simdgroups, all lanes and divergent ones,
against Python's numbers. What Metal leaves open (a lane that is not active or not there) is not compared."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ops.oracle.msl_integer import Integer
from ops.oracle.msl_real import DTYPES, REAL, float64
from ops.stdlib_case import run_kernel

import metalane

THREADS, GROUP, WIDTH = 200, 80, 32  # threadgroups of 80, 80 and 40: simdgroups of 32, 32, 16 and of 32, 8
INTEGER_TYPES = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
SCALARS = (*REAL, *INTEGER_TYPES)
VECTORS = ("float2", "half4", "bfloat2", "uint3", "char4")
TYPES = SCALARS + VECTORS

Number = int | float
# value of lane l of a group, given every lane's (x, y, p) and the active lanes; None where Metal says nothing
Oracle = Callable[[list[tuple[Number, Number, Number]], list[int], int, int], Number | None]


def reduced(part: int, op: Callable) -> Oracle:
    return lambda rows, active, lane, width: functools.reduce(op, (rows[a][part] for a in active))


def prefixed(part: int, op: Callable, start: int, inclusive: bool) -> Oracle:
    def oracle(rows: list, active: list[int], lane: int, width: int) -> Number:
        before = [rows[a][part] for a in active if a < lane or (inclusive and a == lane)]
        return functools.reduce(op, before, start)

    return oracle


def shuffled(source: Callable[[int, int], int]) -> Oracle:
    def oracle(rows: list, active: list[int], lane: int, width: int) -> Number | None:
        place = source(lane, width)
        return rows[place][0] if place in active else None

    return oracle


def filled(delta: int, modulo: int | None, up: bool) -> Oracle:
    """Within blocks of `modulo` lanes; past a block's edge comes the second argument of its other end."""

    def oracle(rows: list, active: list[int], lane: int, width: int) -> Number | None:
        block = modulo or width
        first = lane // block * block
        at = lane - first + (-delta if up else delta)
        inside = 0 <= at < block
        place = first + (at if inside else at % block)
        return rows[place][0 if inside else 1] if place in active else None

    return oracle


def kept_at_edge(shift: int) -> Oracle:
    """shuffle_up and shuffle_down: lanes without a neighbour keep their value."""

    def oracle(rows: list, active: list[int], lane: int, width: int) -> Number | None:
        place = lane + shift
        if not 0 <= place < width:
            return rows[lane][0]
        return rows[place][0] if place in active else None

    return oracle


def first_active(rows: list, active: list[int], lane: int, width: int) -> Number:
    return rows[active[0]][0]


def operations(group: str) -> dict[str, Oracle]:
    """Calls in x, y (numbers that add up exactly in every type), p (whose products stay in range) and lane."""
    delta, turn, other = (5, 9, 17) if group == "simd" else (1, 3, 2)
    modulo = 8 if group == "simd" else 2
    scattered = f"({'lane' if group == 'simd' else 'lane % 4'} * 3 + 1) % {WIDTH if group == 'simd' else 4}"
    return {
        "sum(x)": reduced(0, operator.add),
        "product(p)": reduced(2, operator.mul),
        "min(x)": reduced(0, min),
        "max(x)": reduced(0, max),
        "prefix_inclusive_sum(x)": prefixed(0, operator.add, 0, True),
        "prefix_exclusive_sum(x)": prefixed(0, operator.add, 0, False),
        "prefix_inclusive_product(p)": prefixed(2, operator.mul, 1, True),
        "prefix_exclusive_product(p)": prefixed(2, operator.mul, 1, False),
        "broadcast_first(x)": first_active,
        f"broadcast(x, {other})": shuffled(lambda lane, width: other),
        f"shuffle(x, ushort({scattered}))": shuffled(lambda lane, width: (lane * 3 + 1) % width),
        f"shuffle_xor(x, {turn})": shuffled(lambda lane, width: lane ^ turn),
        f"shuffle_up(x, {delta})": kept_at_edge(-delta),
        f"shuffle_down(x, {delta})": kept_at_edge(delta),
        f"shuffle_rotate_up(x, {turn})": shuffled(lambda lane, width: (lane - turn) % width),
        f"shuffle_rotate_down(x, {turn})": shuffled(lambda lane, width: (lane + turn) % width),
        f"shuffle_and_fill_up(x, y, {delta})": filled(delta, None, True),
        f"shuffle_and_fill_down(x, y, {delta})": filled(delta, None, False),
        f"shuffle_and_fill_up(x, y, 1, {modulo})": filled(1, modulo, True),
        f"shuffle_and_fill_down(x, y, 1, {modulo})": filled(1, modulo, False),
    }


BITWISE = {
    "and(x)": reduced(0, operator.and_),
    "or(x)": reduced(0, operator.or_),
    "xor(x)": reduced(0, operator.xor),
}
GROUPS = {"simd": WIDTH, "quad": 4}
ALL = [(g, call, oracle) for g in GROUPS for call, oracle in operations(g).items()]
ALL_BITWISE = [(g, call, oracle) for g in GROUPS for call, oracle in BITWISE.items()]

LOAD = """
template <typename V, typename T> struct loader {
  static V at(device const T* values, uint i) { return values[i]; }
};
template <typename T, int N> struct loader<vec<T, N>, T> {
  static vec<T, N> at(device const T* values, uint i) {
    vec<T, N> v;
    for (uint k = 0; k < uint(N); ++k) v[k] = values[N * i + k];
    return v;
  }
};
"""


def split(name: str) -> tuple[str, int]:
    return (name[:-1], int(name[-1])) if name[-1].isdigit() else (name, 1)


def source() -> str:
    """One function for all types: the calls, first by the lanes of `pattern`, then by the others."""
    lines = [LOAD]
    lines.append(
        "template <typename V, typename T> void bits(V x, device T* out, uint i, uint stride, true_type) {"
    )
    lines += [f"  store(out + {k} * stride, i, {g}_{call});" for k, (g, call, _) in enumerate(ALL_BITWISE)]
    lines += ["}", "template <typename V, typename T> void bits(V, device T*, uint, uint, false_type) {}"]
    lines.append("template <typename V, typename T>")
    lines.append("void lanes(device const T* xs, device T* out, uint stride, uint i, uint lane) {")
    for slot, name in enumerate("xyp"):
        lines.append(f"  V {name} = loader<V, T>::at(xs + {slot} * stride, i);")
    lines += [f"  store(out + {k} * stride, i, {g}_{call});" for k, (g, call, _) in enumerate(ALL)]
    lines.append(f"  bits(x, out + {len(ALL)} * stride, i, stride, is_integral<T>());")
    lines.append("}")
    return "\n".join(lines)


def inputs(name: str) -> np.ndarray:
    """x, y and p, one component after another for each thread."""
    element, size = split(name)
    generator = np.random.default_rng(len(name))
    low = 0 if element.startswith("u") else -4
    x, y = (generator.integers(low, 5, THREADS * size) for _ in range(2))
    lane = np.arange(THREADS * size) // size % GROUP % WIDTH
    p = np.where(lane % 4 == 1, 2, np.where((lane % 7 == 3) & (low < 0), -1, 1))
    return np.concatenate([x, y, p]).astype(DTYPES[element])


PATTERNS = {"all": 0xFFFFFFFF, "odd": 0xAAAAAAAA, "low": 0x0000FFFF, "scattered": 0x8F13C0D5}


def run_types(
    device: metalane.Device, number: int, types: Sequence[str], pattern: int
) -> dict[str, np.ndarray]:
    """All operations of these types in one kernel: for each type [operation, thread, component]."""
    count = len(ALL) + len(ALL_BITWISE)
    offset, calls, places = 0, ["uint lane = t % 32;"], {}
    packed = []
    for name in types:
        element, size = split(name)
        values = inputs(name)
        at = sum(p.size for p in packed)
        packed.append(np.resize(values.view(np.uint8), -(-values.nbytes // 32) * 32))
        stride = THREADS * size
        places[name] = offset, count * stride
        # The pattern is data: the branch is one at run time.
        calls.append(
            f"if ((pattern[0] >> lane) & 1) lanes<{name}>((device const {element}*)(in + {at}), "
            f"(device {element}*)(out + {offset}), {stride}, i, lane);"
        )
        offset += -(-count * stride * DTYPES[element].itemsize // 32) * 32
    got = run_kernel(
        device,
        f"simd_functions_{number}",
        source(),
        {"in": ("uchar", np.concatenate(packed)), "pattern": ("uint", np.array([pattern], np.uint32))},
        {"out": (offset, "uchar")},
        calls,
        threads=THREADS,
        threads_per_threadgroup=GROUP,
        attributes="uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]",
    )["out"]
    views = {}
    for name in types:
        element, size = split(name)
        start, elements = places[name]
        raw = got[start : start + elements * DTYPES[element].itemsize]
        views[name] = raw.view(DTYPES[element]).reshape(count, THREADS, size)
    return views


@pytest.fixture(scope="module", params=PATTERNS)
def results(device_kind: str, request: pytest.FixtureRequest) -> tuple[int, dict[str, np.ndarray]]:
    pattern = PATTERNS[request.param]
    # Lanes ask for values of lanes that take no part: the checker would say so.
    device = metalane.Device(device_kind, check=False)
    with ThreadPoolExecutor(2) as pool:  # each waits for the host's compiler
        halves = pool.map(lambda n: run_types(device, n, TYPES[n::2], pattern), (0, 1))
        return pattern, {name: values for half in halves for name, values in half.items()}


def groups(width: int, pattern: int) -> list[tuple[list[int], list[int]]]:
    """For each group of `width` lanes: its threads, and which of its lanes are active."""
    found = []
    for start in range(0, THREADS, GROUP):
        size = min(GROUP, THREADS - start)
        for first in range(0, size, width):
            threads = list(range(start + first, start + min(first + width, size)))
            active = [k for k, t in enumerate(threads) if pattern >> ((t - start) % WIDTH) & 1]
            found.append((threads, active))
    return found


@pytest.mark.parametrize("name", TYPES)
def test_lanes(results: tuple[int, dict[str, np.ndarray]], name: str) -> None:
    pattern, views = results
    element, size = split(name)
    columns = inputs(name).reshape(3, THREADS, size)
    numbers = float64(columns) if element in REAL else columns
    calls = ALL + (ALL_BITWISE if element not in REAL else [])
    compared = 0
    for (slot, (group, call, oracle)), component in itertools.product(enumerate(calls), range(size)):
        for threads, active in groups(GROUPS[group], pattern):
            rows = [tuple(numbers[k, t, component].item() for k in range(3)) for t in threads]
            for lane in active:
                exact = oracle(rows, active, lane, GROUPS[group])
                if exact is None:
                    continue
                if element not in REAL:
                    exact = Integer(element).wrap(exact)
                given = views[name][slot, threads[lane], component].item()
                assert given == exact, (group, call, threads[lane], component)
                compared += 1
    assert compared > len(calls) * THREADS // 8
    # Threads that did not take part wrote nothing.
    idle = [t for threads, active in groups(WIDTH, pattern) for k, t in enumerate(threads) if k not in active]
    raw = views[name].view(np.uint8).reshape(views[name].shape[0], THREADS, -1)
    assert (raw[:, idle] == 0xAB).all()


VOTES = {
    "ulong(simd_vote::vote_t(simd_ballot(c)))": lambda c, active, lane: sum(1 << k for k in active if c[k]),
    "ulong(simd_vote::vote_t(simd_active_threads_mask()))": lambda c, active, lane: sum(
        1 << k for k in active
    ),
    "simd_all(c)": lambda c, active, lane: all(c[k] for k in active),
    "simd_any(c)": lambda c, active, lane: any(c[k] for k in active),
    "simd_is_first()": lambda c, active, lane: lane == active[0],
    "simd_ballot(c).any()": lambda c, active, lane: any(c[k] for k in active),
    "simd_ballot(c).all()": lambda c, active, lane: sum(c[k] for k in active) == WIDTH,
    "simd_is_helper_thread()": lambda c, active, lane: False,
    "ulong(quad_vote::vote_t(quad_ballot(c)))": lambda c, active, lane: sum(1 << k for k in active if c[k]),
    "ulong(quad_vote::vote_t(quad_active_threads_mask()))": lambda c, active, lane: sum(
        1 << k for k in active
    ),
    "quad_all(c)": lambda c, active, lane: all(c[k] for k in active),
    "quad_any(c)": lambda c, active, lane: any(c[k] for k in active),
    "quad_is_first()": lambda c, active, lane: lane == active[0],
    "quad_ballot(c).all()": lambda c, active, lane: sum(c[k] for k in active) == 4,
    "quad_is_helper_thread()": lambda c, active, lane: False,
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("condition", ["random", "true", "false"])
def test_votes(device: metalane.Device, pattern: int, condition: str) -> None:
    generator = np.random.default_rng(1)
    c = {"random": generator.integers(0, 2, THREADS), "true": np.ones(THREADS), "false": np.zeros(THREADS)}[
        condition
    ]
    calls = ["bool c = cs[i] != 0;", "if ((pattern[0] >> (t % 32)) & 1) {"]
    calls += [f"  out[{k} * n + i] = {call};" for k, call in enumerate(VOTES)]
    got = run_kernel(
        device,
        "votes",
        "",
        {"cs": ("uchar", c.astype(np.uint8)), "pattern": ("uint", np.array([pattern], np.uint32))},
        {"out": (len(VOTES) * THREADS, "ulong")},
        [*calls, "}"],
        threads=THREADS,
        threads_per_threadgroup=GROUP,
        attributes="uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]",
    )["out"].reshape(len(VOTES), THREADS)
    for row, (call, oracle) in zip(got, VOTES.items(), strict=True):
        for threads, active in groups(WIDTH if "simd" in call else 4, pattern):
            votes = [bool(c[t]) for t in threads]
            for lane in active:
                assert int(row[threads[lane]]) == int(oracle(votes, active, lane)), (call, threads[lane])


DIVERGENT = [
    "uint lane = t % 32; uint trips = lane % 5; uint sum = 0;",
    "for (uint k = 0; k < trips; ++k) sum += simd_sum(1u);",
    "loops[i] = sum;",
    "switch (lane % 3) {",
    "  case 0: branches[i] = simd_sum(lane); break;",
    "  case 1: branches[i] = simd_max(lane); break;",
    "  default: branches[i] = simd_sum(2 * lane);",
    "}",
    "nested[i] = 0;",
    "if (lane & 1) { if (lane & 2) nested[i] = simd_sum(lane); else nested[i] = simd_sum(lane + 100); }",
    "together[i] = simd_sum(1u);",
    "uint left = 0;",
    "while (true) { left += simd_sum(1u); if (lane <= left / 16) break; if (left > 400) break; }",
    "breaks[i] = left;",
]


def test_divergence(device: metalane.Device) -> None:
    """Loops of different length, switches, nested branches, breaks: who meets at a call, and that all meet again."""
    outputs = ("loops", "branches", "nested", "together", "breaks")
    got = run_kernel(
        device,
        "divergence",
        "",
        {},
        dict.fromkeys(outputs, (THREADS, "uint")),
        DIVERGENT,
        threads=THREADS,
        threads_per_threadgroup=GROUP,
        attributes="uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]",
    )
    for threads, lanes in groups(WIDTH, 0xFFFFFFFF):
        exact: dict[str, list[int]] = {name: [] for name in outputs}
        left = dict.fromkeys(lanes, 0)
        waiting = list(lanes)
        while waiting:
            for lane in waiting:
                left[lane] += len(waiting)
            waiting = [k for k in waiting if not (k <= left[k] // 16 or left[k] > 400)]
        for lane in lanes:
            exact["loops"].append(sum(sum(k < other % 5 for other in lanes) for k in range(lane % 5)))
            peers = [k for k in lanes if k % 3 == lane % 3]
            exact["branches"].append((sum(peers), max(peers), 2 * sum(peers))[lane % 3])
            odd = [k for k in lanes if k % 4 == lane % 4]
            exact["nested"].append((0, sum(k + 100 for k in odd), 0, sum(odd))[lane % 4])
            exact["together"].append(len(lanes))
            exact["breaks"].append(left[lane])
        for name in outputs:
            assert got[name][threads].tolist() == exact[name], name
