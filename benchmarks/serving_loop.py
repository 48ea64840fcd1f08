"""Measures examples/serving_loop.py: tokens a second with drafts beside the same loop without.

    python benchmarks/serving_loop.py [--rounds 5]

One engine serves the same greedy requests by each way in turn, at a draft acceptance of 0.8 and of 0. Every round's
tokens are compared with plain greedy decoding before its time counts. Targets are for the example's own number of
lanes. One lane gains most and more lanes less: rows cost nearly nothing only while weights are what a step waits for.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

import harness

import metalane

sys.path.insert(0, str(harness.HERE.parent / "examples"))
import serving_loop as example

ACCEPTANCES = {"0.8": 1.3, "0": 0.97}  # and what adaptive rows must reach, beside no drafts
PLAIN, ADAPTIVE = "without drafts", "adaptive rows"


def side(engine: example.Engine, name: str, acceptance: float, load: example.Load) -> Callable[[], float]:
    """Seconds a token."""

    def serve() -> float:
        done, outputs = asyncio.run(example.serve_all(engine, example.WAYS[name], load, acceptance))
        if example.differing(engine, load, outputs):
            raise SystemExit(f"{name}: tokens differ from plain greedy decoding")
        return done.seconds / done.tokens

    return serve


def main() -> None:
    options = harness.Options.parse("Benchmark of the serving loop.", rounds=5)
    device = metalane.Device("cpu")
    shape = example.Shape()
    load = example.Load(requests=24, tokens=64, temperature=0.0, seed=1)
    if options.quick:
        shape, load = shape.small(), replace(load, tokens=32)
    cases, targets, body = [], [], []
    for lanes in (shape.lanes, *(n for n in (1, 2, 4) if n != shape.lanes and not options.quick)):
        engine = example.Engine(device, replace(shape, lanes=lanes), seed=1)
        for acceptance in options.chosen(ACCEPTANCES) if lanes == shape.lanes else ["0.8"]:
            sides = {name: side(engine, name, float(acceptance), load) for name in example.WAYS}
            samples = harness.in_turn(sides, options.rounds)
            ratios = {name: harness.ratio(samples, PLAIN, name) for name in sides}
            if lanes == shape.lanes:
                name = f"{ADAPTIVE} by {PLAIN}, acceptance {acceptance}"
                bound = ACCEPTANCES[acceptance]
                targets.append(
                    harness.Target(name, ratios[ADAPTIVE], bound, "times the tokens/s", at_least=True)
                )
            spreads = harness.spreads(samples)
            cases.append(
                {
                    "lanes": lanes,
                    "acceptance": float(acceptance),
                    "seconds_a_token": spreads,
                    "ratios": ratios,
                }
            )
            body += [
                f"{lanes} lanes, draft acceptance {acceptance}:",
                "",
                "| | median us a token | 10-90 % | times the tokens/s |",
                "|---|---|---|---|",
                *(harness.spread_row(name, spreads[name], 1e6, f"{ratios[name]:.2f}") for name in sides),
                "",
            ]
    title = f"Serving loop, {device.name}: lanes of {shape.rows} rows, {load.requests} requests"
    results = {"shape": asdict(shape), "load": asdict(load), "cases": cases}
    harness.write("serving_loop", title, body, targets, results, options.out)


if __name__ == "__main__":
    main()
