"""Which devices the suite runs on: every one of this machine, or those that METALANE_TEST_DEVICES names."""

from __future__ import annotations

import os

import pytest

import metalane

FOUND = tuple(dict.fromkeys(info.kind for info in metalane.devices() if info.kind != "null"))
# Kinds of devices, as in METALANE_TEST_DEVICES=cpu,metal. The null device runs nothing: tests name it where it will do.
KINDS = tuple(os.environ.get("METALANE_TEST_DEVICES", ",".join(FOUND)).split(","))
if unknown := set(KINDS) - set(FOUND):
    raise ValueError(f"METALANE_TEST_DEVICES: expected some of {', '.join(FOUND)}, got {', '.join(unknown)}")


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
