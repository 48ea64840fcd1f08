"""The checker finds every planted fault at its line, and keeps silent about the repaired twins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker.planted_expected import EXPECTED
from checker.planted_faults import (
    FAULTS,
    FOLDER,
    LAUNCH_FAULTS,
    Fault,
    Fresh,
    LaunchFault,
    Part,
    device_arguments,
    fault_lines,
)

import metalane
from metalane.check import CheckAccess, CheckFinding

# The checker's word and the option that turns it on, for each kind of fault.
KINDS = {
    "race": ("race", "races"),
    "race-threadgroups": ("race", "races"),
    "bounds": ("bounds", "bounds"),
    "uninitialised": ("uninitialised", "uninitialised"),
    "divergence": ("divergence", "divergence"),
    "simdgroup-barrier": ("divergence", "divergence"),
    "shuffle": ("divergence", "divergence"),
    "same-value": ("same-value", "races"),
    "lockstep": ("lockstep", "races"),
}
WARNINGS = {"same-value", "lockstep"}
BY_NAME = {fault.name: fault for fault in FAULTS}


class Lab:
    """A device that lists findings, and the planted sources compiled on it once."""

    def __init__(self, check: bool | str, reports: Any = "list") -> None:
        self.device = metalane.Device("cpu", check=check, reports=reports)
        self._sources: dict[Path, metalane.CompiledSource] = {}

    def source(self, file: Path) -> metalane.CompiledSource:
        if file not in self._sources:
            self._sources[file] = self.device.compile(file.read_text(), name=file.name)
        return self._sources[file]

    def launch(self, fault: Fault, twin: str) -> tuple[tuple[CheckFinding, ...], dict[str, Any]]:
        """What is found in one launch of the twin, and the buffers that it was given."""
        self.device.clear_check_report()
        kernel = self.source(fault.file)[f"{fault.name}_{twin}"]
        names = {argument.name for argument in kernel.arguments}
        chosen = {name: value for name, value in fault.arguments.items() if name in names}
        given = device_arguments(self.device, chosen)
        # `from` is a word of Python's: such arguments take an underscore.
        arguments = {"from_" if name == "from" else name: value for name, value in given.items()}
        memory: dict[str, Any] = {"threadgroup_memory": fault.memory} if fault.memory else {}
        kernel(**arguments, threads=fault.threads, threads_per_threadgroup=fault.group, **memory, wait=True)
        return self.device.check_report().findings, given

    def record(self, fault: LaunchFault, repaired: bool) -> tuple[CheckFinding, ...]:
        self.device.clear_check_report()
        encoder = self.device.command_encoder(auto_barriers=False)
        fault.record(self.device, self.source(FOLDER / "race_launches.metal"), encoder, repaired)
        encoder.commit().wait()
        return self.device.check_report().findings


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(True)


def accesses(findings: tuple[CheckFinding, ...]) -> Iterator[CheckAccess]:
    for finding in findings:
        yield finding.access
        if finding.other is not None:
            yield finding.other


def told(findings: tuple[CheckFinding, ...]) -> str:
    return "\n".join(map(str, findings)) or "nothing"


def check_positions(access: CheckAccess, fault: Fault) -> None:
    """The thread's positions are those of one thread of the launch, and agree with each other."""
    threads, group = [
        np.array((*np.atleast_1d(sizes), 1, 1)[:3], int) for sizes in (fault.threads, fault.group)
    ]
    thread, threadgroup = np.array(access.thread), np.array(access.threadgroup)
    assert (thread < threads).all(), access
    assert (threadgroup == thread // group).all(), access
    inside = thread % group
    assert access.thread_index == inside[0] + group[0] * (inside[1] + group[1] * inside[2])
    assert (access.simdgroup, access.lane) == divmod(access.thread_index, 32)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_found(lab: Lab, fault: Fault) -> None:
    kind, _ = KINDS[fault.kind]
    findings, _ = lab.launch(fault, "fault")
    assert {finding.kind for finding in findings} == {kind}, told(findings)
    marked = fault_lines(fault.file, f"{fault.name}_fault")
    assert marked
    for access in accesses(findings):
        assert access.line in marked, told(findings)
        assert access.file == fault.file.name
        assert access.kernel == f"{fault.name}_fault"
        check_positions(access, fault)
    for finding in findings:
        assert finding.severity == ("warning" if finding.kind in WARNINGS else "error")
        assert finding.argument == fault.argument
        assert finding.count >= 1
        assert f"{fault.file.name}:{finding.access.line}" in finding.message
        if fault.argument is not None:
            assert f"'{fault.argument}'" in finding.message


@pytest.mark.parametrize("fault", [f for f in FAULTS if KINDS[f.kind][1] == "races"], ids=str)
def test_threads_of_a_race_conflict(lab: Lab, fault: Fault) -> None:
    findings, _ = lab.launch(fault, "fault")
    assert findings
    for finding in findings:
        one, other = finding.access, finding.other
        assert other is not None
        assert one.thread != other.thread
        assert {one.access, other.access} not in ({"load"}, {"atomic"})
        if fault.kind == "race-threadgroups":
            assert one.threadgroup != other.threadgroup
        elif fault.kind == "race":
            assert one.threadgroup == other.threadgroup
        elif fault.kind == "lockstep":
            assert (one.threadgroup, one.simdgroup) == (other.threadgroup, other.simdgroup)
        elif fault.kind == "same-value":
            assert one.access == other.access == "store"


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_repaired_twin_is_silent_and_right(lab: Lab, fault: Fault) -> None:
    findings, given = lab.launch(fault, "repaired")
    assert findings == (), told(findings)
    host = {
        name: value.values.reshape(-1)[value.first : value.first + value.count]
        if isinstance(value, Part)
        else value
        for name, value in fault.arguments.items()
        if not isinstance(value, Fresh)
    }
    for name, expected in EXPECTED[fault.name](host).items():
        found = given[name].numpy().reshape(-1)
        assert found.shape == expected.shape
        if found.dtype.kind in "iu":
            np.testing.assert_array_equal(found, expected, err_msg=name)
        else:
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=name)


