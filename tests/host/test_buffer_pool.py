"""Buffer pools: sizes, quota, ownership, memory in flight, threads."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

import metalane

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void wait_for_flag(device atomic_uint* flag [[buffer(0)]], device uint* x [[buffer(1)]]) {
  while (atomic_load_explicit(flag, memory_order_relaxed) == 0u) {}
  x[0] = 7;
}
kernel void copy_word(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]]) { y[0] = x[0]; }
"""


def address(buffer: metalane.Buffer) -> int:
    return buffer.numpy().ctypes.data


def reuses(device: metalane.Device) -> bool:
    """Not under the checker, which would not see reads of what a former owner left."""
    return not device.check


def test_a_block_goes_to_the_next_owner(device: metalane.Device) -> None:
    pool = metalane.BufferPool(device)
    first = pool.take((10, 100), "f32")
    assert (first.shape, first.dtype, first.nbytes) == ((10, 100), np.dtype("f4"), 4000)
    place = address(first)
    pool.give_back(first)
    second = pool.take(1024, "u32")
    if reuses(device):
        assert address(second) == place
    third = pool.take(1024, "u32")
    assert address(third) != address(second)
    assert pool.statistics.takes == 3
    assert pool.statistics.reuses == int(reuses(device))


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 5120, 5121, 8192, 10_000, 1 << 20, (1 << 20) + 1])
def test_sizes_are_at_most_a_quarter_apart(device: metalane.Device, nbytes: int) -> None:
    pool = metalane.BufferPool(device)
    block = pool.take(nbytes, "u8")
    held = pool.statistics.held_bytes
    assert block.nbytes == nbytes
    assert max(nbytes, 4096) <= held <= max(1.25 * nbytes, 4096)
    same = pool.take(held, "u8")
    assert pool.statistics.held_bytes == 2 * held
    assert same.nbytes == held


def test_the_last_handle_gives_back_too(device: metalane.Device) -> None:
    pool = metalane.BufferPool(device)
    block = pool.take(16, "f32")
    part = block.view(0, 4)
    del block
    assert pool.statistics.owned_bytes == 4096
    del part
    gc.collect()
    assert pool.statistics.owned_bytes == 0
    assert pool.statistics.free_bytes == (4096 if reuses(device) else 0)


def test_a_block_has_one_owner(device: metalane.Device) -> None:
    pool, other = metalane.BufferPool(device), metalane.BufferPool(device)
    block = pool.take(16, "f32")
    part = block.view(0, 4)
    with pytest.raises(metalane.ArgumentError, match=r"BufferPool\.give_back.*a view"):
        pool.give_back(part)
    for elsewhere in (device.zeros(16, "f32"), other.take(16, "f32")):
        with pytest.raises(metalane.ArgumentError, match="elsewhere"):
            pool.give_back(elsewhere)
    with pytest.raises(metalane.DTypeError, match=r"BufferPool\.give_back.*a Buffer"):
        pool.give_back(3)
    pool.give_back(block)
    for _ in range(2):
        with pytest.raises(metalane.ArgumentError, match="given back or released already"):
            pool.give_back(block)
    for use in (block.numpy, part.numpy, lambda: block.view(0, 4)):
        with pytest.raises(metalane.ArgumentError, match="released"):
            use()
    released = pool.take(16, "f32")
    released.release()
    with pytest.raises(metalane.ArgumentError, match="given back or released already"):
        pool.give_back(released)
    assert pool.statistics.owned_bytes == pool.statistics.returning_bytes == 0


def test_a_host_view_holds_its_block(device: metalane.Device) -> None:
    pool = metalane.BufferPool(device)
    block = pool.take(16, "u32")
    array = block.numpy()
    array[:] = 5
    pool.give_back(block)
    assert (pool.statistics.returning_bytes, pool.statistics.free_bytes) == (4096, 0)
    other = pool.take(16, "u32")
    other.numpy()[:] = 6
    assert array.tolist() == [5] * 16
    del array
    gc.collect()
    assert pool.statistics.returning_bytes == 0


@pytest.mark.cpu
def test_memory_in_flight_is_nobody_elses(cpu_device: metalane.Device) -> None:
    pool = metalane.BufferPool(cpu_device)
    cpu_device.registry.register_source("work", SOURCE)
    flag, block = cpu_device.zeros(1, "u32"), pool.take(16, "u32")
    view, place = flag.numpy(), address(block)
    gc.collect()
    open_encoder = cpu_device.command_encoder()
    open_encoder.dispatch("wait_for_flag", [flag, block], threads=1, threads_per_threadgroup=1)
    pool.give_back(block)
    assert pool.statistics.returning_bytes == 4096
    meanwhile = pool.take(16, "u32")
    assert address(meanwhile) != place
    ticket = open_encoder.commit()
    second = pool.take(16, "u32")
    assert address(second) != place
    assert pool.statistics.returning_bytes == 4096
    view[0] = 1
    ticket.wait()
    assert pool.statistics.returning_bytes == 0
    if reuses(cpu_device):
        assert address(pool.take(16, "u32")) == place


def test_a_dropped_encoder_lets_go(device: metalane.Device) -> None:
    pool = metalane.BufferPool(device)
    block = pool.take(16, "u32")
    encoder = device.command_encoder()
    encoder.fill(block, 1)
    pool.give_back(block)
    assert pool.statistics.returning_bytes == 4096
    encoder.discard()
    assert pool.statistics.returning_bytes == 0


