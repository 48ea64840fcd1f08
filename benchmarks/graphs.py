"""Measures graphs: replays on the null and on the CPU device, eager operators beside MLX, hazards, fusions.

    python benchmarks/graphs.py [--rounds 100]

A replay is one Python call for 512 launches, each of which goes through the backend's `dispatch`; the record of the
null device is compared with the eager run's before anything is timed. Every eager operator runs all its checks.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import dispatch
import harness
import numpy as np

import metalane
from metalane.testing import last_record

sys.path.append(str(harness.HERE.parent / "tests"))
from ops.ggml_case import number, random_weight

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Step { uint position; uint rows; };
kernel void step(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                 device const float* c [[buffer(2)]], device const float* d [[buffer(3)]],
                 device const float* e [[buffer(4)]], device const float* f [[buffer(5)]],
                 device const float* g [[buffer(6)]], device float* h [[buffer(7)]],
                 constant Step& p [[buffer(8)]]) {}
"""
LAUNCHES = 512
A_LABEL = 8  # launches
PATCHED = 8  # labels
REPLAYS = 10  # a sample
Record = Callable[[metalane.CommandEncoder], object]
Side = Callable[[], float]


@metalane.metal_struct
class Step:
    position: Annotated[int, metalane.u32]
    rows: Annotated[int, metalane.u32]


def captured(device: metalane.Device, record: Record) -> metalane.ComputeGraph:
    encoder = device.command_encoder()
    with encoder.capture() as capture:
        record(encoder)
    return capture.graph


class Launches:
    """512 empty launches with eight buffers and a struct each, eight under a label.

    chained: each reads what the one before wrote, else none waits for another.
    """

    def __init__(self, device: metalane.Device, chained: bool) -> None:
        device.registry.register_source("graphs", SOURCE)
        self.device = device
        self._pipeline = device.registry.pipeline("step")
        inputs = [device.zeros(64, "f32") for _ in range(16)]
        outputs = [device.zeros(64, "f32") for _ in range(LAUNCHES + 1)]
        self._buffers = [
            [outputs[i] if chained else inputs[0], *(inputs[(i + j) % 16] for j in range(6)), outputs[i + 1]]
            for i in range(LAUNCHES)
        ]
        self.graph = captured(device, lambda encoder: self.record(encoder, {}))
        self.params = {f"layer{7 * i}": Step(100 + i, 2) for i in range(PATCHED)}

    def record(self, encoder: metalane.CommandEncoder, params: dict[str, Step]) -> None:
        for first in range(0, LAUNCHES, A_LABEL):
            label = f"layer{first // A_LABEL}"
            step = params.get(label, Step(first, 1))
            with encoder.label(label):
                for buffers in self._buffers[first : first + A_LABEL]:
                    encoder.dispatch(
                        self._pipeline, [*buffers, step], threadgroups=1, threads_per_threadgroup=1
                    )

    def side(self, params: dict[str, Step] | None) -> Side:
        """Seconds a launch until the call returns."""

        def sample() -> float:
            seconds = 0.0
            for _ in range(REPLAYS):
                begin = time.perf_counter()
                ticket = self.graph.replay(params)
                seconds += time.perf_counter() - begin
                ticket.wait()
            return seconds / REPLAYS / LAUNCHES

        return sample

    def side_until_done(self) -> Side:
        def sample() -> float:
            return harness.seconds_of(lambda: self.graph.replay().wait()) / LAUNCHES

        return sample

    def check(self) -> None:
        """What a replay hands to the backend is what the eager run does, patched bytes included."""
        for params in ({}, self.params):
            with self.device.command_encoder() as encoder:
                self.record(encoder, params)
            expected = last_record(self.device)
            self.graph.replay(params).wait()
            if last_record(self.device) != expected or len(expected) != LAUNCHES:
                raise SystemExit("a replay's launches are not those of the eager run")


