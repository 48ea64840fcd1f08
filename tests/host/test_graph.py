"""Graphs on the null device: what a replay hands to the backend, and what graphs refuse."""

from __future__ import annotations

import gc
import struct
import threading
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
from host_memory import resident_bytes

import metalane
from counts import count
from metalane.testing import RecordedLaunch, last_record

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Scale { float factor; uint n; };
kernel void scale(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                  constant Scale& p [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < p.n) y[i] = p.factor * x[i];
}
kernel void add(device float* y [[buffer(0)]], device const float* x [[buffer(1)]], constant float& a [[buffer(2)]],
                constant float& b [[buffer(3)]], uint i [[thread_position_in_grid]]) { y[i] = x[i] + a + b; }
kernel void twice(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                  threadgroup float* t [[threadgroup(0)]], uint i [[thread_position_in_grid]]) { y[i] = 2 * x[i]; }
"""


@metalane.metal_struct
class Scale:
    factor: Annotated[float, metalane.f32]
    n: Annotated[int, metalane.u32]


@metalane.metal_struct
class Other:
    n: Annotated[int, metalane.u32]
    factor: Annotated[float, metalane.f32]


@pytest.fixture
def device(null_device: metalane.Device) -> metalane.Device:
    null_device.registry.register_source("kernels", SOURCE)
    return null_device


GRID = {"threads": 64, "threads_per_threadgroup": 32}


class Step:
    """Three launches: two that may run at once, and one that reads what both write."""

    def __init__(self, device: metalane.Device) -> None:
        self.x, self.a, self.b, self.y = (device.zeros(64, "f32") for _ in range(4))

    def record(self, encoder: metalane.CommandEncoder, factor: float = 2.0) -> None:
        with encoder.label("step"):
            with encoder.label("first"):
                encoder.dispatch("scale", [self.a, self.x, Scale(factor, 64)], **GRID)
            encoder.dispatch("twice", [self.b, self.x], **GRID, threadgroup_memory=32)
        with encoder.label("sum"):
            encoder.dispatch("add", [self.y, self.a, 1.0, 2.0], **GRID)

    def graph(self, device: metalane.Device) -> metalane.ComputeGraph:
        encoder = device.command_encoder()
        with encoder.capture() as captured:
            self.record(encoder)
        assert encoder.is_open
        assert encoder.launches == 0
        return captured.graph


@pytest.fixture
def step(device: metalane.Device) -> Step:
    return Step(device)


@pytest.fixture
def graph(device: metalane.Device, step: Step) -> metalane.ComputeGraph:
    return step.graph(device)


def eager(device: metalane.Device, step: Step, factor: float = 2.0) -> list[RecordedLaunch]:
    with device.command_encoder() as encoder:
        step.record(encoder, factor)
    return last_record(device)


def test_a_replay_gives_the_backend_what_the_eager_run_gave(device, step, graph) -> None:
    expected = eager(device, step)
    assert [launch.barrier_before for launch in expected] == [False, False, True]
    graph.replay().wait()
    assert last_record(device) == expected
    graph.reorder().graph.replay().wait()
    assert last_record(device) == expected


def test_a_node_says_what_it_is(graph) -> None:
    assert [(n.op, n.call, n.label, n.kernel) for n in graph.nodes] == [
        ("dispatch", 0, "step/first", "scale"),
        ("dispatch", 1, "step", "twice"),
        ("dispatch", 2, "sum", "add"),
    ]
    assert graph.levels() == [0, 0, 1]
    assert graph.nodes_under("step") == [0, 1]
    assert graph.nodes_under("ste") == graph.nodes_under("") == []
    assert graph.device.kind == "null"


@pytest.mark.parametrize("label", ["step/first", "step"])
def test_params_replace_bytes_by_label(device, step, graph, label: str) -> None:
    """'step' names two launches, of which one binds bytes."""
    for value in (Scale(5.0, 64), struct.pack("fI", 5.0, 64), {2: Scale(5.0, 64)}):
        graph.replay({label: value}).wait()
        assert last_record(device) == eager(device, step, 5.0)
    graph.replay().wait()
    assert last_record(device) == eager(device, step)


def test_a_number_replaces_one_argument(device, step, graph) -> None:
    expected = eager(device, step)
    expected[2].bytes[3] = struct.pack("f", 9.5)
    graph.replay({"sum": {3: 9.5}}).wait()
    assert last_record(device) == expected
    graph.replay({"sum": {2: 7, 3: 9.5}, "step": Scale(3.0, 1)}).wait()
    expected[2].bytes[2] = struct.pack("f", 7)
    expected[0].bytes[2] = struct.pack("fI", 3.0, 1)
    assert last_record(device) == expected


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"nowhere": Scale(1, 1)},
            r"params must be by labels of the graph \('step', 'step/first', 'sum'\), got 'now",
        ),
        ({"step/fir": Scale(1, 1)}, "labels of the graph"),
        ({"step/first": b"1234567"}, r"params\['step/first'\] must be 8 bytes as captured, got 7 bytes"),
        ({"sum": 1.0}, r"params\['sum'\] must be a struct, or {index: value}"),
        ({"sum": struct.pack("f", 1)}, "bytes of this size at several indices"),
        ({"sum": {9: 1.0}}, "an index that the kernel has"),
        ({"sum": {0: b"1234"}}, "launches with bytes bound at index 0"),
        ({"sum": {1 << 40: 1.0}}, "index"),
        ({"sum": {-1: 1.0}}, "index"),
        ({"step": Scale(1, 1), "step/first": Scale(2, 1)}, "labels that name each launch once"),
        ({"step/first": Other(1, 1.0)}, "factor|n"),
        ({3: Scale(1, 1)}, "params"),
        ([1], "dict"),
        ({"sum": "text"}, "params|numbers|struct"),
    ],
    ids=str,
)
def test_params_are_refused_with_a_reason(device, step, graph, params: Any, message: str) -> None:
    before = eager(device, step)
    with pytest.raises(metalane.ArgumentError, match=message):
        graph.replay(params)
    assert last_record(device) == before  # nothing was committed


def test_launches_of_one_label_must_bind_the_same_bytes(device, step) -> None:
    encoder = device.command_encoder()
    with encoder.capture() as captured, encoder.label("mine"):
        for y in (step.a, step.b):
            encoder.dispatch("scale", [y, step.x, Scale(2.0, 64)], **GRID)
    captured.graph.replay({"mine": Scale(3.0, 64)}).wait()
    assert [launch.bytes[2] for launch in last_record(device)] == 2 * [struct.pack("fI", 3.0, 64)]
    with encoder.capture() as captured, encoder.label("mine"):
        for y, factor in ((step.a, 1.0), (step.b, 2.0)):
            encoder.dispatch("scale", [y, step.x, Scale(factor, 64)], **GRID)
    with pytest.raises(metalane.ArgumentError, match="different bytes"):
        captured.graph.replay({"mine": Scale(3.0, 64)})


def test_other_buffers(device, step, graph) -> None:
    arena = device.zeros(200, "f32")
    new = arena.view(4 * 64, 64)
    expected = eager(device, step)
    expected[0].buffers[1] = expected[1].buffers[1] = (new.address, 256)
    graph.replay(buffers={step.x: new}).wait()
    assert last_record(device) == expected
    # a buffer that makes two launches depend on each other
    chained = graph.rebind({step.x: step.y})
    assert chained.levels() == [0, 0, 1]
    assert [n.reads[-1] for n in chained.nodes][:2] == 2 * [(step.y.address, step.y.address + 256)]
    swapped = graph.rebind({step.a: step.b, step.b: step.a})
    swapped.replay().wait()
    assert [launch.buffers[0][0] for launch in last_record(device)] == [
        step.b.address,
        step.a.address,
        step.y.address,
    ]


def test_views_move_with_their_buffer(device) -> None:
    old, new = device.zeros(64, "f32"), device.zeros(64, "f32")
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        encoder.dispatch("twice", [old.view(16, 8), old.view(128, 8)], threads=8, threads_per_threadgroup=8,
                         threadgroup_memory=32)  # fmt: skip
    captured.graph.replay(buffers={old: new}).wait()
    (launch,) = last_record(device)
    assert launch.buffers == {0: (new.address + 16, 32), 1: (new.address + 128, 32)}
    with pytest.raises(metalane.ArgumentError, match="bound in part"):
        captured.graph.rebind({old.view(32, 4): new.view(0, 4)})


def test_buffers_are_refused_with_a_reason(device, step, graph) -> None:
    other = device.zeros(64, "f32")
    gone = device.zeros(64, "f32")
    gone.release()
    for buffers, error, message in (
        ({other: step.x}, metalane.ArgumentError, "one that it does not bind"),
        ({step.x: device.zeros(64, "u32")}, metalane.DTypeError, "float32"),
        ({step.x: device.zeros(63, "f32")}, metalane.ArgumentError, r"\[64\]"),
        ({step.x: gone}, metalane.ArgumentError, "released"),
        ({step.x: metalane.Device("null").zeros(64, "f32")}, metalane.ArgumentError, "another device"),
        ({step.a: other.as_readonly()}, metalane.ArgumentError, "read-only"),
        ({step.x: 3}, metalane.DTypeError, "buffers"),
        (3, metalane.DTypeError, "buffers"),
    ):
        with pytest.raises(error, match=message):
            graph.replay(buffers=buffers)


def test_problems_are_found(device, step, graph) -> None:
    assert graph.validate() == []
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        encoder.set_pending_buffer_ranges([], [])
        encoder.dispatch("twice", [step.a, step.x], **GRID, threadgroup_memory=16)
        encoder.set_pending_buffer_ranges([step.x], [])
        encoder.dispatch("twice", [step.a, step.x], **GRID, threadgroup_memory=16)
    problems = captured.graph.validate()
    assert [(p.kind, p.node, p.other) for p in problems] == [
        ("unannotated", 0, None),
        ("unordered_conflict", 1, 0),
    ]
    assert captured.graph.levels() == [0, 1]  # nothing is known of node 0: it is alone
    step.x.release()
    assert [(p.kind, p.node) for p in graph.validate()] == [("released", 0), ("released", 1)]
    assert "index 1 was released" in graph.validate()[0].message
    with pytest.raises(metalane.ArgumentError, match="released"):
        graph.replay()
    with pytest.raises(metalane.ArgumentError, match="released"):
        graph.encode(device.command_encoder())


def test_an_explicit_barrier_is_a_fence(device, step) -> None:
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        encoder.dispatch("twice", [step.a, step.x], **GRID, threadgroup_memory=16)
        encoder.dispatch("scale", [step.y, step.a, Scale(1, 64)], **GRID)
        encoder.memory_barrier()
        encoder.dispatch("twice", [step.b, step.x], **GRID, threadgroup_memory=16)
    assert captured.graph.levels() == [0, 1, 2]
    free = device.command_encoder()
    with free.capture() as captured:
        free.dispatch("twice", [step.a, step.x], **GRID, threadgroup_memory=16)
        free.dispatch("scale", [step.y, step.a, Scale(1, 64)], **GRID)
        free.dispatch("twice", [step.b, step.x], **GRID, threadgroup_memory=16)
        free.dispatch("scale", [step.x, step.b, Scale(1, 64)], **GRID)
    reordered = captured.graph.reorder()
    assert captured.graph.levels() == [0, 1, 0, 1]
    assert (reordered.barriers_before, reordered.barriers_after) == (2, 1)
    assert [n.kernel for n in reordered.graph.nodes] == ["twice", "twice", "scale", "scale"]
    assert reordered.graph.reorder().graph.levels() == [0, 0, 1, 1]


def test_a_capture_that_raises_leaves_the_encoder_usable(device, step) -> None:
    encoder = device.command_encoder()
    capture = encoder.capture()
    with pytest.raises(ZeroDivisionError), capture:
        step.record(encoder)
        1 / 0  # noqa: B018
    assert not encoder.is_capturing
    with pytest.raises(metalane.ArgumentError, match="has not ended, or it raised"):
        _ = capture.graph
    step.record(encoder)
    encoder.commit_and_wait()
    assert last_record(device) == eager(device, step)
    with pytest.raises(metalane.ArgumentError, match="already open"):
        fresh = device.command_encoder()
        with fresh.capture(), fresh.capture():
            pass
    assert not fresh.is_capturing


def test_graphs_inside_graphs(device, step, graph) -> None:
    encoder = device.command_encoder()
    with encoder.capture() as captured, encoder.label("outer"):
        graph.encode(encoder)
        step.record(encoder, 3.0)
    nodes = captured.graph.nodes
    assert [n.label for n in nodes] == 2 * ["outer/step/first", "outer/step", "outer/sum"]
    assert [n.call for n in nodes] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(metalane.ArgumentError, match="different bytes"):
        captured.graph.replay({"outer/step/first": Scale(1, 1)})


def test_copies_and_fills_take_no_params(device, step) -> None:
    """Their sizes belong to their buffers: others would write past them."""
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        with encoder.label("copied"):
            encoder.copy(step.x, step.y)
        with encoder.label("filled"):
            encoder.fill(step.a, 1.0)
    for label in ("copied", "filled"):
        with pytest.raises(metalane.ArgumentError, match="sizes belong to its buffers"):
            captured.graph.replay({label: captured.graph.nodes[0].bindings[2]})


@pytest.mark.metalane_check(False)
@pytest.mark.memory
@pytest.mark.linux
@pytest.mark.parametrize("kind", ["null", "cpu"])
def test_memory_stays_flat_over_replays(kind: str) -> None:
    device = metalane.Device(kind)
    device.registry.register_source("kernels", SOURCE)
    graph = Step(device).graph(device)

    def replay(times: int) -> None:
        for i in range(times):
            graph.replay({"step/first": Scale(i, 64)}).wait()

    replay(count("flat_memory_launches") // 30)
    before = resident_bytes()
    replay(count("flat_memory_launches") // 3)
    assert resident_bytes() - before < 1 << 20


def test_ranges_given_by_hand_stay_so_in_another_graph(device, step) -> None:
    encoder = device.command_encoder()
    with encoder.capture() as inner:
        encoder.set_pending_buffer_ranges([step.x], [step.y])
        encoder.dispatch("twice", [step.a, step.x], **GRID, threadgroup_memory=16)
        encoder.dispatch("twice", [step.b, step.x], **GRID, threadgroup_memory=16)
    with encoder.capture() as outer:
        inner.graph.encode(encoder)
    for graph in (inner.graph, outer.graph):
        assert [n.ranges_overridden for n in graph.nodes] == [True, False]
        assert graph.nodes[0].writes == [(step.y.address, step.y.address + 256)]


def test_an_empty_graph(device) -> None:
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        pass
    graph = captured.graph
    assert len(graph) == 0
    assert graph.validate() == graph.levels() == []
    assert graph.reorder().barriers_before == 0
    graph.replay().wait()
    assert last_record(device) == []
    with pytest.raises(metalane.ArgumentError, match="no labels"):
        graph.replay({"x": b"1"})


def test_offsets_past_4_gib(device) -> None:
    arena = device.empty(5 << 30, "u8")
    far = arena.view((4 << 30) + 4096, 64, "f32")
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        encoder.dispatch("scale", [far, arena.view(4096, 64, "f32"), Scale(1, 64)], **GRID)
        encoder.dispatch("scale", [arena.view(8192, 64, "f32"), far, Scale(1, 64)], **GRID)
    graph = captured.graph
    assert graph.levels() == [0, 1]  # 4096 and 4 GiB + 4096 are apart, far is one place
    graph.replay().wait()
    first, second = last_record(device)
    assert first.buffers[0] == second.buffers[1] == (arena.address + (4 << 30) + 4096, 256)
    assert second.barrier_before


def test_a_graph_keeps_its_buffers(device) -> None:
    step = Step(device)
    graph = step.graph(device)
    held = device.allocated_bytes if hasattr(device, "allocated_bytes") else None
    addresses = [step.a.address, step.b.address, step.y.address]
    del step
    gc.collect()
    graph.replay().wait()
    assert [launch.buffers[0][0] for launch in last_record(device)] == addresses
    assert held is None or device.allocated_bytes == held


def test_replays_from_many_threads(cpu_device) -> None:
    cpu_device.registry.register_source("kernels", SOURCE)
    step = Step(cpu_device)
    step.x.numpy()[:] = np.arange(64)
    graph = step.graph(cpu_device)
    failed = []

    def replay(number: int) -> None:
        try:
            for i in range(100):
                graph.replay({"step/first": Scale(number + i, 64)})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=replay, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    graph.replay({"step/first": Scale(0.5, 64)}).wait()
    np.testing.assert_array_equal(step.y.numpy(), np.arange(64, dtype=np.float32) * np.float32(0.5) + 3)


@pytest.mark.metalane_check(False)  # a pointer as a number is a finding there
def test_a_failed_replay_raises_on_its_ticket(cpu_device) -> None:
    cpu_device.registry.register_source(
        "bad", "kernel void wild(device uint* y, constant ulong& at) { *(device uint*)at = y[0]; }"
    )
    y = cpu_device.zeros(4, "u32")
    encoder = cpu_device.command_encoder()
    with encoder.capture() as captured, encoder.label("wild"):
        encoder.dispatch("wild", [y, y.address], threads=1, threads_per_threadgroup=1)
    captured.graph.replay().wait()
    ticket = captured.graph.replay({"wild": {1: 64}})
    with pytest.raises(metalane.CommandBufferError) as caught:
        ticket.wait()
    assert caught.value.code == "fault"
    captured.graph.replay({"wild": {1: y.address}}).wait()


def test_fields_of_operators_that_would_need_another_launch(device) -> None:
    """A dense product on the null device: its own checks run, and the fields are named."""
    x, w, y = device.zeros(256 * 4, "f32"), device.zeros(144 * 8, "u8"), device.zeros(4 * 8, "f32")
    params = metalane.GgmlQuantizedMatmulParams(4, 8, 256, int(metalane.GgmlType.Q4_K))
    encoder = device.command_encoder()
    with encoder.capture() as captured, encoder.label("layer0"):
        metalane.quantized_matmul_ggml(encoder, x, w, y, params)
    graph = captured.graph
    assert [(n.op, n.label) for n in graph.nodes] == [
        ("quantized_matmul_ggml", "layer0/quantized_matmul_ggml")
    ]
    graph.replay({"layer0": params}).wait()
    graph.replay({"layer0": replace(params, m=3)}).wait()  # one grid serves 3 and 4 rows
    assert last_record(device)[0].bytes[3] == struct.pack("4I", 3, 8, 256, params.ggml_type)
    for field, value, message in (
        ("m", 1, r"keeps the captured kernel .*got another m$"),
        ("m", 400, "input"),  # the operator's own check: input is too short
        ("ggml_type", int(metalane.GgmlType.Q8_0), "weight|ggml_type"),
        ("k", 255, "k must be"),
    ):
        with pytest.raises(metalane.ArgumentError, match=message):
            graph.replay({"layer0": replace(params, **{field: value})})
    with pytest.raises(metalane.ArgumentError, match="16 bytes"):
        graph.replay({"layer0": b"1234"})
    with pytest.raises(metalane.ArgumentError, match="the struct of quantized_matmul_ggml"):
        graph.replay({"layer0": {3: params}})
