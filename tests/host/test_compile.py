"""Compiled sources: kernels as attributes, their calls, and how arguments are converted or refused."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from host_memory import paged

import metalane
from devices import KINDS
from metalane import f32, testing, u32

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Inner { float3 v; half h[3]; };
struct Params { float scale; uint count; Inner inner; float4 rows[2]; packed_float3 q; bool flag; float3x3 m; };
struct Particle { packed_float3 position; float mass; };
union Either { float f; uint u; };
constant uint MODE [[function_constant(0)]];
constant bool FLAG [[function_constant(1)]];
constant float GAIN [[function_constant(2)]];

kernel void saxpy(device const float* x, device float* y, constant float& a, uint i [[thread_position_in_grid]]) {
  y[i] += a * x[i];
}
kernel void unpack(device float* out, constant Params& p, device Particle* bodies, threadgroup float* scratch,
                   uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  scratch[i] = p.rows[1][i & 3];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i != 0) return;
  float total = 0;
  for (uint k = 0; k < n; ++k) total += scratch[k];
  const float values[] = {p.scale, float(p.count), p.inner.v.y, float(p.inner.h[2]), p.q.z, float(p.flag),
                          p.m[2][1], total, float(n), bodies[1].mass};
  for (uint k = 0; k < 10; ++k) out[k] = values[k];
  bodies[0].mass = 7;
}
kernel void constants(device float* out) { out[0] = MODE; out[1] = FLAG; out[2] = GAIN; }
kernel void odd(device float* out [[buffer(7)]], constant uint& in [[buffer(2)]], constant int2& threads [[buffer(4)]],
                threadgroup float* a [[threadgroup(1)]], threadgroup half* b [[threadgroup(0)]]) {}
kernel void pointers(constant float* w, device const uchar* raw, device const void* any, device const bool* flags,
                     device const float3* padded, device const packed_float3* packed, constant Either& e,
                     constant Particle* bodies, device const long4* wide, constant bool& on) {}
"""


@pytest.fixture(scope="module")
def compiled(device: metalane.Device) -> metalane.CompiledSource:
    constants = {"MODE": 3, 1: True, "GAIN": 0.5}
    return device.compile(SOURCE, name="kernels.metal", constants=constants)


@pytest.fixture
def null(null_device: metalane.Device) -> metalane.CompiledSource:
    return null_device.compile(SOURCE, name="kernels.metal")


def test_the_example_of_the_documents_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    (program,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ".compile(" in code]
    exec(compile(program, "docs/python.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "[1. 3. 5. 7.]",
        "[0.  1.5 3.  4.5]",
        "[4. 4.]",
        "name    kind    dtype  access      index      declaration",
        "bodies  buffer  Body   read_write  buffer(0)  device Body* bodies",
        "step    struct  Step   read        buffer(1)  constant Step& step",
    ]


def test_the_example_program_agrees_with_numpy() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "user_kernel.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Heat after 200 steps")


def launch(kernel: metalane.CompiledKernel, *args: Any, **named: Any) -> testing.RecordedLaunch:
    kernel(*args, **named)
    (recorded,) = testing.last_record(kernel._device)
    return recorded


PARAMS = {
    "scale": 1.5,
    "count": 3,
    "inner": {"v": (1, 2, 3), "h": [1, 2, 4]},
    "rows": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "q": np.array([7, 8, 9.0]),
    "flag": np.True_,
    "m": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
}


def test_a_call_with_arrays_is_done_when_it_returns(compiled: metalane.CompiledSource) -> None:
    x, y = np.arange(1000, dtype=np.float32), paged(np.ones(1000, np.float32))
    assert compiled.saxpy(x, y, 2.0, threads=1000).done
    np.testing.assert_array_equal(y, 1 + 2 * np.arange(1000))
    compiled.saxpy(a=np.float32(-1), y=y, x=x, threads=1000)
    np.testing.assert_array_equal(y, 1 + np.arange(1000))
    # A strided input is copied, a list is typed by the signature.
    compiled.saxpy(x[::-1], y, 1, threads=1000)
    np.testing.assert_array_equal(y, np.full(1000, 1000))
    compiled.saxpy([1, 2.5], y, True, threads=2)
    assert y[:3].tolist() == [1001, 1002.5, 1000]
    compiled.saxpy(list(range(2000)), y, 0.5, threads=1000)  # too long to go inline
    np.testing.assert_array_equal(y[3:], 1000 + 0.5 * np.arange(3, 1000))


