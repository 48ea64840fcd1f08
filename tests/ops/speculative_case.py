"""Runs lossless verification on NumPy inputs, outputs poisoned and guarded on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from ops.guarded import Guarded

import metalane
from metalane.doctor_speculative import Lane, Outcome, verify

F32, U32 = np.dtype(np.float32), np.dtype(np.uint32)
OUTPUTS = ("partial_ids", "partial_sums", "accepted", "next_tokens")
Dispatch = Callable[
    [metalane.CommandEncoder, metalane.SpeculativeVerifyBuffers, metalane.SpeculativeVerifyParams], None
]


@dataclasses.dataclass
class Inputs:
    """What one verification reads; shapes as in `shapes`."""

    logits: np.ndarray
    verify_rows: np.ndarray
    temperature: np.ndarray
    tokens: np.ndarray
    candidates: np.ndarray
    proposal_probabilities: np.ndarray
    uniforms: np.ndarray

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return (*self.logits.shape, self.candidates.shape[2])

    def lane(self, lane: int) -> Lane:
        return Lane(
            self.logits[lane],
            int(self.verify_rows[lane]),
            float(self.temperature[lane]),
            self.tokens[lane],
            self.candidates[lane],
            self.proposal_probabilities[lane],
            self.uniforms[lane],
        )


def shapes(
    lanes: int, rows: int, vocabulary: int, candidates: int, logits: np.dtype = F32
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of the eleven buffers, in the order of the class's fields."""
    positions, shards = rows - 1, -(-vocabulary // metalane.SPECULATIVE_SHARD)
    return {
        "logits": ((lanes, rows, vocabulary), logits),
        "verify_rows": ((lanes,), U32),
        "temperature": ((lanes,), F32),
        "tokens": ((lanes, positions), U32),
        "candidates": ((lanes, positions, candidates), U32),
        "proposal_probabilities": ((lanes, positions, candidates), F32),
        "uniforms": ((lanes, rows), F32),
        "partial_ids": ((lanes, rows, shards), U32),
        "partial_sums": ((lanes, rows, shards), F32),
        "accepted": ((lanes,), U32),
        "next_tokens": ((lanes,), U32),
    }


def run_verify(
    device: metalane.Device,
    inputs: Inputs,
    dispatch: Dispatch = metalane.dispatch_speculative_verify,
    *,
    auto_barriers: bool = True,
) -> tuple[np.ndarray, np.ndarray, str]:
    """Accepted counts, next tokens and the ticket's status, after checking that nothing else was written."""
    layout = shapes(*inputs.sizes, logits=inputs.logits.dtype)
    buffers = {name: Guarded(device, shape, dtype) for name, (shape, dtype) in layout.items()}
    for name, guarded in buffers.items():
        if name not in OUTPUTS:
            guarded.set(getattr(inputs, name))
    encoder = device.command_encoder(auto_barriers=auto_barriers)
    dispatch(
        encoder,
        metalane.SpeculativeVerifyBuffers(**{name: guarded.buffer for name, guarded in buffers.items()}),
        metalane.SpeculativeVerifyParams(*inputs.sizes),
    )
    ticket = encoder.commit()
    ticket.wait()
    accepted, following = (np.array(buffers[name].buffer) for name in ("accepted", "next_tokens"))
    for name, guarded in buffers.items():
        guarded.check(name)
        if name not in OUTPUTS:
            given = np.ascontiguousarray(getattr(inputs, name)).view(np.uint8)
            left = np.array(guarded.buffer).view(np.uint8)
            assert (given.reshape(-1) == left.reshape(-1)).all(), f"{name}: an input was written"
    return accepted, following, ticket.status


def check_verify(device: metalane.Device, inputs: Inputs, **options: bool) -> int:
    """Asserts every lane's outcome; how many were other ones than float64's (allowed by rounding)."""
    accepted, following, _ = run_verify(device, inputs, **options)
    others = 0
    for lane in range(inputs.sizes[0]):
        outcome: Outcome = verify(inputs.lane(lane))
        got = (int(accepted[lane]), int(following[lane]))
        assert got in outcome.allowed, f"lane {lane}: {got}, allowed {sorted(outcome.allowed)[:8]}"
        others += got != (outcome.accepted, outcome.next_token)
    return others


def random_inputs(
    random: np.random.Generator,
    lanes: int,
    rows: int,
    vocabulary: int,
    candidates: int,
    logits: np.dtype = F32,
) -> Inputs:
    """Normal logits; proposals from logits near the target's, drafts drawn from them; lanes of every length."""
    positions = rows - 1
    target = (random.standard_normal((lanes, rows, vocabulary), np.float32) * np.float32(2)).astype(logits)
    near = target[:, :positions].astype(np.float32) + random.standard_normal(
        (lanes, positions, vocabulary), np.float32
    )
    each = min(candidates, vocabulary)
    ids = np.argsort(-near, axis=2, kind="stable")[:, :, :each].astype(np.uint32)
    weights = np.exp(np.take_along_axis(near, ids.astype(np.int64), axis=2))
    q = (weights / weights.sum(axis=2, keepdims=True)).astype(np.float32)
    u = random.random((lanes, positions, 1))
    chosen = np.minimum((np.cumsum(q, axis=2) <= u).sum(axis=2), each - 1)
    drafted = np.take_along_axis(ids, chosen[:, :, None], axis=2)[:, :, 0]
    spare = candidates - each  # of a vocabulary with fewer tokens than candidates
    return Inputs(
        logits=target,
        verify_rows=random.integers(0, rows + 1, lanes, np.uint32),
        temperature=np.where(random.random(lanes) < 0.3, 0.0, 10 ** random.uniform(-3, 1, lanes)).astype(F32),
        tokens=drafted,
        candidates=np.pad(ids, ((0, 0), (0, 0), (0, spare)), constant_values=0xFFFFFFFF),
        proposal_probabilities=np.pad(q, ((0, 0), (0, 0), (0, spare))),
        uniforms=random.random((lanes, rows), np.float32),
    )
