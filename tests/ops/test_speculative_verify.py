"""Lossless verification against its float64 oracle: outcomes, what is no number or not in use, what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from host_memory import paged
from ops.speculative_case import F32, OUTPUTS, U32, Inputs, check_verify, random_inputs, run_verify, shapes

import metalane
from counts import count
from devices import KINDS, operator_devices

DTYPES = [F32, np.dtype(np.float16), np.dtype(metalane.bfloat16)]
VOCABULARIES = [1, 2, 7, 16, 17, 31, 100, 257, 1031, 4096, 16_384, 16_385, 33_000]


@pytest.fixture(params=operator_devices("auto"), scope="module")
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(*request.param)


@pytest.mark.parametrize("seed", range(count("speculative_verify_random")))
def test_random_lanes_agree_with_float64(device: metalane.Device, seed: int) -> None:
    random = np.random.default_rng(seed)
    lanes, rows, candidates = (int(random.integers(*range_)) for range_ in ((1, 7), (2, 10), (1, 40)))
    vocabulary = VOCABULARIES[seed % len(VOCABULARIES)]
    inputs = random_inputs(random, lanes, rows, vocabulary, candidates, DTYPES[seed % 3])
    assert check_verify(device, inputs, auto_barriers=seed % 2 == 0) <= 1


def test_float32_rarely_comes_to_another_outcome(device: metalane.Device) -> None:
    others = check_verify(device, random_inputs(np.random.default_rng(99), 300, 4, 64, 16))
    assert others <= 1


@pytest.mark.parametrize(("rows", "candidates"), [(256, 2), (2, 256), (17, 16)])
def test_many_rows_and_candidates(device: metalane.Device, rows: int, candidates: int) -> None:
    inputs = random_inputs(np.random.default_rng(rows), 3, rows, 300, candidates)
    inputs.verify_rows[0] = rows
    inputs.temperature[:] = [0.05, 0, 1]
    inputs.tokens[1] = np.argmax(inputs.logits[1, :-1], axis=1)  # a greedy lane whose drafts are all right
    inputs.verify_rows[1] = rows
    check_verify(device, inputs)
    assert run_verify(device, inputs)[0][1] == rows - 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_large_vocabulary(device: metalane.Device, dtype: np.dtype) -> None:
    inputs = random_inputs(np.random.default_rng(5), 2, 3, 248_320, 16, dtype)
    inputs.verify_rows[:] = [3, 2]
    inputs.temperature[:] = [0.9, 1.7]
    check_verify(device, inputs)


def plain(random: np.random.Generator, lanes: int, rows: int, vocabulary: int) -> Inputs:
    """All lanes sample at temperature 1, all rows in use."""
    inputs = random_inputs(random, lanes, rows, vocabulary, 8)
    inputs.verify_rows[:] = rows
    inputs.temperature[:] = 1
    return inputs


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, -0.0, -1.0, np.nan, -np.inf])
def test_greedy_lanes_are_plain_greedy_decoding(
    device: metalane.Device, temperature: float, dtype: np.dtype
) -> None:
    """Ties go to the lowest id; uniforms and proposals have no say."""
    random = np.random.default_rng(3)
    inputs = random_inputs(random, 40, 6, 50, 4, dtype)
    inputs.logits = random.integers(-3, 3, inputs.logits.shape).astype(dtype)  # ties in every row
    inputs.logits[inputs.logits == 0] = random.choice([0.0, -0.0], (inputs.logits == 0).sum())
    inputs.verify_rows[:] = random.integers(1, 7, 40)
    inputs.temperature[:] = temperature
    inputs.uniforms[:] = np.nan
    inputs.proposal_probabilities[:] = np.nan
    expected = []
    for lane in range(40):
        greedy = np.argmax(inputs.logits[lane].astype(np.float64), axis=1)
        right = int(random.integers(0, 6))
        inputs.tokens[lane] = greedy[:-1]
        if right < 5:
            inputs.tokens[lane, right] += 1
        kept = min(right, int(inputs.verify_rows[lane]) - 1)
        expected.append((kept, greedy[kept]))
    accepted, following, status = run_verify(device, inputs)
    assert [*zip(accepted.tolist(), following.tolist(), strict=True)] == expected
    assert status == "done"


def test_lanes_and_rows_that_are_not_in_use_are_not_seen(device: metalane.Device) -> None:
    """Whatever stands there, NaN included, every other lane has the same outcome."""
    random = np.random.default_rng(8)
    inputs = random_inputs(random, 24, 5, 90, 8)
    inputs.verify_rows[:] = np.arange(24) % 6
    before = run_verify(device, inputs)
    for lane, used in enumerate(inputs.verify_rows):
        inputs.logits[lane, used:] = random.choice([np.nan, np.inf, -np.inf])
        drafted = max(int(used) - 1, 0)
        inputs.tokens[lane, drafted:] = 0xFFFFFFFF
        inputs.candidates[lane, drafted:] = 0xFFFFFFFF
        inputs.proposal_probabilities[lane, drafted:] = np.nan
        inputs.uniforms[lane, drafted : -1 if used else None] = np.nan
    after = run_verify(device, inputs)
    assert before[0].tolist() == after[0].tolist()
    assert before[1].tolist() == after[1].tolist()
    assert after[2] == "done"
    idle = inputs.verify_rows == 0
    assert (after[0][idle] == 0).all() and (after[1][idle] == metalane.SPECULATIVE_NO_TOKEN).all()


@pytest.mark.cpu
def test_what_is_not_in_use_is_not_read() -> None:
    """The checker finds every read of memory that nobody wrote."""
    device = metalane.Device("cpu", check=True)
    inputs = random_inputs(np.random.default_rng(2), 4, 4, 40, 4)
    inputs.verify_rows[:] = [0, 1, 2, 4]
    inputs.temperature[:] = [1, 1, 0.7, 0.7]
    layout = shapes(*inputs.sizes)
    buffers = {name: device.empty(shape, dtype) for name, (shape, dtype) in layout.items()}

    def write(name: str, index: Any) -> None:
        given = np.ascontiguousarray(getattr(inputs, name)[index])
        start = int(
            np.ravel_multi_index((*index, *[0] * (len(layout[name][0]) - len(index))), layout[name][0])
        )
        part = buffers[name].view(start * given.itemsize, given.shape)
        encoder = device.command_encoder()
        encoder.copy(device.from_numpy(given), part)
        encoder.commit_and_wait()

    for lane, used in enumerate(inputs.verify_rows.tolist()):
        write("verify_rows", (lane,))
        if used == 0:
            continue
        write("temperature", (lane,))
        write("uniforms", (lane, 3))
        for row in range(used):
            write("logits", (lane, row))
        for position in range(used - 1):
            for name in ("tokens", "candidates", "proposal_probabilities", "uniforms"):
                write(name, (lane, position))
    with device.command_encoder() as encoder:
        metalane.dispatch_speculative_verify(
            encoder,
            metalane.SpeculativeVerifyBuffers(**buffers),
            metalane.SpeculativeVerifyParams(*inputs.sizes),
        )
    expected = run_verify(device, inputs)
    assert buffers["accepted"].tolist() == expected[0].tolist()
    assert buffers["next_tokens"].tolist() == expected[1].tolist()


def test_more_rows_than_there_are_count_as_all(device: metalane.Device) -> None:
    inputs = plain(np.random.default_rng(1), 3, 4, 30)
    whole = run_verify(device, inputs)
    inputs.verify_rows[:] = [5, 2**31, 2**32 - 1]
    assert [part.tolist() for part in run_verify(device, inputs)[:2]] == [part.tolist() for part in whole[:2]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-6, 1.0, 1e30, np.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_that_are_no_numbers(
    device: metalane.Device, value: float, temperature: float, dtype: np.dtype
) -> None:
    """NaN counts as -inf, several +inf share the probability."""
    random = np.random.default_rng(11)
    inputs = plain(random, 8, 4, 70)
    inputs.logits = inputs.logits.astype(dtype)
    inputs.logits[random.random(inputs.logits.shape) < 0.5] = value
    inputs.temperature[:] = temperature
    check_verify(device, inputs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_distribution_give_token_0_and_are_counted(
    device: metalane.Device, temperature: float
) -> None:
    inputs = plain(np.random.default_rng(12), 4, 3, 20)
    inputs.temperature[:] = temperature
    inputs.logits[0, 0] = -np.inf  # rejects what was drafted
    inputs.logits[1, 0] = np.nan  # keeps token 0, and the next row does the same
    inputs.logits[1, 1] = np.where(np.arange(20) % 2, np.nan, -np.inf)
    inputs.logits[2, 1] = np.nan  # behind a row that rejects
    inputs.tokens[:] = [[3, 0], [0, 5], [3, 0], [0, 0]]
    inputs.logits[2, 0] = np.where(np.arange(20) == 7, 0.0, -np.inf)
    accepted, following, status = run_verify(device, inputs)
    assert accepted[:3].tolist() == [0, 1, 0]
    assert following[:3].tolist() == [0, 0, 7]
    assert status == "speculative_verify: 3 rows without a distribution"


def test_proposals_that_are_no_distributions(device: metalane.Device) -> None:
    """NaN and negative probabilities count as 0, ids past the vocabulary as tokens the target never gives."""
    random = np.random.default_rng(13)
    inputs = plain(random, 60, 4, 20)
    q = inputs.proposal_probabilities
    q[:20][random.random(q[:20].shape) < 0.4] = random.choice([np.nan, -1.0, np.inf, 0.0])
    inputs.candidates[20:40] = random.integers(
        0, 24, inputs.candidates[20:40].shape
    )  # some twice, some past 20
    inputs.tokens[20:40] = inputs.candidates[20:40, :, 0]
    inputs.tokens[40:50] = 0xFFFFFFFF
    q[50:] = 0
    check_verify(device, inputs)


def test_a_draft_that_its_proposal_cannot_give_is_dropped(device: metalane.Device) -> None:
    """The next token then has p itself, from which nothing is taken away."""
    inputs = plain(np.random.default_rng(14), 2, 2, 12)
    inputs.tokens[:, 0] = inputs.candidates[:, 0, 0]
    inputs.proposal_probabilities[0, 0, 0] = 0
    inputs.logits[1] = inputs.logits[0]
    inputs.verify_rows[:] = [2, 1]  # the second lane draws from p, with the same uniform
    inputs.uniforms[:] = inputs.uniforms[0]
    accepted, following, _ = run_verify(device, inputs)
    assert accepted.tolist() == [0, 0]
    assert following[0] == following[1]


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, 1 - 2**-24, 1.0, 2.0, np.inf])
def test_uniforms_at_and_past_the_ends(device: metalane.Device, value: float) -> None:
    """The draw still gives a token that can come: below 0 and NaN as 0 does, from 1 on the last one."""
    inputs = plain(np.random.default_rng(15), 10, 3, 50)
    inputs.logits[:, :, :3] = inputs.logits[:, :, -3:] = -np.inf
    inputs.tokens[:] = inputs.candidates[:, :, 0]
    inputs.proposal_probabilities[:] = np.eye(8)[0]
    inputs.uniforms[:, -1] = value
    accepted, following, _ = run_verify(device, inputs)
    for lane in range(10):
        draft = int(inputs.tokens[lane, accepted[lane]]) if accepted[lane] < 2 else -1
        possible = [token for token in range(3, 47) if token != draft]
        edge = possible[0] if not value > 0 else possible[-1]
        assert following[lane] == edge or (value == 1 - 2**-24 and following[lane] in possible)


def test_a_captured_verification_replays(device: metalane.Device) -> None:
    """What the graph reads may change: lengths, temperatures and drafts need no other graph."""
    layout = shapes(5, 4, 60, 8)
    buffers = {name: device.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
    encoder = device.command_encoder()
    encoder.start_capture()
    metalane.dispatch_speculative_verify(
        encoder, metalane.SpeculativeVerifyBuffers(**buffers), metalane.SpeculativeVerifyParams(5, 4, 60, 8)
    )
    graph = encoder.take_capture()
    encoder.commit_and_wait()
    assert [node.barrier_before for node in graph.nodes] == [False, True]
    for seed in range(3):
        inputs = random_inputs(np.random.default_rng(seed), 5, 4, 60, 8)
        for name in layout:
            if name not in OUTPUTS:
                buffers[name].numpy()[...] = getattr(inputs, name)
        with device.command_encoder() as encoder:
            graph.encode(encoder)
        accepted, following, _ = run_verify(device, inputs)
        assert buffers["accepted"].tolist() == accepted.tolist()
        assert buffers["next_tokens"].tolist() == following.tolist()


# What is refused.

SIZES = (2, 4, 40, 8)


@pytest.fixture(params=["null", *KINDS])
def any_device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(request.param)


def refuse(device: metalane.Device, buffers: Any, params: Any, kind: type[Exception], *words: str) -> None:
    encoder = device.command_encoder()
    with pytest.raises(kind) as caught:
        metalane.dispatch_speculative_verify(encoder, buffers, params)
    for word in ("dispatch_speculative_verify", *words):
        assert word in str(caught.value), (word, str(caught.value))
    assert encoder.launches == encoder.barriers == 0
    encoder.commit_and_wait()


CASES: list[tuple[tuple[int, int, int, int], tuple[str, ...]]] = [
    ((0, 4, 40, 8), ("lanes", "1 to 65535", "got 0")),
    ((65536, 4, 40, 8), ("lanes", "65536")),
    ((2, 1, 40, 8), ("rows_per_lane", "2 to 256", "got 1")),
    ((2, 257, 40, 8), ("rows_per_lane", "257")),
    ((2, 4, 0, 8), ("vocabulary", "got 0")),
    ((2, 4, 2**31, 8), ("vocabulary", "2147483648")),
    ((2, 4, 40, 0), ("candidates", "1 to 256", "got 0")),
    ((2, 4, 40, 257), ("candidates", "257")),
    ((65535, 256, 2**31 - 1, 8), ("lanes * rows_per_lane * shards",)),
    ((2, 4, 41, 8), ("logits", "[2, 4, 41]", "[2, 4, 40]")),
    ((2, 4, 40, 9), ("candidates", "[2, 3, 9]", "[2, 3, 8]")),
    ((2, 5, 40, 8), ("logits", "[2, 5, 40]")),
    ((1, 4, 40, 8), ("logits", "[1, 4, 40]")),
]


@pytest.mark.parametrize(("sizes", "words"), CASES, ids=lambda value: re.sub(r"\W+", "-", str(value))[:50])
def test_sizes_are_refused(
    any_device: metalane.Device, sizes: tuple[int, int, int, int], words: tuple[str, ...]
) -> None:
    buffers = metalane.SpeculativeVerifyBuffers.alloc(any_device, *SIZES)
    refuse(any_device, buffers, metalane.SpeculativeVerifyParams(*sizes), metalane.ArgumentError, *words)


@pytest.mark.parametrize("name", shapes(*SIZES))
def test_buffers_are_refused(any_device: metalane.Device, name: str) -> None:
    shape, dtype = shapes(*SIZES)[name]
    params = metalane.SpeculativeVerifyParams(*SIZES)

    def check(buffer: metalane.Buffer, kind: type[Exception], *words: str) -> None:
        buffers = metalane.SpeculativeVerifyBuffers.alloc(any_device, *SIZES)
        setattr(buffers, name, buffer)
        refuse(any_device, buffers, params, kind, name, *words)

    for wrong in ((*shape[:-1], shape[-1] + 1), (*shape, 1), (*shape[:-1], 0)):
        check(any_device.zeros(wrong, dtype), metalane.ArgumentError, str(list(shape)), str(list(wrong)))
    check(any_device.zeros(shape, np.int32), TypeError, "int32")
    released = any_device.zeros(shape, dtype)
    released.release()
    check(released, metalane.ArgumentError, "released")
    check(metalane.Device(any_device.kind).zeros(shape, dtype), metalane.ArgumentError, "another device")
    if name in OUTPUTS:
        frozen = paged(np.zeros(shape, dtype))
        frozen.flags.writeable = False
        check(any_device.wrap(frozen), metalane.ArgumentError, "read-only")


@pytest.mark.parametrize("written", OUTPUTS)
@pytest.mark.parametrize("other", shapes(*SIZES))
def test_aliases_are_refused(written: str, other: str) -> None:
    """Views that share their last and first four bytes."""
    if written == other:
        other = "logits"
    device = metalane.Device("null")
    (shape, dtype), (other_shape, other_dtype) = (shapes(*SIZES)[name] for name in (written, other))
    nbytes, other_nbytes = (int(np.prod(s)) * 4 for s in (shape, other_shape))
    whole = device.zeros((nbytes + other_nbytes,), np.uint8)
    params = metalane.SpeculativeVerifyParams(*SIZES)
    for shared in (0, 4):
        buffers = metalane.SpeculativeVerifyBuffers.alloc(device, *SIZES)
        setattr(buffers, written, whole.view(0, shape, dtype))
        setattr(buffers, other, whole.view(nbytes - shared, other_shape, other_dtype))
        if shared:
            refuse(device, buffers, params, metalane.ArgumentError, written, other, "overlaps")
        else:
            with device.command_encoder() as encoder:
                metalane.dispatch_speculative_verify(encoder, buffers, params)
                assert encoder.launches == 2


def test_strangers_are_refused_by_name(null_device: metalane.Device) -> None:
    buffers = metalane.SpeculativeVerifyBuffers.alloc(null_device, *SIZES)
    params = metalane.SpeculativeVerifyParams(*SIZES)
    refuse(null_device, None, params, metalane.DTypeError, "buffers must be SpeculativeVerifyBuffers")
    refuse(null_device, buffers, None, metalane.DTypeError, "params must be SpeculativeVerifyParams")
    with pytest.raises(metalane.DTypeError, match="encoder must be a CommandEncoder"):
        metalane.dispatch_speculative_verify(3, buffers, params)
    encoder = null_device.command_encoder()
    encoder.commit_and_wait()
    with pytest.raises(metalane.ArgumentError, match="encoder must be open"):
        metalane.dispatch_speculative_verify(encoder, buffers, params)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ((0, 2, 9), "lanes"),
        ((1, 1, 9), "rows_per_lane"),
        ((1, 2, 0), "vocabulary"),
        ((1, 2, 9, 0), "candidates"),
    ],
)
def test_alloc_refuses(null_device: metalane.Device, sizes: tuple[int, ...], word: str) -> None:
    with pytest.raises(metalane.ArgumentError, match=f"SpeculativeVerifyBuffers.alloc: {word}"):
        metalane.SpeculativeVerifyBuffers.alloc(null_device, *sizes)
    with pytest.raises(metalane.DTypeError, match="dtype"):
        metalane.SpeculativeVerifyBuffers.alloc(null_device, 1, 2, 9, dtype=U32)
    with pytest.raises(metalane.DTypeError, match="device must be a Device"):
        metalane.SpeculativeVerifyBuffers.alloc(3, 1, 2, 9)
