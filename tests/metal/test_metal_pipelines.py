"""Pipelines of the Metal backend: options, constants, reflection, limits, and the archive on disk."""

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

SOURCE = """#include <metal_stdlib>
using namespace metal;
struct Params { float scale; uint n; ushort kind[4]; packed_float3 origin; };
constant uint pace [[function_constant(3)]];
constant half3 weights [[function_constant(7)]];
kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant Params& params [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < params.n) y[i] = params.scale * x[i] + float(params.kind[3]);
}
kernel void stepped(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[i] = float(pace * i) + float(weights.z);
}
"""
NO_MATH_MODE = 2


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    DOUBLE.reset()


def device_with_source(**options: bool) -> ml.Device:
    device = ml.Device("metal", pipeline_archive=options.get("pipeline_archive", False))
    device.registry.register_source("work", SOURCE)
    return device


@pytest.mark.usefixtures("whole_system")
@pytest.mark.parametrize(("math", "mode", "functions"), [("safe", 0, 1), ("fast", 2, 0)])
def test_options_of_a_compilation(math: str, mode: int, functions: int) -> None:
    device_with_source().registry.pipeline("work::scale", math=math)
    asked = DOUBLE.last_compilation().decode()
    assert (
        f"mathMode={mode}" in asked and f"functions={functions}" in asked and "languageVersion=3.2" in asked
    )
    DOUBLE.set_system(NO_MATH_MODE)
    device_with_source().registry.pipeline("work::scale", math=math)
    asked = DOUBLE.last_compilation().decode()
    assert f"fastMath={int(math == 'fast')}" in asked and "languageVersion=3.1" in asked


def test_a_source_compiles_once() -> None:
    device = device_with_source()
    before = DOUBLE.count(b"compilations")
    device.registry.pipeline("work::scale")
    device.registry.pipeline("work::stepped", constants={"pace": 2, "weights": (1, 2, 3)})
    device.registry.pipeline("work::stepped", constants={3: 5, 7: (0.5, 1, 4)})
    assert DOUBLE.count(b"compilations") == before + 1


def test_function_constants() -> None:
    device = device_with_source()
    y = device.zeros(8, ml.float32)
    pipeline = device.registry.pipeline("work::stepped", constants={"pace": 3, 7: (1.0, 2.0, 0.25)})
    encoder = device.command_encoder()
    encoder.dispatch(pipeline, [y], threads=8, threads_per_threadgroup=8)
    encoder.commit().wait()
    np.testing.assert_array_equal(np.asarray(y), 3 * np.arange(8) + 0.25)
    for constants, message in (
        ({"pace": 3}, "weights"),
        ({"pace": -1, "weights": (1, 2, 3)}, "from 0 to 4294967295"),
        ({"pace": 1, "weights": (1, 2)}, "3 numbers"),
        ({"pace": 1, "weights": (1, 2, 3), "other": 1}, "one of"),
    ):
        with pytest.raises(ml.ArgumentError, match=message):
            device.registry.pipeline("work::stepped", constants=constants)


@pytest.mark.usefixtures("whole_system")
def test_failures_name_the_kernel() -> None:
    device = device_with_source()
    DOUBLE.fail_compilations(1, b"work:3:4: error: the compiler's words")
    with pytest.raises(
        ml.CompileError, match=r"kernel 'scale'.*3\.2.*\n.*work:3:4: error: the compiler's words"
    ):
        device.registry.pipeline("work::scale")
    DOUBLE.fail_pipelines(1, b"too many registers")
    with pytest.raises(ml.CompileError, match="kernel 'scale'.*too many registers"):
        device.registry.pipeline("work::scale")
    assert device.registry.pipeline("work::scale").thread_execution_width == 32
    with pytest.raises(ml.KernelNotFoundError):
        device.registry.pipeline("work::absent")


