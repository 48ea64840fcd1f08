"""Dispatch, capture, labels and tickets, on the null device: what reaches a backend, and what is refused."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import metalane
from counts import count
from metalane.testing import RecordedLaunch, last_record

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant uint width [[function_constant(0)]];
constant bool wide [[function_constant(1)]];
kernel void scale(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                  constant float& factor [[buffer(2)]], constant uint& n [[buffer(3)]],
                  uint i [[thread_position_in_grid]]) { if (i < n) y[i] = factor * x[i]; }
kernel void scalars(device float* y [[buffer(0)]], constant char& a [[buffer(1)]], constant uchar& b [[buffer(2)]],
                    constant short& c [[buffer(3)]], constant ushort& d [[buffer(4)]], constant int& e [[buffer(5)]],
                    constant ulong& f [[buffer(6)]], constant long& g [[buffer(7)]], constant half& h [[buffer(8)]],
                    constant bool& i [[buffer(9)]], constant float4& j [[buffer(10)]],
                    constant uint3& k [[buffer(11)]], constant bfloat& l [[buffer(12)]]) { y[0] = a; }
kernel void shared(device float* y [[buffer(0)]], threadgroup float* scratch [[threadgroup(0)]],
                   threadgroup uint* more [[threadgroup(1)]]) { y[0] = scratch[0] + more[0]; }
kernel void specialised(device float* y [[buffer(0)]]) { y[0] = wide ? width : 0; }
"""


@pytest.fixture
def device(null_device: metalane.Device) -> metalane.Device:
    null_device.registry.register_source("kernels", SOURCE)
    return null_device


@pytest.fixture
def buffers(device: metalane.Device) -> tuple[metalane.Buffer, metalane.Buffer]:
    return device.zeros(64, "f32"), device.zeros(64, "f32")


GRID = {"threads": 64, "threads_per_threadgroup": 32}


def run(device: metalane.Device, record: Callable[[metalane.CommandEncoder], object]) -> list[RecordedLaunch]:
    encoder = device.command_encoder()
    record(encoder)
    encoder.commit_and_wait()
    return last_record(device)


def test_arguments_reach_the_backend_by_position_and_index(device, buffers) -> None:
    y, x = buffers
    for args in (
        [y, x, 2.5, 64],
        (y, x, 2.5, 64),
        {3: 64, 1: x, 0: y, 2: 2.5},
        [y, x, struct.pack("f", 2.5), np.uint32(64)],
    ):
        for kernel in ("scale", "kernels::scale", device.registry.pipeline("scale")):
            (launch,) = run(device, lambda e, a=args, k=kernel: e.dispatch(k, a, **GRID))
            assert launch.kernel == "scale"
            assert launch.buffers == {0: (y.address, 256), 1: (x.address, 256)}
            assert launch.bytes == {2: struct.pack("f", 2.5), 3: struct.pack("I", 64)}
            assert (launch.grid_kind, launch.grid, launch.threads_per_threadgroup) == (
                "threads",
                (64, 1, 1),
                (32, 1, 1),
            )


def test_every_scalar_type_is_packed_by_the_signature(device, buffers) -> None:
    values = [
        -128,
        255,
        -(2**15),
        65535,
        -(2**31),
        2**64 - 1,
        -(2**63),
        1.5,
        True,
        (1, 2, 3, 4),
        (5, 6, 7),
        2,
    ]
    (launch,) = run(device, lambda e: e.dispatch("scalars", [buffers[0], *values], **GRID))
    formats = ["b", "B", "h", "H", "i", "Q", "q", "e", "?", "4f", "3I4x"]
    for index, (code, value) in enumerate(zip(formats, values, strict=False), start=1):
        parts = value if isinstance(value, tuple) else (value,)
        assert launch.bytes[index] == struct.pack("<" + code, *parts), (index, code)
    assert launch.bytes[12] == b"\x00\x40"


