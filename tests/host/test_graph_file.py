"""Graphs as files: what a loaded graph launches, and what load() says of files and buffers that do not fit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import metalane
from metalane.testing import RecordedLaunch, last_record

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant bool twice [[function_constant(0)]];
constant float3 shift [[function_constant(1)]];
struct Scale { float factor; uint n; };
kernel void scale(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                  constant Scale& p [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < p.n) y[i] = p.factor * x[i];
}
kernel void add(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                threadgroup float* t [[threadgroup(0)]], uint i [[thread_position_in_grid]]) { y[i] += x[i]; }
kernel void moved(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[i] = (twice ? 2 : 1) * y[i] + shift.y;
}
"""
CONSTANTS = {"twice": True, 1: (0.0, 0.1, -2.5)}


@metalane.metal_struct
class Scale:
    factor: Annotated[float, metalane.f32]
    n: Annotated[int, metalane.u32]


class Program:
    """A bit of everything that a node can have."""

    def __init__(self, device: metalane.Device) -> None:
        self.device = device
        if "kernels" not in device.registry.names:
            device.registry.register_source("kernels", SOURCE)
        self.x, self.y = device.from_numpy(np.arange(64, dtype=np.float32)), device.zeros(64, "f32")
        self.arena = device.zeros(200, "f32")
        self.weight = device.from_numpy(np.arange(144 * 8, dtype=np.uint32).astype(np.uint8))
        self.counts = device.from_numpy(np.array([2, 1, 1], np.uint32))
        self.out = device.zeros((4, 8), "f32")
        self.inner = self.arena.view(4 * 40, (4, 16))

    def record(self, encoder: metalane.CommandEncoder) -> None:
        moved = self.device.registry.pipeline("moved", CONSTANTS)
        a, b = self.arena.view(0, 64), self.arena.view(4 * 64, 64)
        with encoder.label("layer0"):
            with encoder.label("first"):
                encoder.dispatch("scale", [a, self.x, Scale(2.5, 64)], threads=64, threads_per_threadgroup=32)
            encoder.dispatch("add", [b, a], threadgroups=2, threads_per_threadgroup=32, threadgroup_memory=40)
            encoder.dispatch(moved, [b], threadgroups=self.counts, threads_per_threadgroup=32)
        encoder.memory_barrier()
        encoder.copy(b, self.y)
        encoder.fill(self.arena.view(4 * 150, 5), 7.25)
        encoder.set_pending_buffer_ranges([self.x], [self.y, (self.arena.address, self.arena.address + 100)])
        encoder.dispatch(
            "scale", {0: self.y, 1: self.x, 2: Scale(-1, 8)}, threads=64, threads_per_threadgroup=64
        )
        params = metalane.GgmlQuantizedMatmulParams(1, 8, 64, int(metalane.GgmlType.Q4_0))
        metalane.quantized_matmul_ggml(encoder, self.x, self.weight, self.out.view(0, (8,)), params)

    @property
    def named(self) -> dict[str | int, metalane.Buffer]:
        return {"x": self.x, "y": self.y, "arena": self.arena, "weight": self.weight, "out": self.out}

    def graph(self) -> metalane.ComputeGraph:
        encoder = self.device.command_encoder()
        with encoder.capture() as captured:
            self.record(encoder)
        return captured.graph

    def buffers(self) -> dict[str | int, metalane.Buffer]:
        return {**self.named, 0: self.counts}


@pytest.fixture
def program(null_device: metalane.Device) -> Program:
    return Program(null_device)


def described(graph: metalane.ComputeGraph) -> list[Any]:
    return [
        (n.kernel, n.pipeline.constants, n.op, n.call, n.label, n.threads, n.threads_per_threadgroup,
         n.threadgroup_memory, n.reads, n.writes, n.ranges_overridden, n.barrier_before)
        for n in graph.nodes
    ]  # fmt: skip


def record_of(graph: metalane.ComputeGraph) -> list[RecordedLaunch]:
    graph.replay().wait()
    return last_record(graph.device)


def test_a_loaded_graph_is_the_saved_one(program, tmp_path: Path) -> None:
    graph = program.graph()
    for saved in (graph, graph.reorder().graph):
        saved.save(tmp_path / "graph.json", program.named)
        loaded = metalane.ComputeGraph.load(str(tmp_path / "graph.json"), program.device, program.buffers())
        assert described(loaded) == described(saved)
        assert loaded.levels() == saved.levels()
        assert record_of(loaded) == record_of(saved)
        assert [p.message for p in loaded.validate()] == [p.message for p in saved.validate()]
    assert loaded.fuse().fusions == []
    # once more, from the loaded one
    loaded.save(tmp_path / "again.json", program.named)
    again = metalane.ComputeGraph.load(tmp_path / "again.json", program.device, program.buffers())
    assert described(again) == described(loaded)
    assert record_of(again) == record_of(loaded)


