"""Profiles of a whole program: one of each device that is opened."""

from __future__ import annotations

from types import TracebackType

from . import _core

__all__ = ["ProfileSession"]

_current: ProfileSession | None = None


class ProfileSession:
    """While it is entered, every device that is opened is profiled; the profiles end with it.

    max_launches: as for :meth:`metalane.Device.profile`.
    """

    def __init__(self, max_launches: int = 1 << 20) -> None:
        self._max_launches = max_launches
        self.profiles: list[_core.Profile] = []
        self._outer: ProfileSession | None = None

    def __enter__(self) -> ProfileSession:
        global _current
        self._outer, _current = _current, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        _current = self._outer
        for profile in self.profiles:
            profile.stop()
        if kind is None or issubclass(kind, SystemExit):
            for profile in self.profiles:
                profile.wait()

    def opened(self, device: _core.Device) -> None:
        """Called with each device that is opened under the session."""
        self.profiles.append(device.profile(self._max_launches))


def opened(device: _core.Device) -> None:
    """Called with each device that is opened."""
    if _current is not None:
        _current.opened(device)
