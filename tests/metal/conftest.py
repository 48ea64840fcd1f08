"""What is about the test double itself is left out where the library was built without it."""

from metal_double import DOUBLE

collect_ignore = [] if DOUBLE else ["test_metal_api.py", "test_metal_double.py"]