def test_other_memory_gives_the_same_bits(cpu_device, tmp_path: Path) -> None:
    """In another place, on another device with the kernels under another name, the bits are those of the eager run."""
    first = Program(cpu_device)
    with cpu_device.command_encoder() as encoder:
        first.record(encoder)
    expected = [buffer.numpy().copy() for buffer in (first.y, first.arena, first.out)]
    assert np.any(expected[2]) and expected[1][150] == 7.25

    Program(cpu_device).graph().save(tmp_path / "plain.json")  # numbers only
    saved = Program(cpu_device)
    saved.graph().save(tmp_path / "named.json", saved.named)
    device = metalane.Device("cpu")
    device.registry.register_source("elsewhere", SOURCE)
    other = Program(device)
    graph = metalane.ComputeGraph.load(tmp_path / "named.json", device, other.buffers())
    graph.replay().wait()
    for wanted, buffer in zip(expected, (other.y, other.arena, other.out), strict=True):
        np.testing.assert_array_equal(buffer.numpy(), wanted)

    third = Program(device)
    numbered = dict(enumerate([third.arena, third.x, third.counts, third.y, third.weight, third.out]))
    metalane.ComputeGraph.load(tmp_path / "plain.json", device, numbered).replay().wait()
    np.testing.assert_array_equal(third.y.numpy(), expected[0])
    np.testing.assert_array_equal(third.arena.numpy(), expected[1])


def test_loaded_launches_are_patched_as_plain_ones(program, tmp_path: Path) -> None:
    graph = program.graph()
    graph.save(tmp_path / "graph.json", program.named)
    loaded = metalane.ComputeGraph.load(tmp_path / "graph.json", program.device, program.buffers())
    change = {"layer0/first": Scale(9, 3)}
    graph.replay(change).wait()
    expected = last_record(program.device)
    loaded.replay(change).wait()
    assert last_record(program.device) == expected
    bad = metalane.GgmlQuantizedMatmulParams(1, 8, 96, int(metalane.GgmlType.Q4_0))
    with pytest.raises(metalane.ArgumentError):
        graph.replay({"quantized_matmul_ggml": bad})
    loaded.replay({"quantized_matmul_ggml": bad}).wait()  # what an operator checks is not in a file


def test_names_of_views(program, tmp_path: Path) -> None:
    encoder = program.device.command_encoder()
    with encoder.capture() as captured:
        encoder.copy(program.inner, program.arena.view(4 * 110, 64))
        encoder.copy(program.inner.view(16, 4), program.y.view(32, 4))
    names = {"inner": program.inner, "unused": program.out}
    captured.graph.save(tmp_path / "graph.json", names)
    document = json.loads((tmp_path / "graph.json").read_text())
    assert document["buffers"] == [
        {"name": "inner", "nbytes": 256, "dtype": "float32", "shape": [4, 16]},
        {"name": 0, "nbytes": 4 * 174},
        {"name": 1, "nbytes": 48},
    ]
    new = program.device.zeros((4, 16), "f32")
    loaded = metalane.ComputeGraph.load(
        tmp_path / "graph.json",
        program.device,
        {"inner": new, 0: program.arena, 1: program.y, "more": program.x},
    )
    record = record_of(loaded)
    assert [launch.buffers[0][0] for launch in record] == [new.address, new.address + 16]
    across = {"inner": program.inner.view(0, 32)}
    with pytest.raises(
        metalane.ArgumentError, match="names must be buffers that launches touch inside or not at all"
    ):
        captured.graph.save(tmp_path / "x.json", across)
    assert not (tmp_path / "x.json").exists()


