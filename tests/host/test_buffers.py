"""Buffers: dtypes, views, NumPy and DLPack both ways, lifetimes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_memory import paged

import metalane
from devices import KINDS

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
]
SHORT = ["f32", "f16", "bf16", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"]


@pytest.fixture(params=["null", *KINDS])
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return metalane.Device(request.param)


@pytest.mark.parametrize(("name", "short"), list(zip(DTYPES, SHORT, strict=True)))
def test_every_dtype_goes_to_numpy_and_back(device: metalane.Device, name: str, short: str) -> None:
    dtype = getattr(metalane, name)
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    buffer = device.from_numpy(values)
    assert buffer.dtype == dtype == values.dtype
    assert buffer.shape == (2, 3, 4)
    assert len(buffer) == 2
    assert buffer.nbytes == values.nbytes
    for array in (buffer.numpy(), np.asarray(buffer)):
        assert array.dtype == dtype
        assert array.ctypes.data == buffer.address
        np.testing.assert_array_equal(array, values)
    assert buffer.tolist() == values.astype(np.float64 if "float" in name else dtype).tolist()
    assert device.zeros(3, short).dtype == dtype
    assert name in repr(buffer)


def test_numpy_sees_and_makes_changes(device: metalane.Device) -> None:
    buffer = device.zeros((2, 2), metalane.float32)
    buffer.numpy()[1, 0] = 5
    assert buffer.tolist() == [[0, 0], [5, 0]]


def test_array_protocol_copies_only_when_asked(device: metalane.Device) -> None:
    buffer = device.zeros(4, np.float32)
    assert buffer.__array__().ctypes.data == buffer.address
    assert buffer.__array__(copy=True).ctypes.data != buffer.address
    assert buffer.__array__(np.float64).dtype == np.float64
    assert buffer.__array__("float32", copy=False).ctypes.data == buffer.address
    with pytest.raises(ValueError, match="without a copy"):
        buffer.__array__(np.float64, copy=False)
    assert np.array(buffer, dtype=np.int32).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("shape", [(), 0, (0,), (3, 0, 2), (1,) * 8], ids=str)
def test_unusual_shapes(device: metalane.Device, shape: object) -> None:
    buffer = device.zeros(shape, "u16")
    assert buffer.numpy().shape == buffer.shape
    assert np.from_dlpack(buffer).shape == buffer.shape
    assert device.from_numpy(buffer.numpy()).shape == buffer.shape


def test_len_needs_a_dimension(device: metalane.Device) -> None:
    with pytest.raises(TypeError, match="no len"):
        len(device.zeros((), "f32"))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (-1, metalane.ArgumentError),
        ((2, -3), metalane.ArgumentError),
        (1.5, metalane.DTypeError),
        ("ab", metalane.DTypeError),
        ((1,) * 9, metalane.ArgumentError),
        ((2**40, 2**40), metalane.ArgumentError),
        (2**64, metalane.ArgumentError),
        ((2**63,), metalane.ArgumentError),
        (2**56, metalane.OutOfMemoryError),
        (None, metalane.DTypeError),
    ],
    ids=str,
)
def test_impossible_shapes_are_refused(device: metalane.Device, shape: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        device.zeros(shape, "f32")


@pytest.mark.parametrize("dtype", ["float64", "bool", bool, complex, "nonsense", None, object, 3], ids=str)
def test_other_dtypes_are_refused(device: metalane.Device, dtype: object) -> None:
    with pytest.raises(metalane.DTypeError, match="dtype must be one of float32") as caught:
        device.zeros(4, dtype)
    assert caught.value.op == "Device.zeros"


def test_views_add_offsets_and_are_checked(device: metalane.Device) -> None:
    buffer = device.from_numpy(np.arange(16, dtype=np.uint32))
    view = buffer.view(16, (2, 4))
    inner = view.view(8, 3)
    assert inner.byte_offset == 24
    assert inner.tolist() == [6, 7, 8]
    assert inner.address == buffer.address + 24
    assert buffer.view(4, 4, "u8").tolist() == [1, 0, 0, 0]
    assert buffer.view(64, 0).tolist() == []
    for offset, shape, dtype in [
        (64, 1, None),
        (60, 2, None),
        (2, 1, None),
        (4, 1, "u64"),
        (0, 17, None),
        (2**64 - 4, 2, None),
    ]:
        with pytest.raises(metalane.ArgumentError):
            buffer.view(offset, shape, dtype)
    with pytest.raises(metalane.ArgumentError):
        view.view(32, 1)
    assert "view at byte 24" in repr(inner)


def test_readonly_buffers_give_readonly_arrays(device: metalane.Device) -> None:
    buffer = device.zeros(4, "bf16").as_readonly()
    assert buffer.readonly
    assert not buffer.numpy().flags.writeable
    assert not np.from_dlpack(device.zeros(4, "f32").as_readonly()).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        buffer.__dlpack__()
    assert buffer.view(2, 1).readonly


def test_wrap_shares_memory_and_keeps_the_array(device: metalane.Device) -> None:
    array = paged(np.arange(8, dtype=np.float32))
    alive = weakref.ref(array)
    buffer = device.wrap(array)
    assert buffer.address == array.ctypes.data
    array[3] = 30
    assert buffer.tolist()[3] == 30
    buffer.numpy()[4] = 40
    assert array[4] == 40
    view = buffer.view(8, 2)
    del array
    buffer = None
    gc.collect()
    assert alive() is not None
    assert view.tolist() == [2, 30]
    del view
    device.wrap(paged(np.zeros(1, np.float32)))  # runs what became due
    gc.collect()
    assert alive() is None


def test_wrap_honours_the_writeable_flag(device: metalane.Device) -> None:
    array = paged(np.zeros(4, np.int32))
    array.flags.writeable = False
    assert device.wrap(array).readonly


def test_wrap_refuses_what_needs_a_copy(device: metalane.Device) -> None:
    square = np.zeros((4, 4), np.float32)
    for array, kind in [
        (square.T[1:], metalane.ArgumentError),
        (square[:, ::2], metalane.ArgumentError),
        ([1.0, 2.0], metalane.DTypeError),
        (np.zeros(4), metalane.DTypeError),
        (np.zeros(4, ">f4"), metalane.DTypeError),
        (np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32), metalane.ArgumentError),
    ]:
        with pytest.raises(kind):
            device.wrap(array)
    assert device.from_numpy(square.T[1:]).shape == (3, 4)


def test_released_buffers_raise_but_arrays_live_on(device: metalane.Device) -> None:
    buffer = device.from_numpy(np.arange(1 << 16, dtype=np.uint32))
    view = buffer.view(0, 4)
    array = buffer.numpy()
    tensor = np.from_dlpack(buffer)
    buffer.release()
    buffer.release()
    assert array.sum() == tensor.sum() == (1 << 16) * ((1 << 16) - 1) // 2
    assert buffer.released
    assert view.released
    for op, use in (("numpy", lambda: buffer.numpy()), ("tolist", lambda: view.tolist()),
                    ("address", lambda: buffer.address), ("view", lambda: buffer.view(0, 1)),
                    ("__dlpack__", lambda: buffer.__dlpack__()), ("__array__", lambda: np.asarray(view))):  # fmt: skip
        with pytest.raises(metalane.ArgumentError) as caught:
            use()
        wanted = (f"Buffer.{op}", "self", "a buffer that was not released", "a released buffer")
        error = caught.value
        assert (error.op, error.argument, error.expected, error.given) == wanted
    assert repr(buffer) == "<Buffer, released>"


def test_arrays_outlive_buffer_and_device() -> None:
    device = metalane.Device("null")
    array = device.from_numpy(np.arange(1000)).numpy()
    del device
    gc.collect()
    assert array.sum() == 499500


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "bfloat16"])
def test_dlpack_both_ways_without_a_copy(device: metalane.Device, name: str) -> None:
    values = paged(np.arange(6).reshape(2, 3).astype(name))
    imported = metalane.from_dlpack(values, device)
    assert imported.address == values.ctypes.data
    assert imported.dtype == values.dtype
    assert imported.shape == (2, 3)
    exported = np.from_dlpack(imported)
    assert exported.ctypes.data == values.ctypes.data
    np.testing.assert_array_equal(exported, values)
    assert imported.__dlpack_device__() == (1, 0)


def test_dlpack_carries_bfloat16_between_buffers(device: metalane.Device) -> None:
    buffer = device.from_numpy(np.array([1, 2, 3], ml_dtypes.bfloat16))
    twin = metalane.from_dlpack(buffer, device)
    assert twin.dtype == metalane.bfloat16
    assert twin.address == buffer.address
    assert twin.tolist() == [1, 2, 3]


class OldProducer:
    """A producer from before DLPack 1.0."""

    def __init__(self, buffer: metalane.Buffer) -> None:
        self.buffer = buffer

    def __dlpack__(self, stream: object = None) -> object:
        return self.buffer.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OtherDevice(OldProducer):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_dlpack_takes_old_producers_and_refuses_other_memory(device: metalane.Device) -> None:
    buffer = device.zeros(4, "f32")
    assert metalane.from_dlpack(OldProducer(buffer), device).address == buffer.address
    with pytest.raises(metalane.ArgumentError, match="host memory"):
        metalane.from_dlpack(OtherDevice(buffer), device)
    with pytest.raises(metalane.DTypeError, match="__dlpack__"):
        metalane.from_dlpack([1, 2], device)
    with pytest.raises(metalane.ArgumentError, match="contiguous"):
        metalane.from_dlpack(np.zeros((4, 4), np.float32).T[1:], device)
    with pytest.raises(metalane.DTypeError, match="from_dlpack"):
        metalane.from_dlpack(np.zeros(4), device)


def test_dlpack_copies_when_asked(device: metalane.Device) -> None:
    buffer = device.zeros(4, "f32")
    copied = np.from_dlpack(type("Copied", (), {
        "__dlpack__": lambda self, **keywords: buffer.__dlpack__(max_version=(1, 0), copy=True),
        "__dlpack_device__": lambda self: (1, 0),
    })())  # fmt: skip
    copied[0] = 7
    assert buffer.tolist() == [0, 0, 0, 0]
    with pytest.raises(BufferError, match="dl_device"):
        buffer.__dlpack__(dl_device=(2, 0))


def test_dlpack_capsules_free_what_nobody_takes(device: metalane.Device) -> None:
    array = paged(np.arange(4, dtype=np.float32))
    alive = weakref.ref(array)
    for version in (None, (1, 0)):
        buffer = device.wrap(array)
        capsule = buffer.__dlpack__(max_version=version)
        del buffer, capsule
    del array
    device.wrap(paged(np.zeros(1, np.float32)))
    gc.collect()
    assert alive() is None


def test_from_dlpack_keeps_and_frees_its_source(device: metalane.Device) -> None:
    array = paged(np.arange(4, dtype=np.float32))
    alive = weakref.ref(array)
    buffer = metalane.from_dlpack(array, device)
    del array
    gc.collect()
    assert buffer.tolist() == [0, 1, 2, 3]
    del buffer
    device.wrap(paged(np.zeros(1, np.float32)))
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("answer", [5, (), None, [1, 0], "ab", (1,), (1, 0, 0)], ids=repr)
def test_dlpack_refuses_odd_devices(device: metalane.Device, answer: Any) -> None:
    class Producer:
        def __dlpack_device__(self) -> Any:
            return answer

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("asked for a capsule")

    with pytest.raises(metalane.DTypeError, match="__dlpack_device__") as caught:
        metalane.from_dlpack(Producer(), device)
    assert caught.value.given == repr(answer)


@pytest.mark.parametrize("version", [3, (), (1,), "10", [1, 0]], ids=repr)
def test_dlpack_refuses_odd_versions(device: metalane.Device, version: Any) -> None:
    with pytest.raises(metalane.DTypeError, match="__dlpack__: max_version must be a tuple"):
        device.zeros(1, "f32").__dlpack__(max_version=version)
    with pytest.raises(BufferError, match="dl_device"):
        device.zeros(1, "f32").__dlpack__(dl_device=np.array([1, 0]))  # type: ignore[arg-type]
