"""metal_atomic on the CPU device: every type and operation, in device and threadgroup memory, many threadgroups at
once, against what holds whatever the order of threads is."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from ops.oracle.msl_integer import Integer
from ops.oracle.msl_real import DTYPES
from ops.stdlib_case import run_kernel

import metalane

GROUPS, GROUP = 60, 128
N = GROUPS * GROUP
ATTRIBUTES = (
    "uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]], "
    "uint g [[threadgroup_position_in_grid]]"
)
INTEGERS = ("int", "uint", "long", "ulong")
ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
FETCHES = {
    "add": operator.add,
    "sub": operator.sub,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
}


def operands(dtype: str) -> np.ndarray:
    kind = Integer(dtype)
    return np.random.default_rng(8).integers(kind.low, kind.high, N, DTYPES[dtype], endpoint=True)


def start(name: str, dtype: str) -> int:
    kind = Integer(dtype)
    return {"and": kind.wrap(-1), "min": kind.high, "max": kind.low}.get(name, 5)


@pytest.mark.parametrize("space", ["device", "threadgroup"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_fetch(device: metalane.Device, dtype: str, space: str) -> None:
    """The final value is the operation over all operands, in any order; each thread sees a value of some order."""
    names = list(FETCHES)
    values = operands(dtype)
    members = 1 if space == "device" else GROUPS
    first = np.array([start(name, dtype) for _ in range(members) for name in names], DTYPES[dtype])
    lines = []
    if space == "device":
        lines.append(f"device atomic<{dtype}>* objects = (device atomic<{dtype}>*)finals;")
    else:
        lines += [f"threadgroup atomic<{dtype}> objects[{len(names)}];", f"bool owns = t < {len(names)};"]
        lines.append(f"uint own = owns ? t : 0, place = g * {len(names)} + own;")
        lines.append("if (owns) atomic_store_explicit(&objects[own], finals[place], memory_order_relaxed);")
        lines.append("threadgroup_barrier(mem_flags::mem_threadgroup);")
    for k, name in enumerate(names):
        order = f"memory_order_{ORDERS[k % len(ORDERS)]}"
        lines.append(
            f"olds[{k} * {N} + i] = atomic_fetch_{name}_explicit(&objects[{k}], values[i], {order});"
        )
    if space == "threadgroup":
        lines.append("threadgroup_barrier(mem_flags::mem_threadgroup);")
        lines.append("if (owns) finals[place] = atomic_load_explicit(&objects[own], memory_order_relaxed);")
    got = run_kernel(
        device,
        f"fetch_{space}_{dtype}",
        "",
        {"values": (dtype, values)},
        {"finals": (first.size, dtype), "olds": (len(names) * N, dtype)},
        lines,
        threads=N,
        threads_per_threadgroup=GROUP,
        attributes=ATTRIBUTES,
        initial={"finals": first},
    )
    kind = Integer(dtype)
    for member in range(members):
        part = slice(member * N // members, (member + 1) * N // members)
        numbers = [int(v) for v in values[part]]
        for k, (name, op) in enumerate(FETCHES.items()):
            exact = kind.wrap(functools.reduce(op, numbers, start(name, dtype)))
            assert int(got["finals"][member * len(names) + k]) == exact, name
            olds = [int(v) for v in got["olds"].reshape(len(names), N)[k, part]]
            assert start(name, dtype) in olds, name
            if name in ("add", "sub", "xor"):
                # Old values and what each thread made of its own are the same chain, shifted by one.
                after = [kind.wrap(op(old, v)) for old, v in zip(olds, numbers, strict=True)]
                assert sorted([*olds, exact]) == sorted([start(name, dtype), *after]), name


def test_tickets_are_unique(device: metalane.Device) -> None:
    """fetch_add hands out each number once; a struct's member, a volatile pointer and an order of each kind."""
    prelude = "struct Counters { uint before; atomic_uint next; atomic_int left; };\n"
    lines = [
        "device Counters* c = (device Counters*)counters;",
        "volatile device atomic_uint* next = &c->next;",
        "tickets[i] = atomic_fetch_add_explicit(next, 1u, memory_order_acq_rel);",
        "lefts[i] = atomic_fetch_sub_explicit(&c->left, 1, memory_order_seq_cst);",
    ]
    got = run_kernel(
        device,
        "tickets",
        prelude,
        {},
        {"counters": (3, "uint"), "tickets": (N, "uint"), "lefts": (N, "int")},
        lines,
        threads=N,
        threads_per_threadgroup=GROUP,
        attributes=ATTRIBUTES,
        initial={"counters": np.array([7, 0, N], np.uint32)},
    )
    assert np.array_equal(np.sort(got["tickets"]), np.arange(N))
    assert np.array_equal(np.sort(got["lefts"]), np.arange(1, N + 1))
    assert got["counters"].tolist() == [7, N, 0]


EXCHANGED = ("int", "uint", "float", "long", "ulong")


