"""What `python -m metalane doctor` says of the machine: versions, compilers, caches, devices, and what is amiss."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from . import _core, cpu
from ._core import Device
from .errors import Error

VARIABLES = ("CXX", "CXXFLAGS", "HOME", "XDG_CACHE_HOME", "TMPDIR")


@dataclass(frozen=True)
class Fact:
    """One line. `problem`: something does not work because of it."""

    section: str
    name: str
    value: str
    problem: bool = False


def versions() -> Iterator[Fact]:
    yield Fact("versions", "metalane", f"{_core.VERSION} in {Path(_core.__file__).parent}")
    yield Fact(
        "versions", "Python", f"{platform.python_implementation()} {sys.version.split()[0]}: {sys.executable}"
    )
    yield Fact("versions", "NumPy", np.__version__)
    yield Fact("versions", "ml_dtypes", ml_dtypes.__version__)


def system() -> Iterator[Fact]:
    yield Fact("system", "platform", platform.platform())
    yield Fact("system", "machine", platform.machine())
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    yield Fact("system", "processors", f"{os.cpu_count()}, {usable} of them for this process")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Fact("system", "memory", f"{memory / 2**30:.1f} GiB, pages of {os.sysconf('SC_PAGE_SIZE')} bytes")
    for name in sorted({*VARIABLES, *(name for name in os.environ if name.startswith("METALANE_"))}):
        if name in os.environ:
            yield Fact("system", f"${name}", os.environ[name])


def answer_of(*command: str) -> str | None:
    """The first line that a program prints; None where it does not run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def compilers() -> Iterator[Fact]:
    """The host's C++ compiler, as the CPU device looks for it, and Apple's Metal compiler."""
    chosen = os.environ.get("CXX")
    found = next(
        (path for name in (chosen or "", "c++", "g++", "clang++") if (path := shutil.which(name))), None
    )
    said = answer_of(found, "--version") if found else None
    if chosen and not shutil.which(chosen):
        yield Fact("compilers", "C++", f"CXX names {chosen!r}, which is no program", True)
    elif said is None:
        text = f"{found} does not run" if found else "none on PATH"
        yield Fact("compilers", "C++", f"{text}: the CPU device runs built-in kernels only", True)
    else:
        yield Fact("compilers", "C++", f"{found}: {said}")
    if sys.platform == "darwin":
        metal = answer_of("xcrun", "metal", "--version")
        yield Fact(
            "compilers", "Metal", metal or "not installed; not needed: the system compiles sources itself"
        )


def caches() -> Iterator[Fact]:
    info = cpu.kernel_cache_info()
    if not info.directory:
        yield Fact("caches", "CPU kernels", "no folder: this user has no home folder", True)
        return
    size = f"{info.entries} kernels, {info.nbytes / 1e6:.1f} MB of at most {info.limit_bytes / 1e6:.1f} MB"
    there = Path(info.directory).absolute()
    existing = next(folder for folder in (there, *there.parents) if folder.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    yield Fact(
        "caches",
        "CPU kernels",
        f"{info.directory}: {size}" + ("" if writable else f"; {existing} cannot be written"),
        not writable,
    )


def devices() -> Iterator[Fact]:
    found = [info for info in _core.devices() if info.kind != "null"]
    if not found:
        yield Fact("devices", "none", "there is no device that runs kernels", True)
    seen: dict[str, int] = {}
    for info in found:
        index = seen.get(info.kind, 0)
        seen[info.kind] = index + 1
        name = f"{info.kind}:{index}" if index else info.kind
        try:
            pipeline = Device(name).registry.pipeline("metalane_fill")
        except Error as error:
            yield Fact("devices", name, f"{info.name}: {type(error).__name__}: {error}", True)
            continue
        limits = (
            f"{pipeline.max_total_threads_per_threadgroup} threads a threadgroup, "
            f"{pipeline.thread_execution_width} a simdgroup"
        )
        yield Fact("devices", name, f"{info.name}: {limits}")


def facts() -> Iterator[Fact]:
    for part in (versions, system, compilers, caches, devices):
        yield from part()
