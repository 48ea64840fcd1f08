"""The planted faults: kernels of `planted/*.metal` that are wrong in one known way each, and their repaired twins.

`X_fault` is the wrong kernel, `X_repaired` its twin; the lines of the fault end in `// FAULT`. `FAULTS` says with what
each is launched. Faults of `race_launches.metal` lie in how right kernels are launched: `LAUNCH_FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import metalane

FOLDER = Path(__file__).parent / "planted"


@dataclass(frozen=True)
class Fresh:
    """Device memory from `empty`: nothing has been written there."""

    count: int
    dtype: type = np.float32


@dataclass(frozen=True)
class Part:
    """A view of `count` elements in the middle of a larger buffer, so that an overrun lands in the buffer's rest."""

    values: np.ndarray
    count: int
    first: int = 0


Value = np.ndarray | Fresh | Part | int | float


@dataclass(frozen=True)
class Fault:
    """One planted fault: the kernel pair `name`, what both get, and how a checker calls the fault."""

    kind: str
    name: str
    arguments: Mapping[str, Value]
    threads: int | tuple[int, ...]
    group: int | tuple[int, ...]
    argument: str | None = None  # what the finding names; None where it names no argument
    memory: Mapping[str, int] = field(default_factory=dict)
    groups: int | None = None  # whole threadgroups in place of `threads`

    @property
    def file(self) -> Path:
        return FOLDER / (self.kind.replace("-", "_") + ".metal")

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def fault_lines(file: Path, kernel: str | None = None) -> set[int]:
    """Numbers of the lines marked `// FAULT`; with `kernel`, those of this kernel and of the helpers right above it."""
    lines = file.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("// FAULT")}
    if kernel is None:
        return marked
    start = next(number for number, line in enumerate(lines, 1) if f"kernel void {kernel}(" in line)
    end = next(number for number, line in enumerate(lines[start:], start + 1) if line == "}")
    # A helper belongs to the kernel behind it: the block ends at the line of the previous kernel's closing brace.
    previous = max(
        (n for n, line in enumerate(lines[: start - 1], 1) if line.startswith("kernel void")), default=0
    )
    begin = next((n for n in range(previous + 1, start) if lines[n - 1] == "}"), 0) if previous else 0
    return {number for number in marked if begin < number <= end}


