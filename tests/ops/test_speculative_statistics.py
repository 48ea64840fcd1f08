"""Verification emits the target's distribution, whatever was drafted; three planted faults fail the same test.

Target and drafter are Markov chains over a small vocabulary, so that a row's logits and a proposal depend on the token
before. Every emitted token is then a transition of the target's chain, and transitions are counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from ops.speculative_case import Dispatch, Inputs, run_verify

import metalane
from counts import count
from devices import operator_devices
from metalane.doctor_speculative import distribution

pytestmark = pytest.mark.statistics

VOCABULARY, CANDIDATES, ROWS, ANCHOR = 12, 8, 4, 0
LEAST_EXPECTED = 20
Table = np.ndarray  # [VOCABULARY before, VOCABULARY]: what follows each token


@pytest.fixture(params=operator_devices("auto"), scope="module")
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(*request.param)


def chi_square_tail(value: float, freedom: int) -> float:
    """P(chi-square of `freedom` degrees > value): Abramowitz and Stegun 26.4.4 and 26.4.5."""
    half = value / 2
    if freedom % 2:
        terms = [
            math.exp(-half + (j + 0.5) * math.log(half) - math.lgamma(j + 1.5)) for j in range(freedom // 2)
        ]
        return math.erfc(math.sqrt(half)) + math.fsum(terms) if half > 0 else 1.0
    return math.fsum(
        math.exp(-half + j * math.log(half) - math.lgamma(j + 1)) if half > 0 else float(j == 0)
        for j in range(freedom // 2)
    )


def test_chi_square_tail_agrees_with_tables() -> None:
    """The 5 % and 0.1 % points of printed tables, to their digits."""
    for freedom, five, tenth in (
        (1, 3.841459, 10.827566),
        (2, 5.991465, 13.815511),
        (9, 16.918978, 27.877165),
    ):
        assert chi_square_tail(five, freedom) == pytest.approx(0.05, rel=1e-6)
        assert chi_square_tail(tenth, freedom) == pytest.approx(0.001, rel=1e-6)


@dataclasses.dataclass
class Drafter:
    """Of each token before: candidates' ids and probabilities, and the chance of each id to be drafted."""

    ids: Table
    q: Table
    drafted: Table


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def honest(q: Table) -> Drafter:
    """Drafts what its q says, over the CANDIDATES likeliest tokens."""
    ids = np.argsort(-q, axis=1, kind="stable")[:, :CANDIDATES].astype(np.uint32)
    kept = np.take_along_axis(q, ids.astype(np.int64), axis=1)
    kept = (kept / kept.sum(axis=1, keepdims=True)).astype(np.float32)
    return Drafter(ids, kept, kept.astype(np.float64))


def one_hot(ids: Table, place: int) -> Table:
    return np.tile(np.eye(ids.shape[1], dtype=np.float32)[place], (VOCABULARY, 1))


def near(random: np.random.Generator, p: Table) -> Drafter:
    return honest(softmax(np.log(p + 1e-3) + 0.7 * random.standard_normal(p.shape)))


def unrelated(random: np.random.Generator, p: Table) -> Drafter:
    return honest(softmax(2 * random.standard_normal(p.shape)))


def opposed(random: np.random.Generator, p: Table) -> Drafter:
    """Likeliest is what the target gives least."""
    return honest(softmax(-np.log(p + 1e-3)))


def equal(random: np.random.Generator, p: Table) -> Drafter:
    """q is p, as float32 has it. The target of this scenario has CANDIDATES tokens."""
    return honest(p)


def point_mass(random: np.random.Generator, p: Table) -> Drafter:
    """The target's second choice, for certain."""
    ids = np.argsort(-p, axis=1, kind="stable")[:, :CANDIDATES].astype(np.uint32)
    return Drafter(ids, one_hot(ids, 1), one_hot(ids, 1))


def disjoint(random: np.random.Generator, p: Table) -> Drafter:
    """Only tokens that the target never gives. The target of this scenario has CANDIDATES tokens."""
    ids = np.tile(np.arange(CANDIDATES, VOCABULARY, dtype=np.uint32), (VOCABULARY, 1))
    q = softmax(random.standard_normal(ids.shape)).astype(np.float32)
    return Drafter(ids, q, q)


def impossible(random: np.random.Generator, p: Table) -> Drafter:
    """The drafted token is the target's likeliest, and q says that it cannot be drafted."""
    ids = np.argsort(-p, axis=1, kind="stable")[:, :CANDIDATES].astype(np.uint32)
    q = np.tile(np.float32([0, *[1 / (CANDIDATES - 1)] * (CANDIDATES - 1)]), (VOCABULARY, 1))
    return Drafter(ids, q, one_hot(ids, 0))


SCENARIOS: dict[str, Callable[[np.random.Generator, Table], Drafter]] = {
    function.__name__: function
    for function in (near, unrelated, opposed, equal, point_mass, disjoint, impossible)
}
NARROW = {"equal", "disjoint"}  # only the first CANDIDATES tokens have a chance