def operators(device: metalane.Device) -> dict[str, Record]:
    """Every GGML operator that is one launch, on small shapes."""
    k, n, experts, tokens = 256, 32, 4, 2
    q4, row = int(metalane.GgmlType.Q4_K), 144
    x, y = device.zeros(8 * k, "f32"), device.zeros(8 * k, "f32")
    weight, ids = device.zeros(experts * n * row, "u8"), device.zeros(tokens * 2, "u32")
    q2 = device.zeros(experts * n * 84, "u8")
    gather = metalane.EmbeddingGgmlParams(n, k, tokens, q4)
    gather_q2 = metalane.EmbeddingQ2KParams(n, k, tokens)
    one = metalane.GgmlQuantizedMatmulParams(1, n, k, q4)
    four = replace(one, m=4)
    routed = metalane.GgmlQuantizedMatmulIdParams(tokens, 2, n, k, experts, n * row, q4)
    return {
        "embedding_gather_ggml": lambda e: metalane.embedding_gather_ggml(e, weight, ids, y, gather),
        "embedding_gather_q2_k": lambda e: metalane.embedding_gather_q2_k(e, q2, ids, y, gather_q2),
        "quantized_matmul_ggml, mat-vec": lambda e: metalane.quantized_matmul_ggml(
            e, x, weight, y, one, "mv"
        ),
        "quantized_matmul_ggml, mat-mat": lambda e: metalane.quantized_matmul_ggml(
            e, x, weight, y, four, "mm"
        ),
        "quantized_matmul_batched_mv": lambda e: metalane.quantized_matmul_batched_mv(
            e, x, weight, y, 4, 1, n, k, q4
        ),
        "quantized_matmul_q2_k_batched_mv": lambda e: metalane.quantized_matmul_q2_k_batched_mv(
            e, x, q2, y, 4, 1, n, k
        ),
        "quantized_matmul_id_ggml": lambda e: metalane.quantized_matmul_id_ggml(
            e, x, weight, ids, y, routed, "mv"
        ),
    }


def check_operators(device: metalane.Device, records: dict[str, Record]) -> None:
    for name, record in records.items():
        encoder = device.command_encoder()
        record(encoder)
        if encoder.launches != 1:
            raise SystemExit(f"{name}: one launch expected, {encoder.launches} recorded")
        encoder.discard()


def peers() -> dict[str, Side]:
    """MLX's cost of a small operator: building its lazy node, and building and evaluating 512 in a row."""
    mx = harness.optional("mlx.core")
    if mx is None:
        return {}
    mx.set_default_device(mx.cpu)
    x = mx.ones((1,))
    mx.eval(x)

    def evaluated() -> float:
        def run() -> None:
            y = x
            for _ in range(LAUNCHES):
                y = mx.add(y, x)
            mx.eval(y)

        return harness.seconds_of(run) / LAUNCHES

    return {
        "MLX: add of one element, not evaluated": dispatch.plain(lambda: mx.add(x, x)),
        "MLX: add of one element, 512 in a row, evaluated": evaluated,
    }


class Fusion:
    """The same products before and after `fuse()`, on the CPU device's native kernels."""

    def __init__(
        self, name: str, graph: metalane.ComputeGraph, outputs: list[metalane.Buffer], rule: str
    ) -> None:
        fused = graph.fuse()
        if [fusion.rule for fusion in fused.fusions] != [rule]:
            raise SystemExit(f"{name}: {rule} did not fire")
        self.name, self._outputs = name, outputs
        self._graphs = {"apart": graph, "fused": fused.graph}

    def check(self) -> None:
        results = []
        for graph in self._graphs.values():
            for output in self._outputs:
                output.numpy()[...] = np.nan
            graph.replay().wait()
            results.append([output.numpy().tobytes() for output in self._outputs])
        if results[0] != results[1] or not all(np.isfinite(output.numpy()).all() for output in self._outputs):
            raise SystemExit(f"{self.name}: other bits when fused")

    def sides(self) -> dict[str, Side]:
        return {
            side: functools.partial(harness.seconds_of, lambda graph=graph: graph.replay().wait())
            for side, graph in self._graphs.items()
        }


def pair(device: metalane.Device, tokens: int, experts: int, n: int, k: int) -> Fusion:
    """Two pooled products (a gate and an up projection) along one schedule."""
    rng = np.random.default_rng(0)
    top_k, ggml_type = 4, "Q4_K"
    raw = random_weight(rng, ggml_type, experts * n, k)
    weights = [device.from_numpy(raw) for _ in range(2)]
    x = device.from_numpy(rng.standard_normal((tokens, k)).astype(np.float32))
    ids = device.from_numpy(rng.integers(0, experts, (tokens, top_k)).astype(np.uint32))
    outputs = [device.empty((tokens * top_k, n), "f32") for _ in range(2)]
    scratch = metalane.IdMmScratch.alloc(device, experts, tokens, top_k)
    params = metalane.GgmlQuantizedMatmulIdParams(
        tokens, top_k, n, k, experts, raw.nbytes // experts, number(ggml_type)
    )

    def record(encoder: metalane.CommandEncoder) -> None:
        for weight, output in zip(weights, outputs, strict=True):
            metalane.quantized_matmul_id_ggml_pooled(encoder, x, weight, ids, output, scratch, params)

    name = f"id_pooled_pair: {tokens} tokens, {top_k} of {experts} experts, {n} x {k} {ggml_type}"
    return Fusion(name, captured(device, record), outputs, "id_pooled_pair")