@pytest.mark.parametrize(
    ("index", "value", "kind"),
    [
        (1, 128, metalane.ArgumentError),
        (2, -1, metalane.ArgumentError),
        (3, 2**15, metalane.ArgumentError),
        (4, 2**16, metalane.ArgumentError),
        (5, 2**31, metalane.ArgumentError),
        (6, 2**64, metalane.ArgumentError),
        (7, -(2**63) - 1, metalane.ArgumentError),
        (8, 1e6, metalane.ArgumentError),
        (8, "1", metalane.DTypeError),
        (9, 1, metalane.DTypeError),
        (5, 1.0, metalane.DTypeError),
        (5, None, metalane.DTypeError),
        (10, (1, 2, 3), metalane.ArgumentError),
        (10, 1.0, metalane.DTypeError),
        (10, "1234", metalane.DTypeError),
        (11, (1, 2, -3), metalane.ArgumentError),
        (5, np.zeros(4), metalane.DTypeError),
        (0, 3, metalane.DTypeError),
        (13, 3, metalane.ArgumentError),
        (31, 3, metalane.ArgumentError),
        (-1, 3, metalane.ArgumentError),
        ("y", 3, metalane.DTypeError),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_and_leave_nothing(
    device, buffers, index: Any, value: Any, kind: type
) -> None:
    good = dict(enumerate([buffers[0], 0, 0, 0, 0, 0, 0, 0, 0.0, False, (0.0,) * 4, (0,) * 3, 0.0]))
    encoder = device.command_encoder()
    with pytest.raises(kind) as caught:
        encoder.dispatch("scalars", {**good, index: value}, **GRID)
    assert caught.value.op
    assert caught.value.argument
    assert caught.value.expected
    assert caught.value.given
    assert encoder.launches == 0
    encoder.dispatch("scalars", good, **GRID)
    encoder.commit_and_wait()
    assert len(last_record(device)) == 1


def test_random_arguments_never_crash(device, buffers) -> None:
    rng = random.Random(4)
    params = metalane.DFlash2SelectorParams([0] * 4, [1.0] * 4, 1, 2, 16, 0)
    pool: list[Any] = [*buffers, buffers[0].view(4, 3), params, np.float32(1), np.zeros(3), object()]
    pool += [-1, 0, 1, 2**40, 1.5, True, None, "x", b"", b"1234", b"12345678", (1, 2), [1]]
    recorded = 0
    encoder = device.command_encoder()
    for _ in range(count("dispatch_arguments")):
        args: Any = [rng.choice(pool) for _ in range(rng.randrange(6))]
        if rng.random() < 0.3:
            args = {rng.randrange(-1, 33): value for value in args}
        try:
            encoder.dispatch(rng.choice(["scale", "shared", "scalars", "absent"]), args, **GRID)
            recorded += 1
        except metalane.Error:
            pass
        assert encoder.launches == recorded
    encoder.commit_and_wait()


def test_a_list_that_changes_while_it_is_read_is_harmless(device, buffers) -> None:
    args: list[Any] = [*buffers]

    class Emptying:
        def __index__(self) -> int:
            args.clear()
            return 64

    args += [1.0, Emptying()]
    (launch,) = run(device, lambda e: e.dispatch("scale", args, **GRID))
    assert launch.bytes[3] == struct.pack("I", 64)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "one of the two"),
        ({"threads": 1, "threadgroups": 1, "threads_per_threadgroup": 1}, "both"),
        ({"threads": 1}, "threads_per_threadgroup"),
        ({"threads": 1.5, "threads_per_threadgroup": 1}, "threads"),
        ({"threads": "12", "threads_per_threadgroup": 1}, "threads"),
        ({"threads": -1, "threads_per_threadgroup": 1}, "threads"),
        ({"threads": (1, 1, 1, 1), "threads_per_threadgroup": 1}, "threads"),
        ({"threads": (), "threads_per_threadgroup": 1}, "threads"),
        ({"threadgroups": 2**32, "threads_per_threadgroup": 1}, "4294967296"),
        ({"threadgroups": (2**31, 2, 1), "threads_per_threadgroup": 2}, ""),
        ({"threads": 1, "threads_per_threadgroup": 1025}, "1025"),
        ({"threads": 1, "threads_per_threadgroup": (32, 32, 2)}, ""),
        ({"threads": 1, "threads_per_threadgroup": 0}, "0"),
        ({"threads": 1, "threads_per_threadgroup": 1, "threadgroup_memory": "12"}, "threadgroup_memory"),
        ({"threads": 1, "threads_per_threadgroup": 1, "threadgroup_memory": {40: 4}}, "threadgroup_memory"),
        ({"threads": 1, "threads_per_threadgroup": 1, "threadgroup_memory": 1.5}, "threadgroup_memory"),
        ({"threads": 1, "threads_per_threadgroup": 1, "constants": [1]}, "constants"),
    ],
    ids=str,
)
def test_bad_grids_are_refused(device, buffers, grid: dict[str, Any], words: str) -> None:
    encoder = device.command_encoder()
    with pytest.raises(metalane.ArgumentError) as caught:
        encoder.dispatch("scale", [*buffers, 1.0, 1], **grid)
    assert words in str(caught.value)
    assert encoder.launches == 0