def device_arguments(device: metalane.Device, values: Mapping[str, Value]) -> dict[str, object]:
    """Buffers of `device` for arrays, fresh memory and parts; numbers as they are."""
    given: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Fresh):
            given[name] = device.empty(value.count, value.dtype)
        elif isinstance(value, Part):
            whole = device.from_numpy(value.values)
            given[name] = whole.view(value.first * value.values.itemsize, value.count)
        elif isinstance(value, np.ndarray):
            given[name] = device.from_numpy(value)
        else:
            given[name] = value
    return given


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def zeros(count: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


def uints(count: int, below: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, count, dtype=np.uint32)


FOUND_LATE = zeros(256)
FOUND_LATE[64 + 7] = 3.0  # thread 7 finds its value in the second round

FAULTS = [
    Fault("race", "tree", {"x": floats(256), "out": zeros(1)}, 256, 256, "partial"),
    Fault("race", "scan", {"x": floats(128), "out": zeros(128)}, 128, 128, "s"),
    Fault("race", "histogram", {"x": uints(64, 100), "out": zeros(8, np.uint32)}, 64, 64, "bins"),
    Fault(
        "race",
        "device_exchange",
        {"x": floats(96), "scratch": zeros(96), "out": zeros(96)},
        96,
        96,
        "scratch",
    ),
    Fault("race", "reused_scratch", {"x": floats(128), "out": zeros(128)}, 128, 128, "partial"),
    Fault(
        "race",
        "counted_plainly",
        {"x": floats(64), "count": zeros(1, np.uint32), "out": zeros(1, np.uint32)},
        64,
        64,
        "count",
    ),
    Fault(
        "race",
        "byte_pairs",
        {"x": np.random.default_rng(1).integers(0, 255, 64, dtype=np.uint8), "out": zeros(129, np.uint8)},
        64,
        64,
        "out",
    ),
    Fault("race", "foreign_tile", {"x": floats(64), "out": zeros(64)}, 64, 64, "tile"),
    Fault("race-threadgroups", "total", {"x": floats(128), "total": zeros(1)}, 128, 32, "total"),
    Fault("race-threadgroups", "overlapping_blocks", {"x": floats(97), "out": zeros(97)}, 99, 33, "out"),
    Fault(
        "race-threadgroups",
        "last_arrival",
        {
            "x": floats(128),
            "partial": zeros(4, np.uint32),
            "arrived": zeros(1, np.uint32),
            "out": zeros(1, np.uint32),
        },
        128,
        32,
        "partial",
    ),
    Fault("race-threadgroups", "transpose", {"a": floats(16, 16), "n": 16}, (16, 16), (8, 8), "a"),
    Fault("race-threadgroups", "smooth", {"x": floats(128), "out": zeros(128)}, 128, 64, "x"),
    Fault("race-threadgroups", "wrong_position", {"x": floats(96), "out": zeros(96)}, 96, 32, "out"),
    Fault("race-threadgroups", "wrong_stride", {"x": floats(256), "n": 256}, 128, 64, "x"),
    Fault("bounds", "grid_tail", {"x": floats(50), "out": zeros(50), "n": 50}, 64, 64, "out"),
    Fault("bounds", "left_neighbour", {"x": Part(floats(96), 32, 32), "out": zeros(32)}, 32, 32, "x"),
    Fault("bounds", "vector_tail", {"x": Part(floats(64), 30), "out": zeros(8), "n": 30}, 8, 8, "x"),
    Fault("bounds", "byte_stride", {"rows": floats(8, 16), "out": zeros(8), "stride": 64}, 8, 8, "rows"),
    Fault("bounds", "inclusive_loop", {"x": Part(floats(40), 20), "out": zeros(4), "n": 20}, 4, 4, "x"),
    Fault(
        "bounds",
        "atomic_bin",
        {"x": uints(64, 12), "bins": zeros(10, np.uint32), "n_bins": 10},
        64,
        64,
        "bins",
    ),
    Fault("bounds", "threadgroup_array", {"x": floats(64), "out": zeros(64)}, 64, 64, "s"),
    Fault("bounds", "dynamic_memory", {"x": floats(64), "out": zeros(64)}, 64, 64, "s", memory={"s": 256}),
    Fault("bounds", "unset_pointer", {"x": floats(33), "out": zeros(32), "which": 0}, 32, 32),
    Fault("bounds", "matrix_tile", {"a": Part(floats(80), 56), "out": zeros(64)}, 32, 32, "a"),
    Fault("bounds", "cast_input", {"x": floats(32), "out": zeros(32)}, 32, 32, "x"),
    Fault(
        "bounds",
        "count_in_constant",
        {"x": floats(32), "out": zeros(1, np.uint32), "range": np.array([8, 0], np.uint32)},
        1,
        1,
        "range",
    ),
    Fault("uninitialised", "half_filled", {"x": floats(64), "out": zeros(64)}, 64, 64, "s"),
    Fault("uninitialised", "accumulate", {"x": floats(40), "fresh": Fresh(40)}, 40, 40, "fresh"),
    Fault("uninitialised", "tile_rim", {"x": floats(128), "out": zeros(128), "n": 128}, 128, 64, "tile"),
    Fault("uninitialised", "few_partials", {"x": floats(128), "out": zeros(1)}, 128, 128, "partial"),
    Fault("uninitialised", "unset_counter", {"x": floats(64), "out": zeros(1, np.uint32)}, 64, 64, "count"),
    Fault(
        "uninitialised",
        "sparse_list",
        {"x": floats(64), "fresh": Fresh(64, np.uint32), "out": zeros(1, np.uint32)},
        64,
        64,
        "fresh",
    ),
    Fault(
        "uninitialised",
        "forgotten_field",
        {"x": floats(16), "fresh": Fresh(32, np.uint32), "out": zeros(16, np.uint32)},
        16,
        16,
        "fresh",
    ),
    Fault(
        "uninitialised",
        "missing_byte",
        {"x": np.arange(64, dtype=np.uint8), "fresh": Fresh(64, np.uint8), "out": zeros(16, np.uint32)},
        16,
        16,
        "fresh",
    ),
    Fault("uninitialised", "half_of_pair", {"x": floats(32), "out": zeros(32)}, 32, 32, "s"),
    Fault("divergence", "early_return", {"x": floats(64), "out": zeros(64), "n": 40}, 64, 64),
    Fault("divergence", "inside_branch", {"x": floats(64), "out": zeros(64)}, 64, 64),
    Fault("divergence", "both_branches", {"x": floats(64), "out": zeros(64)}, 64, 64),
    Fault("divergence", "uneven_loop", {"x": floats(100), "out": zeros(64), "n": 100}, 64, 64),
    Fault("divergence", "found_break", {"x": FOUND_LATE, "out": zeros(64, np.uint32)}, 64, 64),
    Fault("divergence", "one_simdgroup", {"x": floats(64), "out": zeros(64)}, 64, 64),
    Fault("divergence", "switch_case", {"x": floats(64), "out": zeros(64)}, 64, 64),
    Fault("simdgroup-barrier", "lower_half", {"x": floats(32), "out": zeros(32)}, 32, 32),
    Fault("simdgroup-barrier", "uneven_turns", {"x": floats(40), "out": zeros(32), "n": 40}, 32, 32),
    Fault("simdgroup-barrier", "left_out_turn", {"x": uints(32, 99), "out": zeros(32, np.uint32)}, 32, 32),
    Fault("simdgroup-barrier", "two_of_them", {"x": floats(32), "out": zeros(32)}, 32, 32),
    Fault("simdgroup-barrier", "ahead_of_it", {"x": floats(64), "out": zeros(64)}, 64, 64),
    Fault("simdgroup-barrier", "called_twice", {"x": floats(40), "out": zeros(40)}, 40, 40),
    Fault("simdgroup-barrier", "finder_leaves", {"x": FOUND_LATE, "out": zeros(32, np.uint32)}, 32, 32),
    Fault("shuffle", "past_the_end", {"x": floats(32), "out": zeros(32)}, 32, 32),
    Fault("shuffle", "other_branch", {"x": floats(32), "out": zeros(32)}, 32, 32),
    Fault("shuffle", "wide_broadcast", {"x": floats(32), "out": zeros(32)}, 32, 32),
    Fault(
        "shuffle",
        "quad_index",
        {"x": floats(32), "from": uints(32, 7).astype(np.uint16), "out": zeros(32)},
        32,
        32,
    ),
    Fault("shuffle", "short_simdgroup", {"x": floats(40), "out": zeros(40)}, 40, 40),
    Fault("shuffle", "returned_lane", {"x": floats(32), "out": zeros(32), "n": 20}, 32, 32),
    Fault("shuffle", "left_loop", {"x": floats(32), "out": zeros(32)}, 32, 32),
    Fault("same-value", "found_flag", {"x": floats(64), "found": zeros(1, np.uint32)}, 64, 32, "found"),
    Fault("same-value", "shared_length", {"x": uints(1, 9), "out": zeros(64, np.uint32)}, 64, 64, "length"),
    Fault("same-value", "sum_by_all", {"x": floats(96), "out": zeros(3)}, 96, 32, "out"),
    Fault("same-value", "overlapping_clear", {"out": floats(256)}, 32, 32, "out"),
    Fault(
        "same-value",
        "mark_ids",
        {"ids": uints(64, 20), "mask": zeros(64, np.uint8), "n": 64},
        64,
        64,
        "mask",
    ),
    Fault(
        "same-value",
        "header_by_groups",
        {"x": floats(96), "header": zeros(1, np.uint32), "out": zeros(96)},
        96,
        32,
        "header",
    ),
    Fault("lockstep", "last_levels", {"x": floats(32), "out": zeros(1)}, 32, 32, "s"),
    Fault("lockstep", "after_a_sum", {"x": floats(32), "out": zeros(32)}, 32, 32, "threshold"),
    Fault("lockstep", "lane_scan", {"x": uints(32, 50), "out": zeros(32, np.uint32)}, 32, 32, "s"),
    Fault(
        "lockstep",
        "device_turn",
        {"x": floats(32), "scratch": zeros(32), "out": zeros(32)},
        32,
        32,
        "scratch",
    ),
    Fault("lockstep", "tile_elements", {"a": floats(64), "out": zeros(32)}, 32, 32, "tile"),
    Fault("lockstep", "moved_head", {"x": uints(128, 99), "out": zeros(128, np.uint32)}, 32, 32, "head"),
]


Kernels = metalane.CompiledSource
Record = Callable[[metalane.Device, Kernels, metalane.CommandEncoder, bool], None]


@dataclass(frozen=True)
class LaunchFault:
    """Launches of right kernels into an encoder without automatic barriers; `repaired`: with what orders them."""

    name: str
    record: Record
    argument: str
    lines_of: tuple[str, ...]  # the kernels whose marked lines meet

    def __str__(self) -> str:
        return f"race-launches-{self.name}"


def read_after_write(
    device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool
) -> None:
    x, y, z = device.from_numpy(floats(64)), device.zeros(64, np.float32), device.zeros(64, np.float32)
    k.scale(x, y, 2.0, threads=64, encoder=encoder)
    if repaired:
        encoder.memory_barrier()
    k.shift(y, z, threads=64, encoder=encoder)


def write_after_read(
    device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool
) -> None:
    x, y, z = (
        device.from_numpy(floats(64)),
        device.from_numpy(floats(64, seed=1)),
        device.zeros(64, np.float32),
    )
    k.shift(y, z, threads=64, encoder=encoder)
    if repaired:
        encoder.memory_barrier()
    k.scale(x, y, 2.0, threads=64, encoder=encoder)


def write_after_write(
    device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool
) -> None:
    x, y = device.from_numpy(floats(64)), device.zeros(64, np.float32)
    k.scale(x, y, 2.0, threads=64, encoder=encoder)
    if repaired:
        encoder.memory_barrier()
    k.scale(x, y, 3.0, threads=64, encoder=encoder)


def overlapping_views(
    device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool
) -> None:
    """Two views of one buffer that share an element where the second starts one too early."""
    x, whole = device.from_numpy(floats(32)), device.zeros(64, np.float32)
    k.scale(x, whole.view(0, 32), 2.0, threads=32, encoder=encoder)
    k.scale(x, whole.view(4 * (32 if repaired else 31), 32), 3.0, threads=32, encoder=encoder)


def ping_pong(device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool) -> None:
    """Steps between two buffers with a barrier behind every second one only."""
    a, b = device.from_numpy(floats(64)), device.zeros(64, np.float32)
    for step in range(4):
        k.shift(*((a, b) if step % 2 == 0 else (b, a)), threads=64, encoder=encoder)
        if repaired or step % 2 == 1:
            encoder.memory_barrier()


def atomics_then_plain(
    device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool
) -> None:
    """A counter that one launch adds to with atomics and the next reads as a number."""
    x, count, half = device.from_numpy(floats(64)), device.zeros(1, np.uint32), device.zeros(1, np.uint32)
    k.count_above(x, count, 0.0, threads=64, encoder=encoder)
    if repaired:
        encoder.memory_barrier()
    k.halve_count(count, half, threads=1, encoder=encoder)


def disjoint_but_for_one(
    device: metalane.Device, k: Kernels, encoder: metalane.CommandEncoder, repaired: bool
) -> None:
    """Two partial sums into halves of one buffer; the first has one thread too many."""
    x, sums = device.from_numpy(floats(33)), device.zeros(64, np.float32)
    k.accumulate(x, sums, threads=32 if repaired else 33, encoder=encoder)
    k.accumulate(x, sums.view(4 * 32, 32), threads=32, encoder=encoder)


LAUNCH_FAULTS = [
    LaunchFault("read_after_write", read_after_write, "x", ("scale", "shift")),
    LaunchFault("write_after_read", write_after_read, "out", ("scale", "shift")),
    LaunchFault("write_after_write", write_after_write, "out", ("scale",)),
    LaunchFault("overlapping_views", overlapping_views, "out", ("scale",)),
    LaunchFault("ping_pong", ping_pong, "x", ("shift",)),
    LaunchFault("atomics_then_plain", atomics_then_plain, "count", ("count_above", "halve_count")),
    LaunchFault("disjoint_but_for_one", disjoint_but_for_one, "sum", ("accumulate",)),
]
