"""Measures the CPU executor's parts: fiber switch beside swapcontext, simdgroup collective, threadgroup barrier.

    python benchmarks/executor.py [--rounds 60]

executor.cpp is built with the executor's own sources and measures without Python; one of its lines is one round.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import harness

ROOT = harness.HERE.parent
CASES = {
    "cycle": "the processor's cycle, by a chain of shifts",
    "fiber_switch": "switch between 32 fibers",
    "swapcontext": "the C library's swapcontext between 32 contexts",
    "collective_32": "simd collective, 32 lanes (each lane switches once)",
    "collective_on_path": "the same in a loop within a call, both of which lanes may skip",
    "barrier_32": "threadgroup barrier, 32 threads (each switches once)",
    "barrier_256": "threadgroup barrier, 256 threads",
    "barrier_1024": "threadgroup barrier, 1,024 threads",
}


def main() -> None:
    options = harness.Options.parse("Benchmark of the CPU executor.", rounds=60)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "executor"
        cpu = ROOT / "csrc/backends/cpu"
        harness.compile_cpp(
            [
                harness.HERE / "executor.cpp",
                *(cpu / name for name in ("fiber.cpp", "fiber_switch.cpp", "pages.cpp", "threadgroup.cpp")),
            ],
            program,
            *(f"-I{ROOT / folder}" for folder in ("csrc", "csrc/include")),
            "-ffp-contract=off",
        )
        printed = subprocess.run(
            [program, str(options.rounds)], check=True, capture_output=True, text=True
        ).stdout
    rounds = [json.loads(line) for line in printed.splitlines()]
    samples = {name: [one[name] for one in rounds] for name in CASES}
    # The clock differs from round to round; what a switch waits for does not.
    samples["switch_cycles"] = [one["fiber_switch"] / one["cycle"] for one in rounds]
    spread = harness.spreads(samples)
    targets = [
        harness.Target("context switch within a simdgroup", spread["fiber_switch"].median, 5, "ns"),
        harness.Target("barrier over 256 threads", spread["barrier_256"].median / 1e3, 3, "us"),
        harness.Target("barrier over 1,024 threads", spread["barrier_1024"].median / 1e3, 15, "us"),
    ]
    body = ["| | median ns | 10-90 % | smallest ns |", "|---|---|---|---|"]
    body += [
        harness.spread_row(CASES[name], spread[name], 1, f"{spread[name].smallest:.4g}") for name in CASES
    ]
    cycles = spread["switch_cycles"]
    body += [
        "",
        f"A switch between 32 fibers takes {cycles.median:.1f} cycles ({cycles.smallest:.1f} at least).",
    ]
    harness.write("executor", "CPU executor", body, targets, {"nanoseconds": spread}, options.out)


if __name__ == "__main__":
    main()