def test_grids_in_all_forms(device, buffers) -> None:
    counts = device.from_numpy(np.array([4, 2, 1], np.uint32))
    args = [*buffers, 1.0, 1]
    launches = run(
        device,
        lambda e: [
            e.dispatch("scale", args, threadgroups=(3, 2), threads_per_threadgroup=(8, 4, 2)),
            e.dispatch("scale", args, threads=[5, 6, 7], threads_per_threadgroup=(np.int64(2),)),
            e.dispatch("scale", args, threadgroups=counts, threads_per_threadgroup=32),
        ],
    )
    assert [launch.grid_kind for launch in launches] == ["threadgroups", "threads", "indirect"]
    assert launches[0].grid == (3, 2, 1)
    assert launches[0].threads_per_threadgroup == (8, 4, 2)
    assert launches[1].grid == (5, 6, 7)
    for wrong in (device.zeros(2, "u32"), device.zeros(3, "f32")):
        with pytest.raises(metalane.ArgumentError):
            device.command_encoder().dispatch("scale", args, threadgroups=wrong, threads_per_threadgroup=32)


def test_threadgroup_memory_in_all_forms(device, buffers) -> None:
    for given in ({0: 64, 1: 32}, [64, 32], (64, 32), {1: 32, 0: 64}):
        (launch,) = run(
            device, lambda e, g=given: e.dispatch("shared", [buffers[0]], threadgroup_memory=g, **GRID)
        )
        assert launch.threadgroup_memory == {0: 64, 1: 32}
    for wrong in (64, [64], [32768, 32], {0: 64, 1: 2**40}, None):
        with pytest.raises(metalane.ArgumentError):
            device.command_encoder().dispatch("shared", [buffers[0]], threadgroup_memory=wrong, **GRID)


def test_constants_build_their_own_pipeline(device, buffers) -> None:
    registry = device.registry
    constants = {"width": 3, 1: True}
    built = registry.pipeline("specialised", constants)
    assert built.key != registry.pipeline("specialised", {"width": 4, "wide": True}).key
    assert "width" in built.key or "0" in built.key
    (launch,) = run(device, lambda e: e.dispatch("specialised", [buffers[0]], constants=constants, **GRID))
    assert launch.kernel == "specialised"
    for wrong in ({"width": "3"}, {-1: 1}, {2**32: 1}, {None: 1}, [1], {"width": None}):
        with pytest.raises(metalane.ArgumentError):
            registry.pipeline("specialised", wrong)
    with pytest.raises(metalane.ArgumentError, match="part of it"):
        device.command_encoder().dispatch(built, [buffers[0]], constants=constants, **GRID)
    with pytest.raises(metalane.ArgumentError, match="'safe' or 'fast'"):
        registry.pipeline("scale", math="wild")


