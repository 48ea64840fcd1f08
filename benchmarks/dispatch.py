"""Measures the runtime itself from Python: calls on the null device, an empty kernel on the CPU, hazard tracking.

    python benchmarks/dispatch.py [--rounds 300]

Each sample is 200 calls after 100 uncounted ones; sides take turns. Peers show what comparable calls cost in the same
interpreter: an empty Python function, a torch operator on one element, a ctypes structure of the same fields, a task
handed to a thread.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import harness
import numpy as np

import metalane

torch = harness.optional("torch")
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void eight(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                  device const float* c [[buffer(2)]], device const float* d [[buffer(3)]],
                  device const float* e [[buffer(4)]], device const float* f [[buffer(5)]],
                  device const float* g [[buffer(6)]], device float* h [[buffer(7)]]) { h[0] = a[0]; }
kernel void increment(device uint* a [[buffer(0)]]) { a[0] += 1; }
kernel void empty(device float* a [[buffer(0)]]) {}
"""
CALLS = 200
WARM_UP = 100  # what ran before has left this call's code and data out of the caches
FIELDS = {"lanes": 4, "rows_per_lane": 16, "vocabulary": 1000, "sampling_mask": 2}
ANCHOR, TEMPERATURE = [1, 2, 3, 4], [1.0, 0.5, 1.0, 2.0]


class PeerParams(ctypes.Structure):
    """The fields of DFlash2SelectorParams."""

    _fields_ = (
        ("anchor", ctypes.c_uint32 * 4),
        ("temperature", ctypes.c_float * 4),
        ("lanes", ctypes.c_uint32),
        ("rows_per_lane", ctypes.c_uint32),
        ("vocabulary", ctypes.c_uint32),
        ("sampling_mask", ctypes.c_uint32),
    )


def plain(call: Callable[[], object]) -> Callable[[], float]:
    """Seconds a call."""

    def sample() -> float:
        for _ in range(WARM_UP):
            call()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - begin) / CALLS

    return sample


def recorded(
    device: metalane.Device, record: Callable[[metalane.CommandEncoder], object]
) -> Callable[[], float]:
    """The same for a call that records into an encoder, one encoder a sample."""

    def sample() -> float:
        encoder = device.command_encoder()
        for _ in range(WARM_UP):
            record(encoder)
        begin = time.perf_counter()
        for _ in range(CALLS):
            record(encoder)
        seconds = (time.perf_counter() - begin) / CALLS
        encoder.discard()
        return seconds

    return sample


def verify_params() -> metalane.DFlash2VerifyRowsParams:
    return metalane.DFlash2VerifyRowsParams.with_costs(
        [1.0] * 65, slope=1.0, intercept=[0.0] * 15, lanes=4, rows_per_lane=16, every_row=0, maximum=[16] * 4
    )


def check(null: metalane.Device, cpu: metalane.Device, params: metalane.DFlash2SelectorParams) -> None:
    """What is timed really records, packs and runs."""
    buffers = metalane.DFlash2SelectorBuffers.alloc(null, 4, 16, 1000)
    encoder = null.command_encoder()
    metalane.dispatch_dflash2_selector(encoder, buffers, params)
    metalane.dispatch_dflash2_verify_rows(encoder, buffers.confidence, null.zeros(4, "u32"), verify_params())
    if encoder.launches != 4:
        raise SystemExit(f"4 launches expected, {encoder.launches} recorded")
    peer = PeerParams((ctypes.c_uint32 * 4)(*ANCHOR), (ctypes.c_float * 4)(*TEMPERATURE), *FIELDS.values())
    if bytes(peer) != bytes(params):
        raise SystemExit("DFlash2SelectorParams and the C layout differ")
    count = cpu.zeros(1, "u32")
    for _ in range(10):
        encoder = cpu.command_encoder()
        encoder.dispatch("increment", [count], threads=1, threads_per_threadgroup=1)
        encoder.commit_and_wait()
    if count.numpy()[0] != 10:
        raise SystemExit("the CPU device did not run every launch")


