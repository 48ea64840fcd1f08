"""Measures how much slower a shader runs under the checker: the DFlash2 top-16 at a vocabulary of 32,000.

    python benchmarks/checker.py [--rounds 15]

The same launch on a device of shaders and on one that checks all kinds, in turn. A checked launch runs on one thread,
an unchecked one on all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import harness
import numpy as np

import metalane

VOCABULARY, LANES, ROWS = 32_000, 4, 16
POSITIONS = LANES * (ROWS - 1)
SHARDS, CANDIDATES = metalane.DFLASH2_SHARDS, metalane.DFLASH2_CANDIDATES


def launch(device: metalane.Device, logits: np.ndarray) -> tuple[Callable[[], None], metalane.Buffer]:
    """What runs the top-16 once and waits, and the ids that it writes."""
    pipeline = device.registry.pipeline("dflash2_select_top16")
    ids = device.zeros((POSITIONS, SHARDS, CANDIDATES), np.uint32)
    values = device.zeros((POSITIONS, SHARDS, CANDIDATES), np.float32)
    params = metalane.DFlash2SelectorParams([0] * 4, [1.0] * 4, LANES, ROWS, VOCABULARY, 0)
    buffer = device.from_numpy(logits)

    def run() -> None:
        with device.command_encoder() as encoder:
            encoder.dispatch(
                pipeline,
                [buffer, ids, values, params],
                threadgroups=POSITIONS * SHARDS,
                threads_per_threadgroup=256,
            )
        encoder.ticket.wait()

    return run, ids


def main() -> None:
    options = harness.Options.parse("Benchmark of the checker.", rounds=15)
    logits = np.random.default_rng(0).standard_normal((LANES, ROWS, VOCABULARY)).astype(np.float32)
    unchecked, expected = launch(metalane.Device("cpu", kernels="shader"), logits)
    device = metalane.Device("cpu", check=True)
    checked, ids = launch(device, logits)
    unchecked()
    checked()
    assert np.array_equal(ids.numpy(), expected.numpy())
    assert not device.check_report().findings

    def processor_seconds(run: Callable[[], None]) -> float:
        begin = time.process_time()
        run()
        return time.process_time() - begin

    wall = harness.in_turn(
        {
            "checked": lambda: harness.seconds_of(checked),
            "unchecked": lambda: harness.seconds_of(unchecked),
        },
        options.rounds,
    )
    processor = harness.in_turn(
        {"checked": lambda: processor_seconds(checked), "unchecked": lambda: processor_seconds(unchecked)},
        options.rounds,
    )
    slowdown = harness.ratio(wall, "checked", "unchecked")
    targets = [harness.Target("checked by unchecked, elapsed time", slowdown, 30, "times")]
    body = ["| | median ms | 10-90 % | smallest ms |", "|---|---|---|---|"]
    for name, samples in (("elapsed", wall), ("processor time", processor)):
        for side, spread in harness.spreads(samples).items():
            body.append(harness.spread_row(f"{side}, {name}", spread, 1e3, f"{1e3 * spread.smallest:.4g}"))
    body += [
        "",
        f"By processor time the checked launch takes {harness.ratio(processor, 'checked', 'unchecked'):.1f} times the "
        "unchecked one's.",
    ]
    cases = {"elapsed": harness.spreads(wall), "processor": harness.spreads(processor)}
    harness.write(
        "checker", "Checker, DFlash2 top-16 at a vocabulary of 32,000", body, targets, cases, options.out
    )


if __name__ == "__main__":
    main()
