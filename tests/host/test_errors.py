"""The error classes: what they derive from, and what they say."""

from __future__ import annotations

import builtins

import pytest

import metalane
from devices import KINDS


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ArgumentError", ValueError),
        ("DTypeError", TypeError),
        ("DTypeError", ValueError),
        ("OutOfMemoryError", MemoryError),
        ("KernelNotFoundError", KeyError),
        ("CompileError", metalane.Error),
        ("DeviceError", RuntimeError),
        ("CommandBufferError", metalane.Error),
        ("TimeoutError", builtins.TimeoutError),
    ],
)
def test_classes_are_also_pythons_own(name: str, base: type[Exception]) -> None:
    kind = getattr(metalane, name)
    assert issubclass(kind, metalane.Error)
    assert issubclass(kind, base)
    assert str(kind("a sentence")) == "a sentence"
    with pytest.raises(base):
        raise kind("a sentence")


def test_argument_errors_carry_their_parts(null_device: metalane.Device) -> None:
    with pytest.raises(metalane.ArgumentError) as caught:
        null_device.zeros(8, "f32").view(2, 1)
    error = caught.value
    assert (error.op, error.argument) == ("Buffer.view", "byte_offset")
    assert error.given == "2"
    assert str(error) == f"{error.op}: {error.argument} must be {error.expected}, got {error.given}"


@pytest.mark.parametrize("kind", ["null", *KINDS])
@pytest.mark.parametrize(
    "source",
    [
        "kernel void broken(device float* x [[buffer(0)]]) { x[0] = (1; }",
        "\0\1\2",
        "}" * 100,
        "kernel void f(",
    ],
    ids=["expression", "binary", "brackets", "truncated"],
)
def test_compile_errors_say_where(kind: str, source: str) -> None:
    device = metalane.Device(kind)
    with pytest.raises((metalane.CompileError, metalane.KernelNotFoundError)) as caught:
        device.registry.register_source("broken", source)
        device.registry.pipeline("broken")
    assert "broken" in str(caught.value)


def test_compiler_errors_show_line_and_text(device: metalane.Device) -> None:
    source = "#include <metal_stdlib>\nkernel void broken(device float* x [[buffer(0)]]) {\n  x[0] = nonsense;\n}\n"
    device.registry.register_source("broken", source)
    with pytest.raises(metalane.CompileError) as caught:
        device.registry.pipeline("broken")
    assert ":3:" in str(caught.value)
    assert "nonsense" in str(caught.value)
    assert caught.value.kernel == "broken"
