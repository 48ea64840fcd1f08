"""What the checker reports: faults of kernels, and what their accesses cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["race", "bounds", "uninitialised", "divergence", "same-value", "lockstep"]


@dataclass(frozen=True)
class CheckAccess:
    """One access, barrier or collective of one thread."""

    kernel: str
    file: str
    line: int
    """From 1; 0: not known."""
    access: Literal["load", "store", "atomic", "wait"]
    nbytes: int
    thread: tuple[int, int, int]
    """Position in the grid."""
    threadgroup: tuple[int, int, int]
    """Position in the grid."""
    thread_index: int
    """Index in the threadgroup."""
    simdgroup: int
    """Index in the threadgroup."""
    lane: int


@dataclass(frozen=True)
class CheckFinding:
    """One fault of a program, however often it happens: the first time that it did."""

    kind: Kind
    severity: Literal["error", "warning"]
    argument: str | None
    """The kernel's argument or threadgroup variable; None: no memory is involved, or the pointer is to none of it."""
    memory: str
    """"device", "constant", "threadgroup", or empty."""
    byte_offset: int
    """From the start of what is bound; negative: before it."""
    element_index: int
    """The same in elements of the argument's type, rounded down."""
    bound_nbytes: int
    """Bytes of what is bound, or of the variable."""
    access: CheckAccess
    other: CheckAccess | None
    """What `access` conflicts with."""
    count: int
    """How often."""
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class CheckTraffic:
    """What one line of a kernel did with one argument.

    `count` and `nbytes` are exact, over every launch; all others are of the threadgroups whose accesses were logged, up
    to eight of a launch.
    """

    kernel: str
    argument: str
    memory: str
    file: str
    line: int
    access: Literal["load", "store", "atomic"]
    count: int
    nbytes: int
    sampled_count: int
    sampled_nbytes: int
    simdgroup_nbytes: int
    """Distinct bytes of each simdgroup, added up."""
    threadgroup_nbytes: int
    """Distinct bytes of each threadgroup, added up."""
    requests: int
    """Accesses of a simdgroup's lanes together."""
    lines: int
    """Cache lines of 128 bytes that they touch (device and constant memory)."""
    bank_cycles: int
    """Turns that 32 banks of 4 bytes need for them (threadgroup memory)."""


@dataclass(frozen=True)
class CheckArgument:
    """What a kernel did with one argument or threadgroup variable, wherever in its source: a byte that several lines
    touch is one.

    `loaded_nbytes` and `stored_nbytes` are exact, over every launch (atomics that read and write count in both); all
    others are of the threadgroups whose accesses were logged, up to eight of a launch.
    """

    kernel: str
    argument: str
    memory: str
    loaded_nbytes: int
    stored_nbytes: int
    sampled_nbytes: int
    """All accesses together; over `thread_nbytes`: how often a thread comes back to a byte."""
    thread_nbytes: int
    """Distinct bytes of each thread, added up."""
    simdgroup_nbytes: int
    """Distinct bytes of each simdgroup, added up."""
    threadgroup_nbytes: int
    """Distinct bytes of each threadgroup, added up."""


@dataclass(frozen=True)
class CheckWaits:
    """How often one barrier (of a threadgroup) or collective (of a simdgroup) was met at."""

    kernel: str
    operation: str
    file: str
    line: int
    count: int


@dataclass(frozen=True)
class CheckSample:
    """One access of the logged threadgroups, for pictures."""

    traffic: int
    """Index into `CheckReport.traffic`."""
    thread_index: int
    turn: int
    """Which request of its simdgroup on that line."""
    byte_offset: int
    nbytes: int


@dataclass(frozen=True)
class CheckReport:
    """What a device with the checker has found and counted."""

    findings: tuple[CheckFinding, ...]
    traffic: tuple[CheckTraffic, ...]
    arguments: tuple[CheckArgument, ...]
    waits: tuple[CheckWaits, ...]
    samples: tuple[CheckSample, ...]

    @property
    def errors(self) -> tuple[CheckFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[CheckFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "warning")
