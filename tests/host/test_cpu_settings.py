"""Process-wide settings of the CPU device: worker threads and the disk cache, from Python and the command line."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metalane
from metalane import cpu

pytestmark = [pytest.mark.cpu, pytest.mark.linux]

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void increment_NUMBER(device uint* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""
numbers = itertools.count()


@pytest.fixture
def cache(tmp_path: Path):
    """An empty cache folder; the default one is back afterwards."""
    folder = tmp_path / "compiled kernels"
    cpu.set_kernel_cache(folder)
    yield folder
    cpu.set_kernel_cache()


def run_increment() -> list[int]:
    """Runs a kernel that no call before had: one that is still loaded would not be looked for on disk."""
    device = metalane.Device("cpu")
    device.registry.register_source("increment", SOURCE.replace("NUMBER", str(next(numbers))))
    buffer = device.zeros(3, "u32")
    with device.command_encoder() as encoder:
        encoder.dispatch("increment", [buffer], threads=3, threads_per_threadgroup=3)
    return buffer.tolist()


def command(folder: Path, *arguments: str) -> dict[str, str]:
    environment = {**os.environ, "METALANE_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "metalane", "cache", *arguments],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t") for line in done.stdout.splitlines())


def test_the_cache_is_seen_and_cleared(cache: Path) -> None:
    assert cpu.kernel_cache_info().entries == 0
    assert run_increment() == [1, 1, 1]
    info = cpu.kernel_cache_info()
    assert info.directory == str(cache)
    assert info.entries == 1
    assert info.nbytes == sum(file.stat().st_size for file in cache.glob("*.so")) > 0
    assert info.limit_bytes == 1 << 30
    assert repr(info) == f"<KernelCacheInfo: 1 kernels, {info.nbytes} of {1 << 30} bytes>"
    assert cpu.clear_kernel_cache() == 1
    assert cpu.kernel_cache_info().entries == 0
    assert list(cache.glob("*.so")) == []
    assert run_increment() == [1, 1, 1]


def test_command_line_shows_and_clears_the_cache(cache: Path) -> None:
    empty = command(cache)
    assert empty == {"folder": str(cache), "kernels": "0", "size": "0.0 MB of at most 1073.7 MB"}
    run_increment()
    one = command(cache)
    assert one["kernels"] == "1"
    assert re.fullmatch(r"\d+\.\d MB of at most 1073\.7 MB", one["size"])
    cleared = command(cache, "--clear")
    assert cleared["deleted"] == "1 kernels"
    assert cleared["kernels"] == "0"
    assert cpu.kernel_cache_info().entries == 0


def fill_cache(folder: Path) -> list[int]:
    """Three kernels of known age, the oldest one used last; their sizes from the least to the most recently used."""
    device = metalane.Device("cpu")
    compiled = device.compile(
        SOURCE + SOURCE.replace("increment", "two") + SOURCE.replace("increment", "three")
    )
    files: list[Path] = []
    for i, name in enumerate(compiled):
        compiled[name].pipeline  # noqa: B018
        (made,) = set(folder.glob("*.so")) - set(files)
        os.utime(made, (1e9 + i, 1e9 + i))
        files.append(made)
    os.utime(files[0], (1e9 + 10, 1e9 + 10))
    return [file.stat().st_size for file in (files[1], files[2], files[0])]


@pytest.mark.parametrize("way", ["python", "command"])
def test_pruning_deletes_what_was_used_least_recently(cache: Path, way: str) -> None:
    sizes = fill_cache(cache)
    limit = sizes[1] + sizes[2] + 100
    if way == "python":
        assert cpu.prune_kernel_cache(sum(sizes)) == 0
        assert cpu.prune_kernel_cache(limit) == 1
    else:
        shown = command(cache, "--prune", str(limit / 1e6))
        assert (shown["deleted"], shown["kernels"]) == ("1 kernels", "2")
    left = sorted(cache.glob("*.so"), key=lambda file: file.stat().st_mtime)
    assert [file.stat().st_size for file in left] == sizes[1:]
    assert [file.stat().st_mtime for file in left] == [1e9 + 2, 1e9 + 10]
    assert cpu.prune_kernel_cache(0) == 2
    with pytest.raises(metalane.ArgumentError, match="nbytes"):
        cpu.prune_kernel_cache(-1)


@pytest.mark.parametrize("arguments", [["--prune"], ["--prune", "x"], ["--prune", "-1"], ["--prune", "nan"],
                                       ["--clear", "--prune", "1"]])  # fmt: skip
def test_command_line_refuses_odd_sizes(cache: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metalane", "cache", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_a_limit_holds(cache: Path) -> None:
    cpu.set_kernel_cache(cache, limit_bytes=0)
    run_increment()
    assert cpu.kernel_cache_info().limit_bytes == 0
    other = metalane.Device("cpu")
    other.registry.register_source("increment", SOURCE + "// another\n")
    other.registry.pipeline("increment")
    assert cpu.kernel_cache_info().entries <= 1


def threads_of_a_process_with(workers: int) -> int:
    """In a process of its own: threads of earlier devices end in their own time."""
    script = f"""