def test_buffers_are_read_when_the_launch_is_done(compiled: metalane.CompiledSource) -> None:
    device = compiled.saxpy.pipeline and compiled.saxpy._device
    x, y = device.from_numpy(np.arange(64, dtype=np.float32)), device.zeros(64, "f32")
    for _ in range(50):
        compiled.saxpy(x, y, 1.0, threads=64)
    np.testing.assert_array_equal(y.numpy(), 50 * np.arange(64))
    with device.command_encoder() as encoder:
        assert compiled.saxpy(x, y, 1.0, threads=64, encoder=encoder) is None
        assert compiled.saxpy(x, y, 1.0, threads=64, encoder=encoder) is None
        assert (encoder.launches, encoder.barriers) == (2, 1)
    np.testing.assert_array_equal(y.numpy(), 52 * np.arange(64))
    assert compiled.saxpy(x, y, 1.0, threads=64, wait=True).status == "done"
    host = paged(np.zeros(64, np.float32))
    ticket = compiled.saxpy(x, host, 1.0, threads=64, wait=False, timeout=60)
    ticket.wait()
    np.testing.assert_array_equal(host, np.arange(64))


@pytest.mark.parametrize("form", ["dict", "mapping", "dataclass", "record", "bytes"])
def test_structs_reach_the_kernel(compiled: metalane.CompiledSource, form: str) -> None:
    dtype = compiled.unpack.arguments["p"].dtype
    record = np.zeros((), dtype)
    for name, value in PARAMS.items():
        if name == "inner":
            record["inner"]["v"], record["inner"]["h"] = value["v"], value["h"]
        elif name == "m":
            record["m"][:, :3] = value  # a column takes the room of four
        else:
            record[name] = value
    made = dataclasses.make_dataclass("Params", list(PARAMS))(**PARAMS)
    given = {
        "dict": PARAMS,
        "mapping": MappingProxyType({**PARAMS, "inner": UserDict(PARAMS["inner"])}),
        "dataclass": made,
        "record": record[()],
        "bytes": record.tobytes(),
    }[form]
    bodies = paged(np.zeros(2, compiled.unpack.arguments["bodies"].dtype))
    bodies["mass"] = 1, 11
    out = paged(np.full(11, -1, np.float32))
    compiled.unpack(
        out, given, bodies, threadgroups=1, threads_per_threadgroup=8, threadgroup_memory={"scratch": 32}
    )
    assert out.tolist() == [1.5, 3, 2, 4, 9, 1, 8, 2 * (4 + 5 + 6 + 7), 8, 11, -1]
    assert bodies["mass"].tolist() == [7, 11]


def test_constants(compiled: metalane.CompiledSource, null: metalane.CompiledSource) -> None:
    out = paged(np.full(4, -1, np.float32))
    compiled.constants(out, threads=1)
    assert out.tolist() == [3, 1, 0.5, -1]
    free = compiled.constants._device.compile(SOURCE)
    free.constants(out, threads=1, constants={0: 9, "FLAG": np.False_, "GAIN": 2})
    assert out.tolist() == [9, 0, 2, -1]
    assert "MODE:9" in next(iter(free.constants._pipelines.values())).key
    assert compiled.constants.constants == {"MODE": 3, "FLAG": True, "GAIN": 0.5}
    with pytest.raises(metalane.ArgumentError, match=r"constants: constants\['MODE'\] must be left out"):
        compiled.constants(out, threads=1, constants={"MODE": 4})
    with pytest.raises(metalane.ArgumentError, match="MODE"):
        free.constants(out, threads=1)