@pytest.mark.parametrize(
    ("argument", "member", "what", "value", "message"),
    [
        (b"params", b"n", b"offset", 12, "params.n: .*offset 12.*reader 4"),
        (b"params", b"scale", b"dataType", 29, "params.scale: .*data type 29.*reader 3"),
        (b"params", b"kind", b"arrayLength", 5, "params.kind: .*array length 5.*reader 4"),
        (b"params", None, b"dataSize", 64, "params: .*size 64"),
        (b"x", None, b"access", 1, "x: .*access read and write.*reader read only"),
        (b"x", None, b"index", 9, "x: .*buffer index 9.*none there"),
    ],
)
def test_reflection_must_agree(
    argument: bytes, member: bytes | None, what: bytes, value: int, message: str
) -> None:
    device = device_with_source()
    DOUBLE.plant_reflection(argument, member, what, value)
    with pytest.raises(ml.CompileError, match=f"kernel 'scale': {message}"):
        device.registry.pipeline("work::scale")
    DOUBLE.reset()
    device.registry.pipeline("work::scale")


def test_unused_arguments_are_not_compared() -> None:
    device = device_with_source()
    DOUBLE.plant_reflection(b"x", None, b"access", 1)
    DOUBLE.plant_reflection(b"x", None, b"used", 0)
    device.registry.pipeline("work::scale")


@pytest.mark.usefixtures("whole_system")
def test_the_key_says_what_decides() -> None:
    key = device_with_source().registry.pipeline("work::scale").key
    for part in ("name=scale", "source=", "math=safe", "device=metal", "system=", "gpu=", "language=3.2"):
        assert part in key


def test_a_pipeline_is_held_to_what_metal_says_of_it() -> None:
    device = device_with_source()
    DOUBLE.plant_pipeline(b"threadExecutionWidth", 64)
    with pytest.raises(
        ml.CompileError, match="kernel 'scale': its simdgroups have 64 threads .* count on 32"
    ):
        device.registry.pipeline("work::scale")
    DOUBLE.reset()
    most = device.limits.max_threadgroup_memory
    DOUBLE.plant_pipeline(b"staticThreadgroupMemoryLength", most + 16)
    with pytest.raises(ml.CompileError, match=f"variables take {most + 16} bytes, the limit is {most}"):
        device.registry.pipeline("work::scale")
    DOUBLE.reset()
    DOUBLE.plant_pipeline(b"staticThreadgroupMemoryLength", most)
    DOUBLE.plant_pipeline(b"maxTotalThreadsPerThreadgroup", 96)
    pipeline = device.registry.pipeline("work::stepped", constants={"pace": 1, "weights": (0, 0, 0)})
    assert pipeline.static_threadgroup_memory == most
    assert pipeline.max_total_threads_per_threadgroup == 96
    y = device.zeros(97, ml.float32)
    encoder = device.command_encoder()
    with pytest.raises(ml.ArgumentError, match="at most 96"):
        encoder.dispatch(pipeline, [y], threads=97, threads_per_threadgroup=97)
    encoder.dispatch(pipeline, [y], threads=97, threads_per_threadgroup=96)
    encoder.commit().wait()
    assert np.asarray(y).tolist() == list(range(97))


# Waits for the file argv[1], so that all start at once, and makes the pipelines from argv[2] to argv[3].
BUILDER = f"""
import sys, time
from pathlib import Path
import metalane as ml

SOURCE = {SOURCE!r}
device = ml.Device("metal")
device.registry.register_source("work", SOURCE)
print("ready", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.001)
for pace in range(int(sys.argv[2]), int(sys.argv[3])):
    device.registry.pipeline("work::stepped", constants={{"pace": pace, "weights": (1, 2, 3)}})
"""


