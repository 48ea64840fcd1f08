"""The package on every CPython from 3.10 that this machine has: built, installed into a fresh environment, tested.

Interpreters are looked for as python3.10 to python3.14 on PATH and below ~/.pyenv/versions. One wheel serves all
from 3.12 on (stable ABI); 3.10 and 3.11 get their own. Not part of `make test`: .ci/run runs it.

The wheels share a build tree, in which only the extension module is compiled again for each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOOLS = Path(sys.executable).parent  # cmake and ninja of the environment that runs the tests
ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
STABLE_FROM = (3, 12)
SMOKE = [
    "tests/host/test_params.py",
    "tests/host/test_buffers.py",
    "tests/host/test_encoder.py",
    "tests/host/test_errors.py",
    "tests/host/test_compile.py",
    "tests/host/test_argument_classes.py",
]
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


@pytest.fixture(scope="session", autouse=True)
def say_which(request: pytest.FixtureRequest) -> None:
    missing = [version for version in VERSIONS if version not in FOUND]
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nCPythons tested: {', '.join(FOUND) or 'none'}; "
              f"not on this machine: {', '.join(missing) or 'none'}")  # fmt: skip


def run(*arguments: object, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | variables
    done = subprocess.run(
        [str(a) for a in arguments], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def build_system(folder: Path) -> Path:
    """What pyproject.toml asks for to build, pure Python, in one place for all interpreters; for the oldest of them."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    place = folder / "build system"
    run(FOUND[min(FOUND, key=number)], "-m", "pip", "install", "--quiet", "--target", place, *required)
    return place


@cache
def wheel(version: str, folder: Path) -> Path:
    # scikit-build-core keeps a build tree as long as it is called from the same place.
    made_in = folder / version
    run(FOUND[version], "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made_in,
        f"--config-settings=build-dir={folder / 'build'}", ROOT,
        variables={"PYTHONPATH": str(build_system(folder)),
                   "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"})  # fmt: skip
    (made,) = made_in.glob("*.whl")
    return made


def builder_of(version: str) -> str:
    """The version whose wheel serves this one."""
    if number(version) < STABLE_FROM:
        return version
    return min((v for v in FOUND if number(v) >= STABLE_FROM), key=number)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def test_there_is_one_at_least() -> None:
    assert FOUND


@pytest.mark.parametrize("version", FOUND)
def test_package_works(version: str, wheels: Path, tmp_path: Path) -> None:
    run(FOUND[version], "-m", "venv", tmp_path)
    python = tmp_path / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", wheel(builder_of(version), wheels), "pytest")
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMOKE)
    assert " passed" in said
    run(python, ROOT / "tests/pythons/smoke.py")


@pytest.mark.parametrize("version", FOUND)
def test_wheel_is_tagged_for_whom_it_serves(version: str, wheels: Path) -> None:
    made = wheel(builder_of(version), wheels)
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
