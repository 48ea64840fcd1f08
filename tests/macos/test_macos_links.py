"""The library and the test programs for macOS on arm64, cross-compiled and linked. Nothing runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import metalane
from macos import mach_o
from macos.cross import ROOT, ZIG, succeed

pytestmark = pytest.mark.usefixtures("built")

BUILD = ROOT / "build/macos"
VERSION = ".".join(metalane.__version__.split(".")[:2])


@pytest.fixture(scope="session")
def built() -> None:
    tools = Path(sys.executable).parent
    adapt = os.environ.get("METALANE_ADAPT", ROOT / "build/dev/metalane-adapt")
    succeed(
        tools / "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        "-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-macos.cmake", f"-DMETALANE_ZIG={ZIG}", f"-DMETALANE_ADAPT={adapt}",
        "-DMETALANE_TESTS=ON", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -fno-sanitize=all",
    )  # fmt: skip
    succeed(tools / "cmake", "--build", BUILD)


def test_the_library_is_found_beside_what_needs_it() -> None:
    library = mach_o.read(BUILD / f"libmetalane.{VERSION}.dylib")
    assert (library.processor, library.kind) == (mach_o.ARM64, mach_o.DYLIB)
    assert library.install_name == f"@rpath/libmetalane.{VERSION}.dylib"
    assert library.minimum_macos == (13, 0)


def test_the_library_needs_nothing_but_the_system() -> None:
    assert mach_o.read(BUILD / f"libmetalane.{VERSION}.dylib").libraries == ["/usr/lib/libSystem.B.dylib"]


def test_only_the_interface_is_exported() -> None:
    symbols = mach_o.read(BUILD / f"libmetalane.{VERSION}.dylib").symbols.values()
    exported = {symbol.name for symbol in symbols if symbol.exported}
    assert any(name.startswith("__ZN8metalane6DeviceC1E") for name in exported)
    # What the linker makes, and `new` and `delete`, which zig links in.
    made = {"__mh_dylib_header", "___dso_handle"}
    allocation = ("__Znwm", "__Znam", "__ZdlPv", "__ZdaPv")
    foreign = {
        name for name in exported - made if "8metalane" not in name and not name.startswith(allocation)
    }
    assert foreign == set()


def test_the_linker_keeps_the_context_switch_in_one_piece() -> None:
    """`resume` is reached by running out of `switch`; a linker may move what begins at other symbols."""
    (path,) = BUILD.rglob("fiber_switch.cpp.o")
    symbols = mach_o.read(path).symbols
    assert symbols["_metalane_fiber_resume"].alternate_entry
    assert not symbols["_metalane_fiber_switch"].alternate_entry
    program = mach_o.read(BUILD / "tests/cpp/test_cpu_executor")
    assert program.kind == mach_o.EXECUTE
    apart = [
        s["_metalane_fiber_resume"].value - s["_metalane_fiber_switch"].value
        for s in (symbols, program.symbols)
    ]
    assert apart == [14 * 4, 14 * 4]


def test_every_test_program_links() -> None:
    names = [path.stem for path in (ROOT / "tests/cpp").glob("test_*.cpp")]
    assert names
    for name in names:
        program = mach_o.read(BUILD / "tests/cpp" / name)
        assert (program.processor, program.kind) == (mach_o.ARM64, mach_o.EXECUTE)
