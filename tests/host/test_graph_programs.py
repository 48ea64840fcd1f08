"""Random programs on overlapping views: serial, concurrent, captured, reordered and replayed runs give NumPy's bits."""

from __future__ import annotations

import itertools
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import metalane
from counts import count
from devices import SANITIZED

WORDS = 96

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Mix { uint n; uint na; uint nb; uint salt; };
kernel void mix(device uint* y [[buffer(0)]], device const uint* a [[buffer(1)]], device const uint* b [[buffer(2)]],
                constant Mix& p [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  y[i] = (y[i] ^ p.salt) * 2654435761u + a[i % p.na] * 3u + (b[i % p.nb] >> 3);
}
kernel void put(device uint* y [[buffer(0)]], device const uint* a [[buffer(1)]], constant Mix& p [[buffer(2)]],
                uint i [[thread_position_in_grid]]) { y[i] = a[i % p.na] + p.salt + i; }
"""


@metalane.metal_struct
class Mix:
    n: Annotated[int, metalane.u32]
    na: Annotated[int, metalane.u32]
    nb: Annotated[int, metalane.u32]
    salt: Annotated[int, metalane.u32]


class Launch(NamedTuple):
    """`a` and `b` are apart from `y`, as a kernel without races needs it, and may overlap each other."""

    kernel: str
    y: tuple[int, int]
    a: tuple[int, int]
    b: tuple[int, int]
    salt: int


def random_range(rng: np.random.Generator, low: int, high: int) -> tuple[int, int]:
    begin = int(rng.integers(low, high))
    return begin, int(rng.integers(begin + 1, min(high, begin + 24) + 1))


def random_program(rng: np.random.Generator) -> list[Launch]:
    program = []
    for _ in range(int(rng.integers(2, 11))):
        y = random_range(rng, 0, WORDS)
        sides = [side for side in ((0, y[0]), (y[1], WORDS)) if side[1] - side[0] >= 1]
        a, b = (random_range(rng, *sides[int(rng.integers(len(sides)))]) for _ in range(2))
        kernel = "mix" if rng.random() < 0.7 else "put"
        program.append(Launch(kernel, y, a, b, int(rng.integers(1 << 32))))
    return program


def expected(program: list[Launch], salts: list[int], start: np.ndarray) -> np.ndarray:
    memory = start.copy()
    for launch, salt in zip(program, salts, strict=True):
        y = memory[slice(*launch.y)]
        a, b = np.resize(memory[slice(*launch.a)], len(y)), np.resize(memory[slice(*launch.b)], len(y))
        if launch.kernel == "mix":
            y[:] = (y ^ np.uint32(salt)) * np.uint32(2654435761) + a * np.uint32(3) + (b >> np.uint32(3))
        else:
            y[:] = a + np.uint32(salt) + np.arange(len(y), dtype=np.uint32)
    return memory


def record(
    encoder: metalane.CommandEncoder, program: list[Launch], memory: metalane.Buffer, pipelines: dict
) -> None:
    for number, launch in enumerate(program):
        y, a, b = (memory.view(4 * begin, end - begin) for begin, end in (launch.y, launch.a, launch.b))
        params = params_of(launch, launch.salt)
        args = [y, a, b, params] if launch.kernel == "mix" else [y, a, params]
        n = launch.y[1] - launch.y[0]
        with encoder.label(f"launch{number}"):
            encoder.dispatch(pipelines[launch.kernel], args, threads=n, threads_per_threadgroup=n)


def params_of(launch: Launch, salt: int) -> Mix:
    return Mix(*(end - begin for begin, end in (launch.y, launch.a, launch.b)), salt)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def conflict(one: Launch, other: Launch) -> bool:
    def touched(launch: Launch) -> list[tuple[int, int]]:
        return [launch.y, launch.a] + ([launch.b] if launch.kernel == "mix" else [])

    return any(overlap(one.y, r) for r in touched(other)) or any(overlap(other.y, r) for r in touched(one))


def check_order(program: list[Launch], graph: metalane.ComputeGraph, levels: list[int]) -> None:
    """Levels and the reordered sequence, by comparing every pair of launches."""
    for i, launch in enumerate(program):
        behind = [levels[j] + 1 for j in range(i) if conflict(program[j], launch)]
        assert levels[i] == max(behind, default=0)
    order = [int(node.label.removeprefix("launch")) for node in graph.nodes]
    place = {number: at for at, number in enumerate(order)}
    for first, second in itertools.combinations(range(len(program)), 2):
        assert place[first] < place[second] or not conflict(program[first], program[second])


@pytest.fixture
def pipelines(device: metalane.Device) -> dict[str, metalane.Pipeline]:
    device.registry.register_source("programs", SOURCE)
    return {name: device.registry.pipeline(name) for name in ("mix", "put")}


@pytest.mark.metalane_check(False)  # 20,000 programs, and nothing of a kernel's own is asked here
def test_random_programs(device: metalane.Device, pipelines: dict[str, metalane.Pipeline]) -> None:
    rng = np.random.default_rng(20261130)
    memory = device.zeros(WORDS, "u32")
    host = memory.numpy()

    def run(how: str, commit, salts: list[int], program: list[Launch], start: np.ndarray) -> None:
        host[:] = start
        commit().wait()
        wrong = np.flatnonzero(host != expected(program, salts, start))
        assert wrong.size == 0, f"{how} differs at words {wrong} for {program}"

    for _ in range(count("graph_programs") // (10 if SANITIZED else 1)):
        program = random_program(rng)
        start = rng.integers(1 << 32, size=WORDS, dtype=np.uint32)
        salts = [launch.salt for launch in program]

        def eager(concurrent: bool, program: list[Launch] = program) -> metalane.Ticket:
            encoder = device.command_encoder(concurrent=concurrent)
            record(encoder, program, memory, pipelines)
            return encoder.commit()

        run("serial", lambda: eager(False), salts, program, start)
        run("concurrent", lambda: eager(True), salts, program, start)
        encoder = device.command_encoder()
        with encoder.capture() as captured:
            record(encoder, program, memory, pipelines)
        graph = captured.graph
        assert graph.validate() == []
        graph.encode(encoder)
        run("captured", encoder.commit, salts, program, start)
        run("replayed", graph.replay, salts, program, start)
        reordered = graph.reorder()
        levels = graph.levels()
        check_order(program, reordered.graph, levels)
        assert reordered.barriers_after == max(levels) <= reordered.barriers_before
        run("reordered", reordered.graph.replay, salts, program, start)
        chosen = int(rng.integers(len(program)))
        salts[chosen] = int(rng.integers(1 << 32))
        params = {f"launch{chosen}": params_of(program[chosen], salts[chosen])}
        run("patched", lambda g=graph, p=params: g.replay(p), salts, program, start)
        run("reordered and patched", lambda g=reordered.graph, p=params: g.replay(p), salts, program, start)


@pytest.mark.metalane_check(False)
def test_rebound_programs(device: metalane.Device, pipelines: dict[str, metalane.Pipeline]) -> None:
    """The same launches on other memory, while the old memory and what lies around both stay as they are."""
    rng = np.random.default_rng(7)
    old = device.zeros(WORDS, "u32")
    for _ in range(count("graph_rebindings")):
        program = random_program(rng)
        arena = device.from_numpy(rng.integers(1 << 32, size=3 * WORDS, dtype=np.uint32))
        new = arena.view(4 * int(rng.integers(0, 2 * WORDS)), WORDS)
        before, start = arena.numpy().copy(), new.numpy().copy()
        old.numpy()[:] = 0xDEAD
        encoder = device.command_encoder()
        with encoder.capture() as captured:
            record(encoder, program, old, pipelines)
        captured.graph.replay(buffers={old: new}).wait()
        begin = new.byte_offset // 4
        before[begin : begin + WORDS] = expected(program, [launch.salt for launch in program], start)
        np.testing.assert_array_equal(arena.numpy(), before)
        assert (old.numpy() == 0xDEAD).all()
