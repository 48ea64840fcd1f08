"""The test double of Metal itself: its own test programs, built with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from metal.objective_c import plain_environment
from metal_double import DOUBLE


@pytest.mark.parametrize("name", ["test_double_commands", "test_double_objects"])
def test_the_double_behaves(name: str) -> None:
    program = Path(DOUBLE.build_directory().decode(), "tests/metal/double/tests", name)
    done = subprocess.run(
        [program], capture_output=True, text=True, check=False, timeout=300, env=plain_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_the_environment_chooses_the_system() -> None:
    older = os.environ.get("METAL_DOUBLE_SYSTEM") == "older"
    DOUBLE.reset()
    assert DOUBLE.system() == (15 if older else 0)
