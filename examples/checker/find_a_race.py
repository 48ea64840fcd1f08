"""A softmax that looks right and is right most of the time: the checker shows its race; then the repair.

    python examples/checker/find_a_race.py

The second reduction writes its partial sums where threads of the first may still read their partial maxima. Nothing
orders a simdgroup that is done with the loop of `block_max` against one that is still in it. The repair is one barrier.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import metalane
from metalane.check import CheckFinding

SOURCE = Path(__file__).with_name("softmax.metal")
ROWS, COLUMNS, THREADS = 3, 1000, 128
SCALE = 0.125

# The repair: all threads have read the partial maxima before anybody overwrites them.
BROKEN = "  value = simd_sum(value);\n"
REPAIRED = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n" + BROKEN


def softmax(text: str, x: np.ndarray) -> tuple[np.ndarray, tuple[CheckFinding, ...]]:
    """The softmax of each row by the kernel, and what the checker says about it."""
    device = metalane.Device("cpu", check=True, reports="list")
    kernels = device.compile(text, name=SOURCE.name)
    y = device.empty(x.shape, metalane.float32)
    kernels.softmax(
        x,
        y,
        {"columns": COLUMNS, "scale": SCALE},
        threadgroups=ROWS,
        threads_per_threadgroup=THREADS,
    )
    return y.numpy(), device.check_report().findings


def expected(x: np.ndarray) -> np.ndarray:
    powers = np.exp(SCALE * x.astype(np.float64) - SCALE * x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    text = SOURCE.read_text()
    for title, version in (("As written", text), ("Repaired", text.replace(BROKEN, REPAIRED))):
        y, findings = softmax(version, x)
        error = np.max(np.abs(y / expected(x) - 1))
        print(f"{title}: relative error {error:.1e}, {len(findings)} findings")
        for finding in findings:
            print(f"  {finding.severity}: {finding.message}")


if __name__ == "__main__":
    main()
