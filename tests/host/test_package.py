"""The installed package: stub, types, headers, CMake package, command line."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import metalane
from metal_double import DOUBLE

PACKAGE = Path(metalane.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: object, **options: object) -> str:
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_version_is_the_same_everywhere() -> None:
    version = importlib.metadata.version("metalane")
    assert metalane.__version__ == version
    assert command(sys.executable, "-m", "metalane", "--version").strip() == version
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    header = (PACKAGE / "include/metalane/version.h").read_text()
    assert f'METALANE_VERSION "{version}"' in header
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_stub_is_current(tmp_path: Path) -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    made = tmp_path / "_core.pyi"
    stubgen.main(["-q", "-P", "-m", "metalane._core", "-o", str(made),
                  "-p", str(ROOT / "csrc/bindings/stub_patterns.txt")])  # fmt: skip
    installed = (PACKAGE / "_core.pyi").read_text()
    # Made during the build from the bare module `_core`.
    assert made.read_text().replace("metalane._core", "_core") == installed.replace("metalane._core", "_core")


def test_stub_and_docstrings_are_complete() -> None:
    stub = (PACKAGE / "_core.pyi").read_text()
    for name in metalane.__all__:
        assert hasattr(metalane, name)
    for name, value in vars(metalane._core).items():
        if name.startswith("__"):
            continue
        assert re.search(rf"\b{re.escape(name)}\b", stub), f"{name} is missing in the stub"
        if inspect.isclass(value) or callable(value):
            assert value.__doc__, f"{name} has no docstring"
    assert "*args" not in stub
    assert (PACKAGE / "py.typed").exists()


def test_type_checkers_see_the_package(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    user = tmp_path / "user.py"
    user.write_text(
        "import metalane\n"
        "device = metalane.Device('null')\n"
        "buffer: metalane.Buffer = device.zeros((2, 3), metalane.float32)\n"
        "params = metalane.DFlash2SelectorParams([0] * 4, [1.0] * 4, 1, 2, 16, 0)\n"
        "lanes: int = params.lanes\n"
        "reveal_type(device.command_encoder().commit())\n"
        "device.zeros()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", user],
        capture_output=True,
        text=True,
    )
    assert 'Revealed type is "metalane._core.Ticket"' in done.stdout, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert ":7: error:" in errors[0]


@pytest.mark.linux
def test_importing_starts_no_thread() -> None:
    # NumPy's BLAS has threads of its own: count what metalane adds.
    script = (
        "import os, numpy, ml_dtypes\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = count()\n"
        "import metalane\n"
        "print(count() - before)\n"
    )
    assert command(sys.executable, "-c", script).strip() == "0"


@pytest.mark.linux
def test_library_exports_only_its_own_names() -> None:
    (library,) = PACKAGE.glob("libmetalane.so*")
    assert library.name == "libmetalane.so." + ".".join(metalane.__version__.split(".")[:2])
    nm = shutil.which("nm")
    assert nm, "binutils is needed"
    names = command(nm, "-DC", "--defined-only", library).splitlines()
    symbols = [line.split(" ", 2)[2] for line in names if line.split(" ", 2)[1] in "TBDR"]
    assert symbols
    foreign = [symbol for symbol in symbols if "metalane" not in symbol]
    if DOUBLE:  # its own interface, and what Objective-C's runtime and the linker need for its classes
        own = ("metal_double_", "__objc_", "__bss_start", "_edata", "_end")
        foreign = [symbol for symbol in foreign if not symbol.startswith(own)]
    assert foreign == []


def test_command_line() -> None:
    listed = command(sys.executable, "-m", "metalane", "devices").splitlines()
    assert [line.split("\t")[0] for line in listed] == [info.kind for info in metalane.devices()]
    assert command(sys.executable, "-m", "metalane", "--cmake-dir").strip() == str(
        PACKAGE / "lib/cmake/metalane"
    )
    done = subprocess.run([sys.executable, "-m", "metalane"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_headers_of_the_wheel_compile_alone(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "c++")
    for header in sorted((PACKAGE / "include/metalane").rglob("*.h")):
        unit = tmp_path / "unit.cpp"
        unit.write_text(f'#include "{header}"\n')
        command(
            compiler,
            "-std=c++20",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{PACKAGE / 'include'}",
            unit,
        )


@pytest.mark.linux
def test_a_cpp_program_uses_the_installed_package(tmp_path: Path) -> None:
    directory = command(sys.executable, "-m", "metalane", "--cmake-dir").strip()
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert cmake, "cmake is needed"
    command(cmake, "-S", ROOT / "tests/cpp/consumer", "-B", tmp_path, f"-Dmetalane_DIR={directory}",
            "-DCMAKE_BUILD_TYPE=Debug")  # fmt: skip
    command(cmake, "--build", tmp_path)
    environment = {**os.environ, "METALANE_CACHE_DIR": str(tmp_path / "cache")}
    said = command(tmp_path / "consumer", env=environment)
    assert said.count("ok    ") == 15
    assert "FAILED" not in said
    # Their own names: folders on the way may well be called python3.12.
    linked = [line.split()[0] for line in command("ldd", tmp_path / "consumer").splitlines()]
    names = [Path(name).name for name in linked]
    assert any(name.startswith("libmetalane.so") for name in names)
    assert not [name for name in names if "python" in name]
