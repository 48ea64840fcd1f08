"""The selector's drafts, verified: what a drafter and a target emit together has the target's distribution.

The drafter's proposals depend on the path by the selector's edges. The same count finds proposals that do not.
"""

from __future__ import annotations

import numpy as np
import pytest
from ops.dflash2_case import BF16
from ops.test_speculative_statistics import chi_square

import metalane
from counts import count
from devices import operator_devices
from metalane.doctor_speculative import distribution

pytestmark = pytest.mark.statistics

LANES, ROWS, VOCABULARY, ANCHOR, TEMPERATURE = 4, 3, 16, 0, 0.8


@pytest.fixture(params=operator_devices("auto"), scope="module")
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(*request.param)


def p_value(device: metalane.Device, *, conditioned: bool) -> float:
    """As in the statistics of verification alone. Every token is a candidate, so that q is the drafter's chain."""
    random = np.random.default_rng(21)
    target = (0.8 * random.standard_normal((VOCABULARY, VOCABULARY))).astype(np.float32)
    p = np.stack([distribution(row.astype(np.float64), TEMPERATURE) for row in target])
    drafter = metalane.DFlash2SelectorBuffers.alloc(device, LANES, ROWS, VOCABULARY)
    drafter.logits.numpy()[...] = 0.3 * random.standard_normal(VOCABULARY)
    drafter.selector_hidden.numpy()[...] = 1
    drafter.predecessor_codebook.numpy()[:, :VOCABULARY] = np.eye(VOCABULARY)
    drafter.successor_codebook.numpy()[:, :VOCABULARY] = (
        target + 0.7 * random.standard_normal(target.shape)
    ).T.astype(BF16)
    buffers = metalane.SpeculativeVerifyBuffers.alloc(device, LANES, ROWS, VOCABULARY)
    buffers.tokens = drafter.tokens
    buffers.candidates = drafter.candidates
    if conditioned:
        buffers.proposal_probabilities = drafter.proposal_probabilities
    buffers.verify_rows.numpy()[:] = ROWS
    buffers.temperature.numpy()[:] = TEMPERATURE
    selector = metalane.DFlash2SelectorParams(
        [ANCHOR] * 4, [1.0] * 4, LANES, ROWS, VOCABULARY, sampling_mask=0b1111
    )
    sizes = metalane.SpeculativeVerifyParams(LANES, ROWS, VOCABULARY, 16)
    transitions = np.zeros((VOCABULARY, VOCABULARY))
    for _ in range(count("speculative_steps")):
        drafter.uniforms.numpy()[...] = random.random((LANES, ROWS - 1))
        buffers.uniforms.numpy()[...] = random.random((LANES, ROWS))
        with device.command_encoder() as encoder:
            metalane.dispatch_dflash2_selector(encoder, drafter, selector)
        tokens = drafter.tokens.numpy()
        if not conditioned:  # the neighbour's: the same chain on another path
            buffers.proposal_probabilities.numpy()[...] = drafter.proposal_probabilities.numpy()[[1, 2, 3, 0]]
        before = np.concatenate([np.full((LANES, 1), ANCHOR), tokens], axis=1)
        buffers.logits.numpy()[...] = target[before]
        with device.command_encoder() as encoder:
            metalane.dispatch_speculative_verify(encoder, buffers, sizes)
        following = buffers.next_tokens.numpy()
        for lane, kept in enumerate(buffers.accepted.tolist()):
            emitted = [*before[lane, : kept + 1], following[lane]]
            np.add.at(transitions, (emitted[:-1], emitted[1:]), 1)
    return chi_square(transitions, p)


def test_drafts_of_the_selector_are_verified_without_loss(device: metalane.Device) -> None:
    assert p_value(device, conditioned=True) > 1e-4


def test_proposals_of_another_path_show(device: metalane.Device) -> None:
    assert p_value(device, conditioned=False) < 1e-12
