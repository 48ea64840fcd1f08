"""metal_math, metal_common and metal_relational on the CPU device, against float64: every function of real numbers in
float, half and bfloat, on scalars and vectors of 2, 3 and 4, edge values included."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from ops.oracle.msl_real import (
    ARITY_1,
    ARITY_MORE,
    PRELUDE,
    REAL,
    Case,
    arguments,
    bit_pattern,
    bound,
    error_in_ulps,
    float64,
    fused,
    nearly_cancelling,
    typed_cases,
)
from ops.stdlib_case import Batch, Expression, run_all

import metalane

Results = dict[str, dict[tuple[str, int], np.ndarray]]

CASES = {
    f"{t}_{arity}": [c for c in [*cases, *typed_cases(t)] if (c.arity == 1) == (arity == 1)]
    for t in REAL
    for arity, cases in ((1, ARITY_1), (3, ARITY_MORE))
}
IDS = [(key, case) for key, cases in CASES.items() for case in cases]


# Functions that Metal does not have in metal::precise and metal::fast.
COMMON_ONLY = {"select", "isnan", "isinf", "isfinite", "isnormal", "signbit", "isordered", "isunordered"}
# Of two zeros either may be the smaller one.
ZERO_OF_EITHER_SIGN = {"min", "max", "fmin", "fmax", "min3", "max3", "median3", "fmin3", "fmax3", "fmedian3"}
ZERO_OF_EITHER_SIGN |= {"clamp", "saturate"}


def fma_names(dtype: str) -> tuple[str, ...]:
    return ("fma", "precise::fma", "fast::fma") if dtype == "float" else ("fma",)


def batch(dtype: str, arity: int) -> Batch:
    cases = CASES[f"{dtype}_{arity}"]
    expressions = [Expression(c.name, c.expression, c.result or dtype) for c in cases]
    if arity == 3:
        expressions += [Expression(name, f"{name}(x, y, z)", dtype) for name in fma_names(dtype)]
    if dtype == "float":
        for space in ("precise", "fast"):
            for c in cases:
                if c.function and c.function not in COMMON_ONLY:
                    text = f"{space}::{c.expression}"
                    expressions.append(Expression(f"{space}_{c.name}", text, c.result or dtype, (1,)))
    return Batch(f"math_{dtype}_{arity}", (dtype,) * arity, tuple(expressions), PRELUDE)


@functools.cache
def given(key: str) -> list[np.ndarray]:
    dtype, arity = key.split("_")
    values = arguments(dtype, int(arity))
    if arity == "3":
        values = [np.concatenate(parts) for parts in zip(values, nearly_cancelling(dtype), strict=True)]
    return values


@pytest.fixture(scope="module")
def results(device: metalane.Device) -> Results:
    return run_all(device, {key: (batch(*split(key)), given(key)) for key in CASES})


def split(key: str) -> tuple[str, int]:
    dtype, arity = key.split("_")
    return dtype, int(arity)


@pytest.mark.parametrize(("key", "case"), IDS, ids=[f"{key.split('_')[0]}-{case.name}" for key, case in IDS])
def test_function(results: Results, key: str, case: Case) -> None:
    dtype, _ = split(key)
    values = given(key)[: case.arity]
    got = results[key][case.name, 1]
    with np.errstate(all="ignore"):
        exact = case.oracle(*map(float64, values))
    if case.result:
        wrong = got != exact.astype(got.dtype)
        assert not wrong.any(), [v[wrong][:5] for v in values] + [got[wrong][:5], exact[wrong][:5]]
    else:
        errors = error_in_ulps(got, exact, dtype)
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound(case, dtype), [v[worst] for v in values] + [got[worst], exact[worst]]
        if case.name not in ZERO_OF_EITHER_SIGN:
            wide = float64(got)
            wrong = (exact == 0) & (wide == 0) & (np.signbit(exact) != np.signbit(wide))
            assert not wrong.any(), [v[wrong][:5] for v in values]
    for width in (2, 3, 4):
        assert np.array_equal(bit_pattern(results[key][case.name, width]), bit_pattern(got)), width
    for space in ("precise", "fast"):
        other = results[key].get((f"{space}_{case.name}", 1), got)
        assert np.array_equal(bit_pattern(other), bit_pattern(got)), space


@pytest.mark.parametrize("dtype", REAL)
def test_fma(results: Results, dtype: str) -> None:
    key = f"{dtype}_3"
    values = given(key)
    finite = np.flatnonzero(np.all([np.isfinite(float64(v)) for v in values], axis=0))
    chosen = np.concatenate([finite[:1000], finite[1000::4]])
    got = results[key]["fma", 1]
    exact = np.array([fused(*(float(v[i]) for v in values), dtype) for i in chosen])
    wrong = chosen[float64(got[chosen]) != exact]
    assert not wrong.size, [v[wrong[:5]] for v in values] + [got[wrong[:5]]]
    for name in fma_names(dtype):
        for width in (1, 2, 3, 4):
            assert np.array_equal(bit_pattern(results[key][name, width]), bit_pattern(got)), (name, width)


def test_fast_math(device: metalane.Device) -> None:
    """Compiled with fast math, functions of float keep their bounds; what is made of operators may contract."""
    made_of_operators = {"mix", "smoothstep"}
    for key in ("float_1", "float_3"):
        cases = [c for c in CASES[key] if not c.result and c.name not in made_of_operators]
        expressions = tuple(Expression(c.name, c.expression, "float", (1,)) for c in cases)
        fast = Batch(f"fast_{key}", ("float",) * split(key)[1], expressions, PRELUDE).run(
            device, given(key), "fast"
        )
        for case in cases:
            with np.errstate(all="ignore"):
                exact = case.oracle(*map(float64, given(key)[: case.arity]))
            assert error_in_ulps(fast[case.name, 1], exact, "float").max() <= bound(case, "float"), case.name