def sides() -> dict[str, Callable[[], float]]:
    null, cpu = metalane.Device("null"), metalane.Device("cpu")
    for device in (null, cpu):
        device.registry.register_source("bench", SOURCE)
    eight = [null.zeros(64, "f32") for _ in range(8)]
    pipeline = null.registry.pipeline("eight")
    buffers = metalane.DFlash2SelectorBuffers.alloc(null, 4, 16, 1000)
    make, selector = metalane.DFlash2SelectorParams, metalane.dispatch_dflash2_selector
    verify_rows = metalane.dispatch_dflash2_verify_rows
    params, verify = make(anchor=ANCHOR, temperature=TEMPERATURE, **FIELDS), verify_params()
    rows, confidence = null.zeros(4, "u32"), buffers.confidence
    one, empty = cpu.zeros(1, "f32"), cpu.registry.pipeline("empty")
    check(null, cpu, params)
    pool = ThreadPoolExecutor(1)

    def commit_empty() -> None:
        encoder = cpu.command_encoder()
        encoder.dispatch(empty, [one], threads=1, threads_per_threadgroup=1)
        encoder.commit_and_wait()

    def build() -> None:
        make(
            anchor=ANCHOR,
            temperature=TEMPERATURE,
            lanes=4,
            rows_per_lane=16,
            vocabulary=1000,
            sampling_mask=2,
        )

    def build_peer() -> None:
        PeerParams((ctypes.c_uint32 * 4)(*ANCHOR), (ctypes.c_float * 4)(*TEMPERATURE), 4, 16, 1000, 2)

    def dispatch(kernel: str | metalane.Pipeline) -> Callable[[metalane.CommandEncoder], None]:
        return lambda encoder: encoder.dispatch(kernel, eight, threadgroups=2, threads_per_threadgroup=32)

    result = {
        "empty Python function": plain(lambda: None),
        "dispatch, 8 buffers, pipeline": recorded(null, dispatch(pipeline)),
        "dispatch, 8 buffers, by name": recorded(null, dispatch("eight")),
        "dispatch_dflash2_selector": recorded(null, lambda encoder: selector(encoder, buffers, params)),
        "dispatch_dflash2_verify_rows": recorded(
            null, lambda encoder: verify_rows(encoder, confidence, rows, verify)
        ),
        "DFlash2SelectorParams(...)": plain(build),
        "ctypes.Structure of the same fields": plain(build_peer),
        "CPU device: empty kernel, commit and wait": plain(commit_empty),
        "a task handed to a Python thread": plain(lambda: pool.submit(int).result()),
    }
    if torch is not None:
        x = torch.ones(1)
        result["torch.add of one element, out="] = plain(lambda: torch.add(x, x, out=x))
    return result


def hazard_curve(rounds: int) -> dict[str, harness.Spread]:
    """Seconds a launch within submissions of n launches, each with 8 ranges that no other launch touches."""
    null = metalane.Device("null")
    null.registry.register_source("bench", SOURCE)
    pipeline = null.registry.pipeline("eight")
    pool = null.zeros(8 * 5000 * 4, "u32")
    order = np.random.default_rng(0).permutation(8 * 5000)  # neighbours would merge into one range
    launches = [[pool.view(16 * int(i), 1, "f32") for i in order[8 * n : 8 * n + 8]] for n in range(5000)]

    def submission(count: int) -> Callable[[], float]:
        def sample() -> float:
            encoder = null.command_encoder()
            begin = time.perf_counter()
            for arguments in launches[:count]:
                encoder.dispatch(pipeline, arguments, threadgroups=2, threads_per_threadgroup=32)
            seconds = (time.perf_counter() - begin) / count
            if encoder.barriers:
                raise SystemExit("ranges that no other launch touches got a barrier")
            encoder.discard()
            return seconds

        return sample

    counts = (1, 5, 50, 500, 5000)
    return harness.spreads(harness.in_turn({str(n): submission(n) for n in counts}, rounds))


def main() -> None:
    options = harness.Options.parse("Benchmark of calls.", rounds=300, quick_rounds=20)
    calls = harness.spreads(harness.in_turn(sides(), options.rounds))
    hazards = hazard_curve(max(3, options.rounds // 10))
    bounds = {
        "dispatch_dflash2_selector": 1.5,
        "dispatch_dflash2_verify_rows": 1.5,
        "dispatch, 8 buffers, pipeline": 0.6,
        "DFlash2SelectorParams(...)": 0.5,
        "CPU device: empty kernel, commit and wait": 15,
    }
    targets = [harness.Target(name, 1e6 * calls[name].median, bound, "us") for name, bound in bounds.items()]
    body = ["| call | median us | 10-90 % | smallest us |", "|---|---|---|---|"]
    body += [harness.spread_row(name, s, 1e6, f"{1e6 * s.smallest:.4g}") for name, s in calls.items()]
    body += [
        "",
        "Hazard tracking: launches with 8 ranges each that nothing else touches, in one submission.",
        "",
    ]
    body += ["| launches | median us a launch | 10-90 % | smallest us |", "|---|---|---|---|"]
    body += [harness.spread_row(name, s, 1e6, f"{1e6 * s.smallest:.4g}") for name, s in hazards.items()]
    cases = {"seconds": calls, "hazard_seconds_by_launches": hazards}
    harness.write("dispatch", "Calls from Python", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
