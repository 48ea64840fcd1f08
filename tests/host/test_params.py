"""metal_struct: layout, range checks, being a dataclass, and agreement with kernels."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import random
import struct
from typing import Annotated

import ml_dtypes
import numpy as np
import pytest

import metalane
from counts import count
from devices import KINDS
from metalane import array, bf16, f16, f32, i8, i16, i32, i64, metal_struct, u8, u16, u32, u64, vec


@metal_struct
class Inner:
    weight: f32
    index: u32 = 7


@metal_struct
class Everything:
    """One field of every kind."""

    a: u8
    b: i8
    c: u16
    d: i16
    e: f16
    f: u32
    g: i32
    h: u64
    i: i64
    j: bf16
    k: u16[3]
    inner: Inner
    inners: array(Inner, 2)
    position: vec(f32, 4)
    corners: array(vec(u16, 2), 2)
    axis: vec(f32, 3, packed=True)
    tail: f32 = 0.5
    padding: u32[2] = (0, 0)

    def total(self) -> float:
        return sum(self.k) + self.inner.weight


VALUES = {
    "a": 255,
    "b": -128,
    "c": 65535,
    "d": -32768,
    "e": 1.5,
    "f": 2**32 - 1,
    "g": -(2**31),
    "h": 2**64 - 1,
    "i": -(2**63),
    "j": 2.0,
    "k": (1, 2, 3),
    "inner": Inner(0.25),
    "inners": (Inner(1.0, 1), Inner(2.0, 2)),
    "position": (1.0, 2.0, 3.0, 4.0),
    "corners": ((1, 2), (3, 4)),
    "axis": (5.0, 6.0, 7.0),
}
PACKED = "<BbHhe IiQqH3H fI fIfI 4f 4H 3f f 2I"


@pytest.fixture
def everything() -> Everything:
    return Everything(**VALUES)


def test_bytes_are_those_of_a_c_struct(everything: Everything) -> None:
    bf16_two = int(np.array(2.0, ml_dtypes.bfloat16).view(np.uint16))
    expected = struct.pack(
        PACKED, 255, -128, 65535, -32768, 1.5, 2**32 - 1, -(2**31), 2**64 - 1, -(2**63), bf16_two, 1, 2, 3,
        0.25, 7, 1.0, 1, 2.0, 2, 1.0, 2.0, 3.0, 4.0, 1, 2, 3, 4, 5.0, 6.0, 7.0, 0.5, 0, 0,
    )  # fmt: skip
    assert bytes(everything) == expected
    assert Everything.layout.size == len(expected)


def test_layout_names_every_field() -> None:
    rows = [(f.name, f.type, f.count, f.offset, f.size) for f in Everything.layout.fields]
    assert rows[:5] == [
        ("a", "u8", 0, 0, 1),
        ("b", "i8", 0, 1, 1),
        ("c", "u16", 0, 2, 2),
        ("d", "i16", 0, 4, 2),
        ("e", "f16", 0, 6, 2),
    ]
    assert rows[10:16] == [
        ("k", "u16", 3, 34, 6),
        ("inner", "Inner", 0, 40, 8),
        ("inners", "Inner", 2, 48, 16),
        ("position", "f32x4", 0, 64, 16),
        ("corners", "u16x2", 2, 80, 8),
        ("axis", "f32x3", 0, 88, 12),
    ]
    assert Everything.layout.alignment == 16
    assert Everything.layout.fields[11].layout.fields[1].name == "index"


def test_is_a_plain_dataclass_to_its_users(everything: Everything) -> None:
    assert dataclasses.is_dataclass(Everything)
    assert [f.name for f in dataclasses.fields(everything)][:3] == ["a", "b", "c"]
    changed = dataclasses.replace(everything, f=3)
    assert (changed.f, everything.f) == (3, 2**32 - 1)
    assert changed != everything
    assert Everything(**VALUES) == everything
    assert dataclasses.asdict(Inner(0.5)) == {"weight": 0.5, "index": 7}
    assert repr(Inner(0.5, 3)) == "Inner(weight=0.5, index=3)"
    assert list(inspect.signature(Inner).parameters) == ["weight", "index"]
    assert Everything.__doc__ == "One field of every kind."
    assert everything.total() == 6.25
    match Inner(0.5, 9):
        case Inner(weight, index=9):
            assert weight == 0.5
        case _:
            pytest.fail("the pattern must match")
    with pytest.raises(TypeError, match="unhashable"):
        hash(everything)


def test_copies_and_pickles(everything: Everything) -> None:
    for twin in (copy.copy(everything), copy.deepcopy(everything), pickle.loads(pickle.dumps(everything))):
        assert twin == everything
        assert twin is not everything
    assert Everything.from_bytes(bytes(everything)) == everything


def test_values_come_back(everything: Everything) -> None:
    for name, value in VALUES.items():
        assert getattr(everything, name) == value
    assert everything.tail == 0.5


@pytest.mark.parametrize(
    ("field", "value", "given"),
    [
        ("a", 256, "256"),
        ("a", -1, "-1"),
        ("b", 128, "128"),
        ("b", -129, "-129"),
        ("c", 65536, "65536"),
        ("d", 32768, "32768"),
        ("f", -1, "-1"),
        ("f", 2**32, "4294967296"),
        ("g", 2**31, "2147483648"),
        ("h", 2**64, str(2**64)),
        ("h", -1, "-1"),
        ("i", 2**63, str(2**63)),
        ("i", 2**200, str(2**200)),
        ("e", 1e6, "1000000.0"),
        ("tail", 1e39, "1e+39"),
        ("tail", 10**400, "1000"),
        ("j", 1e39, "1e+39"),
        ("k", (1, 2), "2 values"),
        ("k", [1, 2, 3, 4], "4 values"),
        ("k", (1, 2, 65536), "65536"),
        ("position", (1.0, 2.0, 3.0), "3 values"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(
    everything: Everything, field: str, value: object, given: str
) -> None:
    before = bytes(everything)
    for attempt in (
        lambda: dataclasses.replace(everything, **{field: value}),
        lambda: setattr(everything, field, value),
    ):
        with pytest.raises(metalane.ArgumentError) as caught:
            attempt()
        assert isinstance(caught.value, ValueError)
        assert caught.value.op == "Everything"
        assert caught.value.argument.startswith(field)
        assert given in caught.value.given
        assert bytes(everything) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [("f", 1.0), ("f", "1"), ("f", None), ("tail", "1"), ("tail", None), ("k", 3), ("k", "abc"), ("k", b"abc"),
     ("inner", (0.5, 1)), ("inner", None), ("inners", (Inner(1.0), 2)), ("f", 1j), ("k", {1: 2})],
    ids=str,
)  # fmt: skip
def test_values_of_a_wrong_type_are_refused(everything: Everything, field: str, value: object) -> None:
    with pytest.raises(metalane.DTypeError) as caught:
        setattr(everything, field, value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.argument.startswith(field)


def test_an_error_names_the_element() -> None:
    with pytest.raises(metalane.ArgumentError, match=r"anchor\[2\] must be .*, got -1"):
        metalane.DFlash2SelectorParams([0, 0, -1, 0], [1.0] * 4, 1, 2, 16, 0)


def test_numpy_values_are_taken(everything: Everything) -> None:
    everything.f = np.uint32(5)
    everything.k = np.array([4, 5, 6], np.uint16)
    everything.tail = np.float32(0.25)
    everything.inner = Inner(np.float64(1.0), np.int8(3))
    assert (everything.f, everything.k, everything.tail, everything.inner.index) == (5, (4, 5, 6), 0.25, 3)


def test_lists_that_change_while_they_are_read() -> None:
    @metal_struct
    class Row:
        values: array(u32, 4)

    class Shrinks:
        def __init__(self, items: list[object]) -> None:
            self.items = items

        def __index__(self) -> int:
            self.items.clear()
            return 2

    mixed: list[object] = [1, np.uint32(2), True, np.int8(4)]
    assert tuple(Row(values=mixed).values) == (1, 2, 1, 4)
    items: list[object] = [1]
    items += [Shrinks(items), 3, 4]
    assert tuple(Row(values=items).values) == (1, 2, 3, 4)
    with pytest.raises(metalane.DTypeError, match=r"values\[2\].*1\.5"):
        Row(values=[1, 2, 1.5, 4])

    @metal_struct
    class Rows:
        rows: array(Row, 2)

    with pytest.raises(metalane.DTypeError, match=r"rows must be .*Row, got 1"):
        Rows(rows=[1, 2])


@pytest.mark.parametrize(
    "value", [np.complex64(1), np.array(1j), np.complex128(2), 1j, np.ones(1), np.ones((1, 1))]
)
def test_complex_numbers_and_arrays_are_no_numbers(everything: Everything, value: object) -> None:
    """Not cut down to their real part or their element."""
    before = bytes(everything)
    with pytest.raises(metalane.DTypeError, match="must be a number"):
        everything.e = value
    assert bytes(everything) == before


def test_special_floats_are_kept() -> None:
    assert math.isnan(Inner(math.nan).weight)
    assert Inner(-math.inf).weight == -math.inf


def test_fields_by_position_keyword_and_default() -> None:
    assert Inner(1.0, 2) == Inner(index=2, weight=1.0) == Inner(1.0, index=2)
    assert Inner(1.0).index == 7
    for wrong, words in [
        (lambda: Inner(), "misses the field 'weight'"),
        (lambda: Inner(1.0, 2, 3), "takes 2 fields, got 3"),
        (lambda: Inner(1.0, weight=1.0), "'weight' twice"),
        (lambda: Inner(1.0, waight=1.0), "unexpected field 'waight'"),
    ]:
        with pytest.raises(TypeError, match=words):
            wrong()


def test_default_factory_runs_for_each_object() -> None:
    calls = []

    @metal_struct
    class Numbered:
        number: u32 = dataclasses.field(default_factory=lambda: calls.append(0) or len(calls))

    assert (Numbered().number, Numbered().number, Numbered(9).number) == (1, 2, 9)


def test_hidden_padding_is_refused() -> None:
    with pytest.raises(
        metalane.ArgumentError, match=r"wide must be at a multiple .* offset 4 \(4 hidden bytes"
    ):

        @metal_struct
        class Inside:
            narrow: u32
            wide: u64

    with pytest.raises(metalane.ArgumentError, match="size must be a multiple of .* alignment of 8"):

        @metal_struct
        class Behind:
            wide: u64
            narrow: u32

    with pytest.raises(metalane.ArgumentError, match="without hidden padding"):

        @metal_struct
        class Three:
            axis: vec(f32, 3)


@pytest.mark.parametrize("annotation", [int, float, "u32", list, None, bool, u32[2].__class__], ids=str)
def test_other_annotations_are_refused(annotation: object) -> None:
    with pytest.raises((metalane.DTypeError, NameError)):
        metal_struct(type("Odd", (), {"__annotations__": {"x": annotation}, "__module__": "nowhere"}))


def test_structs_without_fields_or_with_bases_are_refused() -> None:
    with pytest.raises(metalane.ArgumentError, match="at least one"):
        metal_struct(type("Empty", (), {}))
    with pytest.raises(metalane.ArgumentError, match="no base class"):
        metal_struct(type("Derived", (Inner,), {}))


def test_descriptors_serve_only_their_own_struct(everything: Everything) -> None:
    descriptor = vars(Inner)["weight"]
    assert "offset 0" in repr(descriptor)
    with pytest.raises(TypeError, match="belongs to Inner"):
        descriptor.__get__(everything)
    with pytest.raises(TypeError, match="belongs to Inner"):
        descriptor.__set__(everything, 1.0)
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del everything.f
    with pytest.raises(AttributeError):
        everything.unknown = 1


def test_native_bases_make_no_objects() -> None:
    for base in (metalane._core.Struct, metalane.params.Struct):
        with pytest.raises(metalane.DTypeError, match="metal_struct"):
            base()
    with pytest.raises(TypeError):
        metalane._core.StructSpec()


def test_annotated_and_methods_with_super() -> None:
    @metal_struct
    class Counted:
        size: Annotated[int, u32]

        def __repr__(self) -> str:
            return f"counted {super().__repr__()}"

    assert repr(Counted(3)).startswith("counted ")
    assert repr(Counted(3)).endswith("Counted(size=3)")


def test_random_values_round_trip() -> None:
    rng = random.Random(20)
    for _ in range(count("struct_round_trip")):
        fields = {
            "a": rng.randrange(2**8),
            "d": rng.randrange(-(2**15), 2**15),
            "g": rng.randrange(-(2**31), 2**31),
            "h": rng.randrange(2**64),
            "i": rng.randrange(-(2**63), 2**63),
            "k": tuple(rng.randrange(2**16) for _ in range(3)),
            "tail": float(np.float32(rng.uniform(-1e30, 1e30))),
            "e": float(np.float16(rng.uniform(-60000, 60000))),
            "j": float(ml_dtypes.bfloat16(rng.uniform(-1e30, 1e30))),
        }
        made = Everything(**{**VALUES, **fields})
        assert {name: getattr(made, name) for name in fields} == fields


KERNEL = """
#include <metal_stdlib>
using namespace metal;
struct Inner { float weight; uint index; };
struct Other { float weight; int index; };
struct Shifted { uint padding; float weight; uint index; };
kernel void good(device float* y [[buffer(0)]], constant Inner& inner [[buffer(1)]]) { y[0] = inner.weight; }
kernel void bad(device float* y [[buffer(0)]], constant Other& inner [[buffer(1)]]) { y[0] = inner.weight; }
kernel void shifted(device float* y [[buffer(0)]], constant Shifted& inner [[buffer(1)]]) { y[0] = inner.weight; }
"""


@pytest.mark.parametrize("kind", ["null", *KINDS])
def test_a_kernel_refuses_a_struct_that_lies_otherwise(kind: str) -> None:
    dev = metalane.Device(kind)
    dev.registry.register_source("structs", KERNEL)
    y = dev.zeros(4, "f32")
    encoder = dev.command_encoder()
    for _ in range(2):  # the second time from the list of agreements
        encoder.dispatch("structs::good", [y, Inner(0.5)], threads=1, threads_per_threadgroup=1)
    with pytest.raises(metalane.ArgumentError, match=r"inner\.index .* must be of type i32, got u32"):
        encoder.dispatch("structs::bad", [y, Inner(0.5)], threads=1, threads_per_threadgroup=1)
    with pytest.raises(
        metalane.ArgumentError, match=r"inner\.padding .* must be named 'padding', got 'weight'"
    ):
        encoder.dispatch("structs::shifted", [y, Inner(0.5)], threads=1, threads_per_threadgroup=1)
    assert encoder.launches == 2
    encoder.commit_and_wait()
    if kind != "null":
        assert y.tolist()[0] == 0.5
