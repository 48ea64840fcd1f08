"""The model of acceptance against an independent maximum-likelihood fit, and what it does with little or odd data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import metalane

COSTS = [1.0] * 65


def logit(confidence: np.ndarray) -> np.ndarray:
    c = np.clip(confidence.astype(np.float64), 1e-6, 1 - 1e-6)
    return np.log(c / (1 - c))


def drawn(
    random: np.random.Generator, n: int, slope: float, intercepts: list[float]
) -> tuple[np.ndarray, ...]:
    """Positions, confidences and acceptances of a known model."""
    position = random.integers(0, len(intercepts), n)
    confidence = random.random(n).astype(np.float32)
    chance = 1 / (1 + np.exp(-(slope * logit(confidence) + np.asarray(intercepts)[position])))
    return position, confidence, random.random(n) < chance


def observe(model: metalane.AcceptanceModel, data: tuple[np.ndarray, ...]) -> None:
    for position, confidence, accepted in zip(*data, strict=True):
        model.observe(int(position), float(confidence), bool(accepted))


def best_fit(
    data: tuple[np.ndarray, ...], weights: np.ndarray, positions: int, damping: float
) -> tuple[float, np.ndarray]:
    """Slope and intercepts by gradient descent with Nesterov's momentum, which shares no step with Newton's method."""
    position, confidence, accepted = data
    features = np.column_stack([logit(confidence), np.eye(positions)[position]])
    start = np.array([1.0, *[0.0] * positions])
    rate = 1 / (0.25 * np.linalg.eigvalsh(features.T @ (features * weights[:, None]))[-1] + damping)
    now = before = start
    for step in range(200_000):
        ahead = now + step / (step + 3) * (now - before)
        error = 1 / (1 + np.exp(-(features @ ahead))) - accepted
        gradient = features.T @ (weights * error) + damping * (ahead - start)
        before, now = now, ahead - rate * gradient
        if np.abs(gradient).max() < 1e-9:
            break
    assert np.abs(gradient).max() < 1e-7
    return now[0], now[1:]


@pytest.mark.parametrize("damping", [1e-6, 1.0, 30.0])
def test_a_fit_is_the_maximum_of_likelihood_and_damping(damping: float) -> None:
    random = np.random.default_rng(1)
    data = drawn(random, 3000, 0.8, [1.0, 0.3, -0.5, -1.5])
    model = metalane.AcceptanceModel(damping=damping)
    observe(model, data)
    model.fit()
    slope, intercepts = best_fit(data, np.ones(3000), 4, damping)
    assert model.slope == pytest.approx(slope, abs=1e-6)
    assert model.intercepts[:4] == pytest.approx(intercepts, abs=1e-6)
    assert model.intercepts[4:] == [0.0] * 11
    assert (
        max(abs(model.slope - 0.8), *np.abs(np.subtract(model.intercepts[:4], [1.0, 0.3, -0.5, -1.5]))) < 0.35
        or damping == 30
    )


def test_older_observations_weigh_less() -> None:
    """Three batches with a fit after each: weights 1, forgetting and its square, at the last fit."""
    random = np.random.default_rng(2)
    batches = [
        drawn(random, 400, slope, [shift, 0.0]) for slope, shift in ((1.0, 2.0), (0.5, -1.0), (1.5, 0.5))
    ]
    model = metalane.AcceptanceModel(forgetting=0.6, damping=0.5)
    for batch in batches:
        observe(model, batch)
        model.fit()
    together = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    slope, intercepts = best_fit(together, np.repeat([0.36, 0.6, 1.0], 400), 2, 0.5)
    assert model.slope == pytest.approx(slope, abs=1e-6)
    assert model.intercepts[:2] == pytest.approx(intercepts, abs=1e-6)


def test_the_oldest_go_when_it_is_full() -> None:
    random = np.random.default_rng(3)
    old, new = (drawn(random, 500, 1.0, [shift]) for shift in (2.0, -2.0))
    model, fresh = (metalane.AcceptanceModel(capacity=500) for _ in range(2))
    observe(model, old)
    observe(model, new)
    observe(fresh, new)
    model.fit()
    fresh.fit()
    assert [model.slope, *model.intercepts] == pytest.approx([fresh.slope, *fresh.intercepts], abs=1e-9)


def test_drift_is_followed_where_there_is_forgetting() -> None:
    random = np.random.default_rng(4)
    forgetful, faithful = (metalane.AcceptanceModel(forgetting=f, capacity=100_000) for f in (0.9, 1.0))
    for step in range(60):
        batch = drawn(random, 40, 1.0, [2.0 if step < 30 else -1.0])
        for model in (forgetful, faithful):
            observe(model, batch)
            model.fit()
    assert abs(forgetful.intercepts[0] + 1.0) < 0.3
    assert abs(faithful.intercepts[0] + 1.0) > 0.8


@pytest.mark.parametrize("outcome", ["by confidence", "all", "none", "by position"])
def test_separable_data_stay_finite(outcome: str) -> None:
    model = metalane.AcceptanceModel(damping=0.1)
    random = np.random.default_rng(5)
    for _ in range(50):
        for position in range(15):
            confidence = float(random.random())
            accepted = {
                "by confidence": confidence > 0.5,
                "all": True,
                "none": False,
                "by position": position < 7,
            }[outcome]
            model.observe(position, confidence, accepted)
        model.fit()
    values = [model.slope, *model.intercepts]
    assert np.isfinite(values).all() and np.abs(values).max() < 100
    if outcome == "by position":
        assert min(model.intercepts[:7]) > 1 and max(model.intercepts[7:]) < -1
    if outcome == "by confidence":
        assert model.slope > 3


def test_nothing_and_little_to_go_by() -> None:
    model = metalane.AcceptanceModel()
    model.fit()
    assert (model.slope, model.intercepts) == (1.0, [0.0] * 15)
    assert model.probability(3, 0.25) == pytest.approx(0.25)
    assert model.calibration().weight == 0
    model.observe(2, 0.5, True)
    model.fit()
    slope, intercepts = best_fit((np.array([2]), np.float32([0.5]), np.array([True])), np.ones(1), 15, 1.0)
    assert model.slope == pytest.approx(slope, abs=1e-6)
    assert model.intercepts == pytest.approx(intercepts, abs=1e-6)
    assert 0 < model.intercepts[2] < 0.6


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1e-30])
def test_confidences_at_the_ends_are_clamped(confidence: float) -> None:
    model = metalane.AcceptanceModel()
    assert model.probability(0, confidence) == pytest.approx(min(max(confidence, 1e-6), 1 - 1e-6))
    for _ in range(100):
        model.observe(0, confidence, confidence < 0.5)  # the opposite of what it says
    model.fit()
    assert np.isfinite([model.slope, *model.intercepts]).all()
    assert abs(model.probability(0, confidence) - (confidence < 0.5)) < 0.2


def test_calibration_is_of_what_was_said_before() -> None:
    """Confidences 0.9 of which half are accepted: 0.4 off at first, and little once that is known."""
    model = metalane.AcceptanceModel(forgetting=1.0)
    for i in range(100):
        model.observe(0, 0.9, i % 2 == 0)
    said = model.calibration()
    assert (said.weight, said.accepted) == (100, 0.5)
    assert said.predicted == pytest.approx(0.9)
    assert said.calibration_error == pytest.approx(0.4)
    assert said.log_loss == pytest.approx(-0.5 * np.log(0.9) - 0.5 * np.log(0.1), rel=1e-5)
    model.fit()
    assert model.calibration().calibration_error == pytest.approx(0.4)
    for i in range(100):
        model.observe(0, 0.9, i % 2 == 0)
    assert model.calibration().calibration_error < 0.21


def test_bins_do_not_cancel() -> None:
    model = metalane.AcceptanceModel()
    for i in range(100):
        model.observe(0, 0.25, i % 2 == 0)
        model.observe(0, 0.75, i % 2 == 0)
    said = model.calibration()
    assert said.predicted == pytest.approx(said.accepted)
    assert said.calibration_error == pytest.approx(0.25)


def test_a_verification_tells_of_what_it_tested() -> None:
    """Kept ones, the first that was not kept, and nothing behind it; NaN where nothing was tested."""
    confidence = np.full((4, 3), np.nan, np.float32)
    confidence[0] = [0.9, 0.8, 0.7]
    confidence[1, :2] = [0.6, 0.5]
    confidence[2, :1] = 0.4
    model, by_hand = metalane.AcceptanceModel(), metalane.AcceptanceModel()
    model.observe_verified(confidence, np.uint32([3, 1, 1, 0]), np.uint32([4, 4, 2, 0]))
    for position, value, accepted in (
        (0, 0.9, 1),
        (1, 0.8, 1),
        (2, 0.7, 1),
        (0, 0.6, 1),
        (1, 0.5, 0),
        (0, 0.4, 1),
    ):
        by_hand.observe(position, float(np.float32(value)), bool(accepted))
    assert model.calibration().weight == 6
    model.fit()
    by_hand.fit()
    assert (model.slope, model.intercepts) == (by_hand.slope, by_hand.intercepts)


def test_buffers_of_a_device_will_do(device: metalane.Device) -> None:
    model = metalane.AcceptanceModel()
    model.observe_verified(
        device.from_numpy(np.float32([[0.5, 0.5]])),
        device.from_numpy(np.uint32([1])),
        device.from_numpy(np.uint32([3])),
    )
    assert model.calibration().weight == 2


def test_params_carry_the_fit() -> None:
    model = metalane.AcceptanceModel()
    observe(model, drawn(np.random.default_rng(6), 500, 0.7, [0.5, -0.5]))
    model.fit()
    costs = [float(n + 1) for n in range(65)]
    params = model.verify_rows_params(costs, rows_per_lane=8, maximum=[8, 5])
    assert params == metalane.DFlash2VerifyRowsParams.with_costs(
        costs,
        slope=model.slope,
        intercept=model.intercepts,
        lanes=2,
        rows_per_lane=8,
        every_row=0,
        maximum=[8, 5, 0, 0],
    )
    device = metalane.Device("null")
    with device.command_encoder() as encoder:
        metalane.dispatch_dflash2_verify_rows(
            encoder, device.zeros((2, 7), "f32"), device.zeros(2, "u32"), params
        )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.observe(0, float("nan"), True), "confidence must be 0 to 1, got nan"),
        (lambda model: model.observe(0, 1.5, True), "confidence must be 0 to 1, got 1.5"),
        (lambda model: model.observe(0, -0.1, True), "confidence must be 0 to 1, got -0.1"),
        (lambda model: model.observe(15, 0.5, True), "position must be below 15, got 15"),
        (lambda model: model.probability(0, float("nan")), "confidence must be 0 to 1"),
        (lambda model: model.observe_verified([[0.5, np.nan]], [1], [3]), "confidence must be 0 to 1, got nan"),
        (lambda model: model.observe_verified([[0.5, 0.5]], [3], [3]), r"accepted\[0\] must be at most the 2"),
        (lambda model: model.observe_verified([[0.5, 0.5]], [0], [3, 3]), "verify_rows must be 1 lanes"),
        (lambda model: model.observe_verified([0.5, 0.5, 0.5], [0, 0], [2, 2]), "confidence must be 2 lanes"),
        (lambda model: model.observe_verified([[0.5]], [-1], [2]), "verified: accepted must be 0 to .* got -1"),
        (lambda model: model.observe_verified([[0.5]], [1], [1 << 32]), "verify_rows must be 0 to .* got 4294967296"),
        (lambda model: model.observe_verified([[0.5]], [0.5], [2]), "accepted must be integers, got float64"),
        (lambda model: model.observe_verified(None, [0], [2]), "confidence must be numbers, got object"),
        (lambda model: model.observe_verified("a", [0], [2]), "confidence must be numbers, got <U1"),
        (lambda model: model.observe(-1, 0.5, True), r"AcceptanceModel\.observe: position must be .* got -1"),
        (lambda model: model.observe(1 << 40, 0.5, True), "position must be below 15, got 1099511627776"),
        (lambda model: model.observe("0", 0.5, True), r"position must be an integer .* got '0' \(str\)"),
        (lambda model: model.observe(0, "0.5", True), r"confidence must be a number, got '0.5' \(str\)"),
        (lambda model: model.observe(0, 0.5, None), r"accepted must be True or False, got None \(NoneType\)"),
        (lambda model: model.probability(0, None), r"AcceptanceModel\.probability: confidence must be a number"),
        (lambda model: metalane.AcceptanceModel(forgetting="1"), "AcceptanceModel: forgetting must be a number"),
        (lambda model: metalane.AcceptanceModel(damping=None), "damping must be a number, got None"),
        (lambda model: metalane.AcceptanceModel(capacity=1.5), "capacity must be an integer"),
        (lambda model: metalane.AcceptanceModel(forgetting=0), "forgetting must be above 0"),
        (lambda model: metalane.AcceptanceModel(forgetting=1.1), "forgetting"),
        (lambda model: metalane.AcceptanceModel(forgetting=float("nan")), "forgetting"),
        (lambda model: metalane.AcceptanceModel(damping=0), "damping must be finite and above 0"),
        (lambda model: metalane.AcceptanceModel(damping=float("inf")), "damping"),
        (lambda model: metalane.AcceptanceModel(capacity=0), "capacity must be 1 to"),
        (lambda model: model.verify_rows_params(COSTS[1:], rows_per_lane=4, maximum=[4]), "65 values, got 64"),
    ],
)  # fmt: skip
def test_refusals_change_nothing(call: Any, words: str) -> None:
    model = metalane.AcceptanceModel()
    with pytest.raises(metalane.ArgumentError, match=words):
        call(model)
    assert model.calibration().weight == 0


def test_numbers_of_numpy_will_do() -> None:
    model, same = metalane.AcceptanceModel(), metalane.AcceptanceModel()
    model.observe(np.uint32(3), np.float32(0.25), np.bool_(True))
    same.observe(3, 0.25, True)
    assert model.calibration().accepted == 1
    model.fit()
    same.fit()
    assert (model.slope, model.intercepts) == (same.slope, same.intercepts)
