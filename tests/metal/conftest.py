"""What is about the test double, or needs its faults, is left out where the library was built without it.

Tests here say which system the double plays, also where the rest of a run is on an older one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metal_double import DOUBLE

collect_ignore = (
    []
    if DOUBLE
    else [
        path.name
        for path in Path(__file__).parent.glob("test_metal_*.py")
        if path.name != "test_metal_text.py"
    ]
)


@pytest.fixture(autouse=True, scope="module")
def whole_system() -> Iterator[None]:
    """The system with everything, before a file's devices are opened."""
    if DOUBLE:
        DOUBLE.set_system(0)
    yield
    if DOUBLE:
        DOUBLE.reset()


@pytest.fixture(autouse=True)
def whole_system_again() -> None:
    """For each test: those before it may have played another."""
    if DOUBLE:
        DOUBLE.set_system(0)