@pytest.mark.parametrize(
    "wrong",
    [
        {"height": 1},
        {"width": -1, 1: True},
        {7: 1},
        {"width": 3, "wide": 1.5},
        {"width": 2**32, 1: True},
        {"width": 3},
    ],
    ids=str,
)
def test_constants_that_the_kernel_does_not_take_are_refused(device_kind, wrong: dict[Any, Any]) -> None:
    device = metalane.Device(device_kind)
    device.registry.register_source("kernels", SOURCE)
    with pytest.raises(metalane.ArgumentError):
        device.registry.pipeline("specialised", wrong)


def test_booleans_are_values_and_no_indices(device_kind) -> None:
    device = metalane.Device(device_kind)
    device.registry.register_source(
        "chosen",
        """#include <metal_stdlib>
        constant uint N [[function_constant(1)]];
        constant bool B [[function_constant(2)]];
        kernel void chosen(device uint* y, constant bool& c) { y[0] = N + (B ? 10 : 0) + (c ? 100 : 0); }""",
    )
    y = device.zeros(1, "u32")
    for value in (True, False, np.True_, np.False_):
        encoder = device.command_encoder()
        encoder.dispatch(
            "chosen", [y, value], constants={1: 3, "B": value}, threads=1, threads_per_threadgroup=1
        )
        encoder.commit_and_wait()
        assert y.tolist() == [3 + 110 * bool(value)]
        with pytest.raises(
            metalane.DTypeError, match=r"constants must be named by text or an index, got True"
        ):
            device.registry.pipeline("chosen", {True: 3, "B": value})


def test_unknown_kernels_name_themselves(device) -> None:
    with pytest.raises(metalane.KernelNotFoundError) as caught:
        device.command_encoder().dispatch("absent", [], **GRID)
    assert isinstance(caught.value, KeyError)
    assert "absent" in str(caught.value)
    assert not str(caught.value).startswith(("'", '"'))
    for wrong in (None, 3, b"scale"):
        with pytest.raises(metalane.DTypeError, match="kernel"):
            device.command_encoder().dispatch(wrong, [], **GRID)
    for wrong in (None, 3, "abc", {1, 2}):
        with pytest.raises(metalane.DTypeError, match="args"):
            device.command_encoder().dispatch("scale", wrong, **GRID)


def test_barriers_follow_declared_access(device, buffers) -> None:
    y, x = buffers
    z = device.zeros(64, "f32")

    def record(encoder: metalane.CommandEncoder) -> None:
        encoder.dispatch("scale", [y, x, 1.0, 64], **GRID)
        encoder.dispatch("scale", [z, x, 1.0, 64], **GRID)  # reads what nobody wrote
        encoder.dispatch("scale", [z.view(0, 8), y, 1.0, 8], **GRID)  # reads y, writes z
        encoder.dispatch(
            "scale", [x, device.zeros(64, "f32"), 1.0, 64], **GRID
        )  # writes what was read before
        assert (encoder.launches, encoder.barriers) == (4, 1)

    assert [launch.barrier_before for launch in run(device, record)] == [False, False, True, False]
    explicit = device.command_encoder(auto_barriers=False)
    explicit.dispatch("scale", [y, x, 1.0, 64], **GRID)
    explicit.dispatch("scale", [y, x, 1.0, 64], **GRID)
    explicit.memory_barrier()
    explicit.dispatch("scale", [y, x, 1.0, 64], **GRID)
    explicit.commit_and_wait()
    assert [launch.barrier_before for launch in last_record(device)] == [False, False, True]


def test_copy_and_fill(device, buffers) -> None:
    y, x = buffers
    launches = run(device, lambda e: (e.copy(x, y), e.fill(x, 1.5)))
    assert [launch.kernel for launch in launches] == ["metalane_copy", "metalane_fill"]
    encoder = device.command_encoder()
    with pytest.raises(metalane.ArgumentError):
        encoder.copy(x, y.view(0, 3))
    with pytest.raises(metalane.ArgumentError):
        encoder.copy(x.view(0, 32), x.view(64, 32))
    with pytest.raises(metalane.ArgumentError, match="value"):
        encoder.fill(device.zeros(4, "u8"), 256)
    with pytest.raises(metalane.DTypeError, match="value"):
        encoder.fill(y, "1")
    with pytest.raises(metalane.ArgumentError):
        encoder.fill(y.as_readonly(), 1)
    assert encoder.launches == 0


