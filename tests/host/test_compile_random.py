"""Compiled sources under random kernels and hostile values; their threads, processes and memory."""

from __future__ import annotations

import gc
import os
import random
import re
import struct
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from host_memory import paged, resident_bytes

import metalane
from counts import count
from devices import KINDS
from metalane import testing


class Scalar(NamedTuple):
    """A scalar type of MSL: its name and struct's letter for it."""

    name: str
    letter: str


SCALARS = [
    Scalar("char", "b"), Scalar("uchar", "B"), Scalar("short", "h"), Scalar("ushort", "H"), Scalar("int", "i"),
    Scalar("uint", "I"), Scalar("long", "q"), Scalar("ulong", "Q"), Scalar("half", "e"), Scalar("float", "f"),
    Scalar("bool", "?"),
]  # fmt: skip


class Value(NamedTuple):
    """A type as MSL writes it, with one value of it as Python gives it and as memory holds it."""

    type: str
    size: int
    alignment: int
    given: Any
    packed: bytes  # holes are zero


def scalar_value(rng: random.Random, scalar: Scalar) -> Any:
    size = struct.calcsize(scalar.letter)
    if scalar.letter == "?":
        return rng.random() < 0.5
    if scalar.letter in "ef":
        return float(rng.randrange(-2048, 2049))
    bits = 8 * size
    low = -(1 << bits - 1) if scalar.letter.islower() else 0
    return rng.choice([low, low + (1 << bits) - 1, rng.randrange(low, low + (1 << bits))])


def random_scalar(rng: random.Random) -> Value:
    scalar = rng.choice(SCALARS)
    value = scalar_value(rng, scalar)
    size = struct.calcsize(scalar.letter)
    return Value(scalar.name, size, size, value, struct.pack("<" + scalar.letter, value))


def random_vector(rng: random.Random) -> Value:
    scalar = rng.choice(SCALARS[:-1])
    n = rng.choice([2, 3, 4])
    packed = rng.random() < 0.3
    values = [scalar_value(rng, scalar) for _ in range(n)]
    element = struct.calcsize(scalar.letter)
    size = n * element if packed else element * (4 if n == 3 else n)
    data = struct.pack(f"<{n}{scalar.letter}", *values).ljust(size, b"\0")
    given = rng.choice([tuple, list])(values)
    return Value(f"{'packed_' * packed}{scalar.name}{n}", size, element if packed else size, given, data)


def random_matrix(rng: random.Random) -> Value:
    scalar = rng.choice([SCALARS[8], SCALARS[9]])
    columns, rows = rng.choice([2, 3, 4]), rng.choice([2, 3, 4])
    values = [[scalar_value(rng, scalar) for _ in range(rows)] for _ in range(columns)]
    column = struct.calcsize(scalar.letter) * (4 if rows == 3 else rows)
    data = b"".join(struct.pack(f"<{rows}{scalar.letter}", *v).ljust(column, b"\0") for v in values)
    return Value(f"{scalar.name}{columns}x{rows}", columns * column, column, values, data)