@pytest.mark.cpu
@pytest.mark.metalane_check(False)
def test_a_failure_does_not_stick_to_a_block(cpu_device: metalane.Device) -> None:
    pool = metalane.BufferPool(cpu_device)
    kernel = cpu_device.compile("kernel void wild(device uint* x) { x[0] = 1; x[1u << 30] = 1; }")
    block = pool.take(16, "u32")
    with pytest.raises(metalane.CommandBufferError):
        kernel.wild(block, threads=1).wait()
    pool.give_back(block)
    pool.take(16, "u32").numpy()


def test_quota(device: metalane.Device) -> None:
    pool = metalane.BufferPool(device, quota=3 * 4096)
    blocks = [pool.take(4096, "u8") for _ in range(3)]
    with pytest.raises(
        metalane.OutOfMemoryError,
        match="4096 bytes is past the quota of 12288: 12288 bytes have owners, 0 were",
    ):
        pool.take(1, "u8")
    with pytest.raises(metalane.OutOfMemoryError, match="quota"):
        pool.take(1 << 20, "u8")
    array = blocks[0].numpy()
    pool.give_back(blocks[0])
    with pytest.raises(
        metalane.OutOfMemoryError, match="8192 bytes have owners, 4096 were given back and are still"
    ):
        pool.take(1, "u8")
    del array
    gc.collect()
    pool.take(1, "u8")
    pool.give_back(blocks[1])
    pool.give_back(blocks[2])
    # Free blocks of other sizes make room.
    large = pool.take(8192, "u8")
    assert large.nbytes == 8192
    assert pool.statistics.held_bytes <= pool.statistics.quota_bytes == 3 * 4096
    assert pool.statistics.peak_bytes == 3 * 4096


def test_trim(device: metalane.Device) -> None:
    pool = metalane.BufferPool(device)
    kept = pool.take(4096, "u8")
    before = device.allocated_bytes
    for nbytes in (4096, 8192):
        pool.give_back(pool.take(nbytes, "u8"))
    assert pool.trim() == (4096 + 8192 if reuses(device) else 0)
    assert device.allocated_bytes == before
    counts = pool.statistics
    assert (counts.held_bytes, counts.free_bytes, counts.blocks) == (4096, 0, 1)
    kept.numpy()


def test_a_pool_lives_as_long_as_its_blocks(device: metalane.Device) -> None:
    gc.collect()
    before = device.allocated_bytes
    pool = metalane.BufferPool(device)
    blocks = [pool.take(4096, "u8") for _ in range(3)]
    pool.give_back(blocks.pop())
    del pool
    blocks[0].numpy()[:] = 1
    blocks.clear()
    gc.collect()
    assert device.allocated_bytes == before


def test_wrong_arguments(device: metalane.Device) -> None:
    for wrong in (0, -1, 1.5, "much"):
        with pytest.raises(metalane.ArgumentError, match="quota"):
            metalane.BufferPool(device, quota=wrong)
    with pytest.raises(metalane.DTypeError, match="a Device"):
        metalane.BufferPool(3)
    pool = metalane.BufferPool(device)
    with pytest.raises(metalane.DTypeError):
        pool.take(4, "float64")
    with pytest.raises(metalane.ArgumentError):
        pool.take(-1, "f32")
    with pytest.raises(metalane.OutOfMemoryError):
        pool.take(1 << 60, "u8")
    assert pool.statistics.held_bytes == 0


@pytest.mark.cpu
def test_many_threads_never_share_a_block(cpu_device: metalane.Device) -> None:
    """Each thread writes its number through the device, and reads it back after others had their turn."""
    pool = metalane.BufferPool(cpu_device, quota=64 << 10)
    wrong: list[object] = []

    def run(number: int) -> None:
        draw = random.Random(number)
        for _ in range(60):
            try:
                block = pool.take(draw.choice([1, 1000, 1025, 2000]), "u32")
            except metalane.OutOfMemoryError:
                continue
            with cpu_device.command_encoder() as encoder:
                encoder.fill(block, number)
            if draw.random() < 0.5:
                encoder.ticket.wait()
            if draw.random() < 0.7 and set(block.numpy().tolist()) != {number}:
                wrong.append(number)
            pool.give_back(block)  # often while its launch is in flight

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    with cpu_device.command_encoder() as encoder:
        encoder.fill(cpu_device.zeros(1, "u32"), 1)
    encoder.ticket.wait()
    counts = pool.statistics
    assert not wrong
    assert (counts.owned_bytes, counts.returning_bytes) == (0, 0)
    assert counts.held_bytes == counts.free_bytes <= 64 << 10


@pytest.mark.cpu
@pytest.mark.linux
def test_the_checker_sees_what_a_former_owner_left() -> None:
    device = metalane.Device("cpu", check="uninitialised")
    device.registry.register_source("work", SOURCE)
    pool = metalane.BufferPool(device)
    block = pool.take(1, "u32")
    block.numpy()[0] = 1
    pool.give_back(block)
    gc.collect()
    encoder = device.command_encoder()
    arguments = [pool.take(1, "u32"), device.zeros(1, "u32")]
    encoder.dispatch("copy_word", arguments, threads=1, threads_per_threadgroup=1)
    with pytest.raises(metalane.CheckError, match="uninitialised"):
        encoder.commit_and_wait()
