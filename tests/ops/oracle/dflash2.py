"""How tests judge DFlash2 kernels: by the package's oracle, step by step; and the oracle itself, by trying all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from metalane.doctor_dflash2 import (
    CANDIDATES,
    best_ratio,
    candidates,
    edges,
    path,
    step,
    survival,
    top16,
    without_nan,
    worth,
)

__all__ = [
    "best_ratio",
    "best_rows_by_brute_force",
    "candidates",
    "check_path",
    "edges",
    "path",
    "survival",
    "top16",
    "without_nan",
    "worth",
]


def check_path(
    ids: np.ndarray,
    unary: np.ndarray,
    scores: np.ndarray,
    uniforms: np.ndarray,
    temperatures: Sequence[float | None],
    tokens: np.ndarray,
    proposal: np.ndarray,
    confidence: np.ndarray,
) -> int:
    """Asserts that a float32 path is right and returns how many of its choices were other allowed ones.

    Every step is judged from the predecessor that the implementation itself chose.
    """
    others = 0
    lanes, positions, _ = ids.shape
    for lane in range(lanes):
        before = 0
        for p in range(positions):
            where = f"lane {lane}, position {p}"
            with np.errstate(invalid="ignore"):
                total = unary[lane, p].astype(np.float64) + scores[lane, p, before].astype(np.float64)
            temperature = temperatures[lane]
            one = step(total, temperature, float(uniforms[lane, p]))
            chosen = np.flatnonzero(ids[lane, p] == tokens[lane, p])
            assert chosen.size == 1, f"{where}: token {tokens[lane, p]} is no candidate"
            chosen = int(chosen[0])
            assert chosen in one.allowed, f"{where}: chose {chosen}, allowed {sorted(one.allowed)}"
            others += chosen != one.choice
            greedy = temperature is None or bool(np.all(without_nan(total) == -np.inf))
            expected = np.eye(CANDIDATES)[chosen] if greedy else one.proposal
            # Scores carry float32 rounding, which a temperature below 1 magnifies.
            finite = np.abs(total[np.isfinite(total)])
            slack = 4e-7 * (1 + (finite.max() if finite.size else 0)) / min(temperature or 1.0, 1.0)
            bound = np.minimum(1.0, 2e-6 + 4 * slack * expected)
            assert np.all(np.abs(proposal[lane, p] - expected) <= bound), (
                f"{where}: {proposal[lane, p]} {expected}"
            )
            assert abs(float(proposal[lane, p].astype(np.float64).sum()) - 1) < 1e-5, (
                f"{where}: does not sum to 1"
            )
            gap = abs(float(confidence[lane, p]) - one.confidence(chosen))
            assert gap <= min(1.0, 2e-6 + 4 * slack), f"{where}: confidence {confidence[lane, p]}"
            before = chosen
    return others


def best_rows_by_brute_force(
    survive: np.ndarray, costs: Sequence[float], maximum: Sequence[int]
) -> tuple[tuple[int, ...], float]:
    """Tries every choice. Ties: fewer rows in total, then the lower lane first."""
    best: tuple[float, int, tuple[int, ...]] | None = None
    for rows in itertools.product(*(range(1, int(m) + 1) for m in maximum)):
        ratio = worth(survive, rows) / float(costs[sum(rows)])
        key = (-ratio, sum(rows), tuple(-r for r in rows))
        if best is None or key < best:
            best = key
    assert best is not None
    return tuple(-r for r in best[2]), -best[0]
