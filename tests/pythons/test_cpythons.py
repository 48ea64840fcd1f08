"""The package on every CPython from 3.10 that this machine has: built, installed into a fresh environment, tested.

Interpreters are looked for as python3.10 to python3.14 on PATH and below ~/.pyenv/versions. One wheel serves all
from 3.12 on (stable ABI); 3.10 and 3.11 get their own. Not part of `make test`: .ci/run runs it, in one
process, and with a compiler cache, in which all but the extension module is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

from pythons.interpreters import FOUND, number

TOOLS = Path(sys.executable).parent  # cmake and ninja of the environment that runs the tests
ROOT = Path(__file__).resolve().parents[2]
STABLE_FROM = (3, 12)
SMOKE = [
    "tests/host/test_params.py",
    "tests/host/test_buffers.py",
    "tests/host/test_encoder.py",
    "tests/host/test_errors.py",
    "tests/host/test_compile.py",
    "tests/host/test_argument_classes.py",
]


def run(*arguments: object) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["PATH"] = f"{TOOLS}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [str(a) for a in arguments], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def wheel(version: str) -> Path:
    """Built in isolation, in a tree beside that of `make test`: to a compiler cache their paths are equal."""
    made_in = ROOT / f"build/python{version}"
    shutil.rmtree(made_in, ignore_errors=True)
    run(FOUND[version], "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", made_in / "wheel",
        f"--config-settings=build-dir={made_in}", ROOT)  # fmt: skip
    (made,) = (made_in / "wheel").glob("*.whl")
    return made


def builder_of(version: str) -> str:
    """The version whose wheel serves this one."""
    if number(version) < STABLE_FROM:
        return version
    return min((v for v in FOUND if number(v) >= STABLE_FROM), key=number)


each_version = pytest.mark.parametrize("version", FOUND)


def test_there_is_one_at_least() -> None:
    assert FOUND


@each_version
def test_package_works(version: str, tmp_path: Path) -> None:
    run(FOUND[version], "-m", "venv", tmp_path)
    python = tmp_path / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", wheel(builder_of(version)), "pytest")
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMOKE)
    assert " passed" in said
    run(python, ROOT / "tests/pythons/smoke.py")


@each_version
def test_wheel_is_tagged_for_whom_it_serves(version: str) -> None:
    made = wheel(builder_of(version))
    modules = [
        name
        for name in zipfile.ZipFile(made).namelist()
        if name.startswith("metalane/_core") and name.endswith(".so")
    ]
    if number(version) >= STABLE_FROM:
        assert "-cp312-abi3-" in made.name
        assert modules == ["metalane/_core.abi3.so"]
    else:
        own = f"cp{version.replace('.', '')}"
        assert f"-{own}-{own}-" in made.name
        (module,) = modules
        assert module.startswith(f"metalane/_core.cpython-{version.replace('.', '')}-")