@pytest.mark.usefixtures("whole_system")
class TestArchive:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("METALANE_CACHE_DIR", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def hits_and_misses(self) -> tuple[int, int]:
        before = DOUBLE.count(b"archive hits"), DOUBLE.count(b"archive misses")
        device = device_with_source(pipeline_archive=True)
        device.registry.pipeline("work::scale")
        device.registry.pipeline("work::stepped", constants={"pace": 2, "weights": (1, 2, 3)})
        return DOUBLE.count(b"archive hits") - before[0], DOUBLE.count(b"archive misses") - before[1]

    def test_pipelines_come_back(self, folder: Path) -> None:
        assert self.hits_and_misses() == (0, 2)
        assert len(list(folder.glob("*.metalarchive"))) == 1
        assert self.hits_and_misses() == (2, 0)

    def test_processes_keep_each_others_pipelines(self, folder: Path) -> None:
        """Three processes add to one file at once while another has it open; then the same to a file that is torn."""
        constants = [{"pace": pace, "weights": (1, 2, 3)} for pace in range(6)]
        for each in constants:  # compiled by the double beforehand: what is left to the processes is quick
            device_with_source().registry.pipeline("work::stepped", constants=each)
        for torn in (False, True):
            own = {"pace": 7 + torn, "weights": (1, 2, 3)}
            held = device_with_source(pipeline_archive=True)
            held.registry.pipeline("work::scale")
            [path] = folder.glob("*.metalarchive")
            if torn:
                path.write_bytes(path.read_bytes()[:-1])
            self.build_in_processes(folder / f"start{torn}", 3, 2)
            held.registry.pipeline("work::stepped", constants=own)
            del held
            before = DOUBLE.count(b"archive hits"), DOUBLE.count(b"archive misses")
            registry = device_with_source(pipeline_archive=True).registry
            for each in constants:
                registry.pipeline("work::stepped", constants=each)
            registry.pipeline("work::stepped", constants=own)
            assert DOUBLE.count(b"archive hits") == before[0] + 7
            assert DOUBLE.count(b"archive misses") == before[1]
            assert list(folder.glob("tmp-*")) == []
            assert list(folder.glob("*.metalarchive")) == [path]

    def build_in_processes(self, start: Path, processes: int, pipelines: int) -> None:
        whole_system = {name: value for name, value in os.environ.items() if name != "METAL_DOUBLE_SYSTEM"}
        running = [
            subprocess.Popen(
                [sys.executable, "-c", BUILDER, start, str(first), str(first + pipelines)],
                stdout=subprocess.PIPE,
                text=True,
                env=whole_system,
            )
            for first in range(0, processes * pipelines, pipelines)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        start.touch()
        for process in running:
            assert process.wait(60) == 0
            process.stdout.close()

    def test_what_decides_the_code_decides_the_file(self, folder: Path) -> None:
        def files(selector: str = "metal", math: str = "safe", factor: int = 2) -> int:
            device = ml.Device(selector)
            source = f"kernel void grow(device uint* x [[buffer(0)]]) {{ x[0] *= {factor}; }}"
            device.registry.register_source("grow", source)
            device.registry.pipeline("grow", math=math)
            return len(list(folder.glob("*.metalarchive")))

        assert [files(), files(), files(math="fast"), files(factor=3), files("metal:1")] == [1, 1, 2, 3, 4]
        DOUBLE.set_system(NO_MATH_MODE)
        assert files() == 5

    def test_off(self, folder: Path) -> None:
        device_with_source(pipeline_archive=False).registry.pipeline("work::scale")
        assert list(folder.glob("*.metalarchive")) == []

    @pytest.mark.parametrize("content", [b"", b"no archive at all"])
    def test_a_corrupt_file_is_made_anew(self, folder: Path, content: bytes) -> None:
        self.hits_and_misses()
        [path] = folder.glob("*.metalarchive")
        path.write_bytes(content)
        assert self.hits_and_misses() == (0, 2)
        assert self.hits_and_misses() == (2, 0)

    def test_what_cannot_be_written_is_done_without(self, folder: Path) -> None:
        DOUBLE.fail_archive_writes(10)
        assert self.hits_and_misses() == (0, 2)
        assert list(folder.glob("*.metalarchive")) == []

    def test_the_cap_counts_them(self, folder: Path) -> None:
        self.hits_and_misses()
        kernels = len(list(folder.glob("*.so")))  # the double's own
        assert ml.cpu.kernel_cache_info().entries == kernels + 1
        assert ml.cpu.clear_kernel_cache() == kernels + 1
        assert list(folder.glob("*.metalarchive")) == []