def test_capture_gives_a_graph_that_replays(device, buffers) -> None:
    y, x = buffers
    encoder = device.command_encoder()
    encoder.start_capture()
    assert encoder.is_capturing
    with encoder.label("step"):
        encoder.dispatch("scale", [y, x, 2.0, 64], **GRID)
    encoder.set_pending_buffer_ranges([x, (16, 32)], [y.view(0, 4)])
    encoder.dispatch("scale", [y, x, 3.0, 64], threadgroups=2, threads_per_threadgroup=32)
    graph = encoder.take_capture()
    assert not encoder.is_capturing
    assert encoder.launches == 0
    first, second = graph.nodes
    assert len(graph) == 2
    assert (first.kernel, first.label, first.threads, first.threadgroups) == (
        "scale",
        "step",
        (64, 1, 1),
        None,
    )
    assert first.reads == [(x.address, x.address + 256)] or (y.address, y.address + 256) in first.reads
    assert (y.address, y.address + 256) in first.writes
    assert first.bindings[2] == struct.pack("f", 2.0)
    assert first.bindings[0].address == y.address
    assert second.ranges_overridden
    assert (16, 32) in second.reads
    assert second.writes == [(y.address, y.address + 16)]
    assert second.threadgroups == (2, 1, 1)
    graph.encode(encoder)
    encoder.commit_and_wait()
    assert [launch.bytes[2] for launch in last_record(device)] == [
        struct.pack("f", 2.0),
        struct.pack("f", 3.0),
    ]
    y.release()
    with pytest.raises(metalane.ArgumentError, match="released"):
        graph.encode(device.command_encoder())


@pytest.mark.parametrize("ranges", [None, 3, [3], [(1,)], [(5, 3)], [(-1, 3)], ["ab"]], ids=str)
def test_bad_ranges_are_refused(device, ranges: Any) -> None:
    with pytest.raises(metalane.ArgumentError):
        device.command_encoder().set_pending_buffer_ranges(ranges, [])


def test_labels_nest(device, buffers) -> None:
    def record(encoder: metalane.CommandEncoder) -> None:
        with encoder.label("outer"), encoder.label("inner"):
            encoder.dispatch("scale", [*buffers, 1.0, 1], **GRID)
        encoder.dispatch("scale", [*buffers, 1.0, 1], **GRID)

    outer, plain = run(device, record)
    assert outer.label.endswith("inner")
    assert not plain.label


def test_context_manager_commits_or_discards(device, buffers) -> None:
    with device.command_encoder() as encoder:
        encoder.dispatch("scale", [*buffers, 7.0, 1], **GRID)
    assert not encoder.is_open
    encoder.ticket.wait()
    assert last_record(device)[0].bytes[2] == struct.pack("f", 7.0)
    with pytest.raises(ZeroDivisionError), device.command_encoder() as dropped:
        dropped.dispatch("scale", [*buffers, 8.0, 1], **GRID)
        raise ZeroDivisionError
    assert dropped.ticket is None
    assert last_record(device)[0].bytes[2] == struct.pack("f", 7.0)
    with device.command_encoder() as early:
        ticket = early.commit()
    assert early.ticket.done == ticket.done


def test_closed_encoders_raise(device, buffers) -> None:
    encoder = device.command_encoder()
    encoder.commit_and_wait()
    for use in (
        lambda: encoder.dispatch("scale", [*buffers, 1.0, 1], **GRID),
        lambda: encoder.copy(*buffers),
        lambda: encoder.fill(buffers[0], 0),
        lambda: encoder.memory_barrier(),
        lambda: encoder.start_capture(),
        lambda: encoder.commit(),
    ):
        with pytest.raises(metalane.ArgumentError):
            use()
    assert "closed" in repr(encoder)


