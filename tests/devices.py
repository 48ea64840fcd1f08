"""Which devices the suite runs on: every one of this machine, or those that METALANE_TEST_DEVICES names."""

from __future__ import annotations

import ctypes
import os

import pytest

import metalane

# By kind; of a kind's devices the first one's.
LIMITS = {info.kind: info.limits for info in reversed(metalane.devices()) if info.kind != "null"}
FOUND = tuple(reversed(LIMITS))
# The library and this Python have AddressSanitizer, which slows everything down and keeps what is freed.
SANITIZED = hasattr(ctypes.CDLL(None), "__asan_init")
# Kinds of devices, as in METALANE_TEST_DEVICES=cpu,metal. The null device runs nothing: tests name it where it will do.
KINDS = tuple(os.environ.get("METALANE_TEST_DEVICES", ",".join(FOUND)).split(","))
if unknown := set(KINDS) - set(FOUND):
    raise ValueError(f"METALANE_TEST_DEVICES: expected some of {', '.join(FOUND)}, got {', '.join(unknown)}")


def kinds_of(item: pytest.Item) -> list[str]:
    """The kinds of devices that a test may open: its parameter's, or all on which the suite runs."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    named = [value[0] if isinstance(value, tuple) and value else value for value in values]
    return [kind for kind in KINDS if kind in named] or list(KINDS)


def allowed(item: pytest.Item) -> bool:
    """Whether its devices' limits are what `@pytest.mark.needs(max_buffer_bytes=...)` of the test names, or more."""
    return all(
        getattr(LIMITS[kind], limit) >= least
        for mark in item.iter_markers("needs")
        for limit, least in mark.kwargs.items()
        for kind in kinds_of(item)
    )


def at_most(device: metalane.Device, threads: int) -> int:
    """As many threads, or as many as a threadgroup of the device may have: 512 on some."""
    return min(threads, device.limits.max_threads_per_threadgroup)


def ggml_devices() -> list[object]:
    """Parameters (kind, kernels, isa): the CPU with shaders and with each instruction set, other devices once."""
    cpu = [("shader", None)]
    if os.environ.get("METALANE_CHECK") != "1":  # the checker runs shaders
        cpu += [("auto", isa) for isa in metalane.cpu.instruction_sets()]
    return [
        pytest.param((kind, kernels, isa), id=f"{kind}-{isa or kernels}" if kind == "cpu" else kind)
        for kind in KINDS
        for kernels, isa in (cpu if kind == "cpu" else [("auto", None)])
    ]


def open_device(parameter: tuple[str, str, str | None]) -> metalane.Device:
    kind, kernels, isa = parameter
    return metalane.Device(kind, kernels, isa=isa)


def operator_devices(*cpu_kernels: str) -> list[object]:
    """Parameters (kind, kernels) of a fixture: the CPU with each choice of kernels, other devices once."""
    return [
        pytest.param((kind, kernels), id=f"{kind}-{kernels}" if kind == "cpu" else kind)
        for kind in KINDS
        for kernels in (cpu_kernels if kind == "cpu" else ("auto",))
    ]