def p_value(
    device: metalane.Device,
    scenario: str,
    temperature: float,
    dispatch: Dispatch = metalane.dispatch_speculative_verify,
) -> float:
    """Of the hypothesis that every emitted token follows the one before as in the target's chain."""
    random = np.random.default_rng(sum(scenario.encode()) + int(100 * temperature))
    logits = (0.8 * random.standard_normal((VOCABULARY, VOCABULARY))).astype(np.float32)
    if scenario in NARROW:
        logits[:, CANDIDATES:] = -np.inf
    p = np.stack([distribution(row.astype(np.float64), temperature) for row in logits])
    drafter = SCENARIOS[scenario](random, p)
    lanes = count("speculative_lanes")
    tokens = np.empty((lanes, ROWS - 1), np.uint32)
    before = np.full((lanes, ROWS), ANCHOR)
    for position in range(ROWS - 1):
        running = np.cumsum(drafter.drafted[before[:, position]], axis=1)
        chosen = (running <= random.random((lanes, 1)) * running[:, -1:]).sum(axis=1)
        tokens[:, position] = drafter.ids[before[:, position], chosen]
        before[:, position + 1] = tokens[:, position]
    inputs = Inputs(
        logits=logits[before],
        verify_rows=np.full(lanes, ROWS, np.uint32),
        temperature=np.full(lanes, temperature, np.float32),
        tokens=tokens,
        candidates=drafter.ids[before[:, :-1]],
        proposal_probabilities=drafter.q[before[:, :-1]],
        uniforms=random.random((lanes, ROWS), np.float32),
    )
    accepted, following, _ = run_verify(device, inputs, dispatch)
    transitions = np.zeros((VOCABULARY, VOCABULARY))
    for lane in range(lanes):
        kept = int(accepted[lane])
        emitted = [ANCHOR, *tokens[lane, :kept].tolist(), int(following[lane])]
        for one, other in itertools.pairwise(emitted):
            transitions[one, other] += 1
    return chi_square(transitions, p)


def chi_square(transitions: np.ndarray, p: Table) -> float:
    """Pearson's test, a multinomial a row; cells with few expected ones are counted as one."""
    assert not transitions[p == 0].any(), "a token that the target cannot give"
    statistic, freedom = 0.0, 0
    for seen, chance in zip(transitions, p, strict=True):
        expected = seen.sum() * chance
        large = expected >= LEAST_EXPECTED
        cells = [*zip(seen[large], expected[large], strict=True)]
        if expected[~large].sum() >= LEAST_EXPECTED:
            cells.append((seen[~large].sum(), expected[~large].sum()))
        elif cells:  # the rest joins the smallest cell
            smallest = min(range(len(cells)), key=lambda i: cells[i][1])
            cells[smallest] = (
                cells[smallest][0] + seen[~large].sum(),
                cells[smallest][1] + expected[~large].sum(),
            )
        if len(cells) > 1:
            assert min(cell[1] for cell in cells) >= LEAST_EXPECTED
            statistic += sum((got - want) ** 2 / want for got, want in cells)
            freedom += len(cells) - 1
    assert freedom >= 4
    return chi_square_tail(statistic, freedom)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_emitted_tokens_are_the_targets(device: metalane.Device, scenario: str, temperature: float) -> None:
    assert p_value(device, scenario, temperature) > 1e-4


BONUS_FROM_Q = """
  if (kept == drafted) {
    const uint last = first_position + drafted - 1;
    const float bonus_u = uniform_of(uniforms, first_row + params.rows_per_lane - 1);
    float running = 0.0f;
    for (uint i = 0; i < params.candidates && running <= bonus_u; ++i) {
      next = candidates[last * params.candidates + i];
      running += proposal_probabilities[last * params.candidates + i];
    }
  }
  if (thread_index == 0) {
    accepted[lane] = kept;"""

OTHER_PATH = """const uint positions = params.rows_per_lane - 1;
  const ulong first = ulong((position + positions) % (params.lanes * positions)) * params.candidates;"""

# What is replaced, by what. All lanes have one chain: a neighbour's q belongs to another path of it.
PLANTED = {
    "nothing": ("", ""),
    "the residual is not subtracted": ("max(weight - amounts[i], 0.0f)", "weight"),
    "q belongs to another path": ("const ulong first = ulong(position) * params.candidates;", OTHER_PATH),
    "the bonus token is drawn from q": (
        "\n  if (thread_index == 0) {\n    accepted[lane] = kept;",
        BONUS_FROM_Q,
    ),
}


def planted(device: metalane.Device, fault: str) -> Dispatch:
    """The operator with a fault in the text of its second kernel, which the device compiles."""
    text = device.registry.metal_source("speculative_verify_tokens_F32")
    right, wrong = PLANTED[fault]
    assert not right or text.count(right) == 1
    kernel = device.compile(text.replace(right, wrong) if right else text, name=f"{fault}.metal")[
        "speculative_verify_tokens_F32"
    ]

    def dispatch(
        encoder: metalane.CommandEncoder,
        buffers: metalane.SpeculativeVerifyBuffers,
        params: metalane.SpeculativeVerifyParams,
    ) -> None:
        shared = (
            buffers.logits,
            buffers.verify_rows,
            buffers.temperature,
            buffers.partial_ids,
            buffers.partial_sums,
        )
        encoder.dispatch(
            "speculative_verify_rows_F32",
            [*shared, params],
            threadgroups=params.lanes * params.rows_per_lane,
            threads_per_threadgroup=64,
        )
        kernel(
            *shared,
            buffers.tokens,
            buffers.candidates,
            buffers.proposal_probabilities,
            buffers.uniforms,
            buffers.accepted,
            buffers.next_tokens,
            device.zeros(1, metalane.uint32),
            params,
            threadgroups=params.lanes,
            threads_per_threadgroup=256,
            encoder=encoder,
        )

    return dispatch


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_show(device: metalane.Device, fault: str) -> None:
    scenario = "equal" if "bonus" in fault else "near"  # most lanes keep all that was drafted
    value = p_value(device, scenario, 1.0, planted(device, fault))
    assert value > 1e-4 if fault == "nothing" else value < 1e-12
