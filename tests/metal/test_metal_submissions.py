"""Submissions of the Metal backend: order, failures, what Metal is asked to do, and that nothing is left behind."""

from __future__ import annotations

import gc
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import metalane as ml
from metal_double import DOUBLE

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void add(device uint* x [[buffer(0)]], constant uint& by [[buffer(1)]],
                uint i [[thread_position_in_grid]]) { x[i] += by; }
kernel void double_it(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }
kernel void shift(device uint* x [[buffer(0)]], threadgroup uint* scratch [[threadgroup(0)]],
                  uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  scratch[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = scratch[(i + 1) % n];
}
"""
ERROR_CODES = {
    1: ("internal", True),
    2: ("timeout", True),
    3: ("fault", False),
    4: ("access-revoked", False),
    7: ("not-permitted", True),
    8: ("out-of-memory", True),
    9: ("invalid-resource", False),
    10: ("memoryless", False),
    11: ("device-removed", False),
    12: ("stack-overflow", False),
    77: ("metal-77", False),
}


@pytest.fixture
def metal() -> Iterator[ml.Device]:
    device = ml.Device("metal")
    device.registry.register_source("work", SOURCE)
    yield device
    DOUBLE.reset()


def word(value: int) -> bytes:
    return np.uint32(value).tobytes()


def add(encoder: ml.CommandEncoder, x: ml.Buffer, by: int) -> None:
    encoder.dispatch("work::add", [x, word(by)], threads=x.shape[0], threads_per_threadgroup=32)


@pytest.mark.parametrize("concurrent", [True, False])
def test_order_within_and_between_submissions(metal: ml.Device, concurrent: bool) -> None:
    x = metal.zeros(64, ml.uint32)
    expected = 0
    for step in range(20):
        encoder = metal.command_encoder(concurrent=concurrent)
        add(encoder, x, step)
        encoder.dispatch("work::double_it", [x], threads=64, threads_per_threadgroup=16)
        encoder.commit()
        expected = (expected + step) * 2 % 2**32
    np.testing.assert_array_equal(np.asarray(x), np.full(64, expected, np.uint32))


def test_two_buffers_of_one_memory_are_ordered(metal: ml.Device) -> None:
    """Metal's own tracking knows buffers, not the memory behind two of them."""
    pages = np.zeros(3 * 4096, np.uint8)
    start = -pages.ctypes.data % metal.limits.wrap_alignment
    memory = pages[start : start + 4096].view(np.uint32)
    memory[:] = 1
    first, second = metal.wrap(memory), metal.wrap(memory)
    DOUBLE.delay_completion(0.01)
    for x in (first, second, first, second):
        encoder = metal.command_encoder()
        add(encoder, x, 3)
        encoder.dispatch("work::double_it", [x], threads=x.shape[0], threads_per_threadgroup=64)
        encoder.commit()
    metal.command_encoder().commit().wait()
    expected = 1
    for _ in range(4):
        expected = (expected + 3) * 2
    np.testing.assert_array_equal(memory, np.full(1024, expected, np.uint32))


def test_many_open_and_running_submissions_never_block(metal: ml.Device) -> None:
    """Far more than the command buffers that a queue gives at a time."""
    x = metal.zeros(32, ml.uint32)
    DOUBLE.delay_completion(0.002)
    encoders = [metal.command_encoder() for _ in range(300)]
    for encoder in encoders:
        add(encoder, x, 1)
    tickets = [encoder.commit() for encoder in encoders]
    tickets[-1].wait(60)
    assert np.asarray(x).tolist() == [300] * 32


def test_submissions_are_in_flight_together(metal: ml.Device) -> None:
    """Metal is given 64 at a time, each of which waits for the one before and signals the next."""
    buffers = [metal.zeros(32, ml.uint32) for _ in range(70)]
    names = (b"commits", b"event waits", b"event signals")
    before = [DOUBLE.count(name) for name in names]
    DOUBLE.delay_completion(1.0)
    tickets = []
    for x in buffers:
        add(encoder := metal.command_encoder(), x, 1)
        tickets.append(encoder.commit())
    given = [DOUBLE.count(name) - earlier for name, earlier in zip(names, before, strict=True)]
    assert not tickets[0].done
    assert given == [64, 63, 64]
    DOUBLE.delay_completion(0)  # of those that have not begun to wait
    tickets[-1].wait(60)
    assert [DOUBLE.count(name) - earlier for name, earlier in zip(names, before, strict=True)] == [70, 69, 70]
    for earlier, later in itertools.pairwise(tickets):
        assert earlier.done and earlier.gpu_end <= later.gpu_start


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_submission_is_one_encoder_with_the_barriers_that_are_due(
    metal: ml.Device, concurrent: bool
) -> None:
    x, y = metal.zeros(64, ml.uint32), metal.zeros(64, ml.uint32)
    names = (b"commits", b"encoders", b"concurrent encoders", b"dispatches", b"barriers")
    before = [DOUBLE.count(name) for name in names]
    encoder = metal.command_encoder(concurrent=concurrent)
    for target in (x.view(0, 32), x.view(128, 32), y):  # apart from each other
        add(encoder, target, 1)
    for target in (x, y):  # the barrier before the first is one for the second, too
        add(encoder, target, 1)
    add(encoder, y, 1)
    encoder.commit().wait(30)
    after = [DOUBLE.count(name) - earlier for name, earlier in zip(names, before, strict=True)]
    assert after == ([1, 1, 1, 6, 2] if concurrent else [1, 1, 0, 6, 0])
    assert np.asarray(x).tolist() == [2] * 64 and np.asarray(y).tolist() == [3] * 64


def test_dropped_encoders_leave_no_trace(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    made = DOUBLE.made_objects(b"MTLCommandBuffer")
    for _ in range(200):
        encoder = metal.command_encoder()
        add(encoder, x, 1)
        del encoder
    assert DOUBLE.made_objects(b"MTLCommandBuffer") == made
    assert np.asarray(x).tolist() == [0] * 32


def test_every_code_of_apples_has_a_name() -> None:
    listed = json.loads((Path(__file__).parent / "metal_api.json").read_text())["enumerators"]
    codes = {
        value for name, value in listed.items() if re.match(r"MTLCommandBufferError(?!Option|None)", name)
    }
    assert codes == {code for code, (name, _) in ERROR_CODES.items() if not name.startswith("metal-")}


@pytest.mark.parametrize(("code", "expected"), ERROR_CODES.items())
def test_error_codes(metal: ml.Device, code: int, expected: tuple[str, bool]) -> None:
    x = metal.zeros(32, ml.uint32)
    DOUBLE.fail_execution(0, 1, code)
    encoder = metal.command_encoder()
    with encoder.label("layer 3"):
        add(encoder, x, 1)
    ticket = encoder.commit()
    with pytest.raises(ml.CommandBufferError) as caught:
        ticket.wait()
    assert (caught.value.code, caught.value.is_transient) == expected
    assert caught.value.label == "layer 3"
    # Later work is not held up by the signal that the failed one owed.
    encoder = metal.command_encoder()
    encoder.fill(x, 5)
    add(encoder, x, 2)
    encoder.commit().wait(30)
    assert np.asarray(x).tolist() == [7] * 32


def test_failures_among_many_release_those_behind_them(metal: ml.Device) -> None:
    buffers = [metal.zeros(32, ml.uint32) for _ in range(40)]
    DOUBLE.fail_execution(10, 5, 3)
    tickets = []
    for x in buffers:
        encoder = metal.command_encoder()
        add(encoder, x, 1)
        tickets.append(encoder.commit())
    tickets[-1].wait(60)
    assert [ticket.status for ticket in tickets] == ["done"] * 10 + ["failed"] * 5 + ["done"] * 25


def test_no_command_buffer(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    DOUBLE.fail_command_buffers(0, 1)
    encoder = metal.command_encoder()
    add(encoder, x, 1)
    with pytest.raises(ml.CommandBufferError, match="no command buffer") as caught:
        encoder.commit().wait(30)
    assert (caught.value.code, caught.value.is_transient) == ("device", True)
    encoder = metal.command_encoder()
    encoder.fill(x, 1)
    encoder.commit().wait(30)


def test_device_loss(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    add(encoder := metal.command_encoder(), x, 1)
    encoder.commit().wait()
    DOUBLE.lose_device(0)
    for _ in range(3):
        encoder = metal.command_encoder()
        encoder.fill(x, 1)
        with pytest.raises(ml.CommandBufferError) as caught:
            encoder.commit().wait(30)
        assert caught.value.code == "device-removed"


def test_a_wait_times_out_and_goes_on(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    DOUBLE.delay_completion(0.4)
    start = time.monotonic()
    add(encoder := metal.command_encoder(), x, 1)
    ticket = encoder.commit()
    with pytest.raises(ml.TimeoutError):
        ticket.wait(0.05)
    assert ticket.gpu_start is ticket.gpu_end is ticket.gpu_time is None
    ticket.wait(30)
    assert 0.4 <= ticket.gpu_time <= time.monotonic() - start
    assert ticket.gpu_end - ticket.gpu_start == ticket.gpu_time
    assert np.asarray(x).tolist() == [1] * 32


def test_a_time_limit_is_judged_at_the_end(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    DOUBLE.delay_completion(0.2)
    add(encoder := metal.command_encoder(), x, 1)
    with pytest.raises(ml.CommandBufferError, match="Metal cannot stop it") as caught:
        encoder.commit(timeout=0.01).wait(30)
    assert caught.value.code == "timeout"


def settings() -> dict[str, int]:
    """What encoders had set so far."""
    names = ("pipelines", "buffers", "buffer offsets", "bytes", "threadgroup memory")
    return {name: DOUBLE.count(f"{name} set".encode()) for name in names}


def test_redundant_state_is_not_set_again(metal: ml.Device) -> None:
    x, y = metal.zeros(64, ml.uint32), metal.from_numpy(np.arange(64, dtype=np.uint32))

    def launches(encoder: ml.CommandEncoder) -> None:
        for start in (0, 32, 32, 0):
            encoder.dispatch(
                "work::add", [x.view(4 * start, 32), word(1)], threads=32, threads_per_threadgroup=32
            )
            encoder.memory_barrier()
        encoder.dispatch("work::add", [x.view(0, 32), word(5)], threads=32, threads_per_threadgroup=32)
        encoder.memory_barrier()
        for memory in (256, 256, 512):
            encoder.dispatch(
                "work::shift",
                [y],
                threadgroups=1,
                threads_per_threadgroup=64,
                threadgroup_memory={0: memory},
            )
            encoder.memory_barrier()
        # What was bound at index 1 is there still.
        add(encoder, y, 5)

    expected = {"pipelines": 3, "buffers": 2, "buffer offsets": 2, "bytes": 2, "threadgroup memory": 2}
    # Every submission has an encoder of its own, which starts with nothing set.
    for _ in range(2):
        before = settings()
        launches(encoder := metal.command_encoder(auto_barriers=False))
        encoder.commit().wait()
        assert {name: count - before[name] for name, count in settings().items()} == expected
    assert np.asarray(x).tolist() == [14] * 32 + [4] * 32
    assert np.asarray(y).tolist() == [(i + 6) % 64 + 10 for i in range(64)]


def test_threadgroup_memory_and_indirect_grids(metal: ml.Device) -> None:
    x = metal.from_numpy(np.arange(64, dtype=np.uint32))
    counts = metal.from_numpy(np.array([9, 1, 1, 1], np.uint32))
    before = DOUBLE.count(b"indirect dispatches")
    encoder = metal.command_encoder()
    encoder.dispatch(
        "work::shift",
        [x],
        threadgroups=counts.view(4, 3),
        threads_per_threadgroup=64,
        threadgroup_memory={0: 256},
    )
    encoder.commit().wait()
    assert np.asarray(x).tolist() == [*range(1, 64), 0]
    assert DOUBLE.count(b"indirect dispatches") == before + 1


def test_indirect_counts_that_are_zero_run_nothing(metal: ml.Device) -> None:
    x = metal.zeros(64, ml.uint32)
    counts = metal.from_numpy(np.array([0, 1, 1, 0, 1, 1, 0, 0], np.uint32))
    encoder = metal.command_encoder()
    for first in range(6):  # zeros on every axis, alone and together
        encoder.dispatch(
            "work::double_it", [x], threadgroups=counts.view(4 * first, 3), threads_per_threadgroup=1
        )
    encoder.commit().wait(30)
    assert not np.asarray(x).any()


def test_indirect_counts_past_all_bounds_end_by_the_watchdog(metal: ml.Device) -> None:
    """Nothing of metalane's sees them: the system ends them, and later work goes on."""
    x = metal.zeros(64, ml.uint32)
    counts = metal.from_numpy(np.full(3, 0xFFFFFFFF, np.uint32))
    encoder = metal.command_encoder()
    encoder.dispatch("work::double_it", [x], threadgroups=counts, threads_per_threadgroup=64)
    with pytest.raises(ml.CommandBufferError) as caught:
        encoder.commit().wait(30)
    assert (caught.value.code, caught.value.is_transient) == ("timeout", True)
    encoder = metal.command_encoder()
    encoder.fill(x, 3)
    encoder.commit().wait(30)
    assert np.asarray(x).tolist() == [3] * 64


def test_labels_become_debug_groups(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    before = DOUBLE.count(b"debug groups")
    encoder = metal.command_encoder()
    with encoder.label("outer"), encoder.label("inner \u00e4"):
        add(encoder, x, 1)
    encoder.commit().wait()
    assert DOUBLE.count(b"debug groups") == before + 2


def test_devices_are_apart_and_tickets_order_them() -> None:
    first, second = ml.Device("metal"), ml.Device("metal:1")
    for device in (first, second):
        device.registry.register_source("work", SOURCE)
    x, y = first.zeros(32, ml.uint32), second.zeros(32, ml.uint32)
    with pytest.raises(ml.ArgumentError, match="another device"):
        add(first.command_encoder(), y, 1)
    DOUBLE.delay_completion(0.02)
    add(encoder := first.command_encoder(), x, 1)
    ticket = encoder.commit()
    encoder = second.command_encoder()
    encoder.wait_for(ticket)
    add(encoder, y, 1)
    encoder.commit().wait(30)
    assert ticket.done
    DOUBLE.reset()


def test_threads_commit_at_once(metal: ml.Device) -> None:
    buffers = [metal.zeros(32, ml.uint32) for _ in range(4)]

    def work(x: ml.Buffer) -> None:
        for _ in range(50):
            encoder = metal.command_encoder()
            add(encoder, x, 1)
            encoder.commit()

    threads = [threading.Thread(target=work, args=(x,)) for x in buffers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in buffers:
        assert np.asarray(x).tolist() == [50] * 32


def test_object_counts_stay_flat_over_100_000_launches(metal: ml.Device) -> None:
    x = metal.zeros(32, ml.uint32)
    pipeline = metal.registry.pipeline("work::add")
    one = word(1)

    def launches(count: int) -> int:
        for _ in range(count // 500):
            encoder = metal.command_encoder(auto_barriers=False)
            for _ in range(500):
                encoder.dispatch(pipeline, [x, one], threads=1, threads_per_threadgroup=1)
            ticket = encoder.commit()
        ticket.wait()
        gc.collect()
        return DOUBLE.live_objects(None)

    before = launches(1_000)
    assert launches(99_000) <= before