@pytest.mark.parametrize("dtype", EXCHANGED)
def test_exchange_and_compare_exchange(device: metalane.Device, dtype: str) -> None:
    """exchange loses and doubles nothing; a loop of compare_exchange counts exactly, and a failure tells why."""
    lines = [
        f"device atomic<{dtype}>* a = (device atomic<{dtype}>*)objects;",
        f"olds[i] = atomic_exchange_explicit(&a[0], {dtype}(i + 1), memory_order_relaxed);",
        f"{dtype} seen = atomic_load_explicit(&a[1], memory_order_relaxed);",
        "while (!atomic_compare_exchange_weak_explicit(&a[1], &seen, seen + 3, memory_order_relaxed,",
        "                                              memory_order_relaxed)) {}",
        f"{dtype} wrong = {dtype}(1); bool changed = atomic_compare_exchange_weak_explicit(&a[2], &wrong, {dtype}(9), "
        "memory_order_acq_rel, memory_order_acquire);",
        "failures[i] = changed ? 1000 : wrong;",
        f"atomic_store_explicit(&a[3], {dtype}(77), memory_order_release);",
        "loads[i] = atomic_load_explicit(&a[3], memory_order_acquire);",
    ]
    got = run_kernel(
        device,
        f"exchange_{dtype}",
        "",
        {},
        {"objects": (4, dtype), "olds": (N, dtype), "failures": (N, dtype), "loads": (N, dtype)},
        lines,
        threads=N,
        threads_per_threadgroup=GROUP,
        attributes=ATTRIBUTES,
        initial={"objects": np.array([0, 0, 5, 0], DTYPES[dtype])},
    )
    assert np.array_equal(np.sort([*got["olds"], got["objects"][0]]), np.arange(N + 1))
    assert got["objects"].tolist()[1:] == [3 * N, 5, 77]
    assert (got["failures"] == 5).all() and (got["loads"] == 77).all()


def test_float_sums(device: metalane.Device) -> None:
    """fetch_add and fetch_sub of float, in both memories: sums of whole numbers come out exactly."""
    lines = [
        "threadgroup atomic_float shared;",
        "if (t == 0) atomic_store_explicit(&shared, 0.0f, memory_order_relaxed);",
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "device atomic_float* totals = (device atomic_float*)sums;",
        "atomic_fetch_add_explicit(&shared, float(t), memory_order_relaxed);",
        "atomic_fetch_add_explicit(&totals[0], 1.0f, memory_order_relaxed);",
        "atomic_fetch_sub_explicit(&totals[1], 2.0f, memory_order_relaxed);",
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "if (t == 0) parts[g] = atomic_load_explicit(&shared, memory_order_relaxed);",
    ]
    got = run_kernel(
        device,
        "float_sums",
        "",
        {},
        {"sums": (2, "float"), "parts": (GROUPS, "float")},
        lines,
        threads=N,
        threads_per_threadgroup=GROUP,
        attributes=ATTRIBUTES,
        initial={"sums": np.zeros(2, np.float32)},
    )
    assert got["sums"].tolist() == [N, -2 * N]
    assert (got["parts"] == GROUP * (GROUP - 1) // 2).all()


def test_flags_and_extremes(device: metalane.Device) -> None:
    """atomic_bool; and atomic_max_explicit and atomic_min_explicit of ulong, which return nothing."""
    lines = [
        "device atomic_bool* flags = (device atomic_bool*)bools;",
        "bool expected = false;",
        "bool won = atomic_exchange_explicit(&flags[0], true, memory_order_relaxed) == false;",
        "winners[i] = won; if (i == 3) atomic_store_explicit(&flags[1], true, memory_order_relaxed);",
        "device atomic_ulong* extremes = (device atomic_ulong*)words;",
        "atomic_max_explicit(&extremes[0], ulong(i) << 33, memory_order_relaxed);",
        "atomic_min_explicit(&extremes[1], ~(ulong(i) << 33), memory_order_relaxed);",
        "if (i == 5) while (!atomic_compare_exchange_weak_explicit(&flags[2], &expected, true, memory_order_relaxed,",
        "memory_order_relaxed)) expected = false;",
        "read[i] = atomic_load_explicit(&flags[3], memory_order_relaxed);",
    ]
    got = run_kernel(
        device,
        "flags",
        "",
        {},
        {"bools": (4, "uchar"), "winners": (N, "uchar"), "words": (2, "ulong"), "read": (N, "uchar")},
        lines,
        threads=N,
        threads_per_threadgroup=GROUP,
        attributes=ATTRIBUTES,
        initial={"bools": np.array([0, 0, 0, 1], np.uint8), "words": np.array([0, 2**64 - 1], np.uint64)},
    )
    assert got["winners"].sum() == 1 and got["bools"].tolist() == [1, 1, 1, 1] and (got["read"] == 1).all()
    assert [int(w) for w in got["words"]] == [(N - 1) << 33, 2**64 - 1 - ((N - 1) << 33)]


@pytest.mark.parametrize("order", ["acq_rel", "seq_cst"])
def test_last_threadgroup_sees_the_others(device: metalane.Device, order: str) -> None:
    """Partial results, a fence, a counter: the threadgroup that counts last adds up what all have written."""
    lines = [
        "threadgroup bool is_last;",
        "device atomic_uint* count = (device atomic_uint*)counter;",
        "partial[i] = i * 3 + 1;",
        f"atomic_thread_fence(mem_flags::mem_device, memory_order_{order}, thread_scope_device);",
        "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
        "if (t == 0) {",
        f"  is_last = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed) == {GROUPS} - 1;",
        f"  atomic_thread_fence(mem_flags::mem_device, memory_order_{order});",
        "}",
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        f"if (is_last && t == 0) {{ uint sum = 0; for (uint k = 0; k < {N}; ++k) sum += partial[k]; total[0] = sum; }}",
    ]
    for _ in range(20):
        got = run_kernel(
            device,
            f"last_group_{order}",
            "",
            {},
            {"counter": (1, "uint"), "partial": (N, "uint"), "total": (1, "uint")},
            lines,
            threads=N,
            threads_per_threadgroup=GROUP,
            attributes=ATTRIBUTES,
            initial={"counter": np.zeros(1, np.uint32)},
        )
        assert got["total"][0] == sum(3 * k + 1 for k in range(N))
