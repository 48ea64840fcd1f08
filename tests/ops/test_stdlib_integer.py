"""metal_integer and the operators of integers on the CPU device, against Python's integers: every width, signed and
unsigned, on scalars and vectors, edge values included."""

from __future__ import annotations

import numpy as np
import pytest
from ops.oracle.msl_integer import INTEGERS, Integer
from ops.oracle.msl_real import DTYPES, Case
from ops.stdlib_case import Batch, Expression, run_all

import metalane

Results = dict[str, dict[tuple[str, int], np.ndarray]]

CASES = [(t, case) for t in INTEGERS for case in Integer(t).cases()]


def widths(dtype: str) -> tuple[int, ...]:
    """Vectors of every size where a short type promotes and where none does; one size for the others."""
    return (1, 2, 3, 4) if dtype in ("uchar", "int") else (1, 3)


def given(dtype: str) -> list[np.ndarray]:
    return [np.array(column, DTYPES[dtype]) for column in zip(*Integer(dtype).arguments(), strict=True)]


@pytest.fixture(scope="module")
def results(device: metalane.Device) -> Results:
    batches = {}
    for t in INTEGERS:
        expressions = [Expression(c.name, c.expression, c.result or t, widths(t)) for c in Integer(t).cases()]
        batches[t] = (Batch(f"integer_{t}", (t, t, t), tuple(expressions)), given(t))
    return run_all(device, batches)


@pytest.mark.parametrize(("dtype", "case"), CASES, ids=[f"{t}-{c.name}" for t, c in CASES])
def test_function(results: Results, dtype: str, case: Case) -> None:
    exact = Integer(dtype).exact(case)
    arguments = given(dtype)
    for width in widths(dtype):
        got = results[dtype][case.name, width]
        wrong = got != exact
        assert not wrong.any(), [width, *(a[wrong][:5] for a in arguments), got[wrong][:5], exact[wrong][:5]]