def test_tickets_say_when_it_ran(device) -> None:
    x = device.zeros(1000, metalane.uint32)
    tickets = []
    for value in range(3):
        encoder = device.command_encoder()
        encoder.fill(x, value)
        tickets.append(encoder.commit())
    tickets[-1].wait()
    for earlier, later in itertools.pairwise(tickets):
        assert earlier.gpu_start <= earlier.gpu_end <= later.gpu_start <= later.gpu_end


def test_tickets_say_how_it_ended(device) -> None:
    ticket = device.command_encoder().commit()
    ticket.wait()
    ticket.wait(0)
    assert ticket.done
    assert ticket.error is None
    assert ticket.status == "done"
    assert ticket.gpu_time == ticket.gpu_end - ticket.gpu_start >= 0
    assert repr(ticket) == "<Ticket done>"
    follower = device.command_encoder()
    follower.wait_for(ticket)
    follower.commit_and_wait(timeout=5)
    for wrong, kind in (
        (-1, metalane.ArgumentError),
        (float("nan"), metalane.ArgumentError),
        ("1", metalane.DTypeError),
    ):
        with pytest.raises(kind):
            ticket.wait(wrong)
        with pytest.raises(kind):
            device.command_encoder().commit(timeout=wrong)
    for wrong in (0, 0.0, -1, float("nan")):
        with pytest.raises(metalane.ArgumentError, match="timeout must be a positive number of seconds, got"):
            device.command_encoder().commit(timeout=wrong)


def test_a_write_in_an_open_encoder_blocks_host_reads(device, buffers) -> None:
    y, x = buffers
    encoder = device.command_encoder()
    encoder.dispatch("scale", [y, x, 1.0, 64], **GRID)
    for read in (y.numpy, y.tolist, y.__dlpack__, y.view(0, 1).numpy, y.synchronize):
        with pytest.raises(metalane.ArgumentError):
            read()
    assert x.tolist()[0] == 0
    encoder.discard()
    assert y.tolist()[0] == 0


def test_devices_are_independent(device) -> None:
    other = metalane.Device("null")
    assert other != device
    assert device == device
    assert device.zeros(1, "u8").device == device
    assert hash(other) != hash(device) or other is device
    with pytest.raises(metalane.KernelNotFoundError):
        other.registry.pipeline("scale")
    encoder = other.command_encoder()
    with pytest.raises(metalane.ArgumentError):
        encoder.copy(device.zeros(4, "u8"), other.zeros(4, "u8"))


@pytest.mark.parametrize("arguments", [("quantum",), ("cpu", "fast"), ("",), ("cpu\0",)], ids=str)
def test_unknown_devices_are_refused(arguments: tuple[str, ...]) -> None:
    if arguments == ("",):
        assert metalane.Device("").kind == metalane.Device().kind
        return
    with pytest.raises((metalane.DeviceError, metalane.ArgumentError)):
        metalane.Device(*arguments)


def test_reprs_say_what_they_are(device, buffers) -> None:
    assert repr(device).startswith("<Device null")
    assert repr(device.registry).startswith("<KernelRegistry")
    pipeline = device.registry.pipeline("scale")
    assert "name=scale" in repr(pipeline)
    assert "device f32* y [[buffer(0)]]" in repr(pipeline.signature)
    assert "<KernelArgument" in repr(pipeline.signature.arguments[0])
    assert repr(metalane.devices()[0]).startswith("<DeviceInfo")
    encoder = device.command_encoder()
    assert repr(encoder) == "<CommandEncoder, open, 0 launches, 0 barriers>"
    assert repr(encoder.label("x")) == "<Label 'x'>"
    encoder.start_capture()
    encoder.dispatch("scale", [*buffers, 1.0, 1], **GRID)
    graph = encoder.take_capture()
    assert repr(graph) == "<ComputeGraph of 1 launches>"
    assert repr(graph.nodes[0]).startswith("<GraphNode scale")
    assert "HostView" in repr(buffers[0].numpy().base)


