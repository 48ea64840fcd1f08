"""Objects of a wrong class are refused by errors that name the operator and the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import metalane
from metalane import _core, cpu, testing

SOURCE = "kernel void f(device float* x) {}"


def graph_of(device: metalane.Device) -> metalane.ComputeGraph:
    encoder = device.command_encoder()
    encoder.start_capture()
    encoder.fill(device.zeros(4, "f32"), 1)
    return encoder.take_capture()


CALLS: dict[str, Callable[[metalane.Device, Any], Any]] = {
    "Device kind": lambda device, x: metalane.Device(x),
    "Device kernels": lambda device, x: metalane.Device("null", x),
    "Device.command_encoder concurrent": lambda device, x: device.command_encoder(x),
    "Device.command_encoder auto_barriers": lambda device, x: device.command_encoder(auto_barriers=x),
    "Device.wrap a": lambda device, x: device.wrap(x),
    "Device.zeros shape": lambda device, x: device.zeros(x, "f32"),
    "Device.empty dtype": lambda device, x: device.empty(1, x),
    "Device.compile source": lambda device, x: device.compile(x),
    "Device.compile name": lambda device, x: device.compile(SOURCE, name=x),
    "Device.compile math": lambda device, x: device.compile(SOURCE, math=x),
    "from_dlpack x": lambda device, x: metalane.from_dlpack(x, device),
    "from_dlpack device": lambda device, x: metalane.from_dlpack(device.zeros(1, "f32"), x),
    "Buffer.view byte_offset": lambda device, x: device.zeros(1, "f32").view(x, 1),
    "KernelRegistry.register_source name": lambda device, x: device.registry.register_source(x, SOURCE),
    "KernelRegistry.register_source source": lambda device, x: device.registry.register_source("f", x),
    "KernelRegistry.register_header name": lambda device, x: device.registry.register_header(x, ""),
    "KernelRegistry.register_header text": lambda device, x: device.registry.register_header("a.h", x),
    "KernelRegistry.pipeline name": lambda device, x: device.registry.pipeline(x),
    "KernelRegistry.pipeline constants": lambda device, x: device.registry.pipeline("f", x),
    "KernelRegistry.pipeline math": lambda device, x: device.registry.pipeline("f", None, x),
    "KernelRegistry.kernels name": lambda device, x: device.registry.kernels(x),
    "ComputeGraph.encode encoder": lambda device, x: graph_of(device).encode(x),
    "StructLayout.difference other": lambda device, x: metalane.DFlash2SelectorParams.layout.difference(x),
    "Ticket.wait timeout": lambda device, x: device.command_encoder().commit().wait(x),
    "set_thread_count count": lambda device, x: cpu.set_thread_count(x),
    "set_kernel_cache directory": lambda device, x: cpu.set_kernel_cache(x),
    "last_record device": lambda device, x: testing.last_record(x),
}


class Stranger:
    """Of no class that anything takes."""


@pytest.mark.parametrize("call", CALLS)
def test_strangers_are_refused_by_name(null_device: metalane.Device, call: str) -> None:
    null_device.registry.register_source("f", SOURCE)
    op, argument = call.split()
    with pytest.raises(metalane.DTypeError) as caught:
        CALLS[call](null_device, Stranger())
    assert isinstance(caught.value, TypeError)
    assert (caught.value.op, caught.value.argument) == (op, argument)
    assert "Stranger" in caught.value.given
    assert str(caught.value) == f"{op}: {argument} must be {caught.value.expected}, got {caught.value.given}"


@pytest.mark.parametrize("text", ["KernelRegistry.register_source source", "Device kind"])
def test_text_that_is_no_text_is_refused(null_device: metalane.Device, text: str) -> None:
    with pytest.raises(metalane.ArgumentError, match="UTF-8"):
        CALLS[text](null_device, "\udc80")


@pytest.mark.parametrize(
    "call",
    [
        "Device.empty dtype",
        "KernelRegistry.pipeline name",
        "CommandEncoder.dispatch kernel",
        "CommandEncoder.dispatch constants",
    ],
)
def test_lone_surrogates_are_refused(null_device: metalane.Device, call: str) -> None:
    null_device.registry.register_source("f", SOURCE)
    encoder = null_device.command_encoder()
    x = [null_device.zeros(1, "f32")]
    grid = {"threads": 1, "threads_per_threadgroup": 1}
    calls: dict[str, Callable[[metalane.Device, Any], Any]] = {
        "CommandEncoder.dispatch kernel": lambda device, text: encoder.dispatch(text, x, **grid),
        "CommandEncoder.dispatch constants": lambda device, text: encoder.dispatch(
            "f", x, constants={text: 1}, **grid
        ),
        **CALLS,
    }
    with pytest.raises(metalane.ArgumentError, match="UTF-8") as caught:
        calls[call](null_device, "\ud800")
    assert f"{caught.value.op} {caught.value.argument}" == call
    assert encoder.launches == 0


class Speaker:
    """An object with a repr of its own."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("\ud800", "\\ud800"),
        ("\u00e9" * 60, "\u00e9" * 60),
        ("\u00e9" * 61, "\u00e9" * 60 + "..."),
        ("x" + "\u00e9" * 60, "x" + "\u00e9" * 59 + "..."),
        ("\U0001f600" * 40, "\U0001f600" * 30 + "..."),
        ("xx" + "\U0001f600" * 40, "xx" + "\U0001f600" * 29 + "..."),
    ],
    ids=["surrogate", "whole", "cut", "cut_within_2_bytes", "cut_between_4_bytes", "cut_within_4_bytes"],
)
def test_errors_show_any_repr(null_device: metalane.Device, words: str, shown: str) -> None:
    with pytest.raises(metalane.DTypeError) as caught:
        null_device.zeros(Speaker(words), "f32")
    assert caught.value.given.split(" (")[0] == shown


