"""Objects of a wrong class are refused by errors that name the operator and the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import metalane
from metalane import cpu, testing

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
