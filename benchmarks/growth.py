"""Measures how time grows with n, k, m, vocabulary, lanes, tokens and experts, against bytes and arithmetic.

    python benchmarks/growth.py [--rounds 9] [--quick] [--only PATTERN]

The exponent of a curve is the slope of log(time) over log(size), by least squares. A case passes when its exponent is
no larger than that of its bytes or that of its arithmetic: nothing grows faster than what has to be done. Weights and
logits are cold at every size, so that no curve bends where a cache ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dflash2_selector as selector
import harness
import numpy as np
from experts import Routed
from products import Dense, WeightRing

import metalane

TYPE = "Q4_K"
TOLERANCE = 0.05  # of an exponent: what the spread of measurements makes of a slope


@dataclass
class Work:
    """One point of a curve."""

    side: Callable[[], float]
    nbytes: int
    flops: int


@dataclass
class Curve:
    """A case: what one size, varied, does to the time."""

    axis: str
    sizes: Sequence[int]
    work: Callable[[int], Work]


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def dense(device: metalane.Device, nbytes: int, n: int, k: int, m: int) -> Work:
    case = Dense(device, WeightRing(device, TYPE, n, k, nbytes), m)
    case.check()
    return Work(case.side, case.nbytes, case.flops)


def routed(device: metalane.Device, nbytes: int, n: int, k: int, tokens: int, experts: int) -> Work:
    case = Routed(device, WeightRing(device, TYPE, experts * n, k, nbytes), tokens, experts)
    case.check()
    return Work(case.side, case.nbytes, case.flops)


class SelectorSteps:
    """Whole selector steps on cold logits: a ring of lanes as long as the longest, cut for smaller vocabularies."""

    def __init__(self, device: metalane.Device, nbytes: int) -> None:
        self.device = device
        slots = max(selector.LANES, nbytes // selector.SLOT_BYTES)
        self.memory = device.empty((slots * selector.SLOT_BYTES // 4,), np.float32)
        normal = np.random.default_rng(1).standard_normal(1 << 20, np.float32)
        self.memory.numpy()[:] = np.resize(normal, self.memory.shape)
        self.waker = selector.Top16(device)

    def work(self, vocabulary: int, lanes: int) -> Work:
        buffers = metalane.DFlash2SelectorBuffers.alloc(self.device, lanes, selector.ROWS, vocabulary)
        params = selector.params_for(lanes, vocabulary)
        shape = (lanes, selector.ROWS, vocabulary)
        nbytes = 4 * lanes * selector.ROWS * vocabulary
        count = self.memory.nbytes // nbytes
        turn = 0

        def side() -> float:
            nonlocal turn
            turn = (turn + 1) % count
            buffers.logits = self.memory.view(turn * nbytes, shape)
            self.waker.wake()
            encoder = self.device.command_encoder()

            def run() -> None:
                metalane.dispatch_dflash2_selector(encoder, buffers, params)
                encoder.commit_and_wait()

            return harness.seconds_of(run)

        return Work(side, nbytes, nbytes // 4)


def curves(device: metalane.Device, options: harness.Options) -> dict[str, Curve]:
    nbytes = options.ring_bytes() // 4  # many rings live at once, each of several last-level caches' share
    steps = SelectorSteps(device, options.ring_bytes() // 2)
    powers = [2**i for i in (range(8, 12) if options.quick else range(8, 16))]
    few = [1, 8, 64] if options.quick else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    experts = [8, 32, 128] if options.quick else [8, 16, 32, 64, 128, 256]
    vocabularies = (
        [4096, 32768, 248_320] if options.quick else [4096, 8192, 16384, 32768, 65536, 131_072, 248_320]
    )
    return {
        "mat-vec, k = 4096": Curve("n", powers, lambda n: dense(device, nbytes, n, 4096, 1)),
        "mat-vec, n = 4096": Curve("k", powers, lambda k: dense(device, nbytes, 4096, k, 1)),
        "products, 2048 x 2048": Curve("m", few, lambda m: dense(device, nbytes, 2048, 2048, m)),
        "mat-mat, k = 2048, 64 inputs": Curve("n", powers[:6], lambda n: dense(device, nbytes, n, 2048, 64)),
        "mat-mat, n = 2048, 64 inputs": Curve("k", powers[:6], lambda k: dense(device, nbytes, 2048, k, 64)),
        "expert products, 128 experts of 256 x 512": Curve(
            "tokens", few, lambda m: routed(device, nbytes, 256, 512, m, 128)
        ),
        "expert products of 256 x 512, 64 tokens": Curve(
            "experts", experts, lambda e: routed(device, nbytes, 256, 512, 64, e)
        ),
        "expert products of 256 x 512, 1 token": Curve(
            "experts", experts, lambda e: routed(device, nbytes, 256, 512, 1, e)
        ),
        "selector, 1 lane": Curve("vocabulary", vocabularies, lambda v: steps.work(v, 1)),
        "selector, vocabulary of 32,768": Curve(
            "lanes", [1, 2, 3, 4], lambda lanes: steps.work(32_768, lanes)
        ),
    }


def main() -> None:
    options = harness.Options.parse("Benchmark of growth.", rounds=9)
    device = metalane.Device("cpu")
    cases, targets = [], []
    body = [
        f"Weights of {TYPE}, all threads. Exponents: time ~ size to the power of it.",
        "",
        "| case | over | sizes | time | bytes | arithmetic | median ms, smallest and largest size |",
        "|---|---|---|---|---|---|---|",
    ]
    wanted = curves(device, options)
    for name in options.chosen(wanted):
        curve = wanted[name]
        works = {size: curve.work(size) for size in curve.sizes}
        samples = harness.in_turn({str(size): work.side for size, work in works.items()}, options.rounds)
        seconds = [float(np.median(samples[str(size)])) for size in curve.sizes]
        nbytes, flops = ([getattr(work, what) for work in works.values()] for what in ("nbytes", "flops"))
        slopes = [exponent(curve.sizes, values) for values in (seconds, nbytes, flops)]
        cases.append(
            {
                "name": name,
                "axis": curve.axis,
                "sizes": list(curve.sizes),
                "seconds": [harness.Spread.of(samples[str(size)]) for size in curve.sizes],
                "nbytes": nbytes,
                "flops": flops,
                "exponents": dict(zip(("time", "bytes", "arithmetic"), slopes, strict=True)),
            }
        )
        row = [name, curve.axis, f"{curve.sizes[0]:,} to {curve.sizes[-1]:,}", *(f"{s:.2f}" for s in slopes)]
        body.append(f"| {' | '.join(row)} | {1e3 * seconds[0]:.3g}, {1e3 * seconds[-1]:.3g} |")
        print(body[-1], flush=True)
        excess = slopes[0] - max(slopes[1:])
        targets.append(
            harness.Target(f"{name}, over {curve.axis}: exponent beyond its work", excess, TOLERANCE, "")
        )
    harness.write("growth", f"Growth, {device.name}", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
