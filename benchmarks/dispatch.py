"""Costs of the runtime itself, from Python: calls on the null device, parameter objects, an empty launch on the CPU.

Each figure is the best of many short rounds (the machine's noise only adds); the rounds of all figures take turns. The
cost of calling an empty Python function is measured in the same turns and shown, not subtracted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import metalane

RESULTS = Path(__file__).parent / "results"
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void eight(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                  device const float* c [[buffer(2)]], device const float* d [[buffer(3)]],
                  device const float* e [[buffer(4)]], device const float* f [[buffer(5)]],
                  device const float* g [[buffer(6)]], device float* h [[buffer(7)]]) { h[0] = a[0]; }
kernel void empty(device float* a [[buffer(0)]]) {}
"""


class Figure(NamedTuple):
    """One measured call; `make` gives a fresh callable for each round."""

    name: str
    target_us: float | None
    calls: int
    make: Callable[[], tuple[Callable[[], object], Callable[[], object]]]


def figures() -> list[Figure]:
    null, cpu = metalane.Device("null"), metalane.Device("cpu")
    for device in (null, cpu):
        device.registry.register_source("bench", SOURCE)
    eight = [null.zeros(64, "f32") for _ in range(8)]
    pipeline = null.registry.pipeline("eight")
    buffers = metalane.DFlash2SelectorBuffers.alloc(null, 4, 16, 1000)
    anchor, temperature = (1, 2, 3, 4), (1.0, 0.5, 1.0, 2.0)
    fields = {"lanes": 4, "rows_per_lane": 16, "vocabulary": 1000, "sampling_mask": 2}
    params = metalane.DFlash2SelectorParams(anchor, temperature, **fields)
    verify = metalane.DFlash2VerifyRowsParams.with_costs(
        [1.0] * 65, slope=1.0, intercept=[0.0] * 15, lanes=4, rows_per_lane=16, every_row=0, maximum=[16] * 4
    )
    verify_rows = null.zeros(4, "u32")
    one = cpu.zeros(1, "f32")
    empty = cpu.registry.pipeline("empty")

    def recorded(record: Callable[[metalane.CommandEncoder], object]) -> Callable[[], tuple]:
        def make() -> tuple[Callable[[], object], Callable[[], object]]:
            encoder = null.command_encoder()
            return lambda: record(encoder), encoder.discard

        return make

    def plain(call: Callable[[], object]) -> Callable[[], tuple]:
        return lambda: (call, lambda: None)

    def commit_empty() -> None:
        encoder = cpu.command_encoder()
        encoder.dispatch(empty, [one], threads=1, threads_per_threadgroup=1)
        encoder.commit_and_wait()

    def dispatch(kernel: str | metalane.Pipeline) -> Callable[[metalane.CommandEncoder], None]:
        return lambda encoder: encoder.dispatch(kernel, eight, threadgroups=2, threads_per_threadgroup=32)

    return [
        Figure("empty Python function", None, 200, plain(lambda: None)),
        Figure("dispatch, 8 buffers, pipeline", 0.6, 200, recorded(dispatch(pipeline))),
        Figure("dispatch, 8 buffers, by name", None, 200, recorded(dispatch("eight"))),
        Figure("dispatch_dflash2_selector", 1.5, 200,
               recorded(lambda encoder: metalane.dispatch_dflash2_selector(encoder, buffers, params))),
        Figure("dispatch_dflash2_verify_rows", 1.5, 200,
               recorded(lambda encoder: metalane.dispatch_dflash2_verify_rows(
                   encoder, buffers.confidence, verify_rows, verify))),
        Figure("DFlash2SelectorParams(...)", 0.5, 200,
               plain(lambda: metalane.DFlash2SelectorParams(anchor=anchor, temperature=temperature, **fields))),
        Figure("CPU device: empty kernel, commit and wait", 15.0, 100, plain(commit_empty)),
    ]  # fmt: skip


def measure(rounds: int) -> list[dict[str, object]]:
    table = figures()
    times: list[list[float]] = [[] for _ in table]
    for _ in range(rounds):
        for figure, seen in zip(table, times, strict=True):
            call, after = figure.make()
            seen.append(timeit.timeit(call, number=figure.calls) / figure.calls * 1e6)
            after()
    return [
        {"name": f.name, "best_us": min(t), "median_us": statistics.median(t), "target_us": f.target_us}
        for f, t in zip(table, times, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rows = measure(parser.parse_args().rounds)
    print(f"{'call':44} {'best':>9} {'median':>9} {'target':>9}   (us)")
    for row in rows:
        target = "" if row["target_us"] is None else f"{row['target_us']:9.2f}"
        print(f"{row['name']:44} {row['best_us']:9.3f} {row['median_us']:9.3f} {target:>9}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "dispatch.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
