"""Precompiled libraries of built-in shaders: made by the build where Apple's compiler is, found beside the library."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import metalane as ml
from metal_double import DOUBLE

ROOT = Path(__file__).resolve().parents[2]
# What stands in for Apple's: it notes what it is called with; compiling copies, linking puts the double's first line
# before the text.
XCRUN = """#!/bin/sh
echo "$@" >> "$0.log"
case "$*" in
  "-sdk macosx -f metal") ;;
  "-sdk macosx metal "*" -c "*) cp "$7" "$9" ;;
  "-sdk macosx metallib "*) { echo "MTLB double"; cat "$4"; } > "$6" ;;
  *) exit 1 ;;
esac
"""
PROJECT = """cmake_minimum_required(VERSION 3.20)
project(metallibs LANGUAGES NONE)
set(CMAKE_CURRENT_SOURCE_DIR "{root}")
set(generated ${{CMAKE_BINARY_DIR}}/generated)
set(builtin_dir ${{generated}}/builtin)
file(MAKE_DIRECTORY ${{builtin_dir}})
set(families memory)
set(adapt "{adapt}")
set(shader_root "{root}/shaders")
include("{root}/cmake/Metallib.cmake")
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    DOUBLE.reset()


@pytest.fixture
def packaged() -> Iterator[Path]:
    """Where the package has its metallibs; gone after the test."""
    folder = Path(ml.__file__).parent / "metallib"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def fill_works() -> None:
    device = ml.Device("metal", pipeline_archive=False)
    x = device.zeros(100, ml.uint8)
    encoder = device.command_encoder()
    encoder.fill(x, 7)
    encoder.commit().wait()
    assert (np.asarray(x) == 7).all()


@pytest.mark.usefixtures("whole_system")
@pytest.mark.parametrize("fits", [True, False])
def test_a_metallib_beside_the_library_stands_in_for_the_source(packaged: Path, fits: bool) -> None:
    text = ml.Device("metal").registry.metal_source("metalane_fill").encode()
    path = packaged / "memory" / f"{hashlib.sha256(text if fits else text + b' ').hexdigest()}.metallib"
    path.parent.mkdir()
    path.write_bytes(b"MTLB double\n" + text)
    fill_works()
    # The double reads its metallibs with options of its own.
    assert ("languageVersion=3.2" in DOUBLE.last_compilation().decode()) == (not fits)


@pytest.mark.usefixtures("whole_system")
def test_one_that_metal_refuses_is_compiled_from_its_source(packaged: Path) -> None:
    text = ml.Device("metal").registry.metal_source("metalane_fill").encode()
    path = packaged / "memory" / f"{hashlib.sha256(text).hexdigest()}.metallib"
    path.parent.mkdir()
    path.write_bytes(b"of a later system")
    fill_works()
    assert "languageVersion=3.2" in DOUBLE.last_compilation().decode()


@pytest.mark.usefixtures("whole_system")
def test_the_build_makes_what_the_device_finds(tmp_path: Path, packaged: Path) -> None:
    """The rules of cmake/Metallib.cmake with a stand-in for xcrun; an old file of the family goes."""
    (tmp_path / "bin").mkdir()
    xcrun = tmp_path / "bin" / "xcrun"
    xcrun.write_text(XCRUN)
    xcrun.chmod(0o755)
    adapt = Path(DOUBLE.build_directory().decode()) / "metalane-adapt"
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT, adapt=adapt))
    old = tmp_path / "build" / "generated" / "metallib" / "memory" / "0123.metallib"
    old.parent.mkdir(parents=True)
    old.touch()
    path = f"{tmp_path / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cmake = shutil.which("cmake", path=path)
    assert cmake, "cmake is needed"
    for command in (
        [cmake, "-S", tmp_path, "-B", tmp_path / "build"],
        [cmake, "--build", tmp_path / "build"],
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, done.stdout + done.stderr
    asked = (tmp_path / "bin" / "xcrun.log").read_text()
    assert " metal -std=metal3.1 -fno-fast-math -c " in asked

    [made] = old.parent.glob("*")
    source = ml.Device("metal").registry.metal_source("metalane_fill").encode()
    assert made.name == f"{hashlib.sha256(source).hexdigest()}.metallib"
    shutil.copytree(old.parent, packaged / "memory")
    DOUBLE.fail_compilations(1, b"the source is compiled")
    fill_works()