import os
import metalane
metalane.cpu.set_thread_count({workers})
device = metalane.Device("cpu")
with device.command_encoder() as encoder:
    encoder.fill(device.zeros(1 << 20, "f32"), 1)
encoder.ticket.wait()
print(len(os.listdir("/proc/self/task")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_worker_threads_are_as_many_as_asked_for() -> None:
    assert threads_of_a_process_with(5) - threads_of_a_process_with(2) == 3


@pytest.mark.parametrize("count", [-1, 4097, 1 << 64])
def test_thread_counts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(metalane.ArgumentError, match="count"):
        cpu.set_thread_count(count)


def test_odd_arguments_are_refused() -> None:
    with pytest.raises(metalane.DTypeError, match="count"):
        cpu.set_thread_count("two")
    with pytest.raises(metalane.DTypeError, match="directory"):
        cpu.set_kernel_cache(3.5)
    with pytest.raises(metalane.ArgumentError, match="null character"):
        cpu.set_kernel_cache("a\0b")
    with pytest.raises(metalane.ArgumentError, match="limit_bytes"):
        cpu.set_kernel_cache(None, -1)
    assert cpu.kernel_cache_info().limit_bytes == 1 << 30


def test_instruction_sets_that_the_processor_lacks_are_refused() -> None:
    names = cpu.instruction_sets()
    assert names[-1] == "baseline"
    for name in names:
        metalane.Device("cpu", isa=name)
    lacking = "neon" if "neon" not in names else "avx2"
    for name in (lacking, "sse"):
        with pytest.raises(
            metalane.ArgumentError, match=f"isa must be .*: {', '.join(reversed(names))}, got"
        ):
            metalane.Device("cpu", isa=name)
    with pytest.raises(metalane.DTypeError, match="isa"):
        metalane.Device("cpu", isa=2)
    with pytest.raises(metalane.ArgumentError, match="isa"):
        metalane.Device("null", isa="baseline")


def test_spoilt_headers_are_written_anew(cache: Path) -> None:
    assert run_increment() == [1, 1, 1]
    for header in cache.glob("include-*/**/*"):
        if header.is_file():
            header.write_bytes(b"@" * header.stat().st_size)
    assert cpu.clear_kernel_cache() == 1
    assert run_increment() == [1, 1, 1]


def test_a_folder_may_look_like_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cpu.set_kernel_cache("-c")
    try:
        assert cpu.kernel_cache_info().directory == str(tmp_path / "-c")
        assert run_increment() == [1, 1, 1]
    finally:
        cpu.set_kernel_cache()
    assert len(list((tmp_path / "-c").glob("*.so"))) == 1


def test_a_folder_that_cannot_be_written_says_why(cache: Path) -> None:
    assert run_increment() == [1, 1, 1]
    header = next(path for path in cache.glob("include-*/*") if path.is_file())
    header.unlink()
    header.mkdir()
    cpu.clear_kernel_cache()
    with pytest.raises(metalane.CompileError, match=f"cannot write {re.escape(str(header))}: Is a directory"):
        run_increment()
