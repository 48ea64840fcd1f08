"""Helpers for tests of programs that use metalane."""

from __future__ import annotations

import dataclasses

from . import _core

__all__ = ["RecordedLaunch", "last_record"]


@dataclasses.dataclass(frozen=True)
class RecordedLaunch:
    """One launch as a null device was given it."""

    kernel: str
    buffers: dict[int, tuple[int, int]]
    """Address and bytes by buffer index."""
    bytes: dict[int, bytes]
    """Inline bytes by buffer index."""
    threadgroup_memory: dict[int, int]
    """Bytes by threadgroup index."""
    grid_kind: str
    """'threadgroups', 'threads' or 'indirect'."""
    grid: tuple[int, int, int]
    threads_per_threadgroup: tuple[int, int, int]
    label: str
    barrier_before: bool


def last_record(device: _core.Device) -> list[RecordedLaunch]:
    """The launches of the submission that was committed last to ``Device("null")``, in order."""
    return [RecordedLaunch(**launch) for launch in _core._last_record(device)]