def test_what_numpy_cannot_read_is_no_dtype(null_device: metalane.Device) -> None:
    for dtype in (10**5000, "f4,(", "99999999999f4", {"names": ["a"], "formats": []}, ("f4", (-1,))):
        with pytest.raises(metalane.DTypeError) as caught:
            null_device.zeros(1, dtype)
        assert (caught.value.op, caught.value.argument) == ("Device.zeros", "dtype")


def test_constants_of_endless_keys_are_refused(null_device: metalane.Device) -> None:
    with pytest.raises(metalane.ArgumentError, match="an integer of 16610 bits"):
        null_device.compile(SOURCE, constants={10**5000: 1})


MADE_BY_CALLERS = {
    "AcceptanceModel", "BufferPool", "DFlash2SelectorBuffers", "Device", "GgmlPolicy", "GgmlRule", "InFlightLimit",
    "SpeculativeVerifyBuffers", "Struct", "_WakeQueue",
}  # fmt: skip
RUNTIME_CLASSES = [
    value
    for value in vars(_core).values()
    if isinstance(value, type) and value.__name__ not in MADE_BY_CALLERS
]


@pytest.mark.parametrize("cls", RUNTIME_CLASSES, ids=lambda cls: cls.__name__)
def test_objects_come_from_the_runtime_alone(cls: type) -> None:
    for make in (cls, lambda: cls.__new__(cls), lambda: object.__new__(cls)):
        with pytest.raises(TypeError):
            make()


def test_a_device_without_init_is_none(null_device: metalane.Device) -> None:
    hollow = metalane.Device.__new__(metalane.Device)
    with pytest.raises(metalane.DTypeError, match="from_dlpack: device must be a Device.*__init__"):
        metalane.from_dlpack(null_device.zeros(1, "f32"), hollow)
    with pytest.raises(metalane.DTypeError, match="last_record: device"):
        testing.last_record(hollow)
    assert null_device != hollow


@pytest.mark.filterwarnings("ignore:nanobind.*uninitialized:RuntimeWarning")
def test_a_pool_or_limit_without_init_is_none() -> None:
    pool = metalane.BufferPool.__new__(metalane.BufferPool)
    limit = metalane.InFlightLimit.__new__(metalane.InFlightLimit)
    for use in (pool.trim, lambda: pool.take(1, "u8"), lambda: limit.in_flight, limit.slot().__enter__):
        with pytest.raises(TypeError):
            use()


class Interrupting:
    """A number whose reading the user ends."""

    def __float__(self) -> float:
        raise KeyboardInterrupt


def test_an_interrupt_in_a_value_is_passed_on(null_device: metalane.Device) -> None:
    null_device.registry.register_source("g", "kernel void g(device float* x, constant float& a) {}")
    encoder = null_device.command_encoder()
    x = null_device.zeros(1, "f32")
    grid = {"threads": 1, "threads_per_threadgroup": 1}
    for call in (
        lambda: encoder.fill(x, Interrupting()),
        lambda: encoder.dispatch("g", [x, Interrupting()], **grid),
        lambda: encoder.dispatch("g", [x, 1.0], constants={"c": Interrupting()}, **grid),
        lambda: encoder.commit(Interrupting()),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert encoder.launches == 0
    assert encoder.is_open
