"""What is about the test double, or needs its faults, is left out where the library was built without it."""

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


@pytest.fixture
def whole_system() -> Iterator[None]:
    """The double plays the system with everything, also where the rest of the run is on an older one."""
    DOUBLE.set_system(0)
    yield
    DOUBLE.reset()
