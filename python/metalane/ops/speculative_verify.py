"""Lossless verification of drafted tokens: speculative decoding that emits the target model's own distribution.

Rejection sampling as published by Leviathan, Kalman and Matias (2023) and by Chen et al. (2023): a drafted token d is
kept with probability min(1, p(d) / q(d)), and where it is not, the token comes from the residual max(p - q, 0). See
docs/speculative.md.
"""

from __future__ import annotations

from typing import Annotated

from .._core import (
    SPECULATIVE_MAX_CANDIDATES,
    SPECULATIVE_MAX_ROWS,
    SPECULATIVE_NO_TOKEN,
    SPECULATIVE_SHARD,
    SpeculativeVerifyBuffers,
    dispatch_speculative_verify,
)
from ..params import metal_struct, u32

__all__ = [
    "SPECULATIVE_MAX_CANDIDATES",
    "SPECULATIVE_MAX_ROWS",
    "SPECULATIVE_NO_TOKEN",
    "SPECULATIVE_SHARD",
    "SpeculativeVerifyBuffers",
    "SpeculativeVerifyParams",
    "dispatch_speculative_verify",
]


@metal_struct
class SpeculativeVerifyParams:
    """Sizes of one verification (16 bytes)."""

    lanes: Annotated[int, u32]
    """L, 1 to 65,535."""
    rows_per_lane: Annotated[int, u32]
    """R, 2 to 256: the anchor's row and one a drafted token."""
    vocabulary: Annotated[int, u32]
    """V, below 2^31."""
    candidates: Annotated[int, u32]
    """K, 1 to 256: candidates a drafted token."""
