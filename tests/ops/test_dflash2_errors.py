"""What the DFlash2 operators refuse, in which words, and that nothing is encoded then."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from host_memory import paged
from ops.dflash2_case import BF16, OUTPUTS, shapes

import metalane
from devices import KINDS
from metalane import f32, u32

LANES, ROWS, VOCABULARY = 2, 4, 40
SELECTOR_PARAMS = {
    "anchor": [3, 4, 0, 0],
    "temperature": [1.0] * 4,
    "lanes": LANES,
    "rows_per_lane": ROWS,
    "vocabulary": VOCABULARY,
    "sampling_mask": 1,
}
VERIFY_PARAMS = {
    "slope": 1.0,
    "intercept": [0.0] * 15,
    "cost": [1.0] * 64,
    "cost_64": 1.0,
    "lanes": LANES,
    "rows_per_lane": ROWS,
    "every_row": 0,
    "maximum": [4, 3, 0, 0],
}


@pytest.fixture(params=["null", *KINDS])
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(request.param)


def alloc(device: metalane.Device) -> metalane.DFlash2SelectorBuffers:
    return metalane.DFlash2SelectorBuffers.alloc(device, LANES, ROWS, VOCABULARY)


def refuse(
    device: metalane.Device,
    call: Callable[[metalane.CommandEncoder], None],
    kind: type[Exception],
    *words: str,
) -> None:
    """`call` raises `kind` with all of `words`; the encoder stays empty and usable."""
    encoder = device.command_encoder()
    with pytest.raises(kind) as caught:
        call(encoder)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))
    assert encoder.launches == 0
    assert encoder.barriers == 0
    encoder.commit_and_wait()


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, **changes}


SELECTOR_CASES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"lanes": 0}, ("lanes", "1 to 4", "got 0")),
    ({"lanes": 5}, ("lanes", "1 to 4", "got 5")),
    ({"lanes": 2**32 - 1}, ("lanes", "4294967295")),
    ({"rows_per_lane": 0}, ("rows_per_lane", "2 to 16", "got 0")),
    ({"rows_per_lane": 1}, ("rows_per_lane", "2 to 16", "got 1")),
    ({"rows_per_lane": 17}, ("rows_per_lane", "2 to 16", "got 17")),
    ({"vocabulary": 15}, ("vocabulary", "16", "got 15")),
    ({"sampling_mask": 4}, ("sampling_mask", "2 lanes", "got 4")),
    ({"sampling_mask": 2**31}, ("sampling_mask", "2147483648")),
    ({"anchor": [40, 0, 0, 0]}, ("anchor[0]", "40")),
    ({"anchor": [0, 2**32 - 1, 0, 0]}, ("anchor[1]", "4294967295")),
    ({"temperature": [0.0, 1, 1, 1]}, ("temperature[0]", "finite and positive", "got 0")),
    ({"temperature": [-1.0, 1, 1, 1]}, ("temperature[0]", "got -1")),
    ({"temperature": [np.nan, 1, 1, 1]}, ("temperature[0]", "nan")),
    ({"temperature": [np.inf, 1, 1, 1]}, ("temperature[0]", "inf")),
    ({"vocabulary": 41}, ("logits", "[2, 4, 41]", "[2, 4, 40]")),
    ({"lanes": 1, "sampling_mask": 0}, ("logits", "[1, 4, 40]")),
    ({"rows_per_lane": 5}, ("logits", "[2, 5, 40]")),
]


@pytest.mark.parametrize(
    ("changes", "words"), SELECTOR_CASES, ids=lambda value: re.sub(r"\W+", "-", str(value))[:60]
)
def test_selector_refuses_params(
    device: metalane.Device, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    buffers = alloc(device)
    params = metalane.DFlash2SelectorParams(**changed(SELECTOR_PARAMS, **changes))
    refuse(
        device,
        lambda encoder: metalane.dispatch_dflash2_selector(encoder, buffers, params),
        metalane.ArgumentError,
        "dflash2_selector",
        *words,
    )


def test_values_of_unused_lanes_are_not_checked(device: metalane.Device) -> None:
    params = metalane.DFlash2SelectorParams(
        **changed(SELECTOR_PARAMS, anchor=[1, 1, 99, 99], temperature=[1.0, np.nan, np.nan, 0.0])
    )
    with device.command_encoder() as encoder:
        metalane.dispatch_dflash2_selector(encoder, alloc(device), params)


NAMES = list(shapes(LANES, ROWS, VOCABULARY))


@pytest.mark.parametrize("name", NAMES)
def test_selector_refuses_buffers(device: metalane.Device, name: str) -> None:
    shape, dtype = shapes(LANES, ROWS, VOCABULARY)[name]
    params = metalane.DFlash2SelectorParams(**SELECTOR_PARAMS)

    def check(buffer: metalane.Buffer, kind: type[Exception], *words: str) -> None:
        buffers = alloc(device)
        setattr(buffers, name, buffer)
        refuse(
            device,
            lambda encoder: metalane.dispatch_dflash2_selector(encoder, buffers, params),
            kind,
            "dflash2_selector",
            name,
            *words,
        )

    check(device.zeros(shape[:-1], dtype), metalane.ArgumentError, str(list(shape)))
    check(device.zeros((*shape, 1), dtype), metalane.ArgumentError, str(list(shape)))
    check(device.zeros((*shape[:-1], shape[-1] + 1), dtype), metalane.ArgumentError, str(list(shape)))
    check(device.zeros((*shape[:-1], 0), dtype), metalane.ArgumentError, str(list(shape)))
    wrong = np.dtype(np.uint16) if dtype == BF16 else np.dtype(np.int32)
    check(device.zeros(shape, wrong), TypeError, wrong.name)
    released = device.zeros(shape, dtype)
    released.release()
    check(released, metalane.ArgumentError, "released")
    check(metalane.Device(device.kind).zeros(shape, dtype), metalane.ArgumentError, "another device")
    if name in OUTPUTS:
        frozen = paged(np.zeros(shape, dtype))
        frozen.flags.writeable = False
        check(device.wrap(frozen), metalane.ArgumentError, "read-only")


PAIRS = [(written, other) for written in OUTPUTS for other in NAMES if other != written]


@pytest.mark.parametrize(("written", "other"), PAIRS)
def test_selector_refuses_aliases(written: str, other: str) -> None:
    """Views that share one byte with any other argument, from either side."""
    device = metalane.Device("null")
    layout = shapes(LANES, ROWS, VOCABULARY)
    (shape, dtype), (other_shape, other_dtype) = layout[written], layout[other]
    nbytes = int(np.prod(shape)) * dtype.itemsize
    other_nbytes = int(np.prod(other_shape)) * other_dtype.itemsize
    params = metalane.DFlash2SelectorParams(**SELECTOR_PARAMS)
    for first, second in ((nbytes, other_nbytes), (other_nbytes, nbytes)):
        whole = device.zeros((nbytes + other_nbytes,), np.uint8)
        for overlap in (0, 4):
            buffers = alloc(device)
            places = (0, first - overlap)
            place, other_place = places if first == nbytes else places[::-1]
            setattr(buffers, written, whole.view(place, shape, dtype))
            setattr(buffers, other, whole.view(other_place, other_shape, other_dtype))
            if overlap == 0:
                with device.command_encoder() as encoder:
                    metalane.dispatch_dflash2_selector(encoder, buffers, params)
                continue
            refuse(
                device,
                lambda encoder, buffers=buffers: metalane.dispatch_dflash2_selector(encoder, buffers, params),
                metalane.ArgumentError,
                written,
                other,
                "overlaps",
            )
        assert second + first == whole.nbytes


def test_selector_refuses_aliases_of_wrapped_memory(device: metalane.Device) -> None:
    """Two wraps of one array are different buffers on the same addresses."""
    layout = shapes(LANES, ROWS, VOCABULARY)
    array = paged(np.zeros(layout["edges"][0], np.float32))
    shape, dtype = layout["confidence"]
    buffers = alloc(device)
    buffers.edges = device.wrap(array)
    buffers.confidence = device.wrap(array).view(array.nbytes - 24, shape, dtype)
    refuse(
        device,
        lambda encoder: metalane.dispatch_dflash2_selector(
            encoder, buffers, metalane.DFlash2SelectorParams(**SELECTOR_PARAMS)
        ),
        metalane.ArgumentError,
        "confidence",
        "edges",
    )


def test_inputs_may_share_memory(device: metalane.Device) -> None:
    buffers = alloc(device)
    buffers.successor_codebook = buffers.predecessor_codebook
    with device.command_encoder() as encoder:
        metalane.dispatch_dflash2_selector(
            encoder, buffers, metalane.DFlash2SelectorParams(**SELECTOR_PARAMS)
        )


def test_params_are_known_by_their_layout(device: metalane.Device) -> None:
    """A struct of the right name and size that lies otherwise is refused; one of another name that lies alike works."""

    def struct_of(name: str, order: list[str]) -> Any:
        types = {"anchor": u32[4], "temperature": f32[4]}
        fields = {field: types.get(field, u32) for field in order}
        return metalane.metal_struct(type(name, (), {"__annotations__": fields}))

    order = list(SELECTOR_PARAMS)
    alike = struct_of("Mine", order)
    shuffled = struct_of("DFlash2SelectorParams", [*order[:2], *order[:1:-1]])
    assert len(bytes(shuffled(**SELECTOR_PARAMS))) == 48
    buffers = alloc(device)
    for _ in range(2):  # what was compared before is compared no more
        refuse(
            device,
            lambda encoder: metalane.dispatch_dflash2_selector(encoder, buffers, shuffled(**SELECTOR_PARAMS)),
            metalane.DTypeError,
            "params",
            "lanes",
        )
        with device.command_encoder() as encoder:
            metalane.dispatch_dflash2_selector(encoder, buffers, alike(**SELECTOR_PARAMS))
            assert encoder.launches == 3


VERIFY_CASES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"lanes": 0}, ("lanes", "got 0")),
    ({"lanes": 5}, ("lanes", "got 5")),
    ({"rows_per_lane": 1}, ("rows_per_lane", "got 1")),
    ({"rows_per_lane": 17}, ("rows_per_lane", "got 17")),
    ({"every_row": 2}, ("every_row", "0 or 1", "got 2")),
    ({"maximum": [0, 3, 0, 0]}, ("maximum[0]", "got 0")),
    ({"maximum": [4, 5, 0, 0]}, ("maximum[1]", "4", "got 5")),
    ({"maximum": [2**32 - 1, 1, 0, 0]}, ("maximum[0]", "4294967295")),
    ({"every_row": 1, "maximum": [4, 0, 0, 0]}, ("maximum[1]", "got 0")),
    ({"slope": np.nan}, ("slope", "finite", "nan")),
    ({"slope": -np.inf}, ("slope", "finite", "-inf")),
    ({"intercept": [0.0, 0.0, np.inf, *[0.0] * 12]}, ("intercept[2]", "finite", "inf")),
    ({"cost": [1.0, 1.0, 0.0, *[1.0] * 61]}, ("cost[2]", "finite and positive", "got 0")),
    ({"cost": [1.0] * 7 + [-1.0] + [1.0] * 56}, ("cost[7]", "got -1")),
    ({"cost": [1.0] * 5 + [np.nan] + [1.0] * 58}, ("cost[5]", "nan")),
    ({"cost": [1.0] * 5 + [np.inf] + [1.0] * 58}, ("cost[5]", "inf")),
]


@pytest.mark.parametrize(
    ("changes", "words"), VERIFY_CASES, ids=lambda value: re.sub(r"\W+", "-", str(value))[:60]
)
def test_verify_rows_refuses_params(
    device: metalane.Device, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    confidence = device.zeros((LANES, ROWS - 1), np.float32)
    rows = device.zeros((LANES,), np.uint32)
    params = metalane.DFlash2VerifyRowsParams(**changed(VERIFY_PARAMS, **changes))
    refuse(
        device,
        lambda encoder: metalane.dispatch_dflash2_verify_rows(encoder, confidence, rows, params),
        metalane.ArgumentError,
        "dflash2_verify_rows",
        *words,
    )


def test_the_cost_of_64_rows_is_checked_where_reachable(device: metalane.Device) -> None:
    confidence = device.zeros((4, 15), np.float32)
    rows = device.zeros((4,), np.uint32)
    fields = changed(VERIFY_PARAMS, lanes=4, rows_per_lane=16, maximum=[16] * 4, cost_64=0.0)
    refuse(
        device,
        lambda encoder: metalane.dispatch_dflash2_verify_rows(
            encoder, confidence, rows, metalane.DFlash2VerifyRowsParams(**fields)
        ),
        metalane.ArgumentError,
        "cost_64",
    )
    unreachable = metalane.DFlash2VerifyRowsParams(**changed(fields, maximum=[16, 16, 16, 15]))
    with device.command_encoder() as encoder:
        metalane.dispatch_dflash2_verify_rows(encoder, confidence, rows, unreachable)


def test_values_out_of_reach_are_not_checked(device: metalane.Device) -> None:
    cost = [np.nan] * 2 + [1.0] * 6 + [np.nan] * 56  # totals 2 to 7 can be chosen
    intercept = [0.0] * 3 + [np.nan] * 12
    fields = changed(VERIFY_PARAMS, cost=cost, cost_64=np.nan, intercept=intercept)
    with device.command_encoder() as encoder:
        metalane.dispatch_dflash2_verify_rows(
            encoder,
            device.zeros((LANES, ROWS - 1), np.float32),
            device.zeros((LANES,), np.uint32),
            metalane.DFlash2VerifyRowsParams(**fields),
        )


def test_verify_rows_refuses_buffers(device: metalane.Device) -> None:
    params = metalane.DFlash2VerifyRowsParams(**VERIFY_PARAMS)
    confidence = device.zeros((LANES, ROWS - 1), np.float32)
    rows = device.zeros((LANES,), np.uint32)
    whole = device.zeros((7,), np.float32)
    cases: list[tuple[metalane.Buffer, metalane.Buffer, type[Exception], tuple[str, ...]]] = [
        (
            device.zeros((LANES, ROWS), np.float32),
            rows,
            metalane.ArgumentError,
            ("confidence", "[2, 3]", "[2, 4]"),
        ),
        (device.zeros((LANES, ROWS - 1), np.float16), rows, TypeError, ("confidence", "float32", "float16")),
        (
            confidence,
            device.zeros((LANES + 1,), np.uint32),
            metalane.ArgumentError,
            ("verify_rows", "[2]", "[3]"),
        ),
        (confidence, device.zeros((LANES,), np.int32), TypeError, ("verify_rows", "uint32", "int32")),
        (
            whole.view(0, (LANES, ROWS - 1)),
            whole.view(20, (LANES,), np.uint32),
            metalane.ArgumentError,
            ("verify_rows", "confidence", "overlaps"),
        ),
    ]
    for given, chosen, kind, words in cases:
        refuse(
            device,
            lambda encoder, given=given, chosen=chosen: metalane.dispatch_dflash2_verify_rows(
                encoder, given, chosen, params
            ),
            kind,
            "dflash2_verify_rows",
            *words,
        )


def test_a_closed_encoder_is_refused(device: metalane.Device) -> None:
    encoder = device.command_encoder()
    encoder.commit_and_wait()
    with pytest.raises(metalane.ArgumentError, match="encoder"):
        metalane.dispatch_dflash2_selector(
            encoder, alloc(device), metalane.DFlash2SelectorParams(**SELECTOR_PARAMS)
        )


@pytest.mark.parametrize(
    ("lanes", "rows", "vocabulary", "word"),
    [
        (0, 4, 40, "lanes"),
        (5, 4, 40, "lanes"),
        (1, 1, 40, "rows"),
        (1, 17, 40, "rows"),
        (1, 4, 15, "vocabulary"),
    ],
)
def test_alloc_refuses_sizes(
    device: metalane.Device, lanes: int, rows: int, vocabulary: int, word: str
) -> None:
    with pytest.raises(metalane.ArgumentError, match=word):
        metalane.DFlash2SelectorBuffers.alloc(device, lanes, rows, vocabulary)


def test_captured_nodes_carry_their_exact_ranges(device: metalane.Device) -> None:
    buffers = alloc(device)
    encoder = device.command_encoder()
    encoder.start_capture()
    metalane.dispatch_dflash2_selector(encoder, buffers, metalane.DFlash2SelectorParams(**SELECTOR_PARAMS))
    nodes = encoder.take_capture().nodes
    encoder.commit_and_wait()

    def ranges(*names: str) -> set[tuple[int, int]]:
        found = [getattr(buffers, name) for name in names]
        return {(b.address, b.address + b.nbytes) for b in found}

    expected = [
        (("logits",), ("partial_ids", "partial_values")),
        (
            (
                "partial_ids",
                "partial_values",
                "selector_hidden",
                "predecessor_codebook",
                "successor_codebook",
            ),
            ("candidates", "unary", "edges"),
        ),
        (("candidates", "unary", "edges", "uniforms"), ("tokens", "proposal_probabilities", "confidence")),
    ]
    assert len(nodes) == 3
    for node, (_, writes) in zip(nodes, expected, strict=True):
        assert {tuple(r) for r in node.writes} == ranges(*writes)
        assert "dflash2_selector" in node.label
    for node, (reads, writes) in zip(nodes, expected, strict=True):
        # A writable argument may be read as well: `device` without const.
        assert {tuple(r) for r in node.reads} in (ranges(*reads), ranges(*reads, *writes))
    assert [node.barrier_before for node in nodes] == [False, True, True]


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.0, "2", None], ids=repr)
@pytest.mark.parametrize("argument", ["lanes", "rows_per_lane", "vocabulary"])
def test_sizes_that_are_no_sizes_are_refused_by_name(argument: str, wrong: Any) -> None:
    sizes: dict[str, Any] = {"lanes": 1, "rows_per_lane": 2, "vocabulary": 16, argument: wrong}
    with pytest.raises(metalane.ArgumentError) as caught:
        metalane.DFlash2SelectorBuffers.alloc(metalane.Device("null"), **sizes)
    assert (caught.value.op, caught.value.argument) == ("DFlash2SelectorBuffers.alloc", argument)
    with pytest.raises(metalane.DTypeError, match="alloc: device must be a Device"):
        metalane.DFlash2SelectorBuffers.alloc(wrong, 1, 2, 16)
