"""What is about the test double, or needs its faults, is left out where the library was built without it."""

from pathlib import Path

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
