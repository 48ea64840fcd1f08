"""DFlash2 selector in float64 NumPy, written from its definition and sharing no code with the kernels.

The oracle of `python -m metalane doctor` and of the tests. `step` also says which other choices float32 may make.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CANDIDATES = 16
RANK = 256


def without_nan(values: NDArray[Any]) -> NDArray[Any]:
    """NaN counts as -inf."""
    return np.where(np.isnan(values), -np.inf, values)


def top16(row: NDArray[Any]) -> NDArray[Any]:
    """Ids of the 16 largest of one row: value descending, id ascending among equals (+0 equals -0)."""
    values = without_nan(row)
    if values.size > 4096:  # everything that can be among the 16, ids ascending
        least = np.partition(values, values.size - CANDIDATES)[values.size - CANDIDATES]
        ids = np.flatnonzero(values > least)
        ids = np.sort(np.concatenate([ids, np.flatnonzero(values == least)[: CANDIDATES - ids.size]]))
    else:
        ids = np.arange(values.size)
    return ids[np.argsort(-values[ids], kind="stable")][:CANDIDATES].astype(np.uint32)


def candidates(logits: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Candidate ids and their logits of every position: [L, P, 16] each."""
    lanes, rows, _ = logits.shape
    ids = np.empty((lanes, rows - 1, CANDIDATES), np.uint32)
    for lane, position in np.ndindex(lanes, rows - 1):
        ids[lane, position] = top16(logits[lane, position + 1])
    return ids, without_nan(np.take_along_axis(logits[:, 1:], ids.astype(np.int64), axis=2))


def edges(
    ids: NDArray[Any],
    anchors: Sequence[int],
    hidden: NDArray[Any],
    predecessor: NDArray[Any],
    successor: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """edges[p][a][b] = sum over r of A[pred a][r] H[p + 1][r] B[cand b][r], and the sum of magnitudes."""
    lanes, positions, _ = ids.shape
    before = np.empty_like(ids)
    before[:, 1:] = ids[:, :-1]
    before[:, 0] = np.asarray(anchors, np.uint32)[:lanes, None]
    scaled = predecessor[before].astype(np.float64) * hidden[:, 1:, None].astype(np.float64)
    to = successor[ids].astype(np.float64)
    assert positions == hidden.shape[1] - 1
    with np.errstate(all="ignore"):
        return np.einsum("lpar,lpbr->lpab", scaled, to), np.einsum(
            "lpar,lpbr->lpab", np.abs(scaled), np.abs(to)
        )


def softmax(scores: NDArray[Any], temperature: float) -> NDArray[Any]:
    """softmax(scores / temperature): several +inf share it, and all -inf give 1/16 each."""
    largest = scores.max()
    with np.errstate(all="ignore"):
        weights = np.where(scores == largest, 1.0, np.exp((scores - largest) / temperature))
    return np.asarray(weights / weights.sum())


@dataclasses.dataclass
class Step:
    """One position: what may be chosen, and what the numbers must then be near."""

    choice: int
    allowed: set[int]
    probabilities: NDArray[Any]
    proposal: NDArray[Any]

    def confidence(self, chosen: int) -> float:
        return float(self.probabilities[chosen])


def step(scores: NDArray[Any], temperature: float | None, uniform: float) -> Step:
    """One step of the path. `temperature` None: a greedy lane."""
    scores = without_nan(scores)
    empty = bool(np.all(scores == -np.inf))
    probabilities = softmax(scores, 1.0 if temperature is None else temperature)
    if temperature is None or empty:
        choice = int(np.argmax(scores))
        return Step(choice, near(scores, choice), probabilities, np.eye(CANDIDATES)[choice])
    bound = uniform if uniform > 0 else 0.0
    running = np.cumsum(probabilities)
    over = np.flatnonzero(running > bound)
    choice = int(over[0]) if over.size else int(np.flatnonzero(probabilities > 0)[-1])
    allowed = near(scores, choice)
    for shifted in (bound - 1e-6, bound + 1e-6):  # the uniform lies within 1e-6 of a boundary
        over = np.flatnonzero(running > max(shifted, 0.0))
        # float32 has no probability below 1e-45.
        allowed.add(int(over[0]) if over.size else int(np.flatnonzero(probabilities > 1e-45)[-1]))
    return Step(choice, allowed, probabilities, probabilities)


def near(scores: NDArray[Any], choice: int) -> set[int]:
    """Indices whose scores float32 may confuse with the chosen one's."""
    with np.errstate(invalid="ignore"):
        close = np.abs(scores - scores[choice]) < 1e-5 * (1 + np.abs(scores[choice]))
    return {choice, *np.flatnonzero(close).tolist()}


def path(
    ids: NDArray[Any],
    unary: NDArray[Any],
    scores: NDArray[Any],
    uniforms: NDArray[Any],
    temperatures: Sequence[float | None],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Tokens [L, P], proposal probabilities [L, P, 16], confidence [L, P]."""
    lanes, positions, _ = ids.shape
    tokens = np.empty((lanes, positions), np.uint32)
    proposal = np.empty((lanes, positions, CANDIDATES))
    confidence = np.empty((lanes, positions))
    for lane in range(lanes):
        before = 0
        for p in range(positions):
            with np.errstate(invalid="ignore"):
                total = unary[lane, p].astype(np.float64) + scores[lane, p, before].astype(np.float64)
            one = step(total, temperatures[lane], float(uniforms[lane, p]))
            tokens[lane, p] = ids[lane, p, one.choice]
            proposal[lane, p] = one.proposal
            confidence[lane, p] = one.confidence(one.choice)
            before = one.choice
    return tokens, proposal, confidence


def survival(confidence: NDArray[Any], slope: float, intercept: Sequence[float]) -> NDArray[Any]:
    """Chance that each position and all before it are accepted: [L, P]."""
    c = np.where(np.isnan(confidence), 1e-6, np.clip(confidence.astype(np.float64), 1e-6, 1 - 1e-6))
    positions = confidence.shape[1]
    x = np.float64(slope) * np.log(c / (1 - c)) + np.asarray(intercept, np.float64)[:positions]
    with np.errstate(over="ignore"):
        return np.cumprod(1 / (1 + np.exp(-x)), axis=1)


def worth(survive: NDArray[Any], rows: Sequence[int]) -> float:
    """Expected tokens of a choice of rows."""
    return sum(1.0 + float(survive[lane, : r - 1].sum()) for lane, r in enumerate(rows))


def best_ratio(survive: NDArray[Any], costs: Sequence[float], maximum: Sequence[int]) -> float:
    """The global maximum of tokens / cost: for each total, a knapsack over lanes."""
    best = np.array([0.0])
    for lane, most in enumerate(maximum):
        gains = 1 + np.concatenate([[0.0], np.cumsum(survive[lane, : int(most) - 1])])
        total = np.full(best.size + int(most), -np.inf)
        for rows, gain in enumerate(gains, start=1):
            total[rows : rows + best.size] = np.maximum(total[rows : rows + best.size], best + gain)
        best = total
    totals = np.arange(len(maximum), best.size)
    return float(np.max(best[totals] / np.asarray(costs, np.float64)[totals]))
