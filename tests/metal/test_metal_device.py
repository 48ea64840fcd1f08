"""The Metal device: what it says of itself, memory, residency, captures, older systems, other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import metalane as ml
from metal_double import DOUBLE

NO_RESIDENCY_SETS, NO_MATH_MODE, NO_BINARY_ARCHIVES, SMALL_LIMITS, NO_CAPTURE = 1, 2, 4, 8, 16


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    DOUBLE.reset()


def page_aligned(nbytes: int, alignment: int) -> np.ndarray:
    memory = np.zeros(nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes]


def test_devices_are_listed_first_and_by_number() -> None:
    metal = [info for info in ml.devices() if info.kind == "metal"]
    assert ml.devices()[: len(metal)] and ml.devices()[0].kind == "metal"
    assert [info.selector for info in metal] == ["metal", "metal:1"]
    assert ml.Device().kind == "metal"
    assert ml.Device("metal:1").info.selector == "metal:1"
    for selector in ("metal:2", "metal:", "metal:-1", "metal:x", "cpu:1"):
        with pytest.raises(ml.DeviceError, match="there is no device|there are|there is 1"):
            ml.Device(selector)
    DOUBLE.set_device_count(0)
    assert ml.devices()[0].kind == "cpu"
    with pytest.raises(ml.DeviceError):
        ml.Device("metal")


@pytest.mark.usefixtures("whole_system")
@pytest.mark.parametrize("kind", ["metal", "cpu", "null"])
def test_every_kind_says_what_it_allows(kind: str) -> None:
    device = ml.Device(kind)
    limits = device.limits
    assert limits.max_buffer_bytes >= 1 << 30
    assert limits.max_threads_per_threadgroup == 1024
    assert limits.max_threadgroup_memory >= 32768
    assert limits.thread_execution_width == 32
    assert limits.wrap_alignment == (os.sysconf("SC_PAGESIZE") if kind == "metal" else 1)
    assert device.info.kind == kind
    if kind == "metal":
        assert (device.info.name, device.info.architecture) == ("Metal test double", "applegpu_double")
    assert (device.info.memory_bytes > 0) == (kind != "null")
    if kind == "metal":
        assert "apple7" in device.info.families
    before = device.allocated_bytes
    buffer = device.zeros(1 << 20, ml.uint8)
    assert device.allocated_bytes - before >= 1 << 20
    buffer.release()
    assert device.allocated_bytes <= before


def test_buffers_of_every_size_are_zero() -> None:
    device = ml.Device("metal")
    for size in (0, 1, 3, 4096, 70000):
        buffer = device.zeros(size, ml.uint8)
        assert buffer.nbytes == size and not np.asarray(buffer).any()


def test_an_empty_view_at_the_end_of_its_buffer_can_be_bound() -> None:
    device = ml.Device("metal")
    device.registry.register_source(
        "count",
        "kernel void count(device const uint* x [[buffer(0)]], device uint* n [[buffer(1)]]) { n[0] = 7; }",
    )
    x, n = device.zeros(16, ml.uint32), device.zeros(1, ml.uint32)
    encoder = device.command_encoder()
    encoder.dispatch("count", [x.view(64, 0), n], threads=1, threads_per_threadgroup=1)
    encoder.commit().wait()
    assert np.asarray(n)[0] == 7


def test_allocation_failures_are_memory_errors() -> None:
    device = ml.Device("metal")
    DOUBLE.fail_allocations(0, 1)
    with pytest.raises(ml.OutOfMemoryError, match="4096 bytes"):
        device.zeros(4096, ml.uint8)
    device.zeros(4096, ml.uint8)
    with pytest.raises(ml.OutOfMemoryError, match="the device's"):
        device.empty(device.limits.max_buffer_bytes + 1, ml.uint8)


def test_wrap_takes_whole_pages() -> None:
    device = ml.Device("metal")
    page = device.limits.wrap_alignment
    memory = page_aligned(3 * page, page)
    buffer = device.wrap(memory[: page + 10])
    encoder = device.command_encoder()
    encoder.fill(buffer, 9)
    encoder.commit().wait()
    assert (memory[: page + 10] == 9).all() and not memory[page + 10 :].any()
    assert device.wrap(memory[:0]).nbytes == 0
    with pytest.raises(ml.ArgumentError, match=f"aligned to {page} bytes, a page"):
        device.wrap(memory[16:])
    DOUBLE.fail_allocations(0, 1)
    with pytest.raises(ml.ArgumentError, match="which it refuses"):
        device.wrap(memory)


def test_compiled_kernels_take_arrays_wherever_they_lie() -> None:
    device = ml.Device("metal")
    program = device.compile(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void twice(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], "
        "uint i [[thread_position_in_grid]]) { y[i] = 2 * x[i]; }"
    )
    x = np.arange(101, dtype=np.float32)[1:]
    y = np.full(101, -1, np.float32)
    program.twice(x, y[1:], threads=100)
    np.testing.assert_array_equal(y, np.concatenate([[-1], 2 * x]))
    with pytest.raises(ml.ArgumentError, match="does not wait"):
        program.twice(x, y[1:], threads=100, wait=False)
    with pytest.raises(ml.ArgumentError, match="apart from other arguments"):
        program.twice(y[:100], y[1:], threads=100)


def residency() -> tuple[int, int, int, int]:
    """Adds, removes, commits and requests so far."""
    return tuple(
        DOUBLE.count(f"residency {what}".encode()) for what in ("adds", "removes", "commits", "requests")
    )


@pytest.mark.usefixtures("whole_system")
def test_residency_up_to_its_limit() -> None:
    """Of five buffers of 74 pages three are within 256 pages; one that goes makes room for another."""
    page = os.sysconf("SC_PAGESIZE")
    device = ml.Device("metal", residency_bytes=256 * page)
    start = residency()

    def since() -> tuple[int, int, int, int]:
        return tuple(now - then for now, then in zip(residency(), start, strict=True))

    kept = [device.zeros(74 * page - 10, ml.uint8) for _ in range(5)]
    assert since() == (3, 0, 3, 3)
    kept[3].release()
    assert since() == (3, 0, 3, 3)
    kept[1].release()
    assert since() == (3, 1, 4, 3)
    kept[1] = device.zeros(100 * page, ml.uint8)
    assert since() == (4, 1, 5, 4)
    wrapped = device.wrap(page_aligned(page, page))
    assert since() == (5, 1, 6, 5)
    wrapped.release()
    assert since() == (5, 2, 7, 5)
    encoder = device.command_encoder()
    encoder.fill(kept[4], 1)
    encoder.commit().wait()
    assert (np.asarray(kept[4]) == 1).all()
    del kept, encoder, device
    adds, removes, *_ = since()
    assert adds == removes


@pytest.mark.usefixtures("whole_system")
def test_residency_is_off_by_default_and_asks_for_the_system() -> None:
    start = residency()
    device = ml.Device("metal")
    device.zeros(1000, ml.uint8)
    assert residency() == start
    assert DOUBLE.live_objects(b"MTLResidencySet") == 0
    DOUBLE.set_system(NO_RESIDENCY_SETS)
    with pytest.raises(ml.DeviceError, match="no residency sets"):
        ml.Device("metal", residency_bytes=1)
    ml.Device("metal")
    with pytest.raises(ml.ArgumentError, match="residency_bytes"):
        ml.Device("cpu", residency_bytes=1)


def test_an_older_system_works() -> None:
    DOUBLE.set_system(NO_RESIDENCY_SETS | NO_MATH_MODE | NO_BINARY_ARCHIVES | SMALL_LIMITS)
    device = ml.Device("metal")
    assert device.limits.max_buffer_bytes == 64 << 20
    assert device.limits.max_threadgroup_memory == 16384
    buffer = device.zeros(100, ml.float32)
    device.registry.register_source("unit", "kernel void unit(device float* x [[buffer(0)]]) { x[0] = 1; }")
    encoder = device.command_encoder()
    encoder.dispatch("unit", [buffer], threads=1, threads_per_threadgroup=1)
    encoder.commit().wait()
    assert np.asarray(buffer)[0] == 1
    options = DOUBLE.last_compilation().decode()
    assert "fastMath=0" in options


def test_a_capture_ends_with_its_scope(tmp_path: Path) -> None:
    device = ml.Device("metal")
    path = tmp_path / "run.gputrace"
    with pytest.raises(ZeroDivisionError), device.gpu_capture(path):
        encoder = device.command_encoder()
        encoder.fill(device.zeros(10, ml.uint8), 1)
        encoder.commit()
        with (
            pytest.raises(ml.DeviceError, match="running already"),
            device.gpu_capture(tmp_path / "b.gputrace"),
        ):
            pass
        raise ZeroDivisionError
    assert path.exists()
    with pytest.raises(ml.ArgumentError, match="where nothing is yet"), device.gpu_capture(path):
        pass
    with pytest.raises(ml.ArgumentError, match="ends in .gputrace"), device.gpu_capture(tmp_path / "run.txt"):
        pass
    with (
        pytest.raises(ml.DeviceError, match="cpu device has no GPU"),
        ml.Device("cpu").gpu_capture(path.with_stem("c")),
    ):
        pass
    DOUBLE.set_system(NO_CAPTURE)
    with (
        pytest.raises(ml.DeviceError, match="METAL_CAPTURE_ENABLED"),
        device.gpu_capture(tmp_path / "d.gputrace"),
    ):
        pass


def test_a_capture_is_of_its_device_only(tmp_path: Path) -> None:
    """Other queues, as those of other runtimes in the process, are left out."""
    device, other, theirs = ml.Device("metal"), ml.Device("metal:1"), ml.Device("metal")
    path = tmp_path / "mine.gputrace"
    with device.gpu_capture(path):
        for each in (device, other, other, theirs, theirs, theirs):
            encoder = each.command_encoder()
            encoder.fill(each.zeros(10, ml.uint8), 1)
            encoder.commit().wait()
    assert (path / "capture").read_text() == "1 commits\n"


# Everything that reaches Metal, on a thread that has no autorelease pool of its own.
ENTRIES = """
import sys, threading
from pathlib import Path
import numpy as np
import metalane as ml

