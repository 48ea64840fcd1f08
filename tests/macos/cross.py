"""What the tests for macOS share: zig, and how it is run.

They need the dependency group `macos` and the build of `make test`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import ziglang

ROOT = Path(__file__).resolve().parents[2]
ZIG = Path(ziglang.__file__).parent / "zig"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(a) for a in arguments], cwd=ROOT, capture_output=True, text=True)


def succeed(*arguments: object) -> None:
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
