"""The choice of verification rows against brute force: the global maximum, and its tie rules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ops.dflash2_case import run_verify_rows
from ops.oracle import dflash2 as oracle

import metalane
from counts import count
from devices import operator_devices


@pytest.fixture(params=operator_devices("native", "shader"), scope="module")
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(*request.param)


def make_params(costs: np.ndarray, lanes: int, rows: int, **given: Any) -> metalane.DFlash2VerifyRowsParams:
    fields = {"slope": 1.0, "intercept": [0.0] * 15, "maximum": [rows] * lanes, "every_row": 0, **given}
    fields["maximum"] = [*fields["maximum"], *[0] * (4 - lanes)]
    return metalane.DFlash2VerifyRowsParams.with_costs(
        costs=np.asarray(costs, np.float32).tolist(), lanes=lanes, rows_per_lane=rows, **fields
    )


def cost_tables(random: np.random.Generator) -> dict[str, np.ndarray]:
    """65 positive costs of every make."""
    n = np.arange(65)
    return {
        "flat": np.full(65, 3.0),
        "linear": 1.0 + 0.1 * n,
        "staircase-8": 1.0 + 0.5 * (n // 8),
        "staircase-16": 1.0 + 2.0 * (n // 16),
        "cliffs": np.where(n % 8 == 0, 1.0 + 0.05 * n, 2.0 + 0.2 * n),
        "falling": 10.0 - 0.1 * n,
        "random": random.uniform(0.5, 2.0, 65),
        "rising-random": np.cumsum(random.uniform(0.01, 0.5, 65)) + 0.5,
        "tiny": 1e-38 * (1 + n),
        "huge": 1e36 * (1 + n),
        "tiny-to-huge": 10.0 ** np.linspace(-40, 38, 65),
        "huge-to-tiny": 10.0 ** np.linspace(38, -40, 65),
    }


def check_global_maximum(
    rows: list[int], params: metalane.DFlash2VerifyRowsParams, confidence: np.ndarray, maximum: list[int]
) -> None:
    survive = oracle.survival(confidence, params.slope, params.intercept)
    costs = [*params.cost, params.cost_64]
    assert all(1 <= r <= m for r, m in zip(rows, maximum, strict=True)), (rows, maximum)
    ratio = oracle.worth(survive, rows) / costs[sum(rows)]
    best = oracle.best_ratio(survive, costs, maximum)
    assert ratio >= best * (1 - 1e-6), (rows, ratio, best)


@pytest.mark.parametrize("seed", range(count("dflash2_verify_random")))
def test_random_models_reach_the_global_maximum(device: metalane.Device, seed: int) -> None:
    random = np.random.default_rng(seed)
    lanes, rows = int(random.integers(1, 5)), int(random.integers(2, 17))
    maximum = random.integers(1, rows + 1, lanes).tolist()
    confidence = random.random((lanes, rows - 1)).astype(np.float32)
    confidence[random.random(confidence.shape) < 0.1] = random.choice([0.0, 1.0, np.nan, -1.0, 2.0, np.inf])
    for name, costs in cost_tables(random).items():
        params = make_params(
            costs,
            lanes,
            rows,
            slope=float(random.normal() * random.choice([0, 1, 5])),
            intercept=(random.normal(size=15) * 2).tolist(),
            maximum=maximum,
        )
        chosen = run_verify_rows(device, confidence, params)
        try:
            check_global_maximum(chosen, params, confidence, maximum)
        except AssertionError as error:
            raise AssertionError(f"costs {name}") from error


def test_brute_force_and_knapsack_of_the_oracle_agree() -> None:
    random = np.random.default_rng(4)
    for name, costs in cost_tables(random).items():
        survive = oracle.survival(random.random((3, 5)).astype(np.float32), 1.5, [0.5] * 15)
        _, best = oracle.best_rows_by_brute_force(survive, costs, [6, 4, 5])
        assert best == pytest.approx(oracle.best_ratio(survive, costs, [6, 4, 5]), rel=1e-12), name


HALF = {"slope": 0.0}  # sigmoid(0): every survive is a power of two, exactly
NEVER = {"slope": 0.0, "intercept": [-1e30] * 15}
ALWAYS = {"slope": 0.0, "intercept": [1e30] * 15}
HALF_THEN_NEVER = {"slope": 0.0, "intercept": [0.0, 0.0, -1e30, *[0.0] * 12]}
TIE_COSTS = {
    "flat": np.full(65, 2.0),
    "proportional": np.arange(65) + 0.0,
    "staircase": 1.0 + np.arange(65) // 4,
    "powers": 2.0 ** (np.arange(65) % 3),
}
TIE_COSTS["proportional"][0] = 1


@pytest.mark.parametrize(
    "model", [HALF, NEVER, ALWAYS, HALF_THEN_NEVER], ids=["half", "never", "always", "mixed"]
)
@pytest.mark.parametrize("costs", TIE_COSTS.values(), ids=TIE_COSTS.keys())
@pytest.mark.parametrize("maximum", [[5], [4, 4], [2, 6], [6, 1, 3], [4, 5, 3, 4]], ids=str)
def test_exact_ties_take_fewer_rows_then_the_lower_lane(
    device: metalane.Device, model: dict[str, Any], costs: np.ndarray, maximum: list[int]
) -> None:
    lanes = len(maximum)
    confidence = np.full((lanes, 7), 0.5, np.float32)
    params = make_params(costs, lanes, 8, maximum=maximum, **model)
    survive = oracle.survival(confidence, params.slope, params.intercept)
    expected, _ = oracle.best_rows_by_brute_force(survive, [*params.cost, params.cost_64], maximum)
    assert run_verify_rows(device, confidence, params) == list(expected)


def test_a_staircase_is_climbed_past_the_first_decrease(device: metalane.Device) -> None:
    costs = np.full(65, 1.0)
    costs[2:8] = 1.9  # two rows already pay for eight
    costs[8:] = 1.9 + 0.5 * np.arange(57)
    params = make_params(costs, 1, 8, slope=0.0, intercept=[2.0] * 15)
    survive = oracle.survival(np.full((1, 7), 0.5, np.float32), 0.0, [2.0] * 15)
    worth = [oracle.worth(survive, [r]) / float(np.float32(costs[r])) for r in range(1, 9)]
    assert worth[1] < worth[0] < max(worth[2:])
    assert run_verify_rows(device, np.full((1, 7), 0.5, np.float32), params) == [1 + int(np.argmax(worth))]


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, -np.inf, np.inf, -3.0, 7.0, 1e-7, 1 - 2**-24])
def test_confidence_is_clamped(device: metalane.Device, value: float) -> None:
    costs = 1.0 + 0.02 * np.arange(65) ** 1.3
    for slope, shift in itertools.product((0.1, 0.3, 1.0), (-1.0, 0.0, 1.0)):
        confidence = np.full((4, 15), value, np.float32)
        params = make_params(costs, 4, 16, slope=slope, intercept=[shift] * 15)
        check_global_maximum(run_verify_rows(device, confidence, params), params, confidence, [16] * 4)


@pytest.mark.parametrize("lanes", range(1, 5))
@pytest.mark.parametrize("rows", range(2, 17))
def test_every_row_ignores_the_model(device: metalane.Device, lanes: int, rows: int) -> None:
    maximum = [1 + (lane * 5 + 3) % rows for lane in range(lanes)]
    params = make_params(np.full(65, np.nan), lanes, rows, maximum=maximum, slope=np.nan, every_row=1)
    assert run_verify_rows(device, np.full((lanes, rows - 1), np.nan, np.float32), params) == maximum


def test_total_of_64_rows_costs_the_last_value(device: metalane.Device) -> None:
    costs = np.arange(65) + 1.0
    costs[64] = 0.5
    params = make_params(costs, 4, 16, **NEVER)
    assert params.cost_64 == 0.5
    assert run_verify_rows(device, np.zeros((4, 15), np.float32), params) == [16] * 4