@pytest.mark.parametrize(
    ("constants", "error", "words"),
    [
        ({"MODES": 1}, metalane.ArgumentError, "one of MODE .0., FLAG .1., GAIN .2.; did you mean 'MODE'"),
        ({7: 1}, metalane.ArgumentError, r"constants\[7\]"),
        ({True: 1}, metalane.ArgumentError, "no such constant"),
        ({("MODE",): 1}, metalane.ArgumentError, "no such constant"),
        ({"MODE": -1}, metalane.ArgumentError, "integer from 0 to 4294967295, got -1"),
        ({"MODE": 1 << 32}, metalane.ArgumentError, "integer from 0"),
        ({"MODE": 1.0}, metalane.DTypeError, "integer from 0"),
        ({"MODE": None}, metalane.DTypeError, "integer from 0"),
        ({"FLAG": 1}, metalane.DTypeError, "True or False"),
        ({"GAIN": 1e39}, metalane.ArgumentError, "range of f32"),
        ({"GAIN": "1"}, metalane.DTypeError, "a number"),
        ({"GAIN": [1.0]}, metalane.DTypeError, "one number"),
        ({"MODE": 1, 0: 1}, metalane.ArgumentError, "given once"),
        ([("MODE", 1)], metalane.DTypeError, "constants must be a dict"),
    ],
)
def test_wrong_constants_are_refused_alike(
    null: metalane.CompiledSource, constants: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        null.device.compile(SOURCE, constants=constants)
    with pytest.raises(error, match=words):
        null.constants(null.device.zeros(4, "f32"), threads=1, constants=constants)


def test_arguments_that_share_an_index_take_either_type(null_device: metalane.Device) -> None:
    kernel = null_device.compile("""
    constant bool WIDE [[function_constant(0)]];
    kernel void f(device const float* wide [[buffer(0), function_constant(WIDE)]],
                  device const half* narrow [[buffer(0), function_constant(WIDE)]], device uint* out [[buffer(1)]]) {}
    """).f
    out = null_device.zeros(1, "u32")
    for name, dtype in (("wide", np.float32), ("narrow", np.float16)):
        recorded = launch(kernel, **{name: np.zeros(6, dtype)}, out=out, threads=1, constants={"WIDE": True})
        assert recorded.buffers[0][1] == 6 * dtype().itemsize
    with pytest.raises(
        metalane.ArgumentError, match="argument 'narrow' must be given once, got by two names"
    ):
        kernel(wide=out, narrow=out, out=out, threads=1)


@pytest.mark.cpu
def test_what_goes_wrong_in_a_kernel_is_raised_by_its_call() -> None:
    device = metalane.Device("cpu", check=False)  # the checker finds it before it happens
    faulty = device.compile("""
    #include <metal_stdlib>
    kernel void stray(device float* x) { x[1L << 44] = 1; }
    kernel void six(device float* x) { x[0] = 6; }
    kernel void endless(device metal::atomic_uint* x) {
      while (true) metal::atomic_fetch_add_explicit(x, 1u, metal::memory_order_relaxed);
    }
    """)
    out = paged(np.zeros(1, np.float32))
    with pytest.raises(metalane.CommandBufferError, match="stray"):
        faulty.stray(out, threads=1)
    buffer = device.zeros(1, "f32")
    ticket = faulty.stray(buffer, threads=1)
    with pytest.raises(metalane.CommandBufferError, match="stray"):
        buffer.numpy()
    assert ticket.status == "failed"
    with pytest.raises(metalane.CommandBufferError) as caught:
        faulty.endless(paged(np.zeros(1, np.uint32)), threads=1, timeout=0.05)
    assert caught.value.code == "timeout"
    faulty.six(out, threads=1)
    assert out.tolist() == [6]


def test_large_sources_show_some_of_their_kernels(null_device: metalane.Device) -> None:
    compiled = null_device.compile("".join(f"kernel void k{i}(device float* x) {{}}\n" for i in range(50)))
    assert len(compiled) == 50
    assert repr(compiled).endswith("k5(device float* x), ... (50 kernels)>")


def test_names_and_what_they_show(null: metalane.CompiledSource) -> None:
    assert list(null) == ["saxpy", "unpack", "constants", "odd", "pointers"]
    assert len(null) == 5
    assert "saxpy" in null
    assert "x" not in null
    assert null.saxpy is null["saxpy"] is getattr(null, "saxpy")  # noqa: B009
    assert {"saxpy", "odd", "device"} <= set(dir(null))
    assert null._ipython_key_completions_() == list(null)
    assert not hasattr(null, "nothing")
    for name in ("saxpi", "_x", "__fspath__"):
        with pytest.raises(
            AttributeError, match=f"source 'kernels.metal' has no kernel '{name}'; it has: saxpy, "
        ):
            getattr(null, name)
    with pytest.raises(AttributeError, match="did you mean 'saxpy'"):
        null.saxpi  # noqa: B018
    for key in ("saxpi", 0, None, ["saxpy"]):
        with pytest.raises(KeyError, match="has no kernel"):
            null[key]
    declared = "saxpy(device const float* x, device float* y, constant float& a)"
    assert repr(null.saxpy) == f"<kernel {declared} of 'kernels.metal' on null>"
    assert repr(null).startswith(f"<CompiledSource 'kernels.metal' on null: {declared}, unpack(")
    assert null.saxpy.__doc__.startswith(declared)
    assert null.saxpy.name == null.saxpy.__name__ == "saxpy"
    assert [str(p) for p in inspect.signature(null.odd).parameters.values()][:3] == [
        "in_: 'constant uint& in'",
        "threads_: 'constant int2& threads'",
        "out: 'device float* out'",
    ]
    for value in (null, null.saxpy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(value)
        with pytest.raises(TypeError, match="cannot be pickled"):
            copy.copy(value)


def test_arguments_show_what_a_kernel_takes(null: metalane.CompiledSource) -> None:
    x, y, a = null.saxpy.arguments
    assert (x.name, x.kind, x.dtype, x.access, x.index) == ("x", "buffer", np.float32, "read", 0)
    assert (y.kind, y.access, a.kind, a.access) == ("buffer", "read_write", "scalar", "read")
    assert repr(null.saxpy.arguments).splitlines() == [
        "name  kind    dtype    access      index      declaration",
        "x     buffer  float32  read        buffer(0)  device const float* x",
        "y     buffer  float32  read_write  buffer(1)  device float* y",
        "a     scalar  float32  read        buffer(2)  constant float& a",
    ]
    assert null.saxpy.arguments[-1].name == null.saxpy.arguments["a"].name == "a"
    assert [a.name for a in null.saxpy.arguments[1:]] == ["y", "a"]
    with pytest.raises(KeyError):
        null.saxpy.arguments["b"]
    kinds = {a.name: (a.kind, a.dtype, a.size, a.alignment) for a in null.odd.arguments}
    assert kinds["threads"] == ("vector", np.int32, 8, 8)
    assert kinds["b"] == ("threadgroup", np.float16, 2, 2)
    any_ = null.pointers.arguments["any"]
    assert (any_.kind, any_.dtype, any_.size) == ("buffer", None, 0)
    assert null.unpack.arguments["bodies"].dtype == np.dtype([("position", "f4", 3), ("mass", "f4")])


def test_launch_options_on_the_null_device(null: metalane.CompiledSource) -> None:
    device = null.device
    x, y = device.zeros(8, "f32"), device.zeros(8, "f32")
    whole = launch(null.saxpy, x, y, 2, threads=8)
    assert (whole.kernel, whole.buffers) == ("saxpy", {0: (x.address, 32), 1: (y.address, 32)})
    assert whole.bytes == {2: np.float32(2).tobytes()}
    assert (whole.grid_kind, whole.grid, whole.threads_per_threadgroup) == ("threads", (8, 1, 1), (256, 1, 1))
    groups = launch(null.saxpy, x, y, 2, threadgroups=(2, 3), threads_per_threadgroup=(4, 5))
    assert (groups.grid_kind, groups.grid, groups.threads_per_threadgroup) == (
        "threadgroups",
        (2, 3, 1),
        (4, 5, 1),
    )
    counts = device.zeros(3, "u32")
    assert launch(null.saxpy, x, y, 2, threadgroups=counts).grid_kind == "indirect"
    by_name = launch(null.odd, threads_=(1, -2), in_=7, out=x, threads=1, threadgroup_memory={"a": 16, 0: 48})
    assert by_name.buffers == {7: (x.address, 32)}
    assert by_name.bytes == {2: np.uint32(7).tobytes(), 4: np.array([1, -2], np.int32).tobytes()}
    assert by_name.threadgroup_memory == {0: 48, 1: 16}
    by_position = launch(null.odd, 7, [1, -2], x, threads=1, threadgroup_memory=[48, 16])
    assert (by_position.bytes, by_position.threadgroup_memory) == (by_name.bytes, by_name.threadgroup_memory)


@pytest.mark.parametrize(
    ("threads", "limit", "group"),
    [
        (5, 1024, (256, 1, 1)),
        ([7], 100, (100, 1, 1)),
        ((1000, 1000), 1024, (32, 8, 1)),
        ((3, 1000), 1024, (4, 64, 1)),
        ((1000, 2), 1024, (128, 2, 1)),
        ((64, 64, 64), 1024, (32, 8, 1)),
        ((2, 2, 1000), 1024, (2, 2, 64)),
        ((1, 1, 9), 1024, (1, 1, 16)),
        ((33, 33, 33), 1, (1, 1, 1)),
        ((50, 50), 48, (48, 1, 1)),
    ],
)
def test_default_threadgroups(threads: Any, limit: int, group: tuple[int, int, int]) -> None:
    axes = [threads] if isinstance(threads, int) else threads
    assert metalane.compiled.default_threadgroup(axes, limit, 32) == group


def test_a_declared_limit_is_the_default(null_device: metalane.Device) -> None:
    source = "[[max_total_threads_per_threadgroup(96)]] kernel void f(device float* x) {}"
    kernel = null_device.compile(source).f
    buffer = null_device.zeros(1, "f32")
    for grid in ({"threads": 1000}, {"threadgroups": 3}, {"threads": (1000,)}):
        assert launch(kernel, buffer, **grid).threads_per_threadgroup == (96, 1, 1)
    assert launch(kernel, buffer, threads=(9, 9)).threads_per_threadgroup == (16, 6, 1)


READONLY = np.zeros(8, np.float32)
READONLY.flags.writeable = False
MISALIGNED = np.zeros(33, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize(
    ("args", "named", "error", "words"),
    [
        ((), {}, metalane.ArgumentError, "saxpy: argument 'x' must be given .x of x, y, a., got nothing"),
        (("x", "y", 1, 2), {}, metalane.ArgumentError, "at most 3 .x, y, a., got 4"),
        (("x", "y"), {"b": 1}, metalane.ArgumentError, "argument 'b' must be one of x, y, a, got no such"),
        (("x", "y", 1), {"x": "x"}, metalane.ArgumentError, "argument 'x' must be given once, got by position"),
        (("x", "y"), {"a": 1, "a_": 1}, metalane.ArgumentError, "argument 'a' must be given once, got by two"),
        (("x", "y", None), {}, metalane.DTypeError, "saxpy: a must be a number"),
        (("x", "y", "1"), {}, metalane.DTypeError, "saxpy: a must be a number"),
        (("x", "y", 1e39), {}, metalane.ArgumentError, "range of f32"),
        (("x", "y", 1 << 200), {}, metalane.ArgumentError, "range of f32"),
        (("x", "y", [1.0]), {}, metalane.DTypeError, "one number"),
        (("x", "y", np.zeros(1, np.float32)), {}, metalane.DTypeError, "one number"),
        (("x", "y", 1j), {}, metalane.DTypeError, "a number"),
        (("x", "y", b"123"), {}, metalane.ArgumentError, "4 bytes"),
        (("x", 1.0, 1), {}, metalane.DTypeError, "argument 'y' must be a Buffer, or a NumPy or DLPack array"),
        (("x", b"1234", 1), {}, metalane.ArgumentError, "may write"),
        (("x", [1.0], 1), {}, metalane.DTypeError, "argument 'y' must be a Buffer"),
        (("x", READONLY, 1), {}, metalane.ArgumentError, "argument 'y' must be writable"),
        (("x", np.zeros(16, "f4")[::2], 1), {}, metalane.ArgumentError, "in place.*strides .8,."),
        (("x", MISALIGNED, 1), {}, metalane.ArgumentError, "in place .*address at a multiple of"),
        (("x", np.zeros(8), 1), {}, metalane.DTypeError, "of dtype float32 .device float. y.*got dtype float64"),
        (("x", np.zeros(8, ">f4"), 1), {}, metalane.DTypeError, "got dtype >f4"),
        (("x", np.zeros(8, object), 1), {}, metalane.DTypeError, "got dtype object"),
        ((np.zeros(8, "i4"), "y", 1), {}, metalane.DTypeError, "argument 'x' must be of dtype float32"),
        (("bytes", "y", 1), {}, metalane.DTypeError, "got dtype uint8"),
        ((None, "y", 1), {}, metalane.DTypeError, "saxpy: x"),
        (("abc", "y", 1), {}, metalane.DTypeError, "saxpy: x"),
        (([], "y", 1), {}, metalane.ArgumentError, "saxpy: x must be at least one element, got none"),
        (([1, "2"], "y", 1), {}, metalane.DTypeError, r"saxpy: x\[1\] must be a number"),
        (([[1]], "y", 1), {}, metalane.DTypeError, r"saxpy: x\[0\] must be one number"),
        (("released", "y", 1), {}, metalane.ArgumentError, "released"),
        (("foreign", "y", 1), {}, metalane.ArgumentError, "another device"),
        (("x", "readonly", 1), {}, metalane.ArgumentError, "read-only"),
        (("x", "y", 1), {"threads": None}, metalane.ArgumentError, "threadgroups and threads"),
        (("x", "y", 1), {"threadgroups": 1}, metalane.ArgumentError, "threadgroups and threads"),
        (("x", "y", 1), {"threads": 0}, metalane.ArgumentError, "threads"),
        (("x", "y", 1), {"threads": -1}, metalane.ArgumentError, "threads"),
        (("x", "y", 1), {"threads": "8"}, metalane.DTypeError, "threads"),
        (("x", "y", 1), {"threads": (1, 2, 3, 4)}, metalane.ArgumentError, "threads"),
        (("x", "y", 1), {"threads": (1, "2")}, metalane.DTypeError, "threads"),
        (("x", "y", 1), {"threads_per_threadgroup": 2000}, metalane.ArgumentError, "threads_per_threadgroup"),
        (("x", "y", 1), {"threadgroup_memory": 16}, metalane.ArgumentError, "threadgroup memory 0"),
        (("x", "y", 1), {"threadgroup_memory": {"s": 16}}, metalane.ArgumentError, "keys among none, got 's'"),
        (("x", "y", 1), {"encoder": 3}, metalane.DTypeError, "saxpy: encoder must be a CommandEncoder"),
        (("x", "y", 1), {"wait": 1}, metalane.DTypeError, "saxpy: wait must be True, False or None"),
        (("x", "y", 1), {"timeout": "1"}, metalane.DTypeError, "timeout"),
        (("x", "y", 1), {"timeout": -1}, metalane.ArgumentError, "timeout"),
        (("x", "y", 1), {"constants": 3}, metalane.DTypeError, "saxpy: constants must be a dict"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused(
    null: metalane.CompiledSource, args: Any, named: Any, error: type[Exception], words: str
) -> None:
    device = null.device
    released = device.zeros(8, "f32")
    released.release()
    known = {
        "x": device.zeros(8, "f32"),
        "y": device.zeros(8, "f32"),
        "bytes": device.zeros(8, "u8"),
        "released": released,
        "foreign": metalane.Device("null").zeros(8, "f32"),
        "readonly": device.zeros(8, "f32").as_readonly(),
    }
    given = [known.get(arg, arg) if isinstance(arg, str) else arg for arg in args]
    named = {key: known["x"] if key == "x" else value for key, value in named.items()}
    if "threadgroups" not in named:
        named = {"threads": 8, **named}
    elif named["threadgroups"] == 1:
        named["threads"] = 8
    before = launch(null.saxpy, known["x"], known["y"], 5, threads=3)
    with pytest.raises(error, match=words) as caught:
        null.saxpy(*given, **named)
    assert isinstance(caught.value, metalane.Error)
    assert testing.last_record(device) == [before]


def test_an_encoder_stays_as_it_was_when_a_call_is_refused(null: metalane.CompiledSource) -> None:
    device = null.device
    x, y = device.zeros(8, "f32"), device.zeros(8, "f32")
    with device.command_encoder() as encoder:
        null.saxpy(x, y, 1, threads=8, encoder=encoder)
        for option in ({"wait": False}, {"timeout": 1.0}, {"threads": 0}):
            with pytest.raises(metalane.ArgumentError):
                null.saxpy(x, y, 1, **{"threads": 8, **option}, encoder=encoder)
        with pytest.raises(metalane.ArgumentError, match="another device"):
            metalane.Device("null").compile(SOURCE).saxpy(x, y, 1, threads=8, encoder=encoder)
        assert (encoder.is_open, encoder.launches) == (True, 1)


def pointers(**changed: Any) -> dict[str, Any]:
    given = {
        "w": [1.0],
        "raw": b"1",
        "any": b"1",
        "flags": np.zeros(3, bool),
        "padded": np.zeros((3, 4), "f4"),
        "packed": np.zeros((5, 3), "f4"),
        "e": {"u": 1},
        "bodies": np.zeros(3, "f4"),
        "wide": np.zeros((2, 4), "i8"),
        "on": True,
    }
    return {**given, **changed}


def test_what_each_pointer_takes(null: metalane.CompiledSource) -> None:
    def bound(name: str, value: Any) -> bytes:
        recorded = launch(null.pointers, **pointers(**{name: value}), threads=1)
        index = null.pointers.arguments[name].index
        if index in recorded.bytes:
            return recorded.bytes[index]
        return recorded.buffers[index][1]

    assert bound("w", [1, 2.5]) == np.array([1, 2.5], "f4").tobytes()
    assert bound("w", 3) == np.float32(3).tobytes()
    assert bound("w", list(range(1025))) == 4100  # beyond what goes inline
    assert bound("raw", b"abc") == b"abc"
    assert bound("raw", bytes(5000)) == 5000
    for array in (
        np.zeros(3, "c16"),
        np.zeros(6),
        np.zeros(6, "S8"),
        np.zeros((2, 3), ">i8"),
        np.zeros(6, "M8[s]"),
    ):
        assert bound("raw", array) == bound("any", array) == 48
    assert bound("flags", [True, np.False_]) == b"\1\0"
    assert bound("flags", np.zeros(4, np.uint8)) == 4
    assert bound("padded", (1, 2, 3)) == np.array([1, 2, 3, 0], "f4").tobytes()
    assert bound("padded", [(1, 2, 3)] * 2) == np.array([1, 2, 3, 0] * 2, "f4").tobytes()
    assert bound("packed", [(1, 2, 3), np.array([4, 5, 6])]) == np.arange(1, 7, dtype="f4").tobytes()
    assert bound("e", {"f": 1.0}) == np.float32(1).tobytes()
    body = {"position": (1, 2, 3), "mass": 4}
    assert bound("bodies", body) == np.array([1, 2, 3, 4], "f4").tobytes()
    assert bound("bodies", [body, body]) == np.array([1, 2, 3, 4] * 2, "f4").tobytes()
    assert bound("bodies", np.zeros(2, null.pointers.arguments["bodies"].dtype)) == 32
    assert bound("bodies", np.zeros(0, null.pointers.arguments["bodies"].dtype)) == 0
    assert bound("on", False) == b"\0"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("any", 1, "any must be bytes"),
        ("any", [1], r"any\[0\] must be bytes"),
        ("raw", np.zeros(2, object), "an array of numbers"),
        ("raw", np.ma.zeros(2, np.uint8), "without a mask"),
        ("flags", np.zeros(2, np.int8), "dtype bool"),
        ("flags", [1], r"flags\[0\] must be True or False"),
        ("padded", np.zeros((4, 3), "f4"), "padded to four numbers an element.*shape .4, 3."),
        ("padded", (1, 2), "padded must be 3 numbers, got 2"),
        ("padded", [(1, 2, 3), (1, 2)], r"padded\[1\] must be 3 numbers, got 2"),
        ("e", {}, "one of the members f, u"),
        ("e", {"f": 1, "u": 1}, "one of the members f, u"),
        ("e", 1, "a struct Either"),
        ("bodies", {"position": (1, 2, 3)}, "bodies.mass must be given, got nothing"),
        ("bodies", [{"position": (1, 2, 3), "mass": "4"}], r"bodies\[0\].mass must be a number"),
        (
            "bodies",
            {"position": (1, 2, 3), "mass": 4, "weight": 1},
            "the fields position, mass, got 'weight'",
        ),
        ("bodies", {"position": (1, 2), "mass": 4}, "bodies.position must be 3 numbers, got 2"),
        ("bodies", np.zeros(2, [("mass", "f4"), ("position", "f4", 3)]), "records of dtype"),
        (
            "bodies",
            [np.zeros((), [("position", "f4", 3), ("mass", "f8")])[()]],
            r"bodies\[0\].mass must be dtype",
        ),
        ("wide", np.zeros(8, "i4"), "dtype int64"),
        ("on", 1, "on. must be True or False"),
    ],
)
def test_what_pointers_refuse(null: metalane.CompiledSource, name: str, value: Any, words: str) -> None:
    with pytest.raises(metalane.ArgumentError, match=words):
        null.pointers(**pointers(**{name: value}), threads=1)


def test_metal_structs_are_compared_with_the_source(null: metalane.CompiledSource) -> None:
    @metalane.metal_struct
    class Particle:
        position: f32[3]
        mass: f32

    @metalane.metal_struct
    class Body:
        position: metalane.vec(f32, 3, packed=True)
        mass: f32

    recorded = launch(null.pointers, **pointers(bodies=Body((1, 2, 3), 4)), threads=1)
    assert recorded.bytes[7] == np.array([1, 2, 3, 4], "f4").tobytes()
    for given in (Particle((1, 2, 3), 4), [Particle((1, 2, 3), 4)]):
        with pytest.raises(
            metalane.ArgumentError, match="position .struct Particle. must be of type f32x3, got f32"
        ):
            null.pointers(**pointers(bodies=given), threads=1)

    @metalane.metal_struct
    class One:
        u: u32

    with pytest.raises(metalane.ArgumentError, match="Either|One"):
        null.pointers(**pointers(e=One(1)), threads=1)


class Tensor:
    """Only DLPack, as other packages' arrays."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack_arrays_are_used_in_place_or_refused(compiled: metalane.CompiledSource) -> None:
    x, y = paged(np.arange(8, dtype=np.float32)), paged(np.zeros(8, np.float32))
    assert compiled.saxpy(Tensor(x), Tensor(y), 3.0, threads=8).done
    np.testing.assert_array_equal(y, 3 * x)
    for given, words in (
        (Tensor(np.zeros(16, np.float32)[::2]), "argument 'y' must be usable without a copy: .*contiguous"),
        (Tensor(np.zeros(8)), "argument 'y' must be"),
        (Tensor(paged(np.zeros(8, np.int32))), "argument 'y' must be of dtype float32"),
    ):
        with pytest.raises(metalane.ArgumentError, match=words):
            compiled.saxpy(x, given, 1.0, threads=8)


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        (3, {}, metalane.DTypeError, "Device.compile: source must be a str, got 3 .int."),
        (None, {}, metalane.DTypeError, "source"),
        (b"kernel", {}, metalane.DTypeError, "source"),
        ("\ud800", {}, metalane.ArgumentError, "UTF-8"),
        ("", {}, metalane.ArgumentError, "a source with a kernel"),
        ("void f() {}", {}, metalane.ArgumentError, "a source with a kernel"),
        (SOURCE, {"name": ""}, metalane.ArgumentError, "name"),
        (SOURCE, {"name": "a::b"}, metalane.ArgumentError, "name"),
        (SOURCE, {"name": "a\nb"}, metalane.ArgumentError, "name"),
        (SOURCE, {"name": 1}, metalane.DTypeError, "name"),
        (SOURCE, {"math": "quick"}, metalane.ArgumentError, "math must be 'safe' or 'fast'"),
        (SOURCE, {"math": None}, metalane.DTypeError, "math"),
        (SOURCE, {"headers": ["a.h"]}, metalane.DTypeError, "headers"),
        (SOURCE, {"headers": {"a.h": 1}}, metalane.DTypeError, "headers.'a.h'."),
        (SOURCE, {"headers": {1: "a"}}, metalane.DTypeError, "headers"),
        ("kernel void f(device float* x", {}, metalane.CompileError, "my.metal"),
        (
            '#include "no.h"\nkernel void f(device float* x) {}',
            {},
            metalane.CompileError,
            "my.metal:1:.*no.h",
        ),
        ("\0\1\2", {}, metalane.Error, "my.metal|Device.compile"),
    ],
)
def test_what_compile_refuses(
    null_device: metalane.Device, source: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        null_device.compile(source, **{"name": "my.metal", **options})


def test_compiler_errors_point_into_the_source(compiled: metalane.CompiledSource) -> None:
    device = compiled.device
    broken = device.compile(
        "kernel void f(device float* x) {\n  x[0] = nonsense;\n}\n", name='my "odd\\ name.metal'
    )
    for attempt in (lambda: broken.f.pipeline, lambda: broken.f(device.zeros(1, "f32"), threads=1)):
        with pytest.raises(metalane.CompileError, match=r"name.metal:2:10(.|\n)*nonsense") as caught:
            attempt()
        assert caught.value.kernel == "f"


def test_headers_and_host_names(null_device: metalane.Device) -> None:
    source = """
    #include "half.h"
    template <typename T> kernel void scale(device T* x, constant T& by) {}
    template [[host_name("scale<float>")]] kernel decltype(scale<float>) scale<float>;
    template [[host_name("ns::scale")]] kernel decltype(scale<HALF>) scale<HALF>;
    """
    compiled = null_device.compile(source, headers={"half.h": "#define HALF half\n"})
    assert list(compiled) == ["scale<float>", "ns::scale"]
    half = compiled["ns::scale"]
    assert half.arguments[0].dtype == np.float16
    recorded = launch(half, np.zeros(2, np.float16), 0.5, threads=2)
    assert recorded.bytes == {1: np.float16(0.5).tobytes()}
    assert "scale<float>" not in dir(compiled)


OPTIONAL = """
#include <metal_stdlib>
using namespace metal;
constant bool has_bias [[function_constant(0)]];
kernel void affine(device float* y [[buffer(0)]], device const float* bias [[buffer(1), function_constant(has_bias)]],
                   constant float& scale [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = scale * y[i];
  if (has_bias) y[i] += bias[i];
}
"""


@pytest.mark.parametrize("kind", ["null", *KINDS])
def test_arguments_that_a_constant_leaves_out(kind: str) -> None:
    device = metalane.Device(kind)
    affine = device.compile(OPTIONAL).affine
    assert [a.is_optional for a in affine.arguments] == [False, True, False]
    bias = np.float32([10, 20, 30])
    ones = [paged(np.ones(3, np.float32)) for _ in range(5)]
    with_bias, without = (
        {"constants": {"has_bias": True}, "threads": 3},
        {"constants": {"has_bias": False}, "threads": 3},
    )
    affine(ones[0], bias, 2.0, **with_bias)
    affine(ones[1], None, 2.0, **without)
    affine(ones[2], scale=2.0, **without)
    affine(y=ones[3], bias=bias, scale=2.0, **without)
    if device.kind != "null":
        assert ones[0].tolist() == [12, 22, 32]
        assert [y.tolist() for y in ones[1:4]] == [[2, 2, 2]] * 3
    for arguments in ((ones[4], None, 2.0), (ones[4],)):
        with pytest.raises(metalane.ArgumentError, match="bias|scale"):
            affine(*arguments, **with_bias)
    with pytest.raises(metalane.ArgumentError, match="argument 'bias' must be given"):
        affine(ones[4], scale=2.0, **with_bias)
    assert ones[4].tolist() == [1, 1, 1]
