"""Every parameter struct of the built-in kernels, by its three witnesses."""

from __future__ import annotations

from typing import Any

import pytest
from ops.layouts import assert_one_layout

import metalane

STRUCTS = [
    (metalane.DFlash2SelectorParams, 48, ["dflash2_select_top16", "dflash2_select_path"]),
    (metalane.DFlash2VerifyRowsParams, 352, ["dflash2_select_verify_rows"]),
    (metalane.EmbeddingGgmlParams, 16, ["embedding_gather_Q4_K", "embedding_gather_F16"]),
    (metalane.GgmlQuantizedMatmulParams, 16, ["quantized_matmul_mv_Q4_K_1", "quantized_matmul_mm_simd_Q4_K"]),
    (metalane.GgmlQuantizedMatmulIdParams, 40, ["quantized_matmul_id_mv_Q4_K", "quantized_matmul_id_route"]),
    (metalane.ScatterRowsParams, 8, ["scatter_rows"]),
    (metalane.SpeculativeRowsParams, 144, ["speculative_rows"]),
    (metalane.SpeculativeVerifyParams, 16, ["speculative_verify_rows_F32", "speculative_verify_tokens_BF16"]),
]


@pytest.mark.parametrize(("cls", "size", "kernels"), STRUCTS)
def test_a_struct_has_one_layout(cls: Any, size: int, kernels: list[str]) -> None:
    for kernel in kernels:
        assert_one_layout(cls, kernel, size)


def test_no_struct_is_left_out() -> None:
    assert {cls.__name__ for cls, _, _ in STRUCTS} == set(metalane._core.cpp_layouts())
