"""Files for macOS on arm64, cross-compiled one by one: the bindings, and the Metal backend with Apple's Objective-C."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import nanobind
import pytest

from macos.cross import ROOT, ZIG, run, succeed

TARGET = "aarch64-macos.13.0"
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
