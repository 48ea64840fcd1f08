"""How often random tests run: one table for the tiers of `make test` and `make soak`."""

from __future__ import annotations

import os
from typing import NamedTuple


class Count(NamedTuple):
    """Random cases in each tier."""

    test: int
    soak: int


COUNTS = {
    "dflash2_selector_random": Count(40, 2000),
    "dflash2_selector_rounding": Count(4, 200),
    "dflash2_verify_random": Count(40, 2000),
    "speculative_verify_random": Count(40, 2000),
    "speculative_lanes": Count(2000, 30_000),
    "speculative_steps": Count(600, 10_000),
    "struct_round_trip": Count(200, 20_000),
    "dispatch_arguments": Count(300, 20_000),
    "active_lanes_random": Count(24, 3000),
    "compile_random_kernels": Count(60, 5000),
    "compile_hostile_calls": Count(2000, 200_000),
    "graph_programs": Count(20_000, 50_000),
    "graph_rebindings": Count(500, 20_000),
    "gguf_mutations": Count(5000, 100_000),
    "dequantize_blocks": Count(20_000, 50_000),
    "flat_memory_compiles": Count(250, 20_000),
    "flat_memory_launches": Count(100_000, 1_000_000),
}


def count(name: str) -> int:
    """Cases of the test `name` in this run; METALANE_SOAK=1 asks for the soak tier."""
    counts = COUNTS[name]
    return counts.soak if os.environ.get("METALANE_SOAK") == "1" else counts.test