def test_threads_build_and_submit_at_once(device) -> None:
    sources = {f"kernel_{i}": SOURCE.replace("scale", f"scale_{i}") for i in range(50)}
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            y, x = device.zeros(64, "f32"), device.zeros(64, "f32")
            for name in random.Random(seed).sample(sorted(sources), len(sources)):
                device.registry.register_source(name, sources[name])
                number = name.rpartition("_")[2]
                with device.command_encoder() as encoder:
                    encoder.dispatch(f"{name}::scale_{number}", [y, x, 1.0, 64], **GRID)
                encoder.ticket.wait()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_dispatch_reads_its_arguments_as_a_python_function_does(device, buffers) -> None:
    y, x = buffers
    encoder = device.command_encoder()
    encoder.dispatch("scale", [y, x, 2.0, 64], **GRID)
    encoder.dispatch(kernel="scale", args=[y, x, 2.0, 64], **GRID)
    encoder.dispatch(
        threads_per_threadgroup=32, args=(y, x, 2.0, 64), threads=64, kernel="scale", constants=None
    )
    encoder.dispatch(
        "scale", **{"".join(["ar", "gs"]): [y, x, 2.0, 64]}, **GRID
    )  # a name that is not interned
    assert encoder.launches == 4
    dispatch: Any = encoder.dispatch
    for args, kwargs, message in [
        (("scale", [y, x, 2.0, 64], 1), GRID, "takes 2 positional arguments, got 3"),
        (("scale",), GRID, "misses 'args'"),
        ((), GRID, "misses 'kernel'"),
        (("scale", [y, x, 2.0, 64]), {**GRID, "args": [y, x, 2.0, 64]}, "got 'args' twice"),
        (("scale", [y, x, 2.0, 64]), {**GRID, "thread": 3}, "unexpected keyword argument 'thread'"),
    ]:
        with pytest.raises(TypeError, match=re.escape(message)):
            dispatch(*args, **kwargs)
    assert encoder.launches == 4
    with pytest.raises(TypeError):
        metalane.CommandEncoder.dispatch(object(), "scale", [y, x, 2.0, 64], **GRID)  # type: ignore[arg-type]
    assert list(inspect.signature(metalane.CommandEncoder.dispatch).parameters)[1:3] == ["kernel", "args"]


class Endless:
    """A sequence by its methods, which never ends."""

    def __getitem__(self, index: int) -> int:
        return 1


class EndlessOfLength(Endless):
    def __len__(self) -> int:
        return 1 << 60


@pytest.mark.parametrize(
    "value", [Endless(), EndlessOfLength(), np.ones((1,) * 20), 10**5000, {1: 2}, b"12"], ids=type
)
def test_whatever_stands_for_numbers_is_refused_at_once(device, buffers, value: Any) -> None:
    y, x = buffers
    encoder: Any = device.command_encoder()
    group = {"threads_per_threadgroup": 1}
    calls: list[Callable[[], object]] = [
        lambda: device.zeros(value, "f32"),
        lambda: encoder.dispatch("scale", [y, x, 2.0, 64], threads=value, **group),
        lambda: encoder.dispatch("scale", [y, x, 2.0, 64], threads=1, **group, threadgroup_memory=value),
        lambda: encoder.dispatch("scale", [y, x, value, 64], threads=1, **group),
        lambda: encoder.set_pending_buffer_ranges(value, []),
        lambda: encoder.copy(value, x),
        lambda: encoder.copy(x, value),
        lambda: encoder.fill(value, 1),
        lambda: encoder.wait_for(value),
        lambda: encoder.label(value),
        lambda: metalane.DFlash2SelectorParams(value, [1.0] * 4, 1, 2, 16, 0),
    ]
    for call in calls:
        begin = time.monotonic()
        with pytest.raises(metalane.ArgumentError):
            call()
        assert time.monotonic() - begin < 1
    assert encoder.launches == 0
