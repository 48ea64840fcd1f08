"""Every planted fault is found, by kind, line and argument; every repaired twin is silent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from checker.planted_faults import (
    FAULTS,
    FOLDER,
    LAUNCH_FAULTS,
    Fault,
    LaunchFault,
    device_arguments,
    fault_lines,
)

import metalane
from metalane.check import CheckFinding

KINDS = {"race-threadgroups": "race", "race-launches": "race", "shuffle": "divergence"}
WARNINGS = {"same-value", "lockstep"}


@pytest.fixture(scope="module")
def device() -> metalane.Device:
    return metalane.Device("cpu", check="races bounds uninitialised divergence", reports="list")


@cache
def source(device: metalane.Device, file: Path) -> metalane.CompiledSource:
    return device.compile(file.read_text(), name=file.name)


def findings(device: metalane.Device, fault: Fault, twin: str) -> tuple[CheckFinding, ...]:
    device.clear_check_report()
    kernel = getattr(source(device, fault.file), f"{fault.name}_{twin}")
    names = {argument.name for argument in kernel.signature.arguments}
    values = {name: value for name, value in fault.arguments.items() if name in names}
    grid = {"threads": fault.threads} if fault.groups is None else {"threadgroups": fault.groups}
    if fault.memory:
        grid["threadgroup_memory"] = dict(fault.memory)
    kernel(**device_arguments(device, values), threads_per_threadgroup=fault.group, **grid)
    return device.check_report().findings


def lines(finding: CheckFinding) -> set[int]:
    return {finding.access.line} | ({finding.other.line} if finding.other else set())


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_found(device: metalane.Device, fault: Fault) -> None:
    found = findings(device, fault, "fault")
    kind = KINDS.get(fault.kind, fault.kind)
    assert {finding.kind for finding in found} == {kind}, found
    marked = fault_lines(fault.file, f"{fault.name}_fault")
    assert marked
    for finding in found:
        assert finding.severity == ("warning" if kind in WARNINGS else "error")
        assert lines(finding) <= marked, finding
        assert finding.access.file == fault.file.name
        assert finding.access.kernel == f"{fault.name}_fault"
        assert finding.argument == fault.argument


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_repaired_twin_is_silent(device: metalane.Device, fault: Fault) -> None:
    assert findings(device, fault, "repaired") == ()


@pytest.mark.parametrize("fault", LAUNCH_FAULTS, ids=str)
@pytest.mark.parametrize("repaired", [False, True])
def test_launches(device: metalane.Device, fault: LaunchFault, repaired: bool) -> None:
    file = FOLDER / "race_launches.metal"
    device.clear_check_report()
    encoder = device.command_encoder(auto_barriers=False)
    fault.record(device, source(device, file), encoder, repaired)
    encoder.commit().wait()
    found = device.check_report().findings
    if repaired:
        assert found == ()
        return
    assert found
    marked = fault_lines(file)
    for finding in found:
        assert finding.kind == "race"
        assert lines(finding) <= marked
        assert {finding.access.kernel, finding.other.kernel} <= set(fault.lines_of)
    assert fault.argument in {finding.argument for finding in found}