def test_save_refuses_with_a_reason(program, tmp_path: Path) -> None:
    graph = program.graph()
    target = tmp_path / "graph.json"
    gone = program.device.zeros(4, "f32")
    gone.release()
    other = metalane.Device("null").zeros(4, "f32")
    for names, message in (
        (
            {"a": program.arena, "b": program.arena.view(0, 4)},
            "buffers apart from one another, got 'b' and 'a'",
        ),
        ({"": program.x}, "names must be by printable text"),
        ({"a\n": program.x}, "names must be by printable text"),
        ({3: program.x}, "names must be a dict"),
        ({"x": 3}, "names must be a dict"),
        ([program.x], "names must be a dict"),
        ({"x": gone}, r"names\['x'\] must be a live buffer"),
        ({"x": other}, r"names\['x'\] must be a buffer of the graph's device"),
    ):
        with pytest.raises(metalane.ArgumentError, match=message):
            graph.save(target, names)
    with pytest.raises(metalane.DTypeError, match="path"):
        graph.save(3)
    with pytest.raises(FileNotFoundError):
        graph.save(tmp_path / "no" / "folder")
    encoder = program.device.command_encoder()
    with encoder.capture() as captured:
        encoder.set_pending_buffer_ranges([program.out], [])
        encoder.copy(program.x, program.y)
    with pytest.raises(
        metalane.ArgumentError, match=r"nodes\[0\].reads must be inside a buffer that the graph binds"
    ):
        captured.graph.save(target)
    captured.graph.save(target, {"out": program.out})
    program.y.release()
    with pytest.raises(metalane.ArgumentError, match=r"nodes\[0\] must be launches of live buffers"):
        captured.graph.save(target)


def test_arrays_that_overlap_need_one_name(cpu_device, tmp_path: Path) -> None:
    memory = np.zeros(4096, np.float32)
    encoder = cpu_device.command_encoder()
    with encoder.capture() as captured:
        encoder.copy(cpu_device.wrap(memory[:2048]), cpu_device.wrap(memory[2048:]))
        encoder.fill(cpu_device.wrap(memory[1024:3072]), 0)
    with pytest.raises(metalane.ArgumentError, match="name one buffer that holds them"):
        captured.graph.save(tmp_path / "graph.json")
    whole = cpu_device.wrap(memory)
    captured.graph.save(tmp_path / "graph.json", {"memory": whole})
    loaded = metalane.ComputeGraph.load(tmp_path / "graph.json", cpu_device, {"memory": whole})
    assert loaded.levels() == captured.graph.levels() == [0, 1]


@pytest.fixture
def document(program, tmp_path: Path) -> dict[str, Any]:
    program.graph().save(tmp_path / "graph.json", program.named)
    loaded: dict[str, Any] = json.loads((tmp_path / "graph.json").read_text())
    return loaded


def load(program: Program, tmp_path: Path, document: Any) -> metalane.ComputeGraph:
    (tmp_path / "changed.json").write_text(json.dumps(document))
    return metalane.ComputeGraph.load(tmp_path / "changed.json", program.device, program.buffers())


def test_buffers_that_do_not_fit(program, document, tmp_path: Path) -> None:
    gone = program.device.zeros(64, "f32")
    gone.release()
    for change, error, message in (
        (
            {"x": program.device.zeros(64, "u32")},
            metalane.DTypeError,
            r"buffers\['x'\] must be of dtype float32, got uint32",
        ),
        (
            {"x": program.device.zeros((8, 8), "f32")},
            metalane.ArgumentError,
            r"buffers\['x'\] must be of shape \[64\], got \[8, 8\]",
        ),
        ({"x": gone}, metalane.ArgumentError, r"buffers\['x'\] must be a live buffer"),
        ({"x": 3}, metalane.DTypeError, r"buffers\['x'\] must be a buffer"),
        (
            {"x": None, 0: None},
            metalane.ArgumentError,
            "buffers must be with 'x', 0, too, which the graph binds",
        ),
        (
            {0: program.counts.view(0, 2)},
            metalane.ArgumentError,
            r"buffers\[0\] must be of at least 12 bytes, got 8",
        ),
        ({0: program.device.zeros(3, "f32").view(0, 12, "u8")}, metalane.ArgumentError, None),
        ({"y": program.y.as_readonly()}, metalane.ArgumentError, r"field nodes\[3\]: .*writable"),
        (
            {"x": metalane.Device("null").zeros(64, "f32")},
            metalane.ArgumentError,
            r"field nodes\[0\]: .*another device",
        ),
    ):
        (tmp_path / "g.json").write_text(json.dumps(document))
        given = {**program.buffers(), **change}
        if message is None:  # any memory will do for a number
            metalane.ComputeGraph.load(tmp_path / "g.json", program.device, given)
            continue
        with pytest.raises(error, match=message):
            metalane.ComputeGraph.load(tmp_path / "g.json", program.device, given)
    with pytest.raises(metalane.DTypeError, match="buffers must be a dict"):
        metalane.ComputeGraph.load(tmp_path / "g.json", program.device, [program.x])
    with pytest.raises(metalane.DTypeError, match="device must be a Device"):
        metalane.ComputeGraph.load(tmp_path / "g.json", "cpu", {})


