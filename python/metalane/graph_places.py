"""Where a graph's addresses lie: in buffers that the caller names, or in allocations by number."""

from __future__ import annotations

import itertools
import reprlib
from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import NoReturn

from . import _core
from .errors import ArgumentError, DTypeError

__all__ = ["Place", "Places", "bound_buffers", "refuse"]

Place = tuple[str | int, int]
"""A buffer's name or number, and bytes from its start."""


def refuse(
    op: str, argument: str, expected: str, given: str, kind: type[ArgumentError] = ArgumentError
) -> NoReturn:
    error = kind(f"{op}: {argument} must be {expected}, got {given}")
    error.op, error.argument, error.expected, error.given = op, argument, expected, given
    raise error


def bound_buffers(node: _core.GraphNode) -> list[_core.Buffer]:
    """By buffer index, then what holds the counts of an indirect grid."""
    buffers = [bound for bound in node.bindings.values() if isinstance(bound, _core.Buffer)]
    if isinstance(node.threadgroups, _core.Buffer):
        buffers.append(node.threadgroups)
    return buffers


class Places:
    """The memory that a graph's launches bind, cut into named buffers and numbered allocations.

    Raises ArgumentError for names that overlap, and for buffers that were released.
    """

    def __init__(
        self,
        op: str,
        nodes: list[_core.GraphNode],
        device: _core.Device,
        names: Mapping[str, _core.Buffer] | None,
    ) -> None:
        self._op = op
        self.named = _checked_names(op, device, names)
        self._begins: list[int] = []
        self._named: list[tuple[int, int, str]] = []
        for name, buffer in sorted(self.named.items(), key=lambda item: (item[1].address, item[1].nbytes)):
            begin = buffer.address
            if self._named and begin < self._named[-1][1]:
                refuse(op, "names", "buffers apart from one another", f"{self._named[-1][2]!r} and {name!r}")
            self._begins.append(begin)
            self._named.append((begin, begin + buffer.nbytes, name))
        numbers: dict[tuple[int, int], int] = {}
        for i, node in enumerate(nodes):
            for buffer in bound_buffers(node):
                if buffer.released:
                    refuse(op, f"nodes[{i}]", "launches of live buffers", "one whose buffer was released")
                if not self._in_named(buffer.address, buffer.address + buffer.nbytes):
                    numbers.setdefault(_core._allocation(buffer), len(numbers))
        self._numbered = sorted((begin, end, number) for (begin, end), number in numbers.items())

    def refuse_overlaps(self) -> None:
        """Raises where numbers would name the same memory: arrays that overlap, each wrapped by itself."""
        for (_, end, _), (begin, _, _) in itertools.pairwise(self._numbered):
            if begin < end:
                given = "arrays that overlap, each wrapped: name one buffer that holds them"
                refuse(self._op, "the graph's buffers", "apart from one another", given)

    def _in_named(self, begin: int, end: int) -> Place | None:
        """Raises where the range lies in a named buffer in part."""
        at = bisect_right(self._begins, begin) - 1
        if at >= 0 and end <= self._named[at][1] and begin <= self._named[at][1]:
            return self._named[at][2], begin - self._named[at][0]
        for first, last, name in self._named[max(at, 0) : at + 2]:
            if begin < last and first < end:
                given = f"a launch that touches {end - begin} bytes, some outside '{name}'"
                refuse(self._op, "names", "buffers that launches touch inside or not at all", given)
        return None

    def find(self, begin: int, end: int) -> Place | None:
        """The place of the addresses, or None where they are in no buffer that the graph binds."""
        if place := self._in_named(begin, end):
            return place
        at = bisect_right(self._numbered, begin, key=itemgetter(0)) - 1
        if at >= 0 and end <= self._numbered[at][1]:
            return self._numbered[at][2], begin - self._numbered[at][0]
        return None


def _checked_names(op: str, device: _core.Device, names: object) -> dict[str, _core.Buffer]:
    if names is None:
        return {}
    if not isinstance(names, Mapping):
        refuse(op, "names", "a dict {name: buffer} or None", reprlib.repr(names), DTypeError)
    checked: dict[str, _core.Buffer] = {}
    for name, buffer in names.items():
        if not isinstance(name, str) or not isinstance(buffer, _core.Buffer):
            given = f"{reprlib.repr(name)}: {type(buffer).__name__}"
            refuse(op, "names", "a dict {name: buffer}", given, DTypeError)
        if not name or not name.isprintable():
            refuse(op, "names", "by printable text", reprlib.repr(name))
        if buffer.released:
            refuse(op, f"names[{name!r}]", "a live buffer", "a released one")
        if buffer.device != device:
            refuse(op, f"names[{name!r}]", "a buffer of the graph's device", "one of another device")
        checked[name] = buffer
    return checked
