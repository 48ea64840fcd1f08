"""A target model's share of a verification, sized on the device: rows packed, grids counted, results put back.

Drafter, choice of rows, target and verification then follow each other without a read-back, and one captured graph
serves every number of rows::

    rows = SpeculativeRowsParams.of(lanes, rows_per_lane, [up, down, head], scatter=vocabulary)
    dispatch_dflash2_verify_rows(encoder, confidence, verify_rows, ...)
    dispatch_speculative_rows(encoder, verify_rows, anchors, tokens, row_tokens, row_places, grids, rows)
    embedding_gather_ggml(encoder, table, row_tokens, x, ...)
    quantized_matmul_ggml(encoder, x, w_up, h, up, grid=grids.view(0, 3))
    ...
    scatter_rows(encoder, packed_logits, row_places, logits, ScatterRowsParams(vocabulary, lanes * rows_per_lane),
                 grid=grids.view(12 * 3, 3))
    dispatch_speculative_verify(encoder, ...)

L lanes, R rows a lane; lane l has ``min(verify_rows[l], R)`` rows: its anchor's, then those of its first drafted
tokens.

`dispatch_speculative_rows(encoder, verify_rows, anchors, tokens, row_tokens, row_places, grids, params)`: lane after
lane, `row_tokens` gets the token of each row and `row_places` its place in [L, R]; both are filled up with 0 and
`SPECULATIVE_ROWS_NOWHERE`. ``grids[g]`` gets the threadgroup counts of the g-th grid for that many rows; no rows at all
run nothing. verify_rows, anchors uint32 [L], tokens uint32 [L, R - 1], row_tokens and row_places uint32 [L * R], grids
uint32 [n_grids, 3].

`scatter_rows(encoder, input, places, output, params, grid=None)`: ``output[places[i]] = input[i]`` for float32 rows;
places past the rows are left out.

All raise ArgumentError or DTypeError (sizes, dtypes, aliasing) before anything is encoded, and allocate nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

from .._core import (
    SCATTER_ROWS_ELEMENTS,
    SPECULATIVE_ROWS_MAX_GRIDS,
    SPECULATIVE_ROWS_NOWHERE,
    GgmlPolicy,
    dispatch_speculative_rows,
    scatter_rows,
)
from ..errors import ArgumentError
from ..params import metal_struct, u32
from .ggml import GgmlQuantizedMatmulParams

__all__ = [
    "SPECULATIVE_ROWS_MAX_GRIDS",
    "SPECULATIVE_ROWS_NOWHERE",
    "ScatterRowsParams",
    "SpeculativeRowsParams",
    "dispatch_speculative_rows",
    "scatter_rows",
]


@metal_struct
class SpeculativeRowsParams:
    """Of `dispatch_speculative_rows` (144 bytes).

    Grid g is ``[weight_tiles[g], ceil(rows / input_rows[g]), 1]`` threadgroups; `of` fills them in.
    """

    lanes: Annotated[int, u32]
    rows_per_lane: Annotated[int, u32]
    n_grids: Annotated[int, u32]
    padding: Annotated[int, u32] = field(default=0, kw_only=True, repr=False)
    weight_tiles: Annotated[Sequence[int], u32[SPECULATIVE_ROWS_MAX_GRIDS]]
    input_rows: Annotated[Sequence[int], u32[SPECULATIVE_ROWS_MAX_GRIDS]]

    @classmethod
    def of(
        cls,
        lanes: int,
        rows_per_lane: int,
        products: Sequence[GgmlQuantizedMatmulParams],
        *,
        scatter: int | None = None,
        algorithm: str = "auto",
        policy: GgmlPolicy | None = None,
    ) -> SpeculativeRowsParams:
        """Grids for `quantized_matmul_ggml` calls, in their order, and one for `scatter_rows` of that row length.

        `algorithm` and `policy` are those of the calls; each call's ``params.m`` is ``lanes * rows_per_lane``.
        """
        plans = [(p, (policy or GgmlPolicy()).plan(p, algorithm)) for p in products]
        grids = [(-(-p.n // plan.weight_rows), plan.input_rows) for p, plan in plans]
        if scatter is not None:
            grids.append((-(-scatter // SCATTER_ROWS_ELEMENTS), 1))
        if not 1 <= len(grids) <= SPECULATIVE_ROWS_MAX_GRIDS:
            raise ArgumentError(
                f"SpeculativeRowsParams.of: products must be 1 to {SPECULATIVE_ROWS_MAX_GRIDS} grids, got {len(grids)}"
            )
        spare = [0] * (SPECULATIVE_ROWS_MAX_GRIDS - len(grids))
        tiles, rows = ([grid[i] for grid in grids] + spare for i in range(2))
        return cls(lanes, rows_per_lane, len(grids), tiles, rows)


@metal_struct
class ScatterRowsParams:
    """Of `scatter_rows` (8 bytes): input and output are float32 [rows, row_length], places uint32 [rows]."""

    row_length: Annotated[int, u32]
    rows: Annotated[int, u32]
