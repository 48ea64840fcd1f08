"""The test double of Metal, where the library was built on it: its C interface, and what every test must keep."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest

import metalane


class MetalDouble:
    """Functions of metal_double.h by their names without prefix: `double.count(b"commits")`."""

    RESULTS = (
        ("live_objects", ctypes.c_int64),
        ("made_objects", ctypes.c_int64),
        ("object_counts", ctypes.c_char_p),
        ("violation_count", ctypes.c_size_t),
        ("violation", ctypes.c_char_p),
        ("count", ctypes.c_int64),
        ("last_compilation", ctypes.c_char_p),
        ("system", ctypes.c_uint32),
        ("shuffle_seed", ctypes.c_uint64),
        ("interface", ctypes.c_char_p),
        ("build_directory", ctypes.c_char_p),
    )
    ARGUMENTS = (
        ("live_objects", ctypes.c_char_p),
        ("made_objects", ctypes.c_char_p),
        ("violation", ctypes.c_size_t),
        ("count", ctypes.c_char_p),
        ("set_system", ctypes.c_uint32),
        ("set_device_count", ctypes.c_uint32),
        ("set_max_buffer_length", ctypes.c_uint64),
        ("set_shuffle_seed", ctypes.c_uint64),
        ("fail_allocations", ctypes.c_uint32, ctypes.c_uint32),
        ("fail_command_buffers", ctypes.c_uint32, ctypes.c_uint32),
        ("fail_compilations", ctypes.c_uint32, ctypes.c_char_p),
        ("fail_pipelines", ctypes.c_uint32, ctypes.c_char_p),
        ("fail_archive_writes", ctypes.c_uint32),
        ("fail_execution", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64),
        ("delay_completion", ctypes.c_double),
        ("lose_device", ctypes.c_uint32),
        ("set_watchdog", ctypes.c_double),
        ("plant_pipeline", ctypes.c_char_p, ctypes.c_uint64),
        ("plant_reflection", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
    )

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, *types in self.ARGUMENTS:
            getattr(self, name).argtypes = types
        for name, result in self.RESULTS:
            getattr(self, name).restype = result
        self.live_at_start = self.live_objects(None)

    def __getattr__(self, name: str) -> ctypes._CFuncPtr:
        function = getattr(self._library, f"metal_double_{name}")
        setattr(self, name, function)
        return function

    def take_violations(self) -> list[str]:
        """What was done against Metal's rules since the last call."""
        found = [self.violation(i).decode() for i in range(self.violation_count())]
        self.clear_violations()
        return found

    def check(self, last: bool) -> None:
        """After each test: Metal's rules were kept; after the last one, too: no object is left."""
        if found := self.take_violations():
            pytest.fail("against Metal's rules:\n" + "\n".join(found), pytrace=False)
        if last:
            gc.collect()
            if self.live_objects(None) != self.live_at_start:
                pytest.fail(
                    f"{self.live_objects(None)} Metal objects at the end, {self.live_at_start} at the start:\n"
                    + self.object_counts().decode(),
                    pytrace=False,
                )


def find() -> MetalDouble | None:
    """The double, where the library was built on it."""
    for path in Path(metalane.__file__).parent.glob("libmetalane.*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "metal_double_system"):
            return MetalDouble(library)
    return None


DOUBLE = find()
