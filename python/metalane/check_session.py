"""Checked devices for a whole run of tests: devices opened without ``check`` watch what the session says."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from .check import CheckFinding

if TYPE_CHECKING:
    from . import _core

__all__ = ["CheckSession"]

_current: CheckSession | None = None


class CheckSession:
    """While it is entered, CPU devices opened without ``check`` are checked ones.

    check, reports: what such devices are opened with, as for :class:`metalane.Device`. Devices of other kinds, and
    those of ``kernels="native"``, which run no shaders, are opened as ever.
    """

    def __init__(
        self, check: bool | str | Sequence[str] = True, reports: Literal["raise", "list"] = "raise"
    ) -> None:
        self.check = check
        self.reports = reports
        self._process = os.getpid()
        self._devices: list[weakref.ref[_core.Device]] = []
        # Devices that others drop have findings, too: all are kept until somebody takes those.
        self._kept: list[_core.Device] = []
        self._outer: CheckSession | None = None

    def __enter__(self) -> CheckSession:
        global _current
        self._outer, _current = _current, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        _current = self._outer
        self._kept.clear()

    def opened(self, device: _core.Device) -> None:
        """Called with each device that is opened under the session."""
        self._devices.append(weakref.ref(device))
        self._kept.append(device)

    def take(self) -> tuple[CheckFinding, ...]:
        """What the session's devices found since this was called last; waits for work in flight."""
        found: list[CheckFinding] = []
        if os.getpid() == self._process:  # a device is of no use in a forked child
            for reference in self._devices:
                device = reference()
                if device is not None:
                    found += device.check_report().findings
                    device.clear_check_report()
        # What nobody else holds ends here.
        device = None
        self._kept.clear()
        self._kept = [device for device in (reference() for reference in self._devices) if device is not None]
        self._devices = [weakref.ref(device) for device in self._kept]
        return tuple(found)


def session_of(kind: str, kernels: str) -> CheckSession | None:
    """The session that decides about a device of this kind (empty: the default one), if any."""
    if _current is None or kernels == "native":
        return None
    from . import _core

    return _current if (kind or _core.devices()[0].kind) == "cpu" else None
