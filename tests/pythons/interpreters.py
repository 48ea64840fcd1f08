"""The CPythons from 3.10 on that this machine has, with headers and venv."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
# A launcher on PATH (pyenv's, say) may stand for several interpreters: what it starts is what counts.
USABLE = "import ensurepip, os, sys, sysconfig; print(sys.executable, '%d.%d' % sys.version_info[:2], sep='\\n'); " \
    "assert os.path.exists(sysconfig.get_path('include') + '/Python.h')"  # fmt: skip


def number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def usable(python: Path, version: str) -> Path | None:
    """The interpreter that `python` starts, if it is of this version and has headers and venv."""
    done = subprocess.run([python, "-c", USABLE], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    executable, found = done.stdout.splitlines()
    return Path(executable) if found == version else None


def find(version: str) -> Path | None:
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True)
    return next((found for python in candidates if (found := usable(python, version))), None)


FOUND = {version: python for version in VERSIONS if (python := find(version))}
