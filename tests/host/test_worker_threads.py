"""The CPU device's threads: all of them share the first launch, a small one wakes none for nothing, idle ones sleep."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

import metalane
from metalane import cpu

# The checker runs every launch on one thread.
pytestmark = [pytest.mark.cpu, pytest.mark.linux, pytest.mark.metalane_check(watch=False)]

STEPS = 20_000  # some 40 us: a launch of two such threadgroups is worth a second thread

# Threadgroup i waits until `count` threadgroups have come; seen[i] says whether it saw that.
MEETING = """
#include <metal_stdlib>
using namespace metal;
kernel void meeting(device atomic_uint* arrived [[buffer(0)]], device uint* seen [[buffer(1)]],
                    constant uint& count [[buffer(2)]], uint i [[threadgroup_position_in_grid]]) {
  atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed);
  for (uint turn = 0; turn < 2000000000u; ++turn) {
    if (atomic_load_explicit(arrived, memory_order_relaxed) >= count) { seen[i] = 1; return; }
  }
}
kernel void work(device uint* x [[buffer(0)]], constant uint& steps [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  uint value = x[i];
  for (uint step = 0; step < steps; ++step) value = value * 1664525u + 1013904223u;
  x[i] = value;
}
"""


@pytest.fixture
def device(workers: int) -> metalane.Device:
    cpu.set_thread_count(workers)
    opened = metalane.Device("cpu")
    cpu.set_thread_count(0)
    opened.registry.register_source("worker threads", MEETING)
    return opened


def work(device: metalane.Device, values: metalane.Buffer) -> None:
    encoder = device.command_encoder()
    encoder.dispatch("work", [values, np.uint32(STEPS)], threads=values.shape[0], threads_per_threadgroup=1)
    encoder.commit_and_wait()


def value_after(launches: int) -> int:
    value = 0
    for _ in range(launches * STEPS):
        value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
    return value


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_every_thread_shares_the_first_launch(device: metalane.Device, workers: int) -> None:
    """Threadgroups that wait for each other end only where each has a thread of its own."""
    arrived, seen = device.zeros(1, "u32"), device.zeros(workers, "u32")
    with device.command_encoder() as encoder:
        encoder.dispatch(
            "meeting", [arrived, seen, np.uint32(workers)], threadgroups=workers, threads_per_threadgroup=1
        )
    encoder.ticket.wait(60)
    assert seen.tolist() == [1] * workers


@pytest.mark.parametrize("workers", [16])
@pytest.mark.parametrize(("threadgroups", "helpers"), [(1, 0), (2, 1)])
def test_a_launch_wakes_no_more_threads_than_it_has_work_for(
    device: metalane.Device, workers: int, threadgroups: int, helpers: int
) -> None:
    """Counted by how often threads of the process go to sleep again."""
    values, launches = device.zeros(threadgroups, "u32"), 50
    work(device, values)
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(launches):
        time.sleep(0.002)
        work(device, values)
    time.sleep(0.05)
    slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    assert values.tolist() == [value_after(launches + 1)] * threadgroups
    # The caller sleeps and waits, the leader waits; twice as much for locks and the like.
    assert slept <= 2 * (3 + helpers) * launches


@pytest.mark.parametrize("workers", [8])
def test_threads_of_an_idle_device_sleep(device: metalane.Device, workers: int) -> None:
    work(device, device.zeros(100, "u32"))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_a_process_that_may_use_one_processor_has_one_thread() -> None:
    script = """
import os, metalane
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
device = metalane.Device("cpu")
before = len(os.listdir("/proc/self/task"))
with device.command_encoder() as encoder:
    encoder.fill(device.zeros(1 << 20, "f32"), 1)
encoder.ticket.wait()
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert (done.stdout, done.stderr) == ("1\n", "")