# Launches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", LAUNCH_FAULTS, ids=str)
def test_launches_without_a_barrier_are_found(lab: Lab, fault: LaunchFault) -> None:
    findings = lab.record(fault, False)
    assert {finding.kind for finding in findings} == {"race"}, told(findings)
    assert {finding.argument for finding in findings} & {fault.argument, "out"}
    file = FOLDER / "race_launches.metal"
    marked = set().union(*(fault_lines(file, kernel) for kernel in fault.lines_of))
    kernels = {access.kernel for access in accesses(findings)}
    assert kernels == set(fault.lines_of)
    assert {access.line for access in accesses(findings)} <= marked
    for finding in findings:
        assert finding.severity == "error"
        assert finding.other is not None


@pytest.mark.parametrize("fault", LAUNCH_FAULTS, ids=str)
def test_launches_with_a_barrier_are_silent(lab: Lab, fault: LaunchFault) -> None:
    findings = lab.record(fault, True)
    assert findings == (), told(findings)


# Values by hand -------------------------------------------------------------------------------------------------------

# Accesses outside: threads that make one, the element that each of them reaches first, an element's bytes, those bound.
OUTSIDE: dict[str, tuple[range, Callable[[int], int], int, int]] = {
    "grid_tail": (range(50, 64), lambda t: t, 4, 200),
    "left_neighbour": (range(1), lambda t: -1, 4, 128),
    "vector_tail": (range(7, 8), lambda t: 7, 16, 120),  # bytes 112 to 128
    "byte_stride": (range(2, 8), lambda t: 64 * t, 4, 512),
    "inclusive_loop": (range(4), lambda t: 20, 4, 80),
    "atomic_bin": (range(64), lambda t: int(BY_NAME["atomic_bin"].arguments["x"][t]), 4, 40),  # type: ignore[index]
    "threadgroup_array": (range(63, 64), lambda t: 64, 4, 256),
    "dynamic_memory": (range(32, 64), lambda t: 2 * t, 4, 256),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_where_accesses_outside_go(lab: Lab, name: str) -> None:
    threads, element, size, nbytes = OUTSIDE[name]
    (finding,) = lab.launch(BY_NAME[name], "fault")[0]
    thread = finding.access.thread[0]
    assert thread in threads
    assert finding.element_index == element(thread)
    assert finding.byte_offset == element(thread) * size
    assert not 0 <= finding.byte_offset <= nbytes - size
    assert finding.bound_nbytes == nbytes
    assert finding.access.nbytes == size
    kinds = {"grid_tail": "store", "dynamic_memory": "store", "atomic_bin": "atomic"}
    assert finding.access.access == kinds.get(name, "load")


def test_a_null_pointer_has_no_argument(lab: Lab) -> None:
    (finding,) = lab.launch(BY_NAME["unset_pointer"], "fault")[0]
    assert (finding.argument, finding.memory) == (None, "")
    assert finding.byte_offset == 4 * finding.access.thread[0]


# Never written: the elements, each by the thread that reads it.
UNWRITTEN: dict[str, Callable[[int], Collection[int]]] = {
    "half_filled": lambda t: {63 - t} & set(range(32, 64)),
    "accumulate": lambda t: {t},
    "tile_rim": lambda t: {0: {0}, 127: {65}}.get(t, set()),
    "few_partials": lambda t: {t} & set(range(4, 32)),
    "unset_counter": lambda t: {0},
    "forgotten_field": lambda t: {t},
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_was_never_written(lab: Lab, name: str) -> None:
    (finding,) = lab.launch(BY_NAME[name], "fault")[0]
    assert finding.element_index in UNWRITTEN[name](finding.access.thread[0])
    assert finding.other is None


def test_how_often_is_counted(lab: Lab) -> None:
    """Reads that meet nothing written, and barriers: numbers that follow from the kernels alone."""
    counts = {name: lab.launch(BY_NAME[name], "fault")[0][0].count for name in ("half_filled", "accumulate")}
    assert counts == {"half_filled": 32, "accumulate": 40}
    (asked,) = lab.launch(BY_NAME["returned_lane"], "fault")[0]
    assert asked.count == 20


def test_elements_of_races(lab: Lab) -> None:
    """Where an element has one writer and one reader, the threads are those two."""
    for finding in lab.launch(BY_NAME["device_exchange"], "fault")[0]:
        assert finding.other is not None
        # scratch[i] is stored by thread i and loaded by thread 95 - i.
        by_access = {access.access: access.thread[0] for access in (finding.access, finding.other)}
        assert by_access == {"store": finding.element_index, "load": 95 - finding.element_index}
    (edge,) = [f for f in lab.launch(BY_NAME["smooth"], "fault")[0] if f.element_index == 63]
    assert edge.other is not None
    assert {edge.access.thread[0], edge.other.thread[0]} == {63, 64}


# Some kinds alone -----------------------------------------------------------------------------------------------------

# Launches that end by themselves, whatever is not watched.
HARMLESS = [
    fault for fault in FAULTS if fault.kind not in ("bounds", "divergence") and fault.name != "foreign_tile"
]


@pytest.mark.parametrize("option", ["races", "bounds", "uninitialised", "divergence"])
def test_only_what_is_watched_is_told(option: str) -> None:
    lab = Lab(option)
    told_of = 0
    for fault in HARMLESS:
        findings, _ = lab.launch(fault, "fault")
        if KINDS[fault.kind][1] == option:
            assert KINDS[fault.kind][0] in {finding.kind for finding in findings}, fault
            told_of += 1
        else:
            assert findings == (), f"{fault}: {told(findings)}"
    assert told_of == sum(KINDS[fault.kind][1] == option for fault in HARMLESS)
    if option in ("bounds", "divergence"):
        for fault in FAULTS:
            if fault.kind == option:
                kinds = {finding.kind for finding in lab.launch(fault, "fault")[0]}
                assert kinds == {option}, fault


@pytest.mark.parametrize("name", ["tree", "total", "grid_tail", "accumulate", "early_return", "past_the_end"])
def test_errors_are_raised(name: str) -> None:
    lab = Lab(True, "raise")
    with pytest.raises(metalane.CheckError) as caught:
        lab.launch(BY_NAME[name], "fault")
    kind, _ = KINDS[BY_NAME[name].kind]
    assert kind in {finding.kind for finding in caught.value.findings}
    assert caught.value.code == "check"
    for finding in caught.value.findings:
        assert finding.message in str(caught.value)
    # The report keeps what was raised, and the device goes on.
    assert set(caught.value.findings) <= set(lab.device.check_report().findings)
    assert lab.launch(BY_NAME[name], "repaired")[0] == ()


@pytest.mark.parametrize("name", ["found_flag", "lane_scan"])
def test_warnings_are_not_raised(name: str) -> None:
    lab = Lab(True, "raise")
    findings, _ = lab.launch(BY_NAME[name], "fault")
    assert {finding.severity for finding in findings} == {"warning"}
    assert lab.device.check_report().errors == ()
    assert lab.device.check_report().warnings == findings