def random_struct(rng: random.Random, declared: list[str], depth: int = 0) -> Value:
    """A struct, appended to the source's declarations; offsets by C's rules."""
    name = f"S{len(declared)}_{depth}"
    fields, data, alignment, given = [], b"", 1, {}
    for i in range(rng.randint(1, 5)):
        makers = [random_scalar, random_vector, random_matrix]
        value = (
            random_struct(rng, declared, depth + 1)
            if depth < 2 and rng.random() < 0.2
            else rng.choice(makers)(rng)
        )
        extent = rng.choice([0, 0, 1, 2, 5])
        data = data.ljust(-(-len(data) // value.alignment) * value.alignment, b"\0")
        data += value.packed * max(extent, 1)
        alignment = max(alignment, value.alignment)
        fields.append(f"{value.type} f{i}{f'[{extent}]' if extent else ''};")
        given[f"f{i}"] = [value.given] * extent if extent else value.given
    data = data.ljust(-(-len(data) // alignment) * alignment, b"\0")
    name = f"S{len(declared)}"
    declared.append(f"struct {name} {{ {' '.join(fields)} }};")
    return Value(name, len(data), alignment, given, data)


@pytest.mark.parametrize("seed", range(count("compile_random_kernels")))
def test_random_kernels_get_what_they_are_given(null_device: metalane.Device, seed: int) -> None:
    rng = random.Random(seed)
    declared: list[str] = []
    indices = rng.sample(range(31), rng.randint(1, 8))
    parameters, named, expected = [], {}, {}
    for position, index in enumerate(indices):
        name = f"a{position}"
        maker = rng.choice([random_scalar, random_vector, random_matrix, None])
        value = random_struct(rng, declared) if maker is None else maker(rng)
        how = rng.choice(["constant {}& {}", "constant {}* {}", "device const {}* {}", "const device {}& {}"])
        parameters.append(f"{how.format(value.type, name)} [[buffer({index})]]")
        many = rng.randint(1, 3) if "*" in how else 0
        # A list of one vector is no list of numbers: give arrays of more than one as lists of elements.
        named[name] = [value.given] * many if many > 1 else value.given
        expected[index] = value.packed * max(many, 1)
    source = (
        "using namespace metal;\n" + "\n".join(declared) + f"\nkernel void f({', '.join(parameters)}) {{}}"
    )
    kernel = null_device.compile(source).f
    by_position = [named[argument.name] for argument in kernel.arguments]
    cut = rng.randint(0, len(by_position))
    rest = {argument.name: named[argument.name] for argument in kernel.arguments[cut:]}
    kernel(*by_position[:cut], **rest, threads=1)
    (recorded,) = testing.last_record(null_device)
    # What does not go inline goes in a buffer.
    assert recorded.bytes == {index: packed for index, packed in expected.items() if len(packed) <= 4096}
    sizes = {index: nbytes for index, (_, nbytes) in recorded.buffers.items()}
    assert sizes == {index: len(packed) for index, packed in expected.items() if len(packed) > 4096}


class Raises:
    """Converts to nothing."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __float__(self) -> float:
        raise RuntimeError("no float")

    def __len__(self) -> int:
        raise RuntimeError("no len")

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("no item")


class Endless:
    """A sequence without an end."""

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, key: Any) -> Any:
        return self


class Emptying:
    """Empties the list that it stands in while it is converted."""

    def __init__(self) -> None:
        self.home: list[Any] | dict[Any, Any] = []

    def __index__(self) -> int:
        self.home.clear()
        gc.collect()
        return 1

    def __float__(self) -> float:
        return float(self.__index__())


class Lying(np.ndarray):
    """An array that lies about its memory."""

    @property
    def __array_interface__(self) -> Any:
        return {"data": (8, False)}


def emptied_list() -> list[Any]:
    emptying = Emptying()
    emptying.home = [emptying, 1, emptying, 2]
    return emptying.home  # type: ignore[return-value]


def emptied_dict() -> dict[Any, Any]:
    emptying = Emptying()
    emptying.home = {"a": emptying, "b": [emptying, 1, 2], "c": {"d": emptying}}
    return emptying.home  # type: ignore[return-value]


def circular() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


HOSTILE = [
    None, ..., NotImplemented, True, 0, -1, 1 << 70, -(1 << 70), 1 << 5000, [1 << 70], 0.5, float("nan"), 1e308,
    float("inf"), 1j, "", "1", "\ud800", b"", b"1234", bytes(16), bytes(5000), [], [[]], (), {},
    set(), bytearray(4), memoryview(bytes(4)), range(4), range(1 << 40), object(), int, metalane.Buffer, metalane.f32,
    Raises(), Endless(), circular(), {"a": 1}, {"a": 1, "b": [1, 2, 3], "c": {"d": 2}}, {1: 2}, {None: 1}, {"a": {}},
    [1, 2, 3], [[1, 2, 3, 4]] * 4, ["1", "2", "3"], [None] * 4, [1, [2], 3], np.float32(1), np.bool_(True),
    np.str_("1"), np.void(b"12345678"), np.array(1.0),
    np.array(1), np.datetime64("now"), np.zeros(0), np.zeros((0, 3), "f4"), np.zeros(4, "f4"),
    np.zeros((4, 4), "f4"), np.zeros(4), np.zeros(4, ">f4"), np.zeros(4, object), np.zeros(4, "S5"), np.zeros(4, "U2"),
    np.broadcast_to(np.float32(1), (1 << 40,))[:64], np.zeros((2,) * 9, "f4"), np.zeros(8, "f4")[::-1],
    np.zeros((4, 4), "f4").T, np.zeros(33, "u1")[1:].view("f4"), np.zeros(4, [("a", "f4")]), np.ma.zeros(4, "f4"),
    np.zeros(4, "f4").view(Lying), np.recarray(3, [("a", "u4")]), np.zeros(4, "c8"), np.zeros(4, "i4"),
    np.zeros(4, "?"),
]  # fmt: skip

HOSTILE_SOURCE = """
struct In { metal::float2 d[2]; };
struct Rec { uint a; float b[3]; In c; };
kernel void f(device float* out, device const float* x, constant uint& n, constant metal::float4& v, constant Rec& r,
              device Rec* rs, device const void* any, constant metal::float3x3& m, device const uchar* raw,
              threadgroup float* t) {}
"""


def test_hostile_values_neither_crash_nor_launch_half(null_device: metalane.Device) -> None:
    kernel = null_device.compile(HOSTILE_SOURCE).f
    rng = random.Random(5)
    good = {
        "out": null_device.zeros(4, "f32"),
        "x": null_device.zeros(4, "f32"),
        "n": 1,
        "v": (1, 2, 3, 4),
        "r": {"a": 1, "b": [1, 2, 3], "c": {"d": [[1, 2], [3, 4]]}},
        "rs": null_device.zeros(64, "u8"),
        "any": b"1",
        "m": np.eye(3),
        "raw": b"1",
        "threads": 4,
        "threadgroup_memory": 16,
    }
    options = [
        *good,
        "threadgroups",
        "threads_per_threadgroup",
        "constants",
        "encoder",
        "wait",
        "timeout",
        "nothing",
    ]
    values = [*HOSTILE, emptied_list, emptied_dict]
    passed = refused = 0
    for _ in range(count("compile_hostile_calls")):
        changed = {name: rng.choice(values) for name in rng.sample(options, rng.choice([1, 1, 1, 2, 5]))}
        call = {
            **good,
            **{k: v() if v is emptied_list or v is emptied_dict else v for k, v in changed.items()},
        }
        if rng.random() < 0.1:
            del call[rng.choice(list(good))]
        kernel(**good)
        before = testing.last_record(null_device)
        try:
            kernel(**call)
            passed += 1
        except (metalane.Error, RuntimeError, UnicodeError) as error:
            assert not isinstance(error, RuntimeError) or str(error).startswith("no "), (changed, error)
            assert testing.last_record(null_device) == before
            refused += 1
    assert passed > 0
    assert refused > passed
    kernel(**good)


@pytest.mark.parametrize("argument", ["source", "name", "math", "constants", "headers"])
def test_hostile_values_to_compile(null_device: metalane.Device, argument: str) -> None:
    for value in HOSTILE:
        try:
            null_device.compile(**{"source": HOSTILE_SOURCE, argument: value})
        except metalane.Error:
            continue
        except RuntimeError as error:
            assert isinstance(value, Raises), error
            continue
        assert value is None or argument in ("name", "constants", "headers"), value
    with pytest.raises(metalane.CompileError):
        null_device.compile("(" * 10_000_000)


def test_many_threads_share_a_kernel(device_kind: str) -> None:
    device = metalane.Device(device_kind)
    compiled = device.compile("""
    #include <metal_stdlib>
    using namespace metal;
    kernel void add(device atomic_uint* x, constant uint& n) { atomic_fetch_add_explicit(x, n, memory_order_relaxed); }
    """)
    total = device.zeros(1, "u32")
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        try:
            for _ in range(50):
                compiled.add(total, number, threads=10)
        except metalane.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert total.tolist() == [50 * 10 * sum(range(8))]
    assert len(compiled.add._pipelines) == 1


def test_sources_with_equal_kernels_do_not_meet(device_kind: str) -> None:
    device = metalane.Device(device_kind)
    out = paged(np.zeros(2, np.uint32))
    sources = [f"kernel void f(device uint* x) {{ x[0] = {i}; }}" for i in (1, 2)]
    device.registry.register_source("f", sources[1].replace("2;", "3;"))
    names = device.registry.names
    one, two = (device.compile(source) for source in sources)
    for kernel, value in ((one.f, 1), (two.f, 2), (one.f, 1)):
        kernel(out, threads=1)
        assert out.tolist() == [value, 0]
    assert device.registry.names == names
    with device.command_encoder() as encoder:
        encoder.dispatch("f", [device.wrap(out)], threads=1, threads_per_threadgroup=1)
    encoder.ticket.wait()
    assert out.tolist() == [3, 0]


def test_kernels_outlive_their_source_and_launches_their_kernel(device_kind: str) -> None:
    device = metalane.Device(device_kind)
    kernel = device.compile(
        "kernel void f(device uint* x) { for (uint i = 0; i < 100000; ++i) x[i % 8] += 1; }"
    ).f
    gc.collect()
    out = device.zeros(8, "u32")
    for _ in range(20):
        kernel(out, threads=1)
    del kernel, device
    gc.collect()
    assert out.tolist() == [20 * 12500] * 8


def test_a_record_outlives_its_kernel(null_device: metalane.Device) -> None:
    null_device.compile("kernel void gone(device uint* x) {}").gone(np.zeros(1, np.uint32), threads=1)
    gc.collect()
    (recorded,) = testing.last_record(null_device)
    assert recorded.kernel == "gone"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("use", ["compile", "kernel", "call"])
@pytest.mark.parametrize("kind", ["null", *KINDS])
def test_forked_children_are_refused(kind: str, use: str) -> None:
    device = metalane.Device(kind)
    compiled = device.compile(HOSTILE_SOURCE)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "nothing raised"
        try:
            if use == "compile":
                device.compile(HOSTILE_SOURCE)
            elif use == "kernel":
                compiled.f.pipeline  # noqa: B018
            else:
                compiled.f(*[b"1"] * 9, threads=1)
        except metalane.Error as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, answer.encode())
            os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read, 10_000).decode()
    os.close(read)
    os.close(write)
    expected = "DeviceError: .* forked"
    assert re.match(expected, answer), answer


# A report counts every kernel that a checked device ran, until it is cleared.
@pytest.mark.metalane_check(False)
@pytest.mark.memory
@pytest.mark.linux
@pytest.mark.parametrize("kind", ["null", *KINDS])
def test_memory_of_dropped_sources_is_given_back(kind: str) -> None:
    device = metalane.Device(kind)
    filler = "".join(f"inline float g{i}(float x) {{ return x * {i}; }}\n" for i in range(100))
    out = paged(np.zeros(1, np.uint32))

    def compile_one(i: int) -> None:
        # On the CPU one machine code serves them all: what is tested is what the runtime keeps.
        source = filler + "kernel void f(device uint* x) { x[0] += 1; }"
        device.compile(source, headers={"unused.h": f"// {i}"}).f(out, threads=1, wait=True)

    warm_up = 250  # several times what the CPU device keeps of the sources it read
    for i in range(warm_up):
        compile_one(i)
    gc.collect()
    before = resident_bytes()
    for i in range(count("flat_memory_compiles")):
        compile_one(warm_up + i)
    gc.collect()
    # Measured: kept, 250 of them take 5 MB on the null device.
    assert resident_bytes() - before < 1 << 20