def batch(device: metalane.Device, heads: int, n: int, k: int) -> Fusion:
    """Single mat-vecs on adjacent weights, inputs and outputs."""
    rng = np.random.default_rng(1)
    ggml_type = "Q8_0"
    weight = device.from_numpy(random_weight(rng, ggml_type, heads * n, k).reshape(heads, -1))
    x = device.from_numpy(rng.standard_normal((heads, k)).astype(np.float32))
    y = device.empty((heads, n), "f32")
    params = metalane.GgmlQuantizedMatmulParams(1, n, k, number(ggml_type))
    row = weight.nbytes // heads

    def record(encoder: metalane.CommandEncoder) -> None:
        for head in range(heads):
            metalane.quantized_matmul_ggml(
                encoder,
                x.view(4 * head * k, k),
                weight.view(head * row, row),
                y.view(4 * head * n, n),
                params,
            )

    name = f"batched_mv: {heads} mat-vecs, {n} x {k} {ggml_type}"
    return Fusion(name, captured(device, record), [y], "batched_mv")


def table(head: str, rows: dict[str, harness.Spread], scale: float) -> list[str]:
    lines = [f"| {head} | 10-90 % | smallest |", "|---|---|---|---|"]
    return lines + [
        harness.spread_row(name, s, scale, f"{scale * s.smallest:.4g}") for name, s in rows.items()
    ]


def main() -> None:
    options = harness.Options.parse("Benchmark of graphs.", rounds=100, quick_rounds=10)
    null, cpu = metalane.Device("null"), metalane.Device("cpu")
    on_null = Launches(null, chained=False)
    on_null.check()
    replays = harness.spreads(
        harness.in_turn(
            {
                "null device": on_null.side(None),
                f"null device, {PATCHED} labels patched": on_null.side(on_null.params),
                "CPU device, done: none waits for another": Launches(cpu, chained=False).side_until_done(),
                "CPU device, done: each waits for the one before": Launches(
                    cpu, chained=True
                ).side_until_done(),
            },
            options.rounds,
        )
    )
    records = operators(null)
    check_operators(null, records)
    sides = {name: dispatch.recorded(null, record) for name, record in records.items()}
    calls = harness.spreads(harness.in_turn({**sides, **peers()}, options.rounds))
    hazards = dispatch.hazard_curve(max(3, options.rounds // 10))

    small = options.quick
    fusions = [
        pair(cpu, *((8, 4, 64, 256) if small else (32, 128, 64, 256))),
        batch(cpu, *((8, 64, 256) if small else (32, 128, 512))),
    ]
    gains: dict[str, float] = {}
    fused: dict[str, harness.Spread] = {}
    for fusion in fusions:
        fusion.check()
        samples = harness.in_turn(fusion.sides(), max(3, options.rounds // 5))
        gains[fusion.name] = harness.ratio(samples, "apart", "fused")
        fused |= {f"{fusion.name}, {side}": s for side, s in harness.spreads(samples).items()}

    growth = hazards["5000"].median / hazards["50"].median
    targets = [
        harness.Target(
            f"replay, {name}: a launch", 1e9 * s.median, 1000 if name.startswith("CPU") else 60, "ns"
        )
        for name, s in replays.items()
    ]
    targets += [harness.Target(f"{name}, eager", 1e6 * calls[name].median, 1.0, "us") for name in records]
    targets += [harness.Target("hazards: a launch of 5,000 by one of 50", growth, 2, "times")]
    targets += [
        harness.Target(f"{name.split(':')[0]}: gain", gain, 1, "times", at_least=True)
        for name, gain in gains.items()
    ]
    body = [
        f"Replays of {LAUNCHES} empty launches with 8 buffers and a struct each, {A_LABEL} under a label; on the null "
        "device until the call returns, on the CPU device until all have run.",
        "",
        *table("replay | median ns a launch", replays, 1e9),
        "",
        "One-launch operators with their checks, recorded on the null device:",
        "",
        *table("call | median us", calls, 1e6),
        "",
        "Hazard tracking: launches with 8 ranges each that nothing else touches, in one submission.",
        "",
        *table("launches | median us a launch", hazards, 1e6),
        "",
        "Fusions, CPU device, until done:",
        "",
        *table("products | median us", fused, 1e6),
    ]
    cases = {
        "replay_seconds_a_launch": replays,
        "call_seconds": calls,
        "hazard_seconds_by_launches": hazards,
        "fusion_seconds": fused,
        "fusion_gains": gains,
    }
    harness.write("graphs", "Graphs", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
