"""Lossless verification in float64 NumPy, written from its definition and sharing no code with the kernels.

The oracle of `python -m metalane doctor` and of the tests. Beside the outcome it gives those that float32 may come to
instead, where a uniform lies within rounding of a boundary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_TOKEN = 0xFFFFFFFF
TOLERANCE = 2e-6
Array = NDArray[Any]


@dataclasses.dataclass
class Lane:
    """What one lane is verified from: logits [R, V], tokens [P], ids and q [P, K], uniforms [R]."""

    logits: Array
    rows: int
    temperature: float
    tokens: Array
    ids: Array
    q: Array
    uniforms: Array


@dataclasses.dataclass
class Outcome:
    accepted: int
    next_token: int
    allowed: set[tuple[int, int]]


def is_certain(values: Array, temperature: float) -> bool:
    """A greedy lane, or no logit above -inf."""
    return not temperature > 0 or bool((values == -np.inf).all())


def distribution(values: Array, temperature: float) -> Array:
    """softmax(values / temperature); the lowest id of the largest value where that is certain.

    An infinite temperature is the largest float32: -inf keeps its probability of 0.
    """
    largest = values.max()
    if is_certain(values, temperature):
        one_hot = np.zeros(values.size)
        one_hot[np.argmax(values)] = 1.0
        return one_hot
    with np.errstate(all="ignore"):
        weights = np.where(values == largest, 1.0, np.exp((values - largest) / min(temperature, 3.4e38)))
    return np.asarray(weights / weights.sum())


def proposed(ids: Array, q: Array, vocabulary: int) -> Array:
    """q over the whole vocabulary: NaN and negative probabilities are 0, and repeated ids add up."""
    whole = np.zeros(vocabulary)
    inside = ids < vocabulary
    valid = np.where(q > 0, np.minimum(q, 1.0), 0.0)
    np.add.at(whole, ids[inside], valid[inside])
    return whole


def uniform(value: float) -> float:
    return float(value) if value > 0 else 0.0


def draw(weights: Array, given: float) -> tuple[int, set[int]]:
    """The token at which the running sum exceeds `given` of the total, and those within the tolerance."""
    total = weights.sum()
    running = np.cumsum(weights) / total
    slack = TOLERANCE / min(1.0, total)

    def at(bound: float) -> int:
        over = np.flatnonzero(running > max(bound, 0.0))
        return int(over[0]) if over.size else int(np.flatnonzero(weights > 0)[-1])

    between = np.arange(at(given - slack), at(given + slack) + 1)
    return at(given), set(between[weights[between] > 0].tolist())


def verify(lane: Lane) -> Outcome:
    if lane.rows == 0:
        return Outcome(0, NO_TOKEN, {(0, NO_TOKEN)})
    rows = min(lane.rows, lane.logits.shape[0])
    allowed: set[tuple[int, int]] = set()
    outcome: tuple[int, int] | None = None
    position = 0
    while True:
        logits = lane.logits[position].astype(np.float64)
        values = np.where(np.isnan(logits), -np.inf, logits)
        p, certain = distribution(values, lane.temperature), is_certain(values, lane.temperature)
        token = int(lane.tokens[position]) if position + 1 < rows else NO_TOKEN
        behind, weights = position + 1 == rows, p
        keep = close = False
        if not behind:
            p_token = p[token] if token < p.size else 0.0
            matching = lane.ids[position] == token
            q_token = float(np.minimum(lane.q[position][matching & (lane.q[position] > 0)], 1.0).sum())
            if certain:
                keep = p_token > 0
            elif q_token > 0:
                margin = p_token - uniform(lane.uniforms[position]) * q_token
                keep, close = margin > 0, abs(margin) < TOLERANCE
                residual = np.maximum(p - proposed(lane.ids[position], lane.q[position], p.size), 0.0)
                if residual.sum() > 0:
                    weights = residual
        if behind or not keep or close:
            drawn, near = draw(weights, uniform(lane.uniforms[-1]))
            allowed |= {(position, token) for token in near}
            if outcome is None and not keep:
                outcome = (position, drawn)
        if behind or not (keep or close):
            break
        position += 1
    assert outcome is not None
    return Outcome(*outcome, allowed)
