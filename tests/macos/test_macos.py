"""The package for macOS on arm64, cross-compiled: C++ compiles and links, the Metal backend fits Apple's Objective-C.

Nothing runs. Needs the dependency group `macos` and the build of `make test`; .ci/run runs it, with pytest-xdist's
`--dist loadgroup` where there are several processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import nanobind
import pytest
import ziglang

import metalane
from macos import mach_o

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/macos"
ZIG = Path(ziglang.__file__).parent / "zig"
TARGET = "aarch64-macos.13.0"
VERSION = ".".join(metalane.__version__.split(".")[:2])
BINDINGS = sorted(path.name for path in (ROOT / "csrc/bindings").glob("*.cpp"))
METAL = sorted(path.name for path in (ROOT / "csrc/backends/metal").glob("*.mm"))
INCLUDES = ["-Icsrc", "-Icsrc/include", "-Ibuild/dev/generated/include", "-DMETALANE_BUILDING"]
CXX = [
    ZIG,
    "c++",
    "-target",
    TARGET,
    "-std=gnu++20",
    "-O0",
    "-fno-sanitize=all",
    "-Wall",
    "-Wextra",
    *INCLUDES,
]
OBJCXX = [*CXX, "-Werror", "-x", "objective-c++", "-fobjc-runtime=macosx-13.0", "-fno-objc-arc", "-fblocks",
          "-fobjc-exceptions", "-isystem", "tests/metal/double/include", "-isystem", "tests/metal/darwin"]  # fmt: skip


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(a) for a in arguments], cwd=ROOT, capture_output=True, text=True)


def succeed(*arguments: object) -> None:
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def of_linked(test: Callable[[], None]) -> Callable[[], None]:
    """Marks what looks at the library and the programs: one process builds them while another compiles single files."""
    return pytest.mark.xdist_group("linked")(pytest.mark.usefixtures("built")(test))


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


@of_linked
def test_the_library_is_found_beside_what_needs_it() -> None:
    library = mach_o.read(BUILD / f"libmetalane.{VERSION}.dylib")
    assert (library.processor, library.kind) == (mach_o.ARM64, mach_o.DYLIB)
    assert library.install_name == f"@rpath/libmetalane.{VERSION}.dylib"
    assert library.minimum_macos == (13, 0)


@of_linked
def test_the_library_needs_nothing_but_the_system() -> None:
    assert mach_o.read(BUILD / f"libmetalane.{VERSION}.dylib").libraries == ["/usr/lib/libSystem.B.dylib"]


@of_linked
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


@of_linked
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


@of_linked
def test_every_test_program_links() -> None:
    names = [path.stem for path in (ROOT / "tests/cpp").glob("test_*.cpp")]
    assert names
    for name in names:
        program = mach_o.read(BUILD / "tests/cpp" / name)
        assert (program.processor, program.kind) == (mach_o.ARM64, mach_o.EXECUTE)


@pytest.mark.parametrize("name", BINDINGS)
def test_bindings_compile(name: str, tmp_path: Path) -> None:
    """Against this machine's headers of CPython, which are the same but for sizes that agree here."""
    headers = ["-isystem", nanobind.include_dir(), "-isystem", sysconfig.get_path("include")]
    succeed(*CXX, *headers, "-c", ROOT / "csrc/bindings" / name, "-o", tmp_path / "object.o")


@pytest.mark.parametrize("name", METAL)
def test_the_metal_backend_holds_for_apples_runtime(name: str, tmp_path: Path) -> None:
    succeed(*OBJCXX, "-c", ROOT / "csrc/backends/metal" / name, "-o", tmp_path / "object.o")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return [device newBufferWithLength:16 options:MTLResourceStorageModeShared];", None),
        ("return [device newBufferOfLength:16 options:MTLResourceStorageModeShared];", "not found"),
        (
            'return [device newBufferWithLength:@"16" options:MTLResourceStorageModeShared];',
            "cannot initialize",
        ),
        ("return [device newCommandQueue];", "cannot initialize"),
    ],
    ids=["right", "selector", "argument", "result"],
)
def test_that_check_finds_faults(body: str, reason: str | None, tmp_path: Path) -> None:
    source = tmp_path / "fault.mm"
    source.write_text(f"#import <Metal/Metal.h>\nid<MTLBuffer> make(id<MTLDevice> device) {{ {body} }}\n")
    done = run(*OBJCXX, "-c", source, "-o", tmp_path / "object.o")
    if reason is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert reason in done.stderr