def entries():
    device = ml.Device("metal")
    ml.devices()
    device.registry.register_source("unit", "kernel void unit(device float* x [[buffer(0)]]) { x[0] = 1; }")
    x = device.zeros(100, ml.float32)
    memory = np.zeros(3 * 16384, np.uint8)
    start = -memory.ctypes.data % device.limits.wrap_alignment
    wrapped = device.wrap(memory[start : start + 16384])
    device.allocated_bytes
    with device.gpu_capture(Path(sys.argv[1]) / "a.gputrace"):
        encoder = device.command_encoder()
        with encoder.label("layer"):
            encoder.dispatch("unit", [x], threads=1, threads_per_threadgroup=1)
            encoder.fill(wrapped, 3)
        encoder.commit().wait()
    for source in ("kernel void bad(device float* x [[buffer(0)]]) { x[0] = nothing; }",):
        device.registry.register_source("bad", source)
        try:
            device.registry.pipeline("bad")
        except ml.CompileError:
            pass
    wrapped.release()
    assert np.asarray(x)[0] == 1

thread = threading.Thread(target=entries)
thread.start()
thread.join()
"""


def test_every_entry_has_an_autorelease_pool(tmp_path: Path) -> None:
    """GNUstep reports what is autoreleased without one."""
    environment = {**os.environ, "METALANE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ENTRIES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    device = ml.Device("metal")
    buffer = device.zeros(16, ml.float32)
    child = os.fork()
    if child == 0:
        try:
            device.zeros(1, ml.float32)
            os._exit(1)
        except ml.DeviceError as error:
            del device, buffer
            os._exit(0 if "fork" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
