"""DFlash2 selector: top-16 candidates, pairwise edge scores, one path a lane, and how many rows to verify.

The drafter's mathematics is that of DFlash 2 as published: the score of going from candidate a to candidate b at a
position is ``U(b) + <A(a) * H, B(b)>``, with U the drafter's logit, A and B the predecessor and successor codebooks
(rank 256) and H the projected hidden state of that position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from .._core import (
    DFLASH2_CANDIDATES,
    DFLASH2_MAX_LANES,
    DFLASH2_MAX_POSITIONS,
    DFLASH2_SELECTOR_RANK,
    DFLASH2_SHARDS,
    DFLASH2_VERIFY_COSTS,
    DFlash2SelectorBuffers,
    dispatch_dflash2_selector,
    dispatch_dflash2_verify_rows,
)
from ..errors import ArgumentError
from ..params import f32, metal_struct, u32

__all__ = [
    "DFLASH2_CANDIDATES",
    "DFLASH2_MAX_LANES",
    "DFLASH2_MAX_POSITIONS",
    "DFLASH2_SELECTOR_RANK",
    "DFLASH2_SHARDS",
    "DFLASH2_VERIFY_COSTS",
    "DFlash2SelectorBuffers",
    "DFlash2SelectorParams",
    "DFlash2VerifyRowsParams",
    "dispatch_dflash2_selector",
    "dispatch_dflash2_verify_rows",
]


@metal_struct
class DFlash2SelectorParams:
    """Parameters of one selector step (48 bytes). Lanes past `lanes` are not read."""

    anchor: Annotated[Sequence[int], u32[DFLASH2_MAX_LANES]]
    """Token before position 0, a lane; below `vocabulary`."""
    temperature: Annotated[Sequence[float], f32[DFLASH2_MAX_LANES]]
    """Softmax temperature of a sampled lane; finite, above 0."""
    lanes: Annotated[int, u32]
    """L, 1 to 4."""
    rows_per_lane: Annotated[int, u32]
    """R, 2 to 16: the anchor's row and R - 1 positions."""
    vocabulary: Annotated[int, u32]
    """V, at least 16."""
    sampling_mask: Annotated[int, u32]
    """Bit i: lane i samples; else it takes the largest score."""


@metal_struct
class DFlash2VerifyRowsParams:
    """Parameters of the choice of verification rows (352 bytes).

    ``accept[p] = sigmoid(slope * logit(confidence[p]) + intercept[p])``; chosen are the rows a lane, 1 to
    ``maximum[lane]``, that maximise expected tokens over ``cost[total rows]``.
    """

    slope: Annotated[float, f32]
    intercept: Annotated[Sequence[float], f32[DFLASH2_MAX_POSITIONS]]
    cost: Annotated[Sequence[float], f32[DFLASH2_VERIFY_COSTS - 1]]
    """Cost of verifying 0 to 63 rows in all."""
    cost_64: Annotated[float, f32]
    """Cost of verifying 64 rows."""
    lanes: Annotated[int, u32]
    rows_per_lane: Annotated[int, u32]
    every_row: Annotated[int, u32]
    """1: choose `maximum`, whatever it costs."""
    maximum: Annotated[Sequence[int], u32[DFLASH2_MAX_LANES]]
    """Most rows a lane, 1 to `rows_per_lane`."""

    @classmethod
    def with_costs(cls, costs: Sequence[float], **fields: Any) -> DFlash2VerifyRowsParams:
        """The same from one table: ``costs[n]`` is the cost of n rows in all, for n from 0 to 64."""
        table = tuple(costs)
        if len(table) != DFLASH2_VERIFY_COSTS:
            raise ArgumentError(
                f"DFlash2VerifyRowsParams.with_costs: costs must be {DFLASH2_VERIFY_COSTS} values, got {len(table)}"
            )
        return cls(cost=table[:-1], cost_64=table[-1], **fields)