def test_kernels_must_be_of_the_same_source(program, document, tmp_path: Path) -> None:
    program.device.registry.register_source("kernels", SOURCE + "\n")
    message = (
        r'field kernels\[0\]: no source with the hash [0-9a-f]{64} has a kernel "scale"; other.* do: kernels$'
    )
    with pytest.raises(metalane.ArgumentError, match=message):
        load(program, tmp_path, document)
    program.device.registry.register_source("old ones", SOURCE)  # two sources have the kernels now
    record_of(load(program, tmp_path, document))


def put(document: Any, path: list[Any], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


BINDING = ["nodes", 0, "bindings", 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "gguf", "field format must be one of metalane graph"),
        (["version"], 2, "field version must be 1, the one that this metalane reads"),
        (["more"], 1, "field the document must be an object of .* got one with 'more'"),
        (["device"], 3, "field device must be text"),
        (["nodes"], {}, "field nodes must be a list"),
        (["nodes", 0], [], r"field nodes\[0\] must be an object"),
        (["nodes", 0, "kernel"], 99, r"field nodes\[0\].kernel must be a number from 0, below 6, got 99"),
        (["nodes", 0, "kernel"], True, r"field nodes\[0\].kernel must be a number"),
        (["nodes", 0, "call"], 1 << 62, r"field nodes\[0\].call must be a number from 0, below 7"),
        (["nodes", 0, "call"], 3, r"field nodes\[3\].op must be 'dispatch' like the call's other launches"),
        (["nodes", 0, "label"], "\ud800", r"field nodes\[0\].label must be text without halves"),
        (["nodes", 0, "barrier_before"], 1, r"field nodes\[0\].barrier_before must be true or false, got 1"),
        (["nodes", 0, "extra"], 1, r"field nodes\[0\] must be an object of"),
        ([*BINDING, "index"], 7, r"field nodes\[0\].bindings\[0\].index must be one of 0, 1, 2"),
        ([*BINDING, "index"], 1, r"field nodes\[0\].bindings\[0\].access must be 'read'"),
        ([*BINDING, "access"], "read", r"field nodes\[0\].bindings\[0\].access must be 'read_write'"),
        ([*BINDING, "buffer"], "z", r"field nodes\[0\].bindings\[0\].buffer must be the name of one of"),
        ([*BINDING, "buffer"], None, r"field nodes\[0\].bindings\[0\].buffer must be a number"),
        ([*BINDING, "offset"], 800, r"field nodes\[0\].bindings\[0\]: Buffer.view"),
        ([*BINDING, "offset"], -4, r"field nodes\[0\].bindings\[0\].offset must be a number"),
        ([*BINDING, "offset"], 2, r"field nodes\[0\].bindings\[0\]: Buffer.view"),
        ([*BINDING, "nbytes"], 255, r"field nodes\[0\].bindings\[0\].nbytes must be 256, the bytes of"),
        ([*BINDING, "dtype"], "complex64", r"field nodes\[0\].bindings\[0\].dtype must be one of float32"),
        ([*BINDING, "shape"], 9 * [1], r"field nodes\[0\].bindings\[0\]: Buffer.view"),
        ([*BINDING, "shape"], [1 << 40, 1 << 40], r"field nodes\[0\].bindings\[0\]: "),
        (["nodes", 0, "bindings", 2, "bytes"], "0g", r"field nodes\[0\].bindings\[2\].bytes must be bytes in hex"),
        (["nodes", 0, "bindings", 2, "bytes"], "00", r"field nodes\[0\]: .* 8 bytes"),
        (["nodes", 0, "grid"], {}, r"field nodes\[0\].grid must be threads_per_threadgroup and one of"),
        (["nodes", 0, "grid", "threads"], [1, 1], r"field nodes\[0\].grid.threads must be a list of 3"),
        (["nodes", 0, "grid", "threads"], [0, 1, 1], r"field nodes\[0\]: .*threads"),
        (["nodes", 0, "grid", "threads_per_threadgroup"], [1 << 20, 1, 1], r"field nodes\[0\]: .*threads_per"),
        (["nodes", 1, "threadgroup_memory"], [], r"field nodes\[1\]: .*threadgroup memory 0"),
        (["nodes", 1, "threadgroup_memory", 0, 1], 1 << 40, r"field nodes\[1\]: .*threadgroup memory"),
        (["nodes", 1, "threadgroup_memory"], [[0, 16], [0, 16]], r"threadgroup_memory\[1\]\[0\] must be given once"),
        (["nodes", 2, "grid", "indirect", "dtype"], "float32", r"field nodes\[2\]: .*uint32"),
        (["nodes", 0, "reads", 0, 2], 128, r"field nodes\[0\].reads must be what the kernel's bindings say"),
        (["nodes", 5, "reads", 0, 2], 1 << 40, r"field nodes\[5\].reads\[0\] must be inside the 256 bytes"),
        (["nodes", 3, "bindings", 2, "bytes"], "0001000000000001", r"field nodes\[3\] must be a copy as an encoder"),
        (["nodes", 3, "grid", "threads"], [17, 1, 1], r"field nodes\[3\] must be a copy as an encoder"),
        (["nodes", 3, "bindings", 1, "buffer"], "x", r"field nodes\[3\].bindings\[1\]: |field nodes\[3\]"),
        (["nodes", 3, "bindings"], [], r"field nodes\[3\].bindings must be those of a copy"),
        (["nodes", 4, "bindings", 1, "bytes"], "14" + 23 * "00", r"field nodes\[4\] must be a fill as an encoder"),
        (["kernels", 0, "name"], "nothing", r"field kernels\[0\]: no source with the hash"),
        (["kernels", 0, "source"], "00", r"field kernels\[0\]: no source with the hash 00"),
        (["kernels", 0, "math"], "loose", r"field kernels\[0\].math must be one of safe, fast"),
        (["kernels", 0, "constants"], [["n", 1], ["n", 1]], r"kernels\[0\].constants\[1\]\[0\] must be given once"),
        (["kernels", 2, "constants", 0, 1], "one", r"field kernels\[2\].constants\[0\]\[1\] must be one of inf"),
        (["kernels", 2, "constants", 0, 1], None, r"field kernels\[2\].constants\[0\]\[1\] must be true, false"),
        (["buffers", 1, "name"], "x", r"field buffers\[1\].name must be another name"),
        (["buffers", 0, "nbytes"], 4, r"field buffers\[0\].nbytes must be 256"),
    ],
    ids=str,
)  # fmt: skip
def test_malformed_fields_are_named(
    program, document, tmp_path: Path, path: list[Any], value: Any, message: str
) -> None:
    put(document, path, value)
    with pytest.raises(metalane.ArgumentError, match=message):
        load(program, tmp_path, document)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"format": 1e999999}', "9" * 5000, "\xff", "null", "[]", '"x"']
)
def test_files_that_are_no_graphs(program, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(metalane.ArgumentError, match="path must be a file of JSON|field "):
        metalane.ComputeGraph.load(tmp_path / "bad.json", program.device, program.buffers())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        found += places(inner, (*path, key))
    return found


def test_random_damage_is_refused_or_harmless(program, document, tmp_path: Path) -> None:
    """Whatever a file says, loading raises ArgumentError, which says where, or gives a graph that replays."""
    rng = np.random.default_rng(8)
    values = [
        None,
        True,
        -1,
        0,
        1,
        3,
        64,
        1 << 31,
        1 << 63,
        10**30,
        0.5,
        float("nan"),
        "",
        "x",
        "safe",
        [],
        {},
        [1, 1, 1],
    ]
    spots = places(document)
    outcomes = {"refused": 0, "loaded": 0}
    for _ in range(800):
        damaged = copy.deepcopy(document)
        for _ in range(int(rng.integers(1, 3))):
            path = spots[int(rng.integers(len(spots)))]
            parent = damaged
            try:
                for key in path[:-1]:
                    parent = parent[key]
                kind = int(rng.integers(3))
                if kind == 0:
                    del parent[path[-1]]
                elif kind == 1:
                    parent[path[-1]] = values[int(rng.integers(len(values)))]
                else:  # something from another place of the file
                    other: Any = document
                    for key in spots[int(rng.integers(len(spots)))]:
                        other = other[key]
                    parent[path[-1]] = copy.deepcopy(other)
            except (KeyError, IndexError, TypeError):
                continue  # the damage before took the place away
        try:
            graph = load(program, tmp_path, damaged)
        except metalane.ArgumentError as error:
            assert error.argument.startswith("field ") or error.argument.startswith("buffers"), error
            outcomes["refused"] += 1
        else:
            graph.replay().wait()
            graph.levels()
            graph.fuse()
            outcomes["loaded"] += 1
    assert outcomes["refused"] > 500
    assert outcomes["loaded"] > 10
