"""The process around the runtime: fork, exit, Ctrl-C, threads, the GIL, memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import metalane
from counts import count
from devices import KINDS

ENDLESS = """
#include <metal_stdlib>
using namespace metal;
kernel void endless(device atomic_uint* flag [[buffer(0)]]) {
  while (atomic_load_explicit(flag, memory_order_relaxed) == 0u) {}
}
"""
PRELUDE = f"""
import mmap, os, signal, sys, threading, time
import numpy as np
import metalane
SOURCE = {ENDLESS!r}
def launch_endless(device):
    flag = device.zeros(1, "u32")
    device.registry.register_source("endless", SOURCE)
    encoder = device.command_encoder()
    encoder.dispatch("endless", [flag], threads=1, threads_per_threadgroup=1)
    return flag, encoder.commit()
"""


def python(script: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    text = PRELUDE + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=timeout)


def succeeds(script: str) -> str:
    done = python(script)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stderr == ""
    return done.stdout.strip()


def add_on(kind: str) -> float:
    device = metalane.Device(kind)
    buffer = device.zeros(16, "f32")
    encoder = device.command_encoder()
    encoder.fill(buffer, 3)
    encoder.commit_and_wait()
    return float(buffer.numpy()[0])


def forked_child(device: metalane.Device | None, results: multiprocessing.Queue) -> None:
    """Works on a device of its own; an inherited one raises its one error."""
    try:
        if device is not None:
            device.zeros(4, "f32")
        results.put(add_on("cpu"))
    except metalane.DeviceError as error:
        results.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("inherit", [False, True], ids=["new device", "inherited device"])
def test_multiprocessing_fork_works_or_raises(cpu_device: metalane.Device, inherit: bool) -> None:
    encoder = cpu_device.command_encoder()
    encoder.fill(cpu_device.zeros(4, "f32"), 1)
    encoder.commit_and_wait()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=forked_child, args=(cpu_device if inherit else None, results))
    child.start()
    got = results.get(timeout=20)
    child.join(20)
    assert child.exitcode == 0
    if inherit:
        assert "fork" in got
    else:
        assert got == 3


@pytest.mark.cpu
def test_os_fork_with_work_in_flight_leaves_cleanly() -> None:
    said = succeeds("""
        device = metalane.Device("cpu")
        flag, ticket = launch_endless(device)
        buffer = device.zeros(1 << 16, "f32")
        encoder, captured = device.command_encoder(), device.command_encoder()
        captured.start_capture()
        captured.fill(buffer, 1)
        graph = captured.take_capture()
        pid = os.fork()
        if pid == 0:
            calls = [lambda: device.zeros(1, "f32"), lambda: device.command_encoder(), lambda: buffer.numpy(),
                     lambda: device.registry.pipeline("metalane_fill"), lambda: encoder.fill(buffer, 1),
                     encoder.memory_barrier, encoder.start_capture, lambda: graph.encode(encoder),
                     encoder.commit]
            for call in calls:
                try:
                    call()
                except metalane.DeviceError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(3)
            fresh = metalane.Device("cpu")
            with fresh.command_encoder() as encoder:
                encoder.fill(fresh.zeros(4, "f32"), 1)
            encoder.ticket.wait()
            del device, buffer, flag, ticket
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status))
        array = np.asarray(device.wrap(np.ones(1, np.uint32)))
        device.wrap(array)
    """)
    assert said == "0"


@pytest.mark.parametrize("kind", ["null", *KINDS])
def test_exit_with_live_objects_is_quiet(kind: str) -> None:
    succeeds(f"""
        device = metalane.Device({kind!r})
        buffer = device.wrap(np.frombuffer(mmap.mmap(-1, 400), np.float32, 100))
        array = buffer.numpy()
        encoder = device.command_encoder()
        encoder.fill(device.zeros(1 << 20, "f32"), 2)
        ticket = encoder.commit()
        still_open = device.command_encoder()
        still_open.fill(device.zeros(4, "f32"), 2)
        still_open.start_capture()
        cycle = [buffer]
        cycle.append(cycle)
    """)


@pytest.mark.cpu
def test_exit_with_an_endless_kernel_is_quick() -> None:
    start = time.monotonic()
    succeeds("""
        device = metalane.Device("cpu")
        flag, ticket = launch_endless(device)
        wrapped = device.wrap(np.zeros(4, np.float32))
    """)
    assert time.monotonic() - start < 15


@pytest.mark.cpu
def test_exit_from_a_thread_that_waits() -> None:
    succeeds("""
        device = metalane.Device("cpu")
        flag, ticket = launch_endless(device)
        threading.Thread(target=lambda: ticket.wait(), daemon=True).start()
        time.sleep(0.2)
    """)


WAITS = {
    "ticket": "ticket.wait()",
    "ticket with timeout": "ticket.wait(60)",
    "numpy": "flag.numpy()",
    "tolist": "flag.tolist()",
    "dlpack": "flag.__dlpack__()",
    "asarray": "np.asarray(flag)",
}


@pytest.mark.cpu
@pytest.mark.parametrize("wait", list(WAITS.values()), ids=list(WAITS))
def test_ctrl_c_ends_a_wait_within_100_ms(wait: str) -> None:
    said = succeeds(f"""
        device = metalane.Device("cpu")
        flag, ticket = launch_endless(device)
        sent = []
        def interrupt():
            time.sleep(0.3)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            {wait}
        except KeyboardInterrupt:
            print(time.monotonic() - sent[0])
    """)
    assert float(said) < 0.1


def test_a_wait_leaves_the_gil_to_others(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("endless", ENDLESS)
    flag = cpu_device.zeros(1, "u32")
    writable = flag.numpy()
    encoder = cpu_device.command_encoder()
    encoder.dispatch("endless", [flag], threads=1, threads_per_threadgroup=1)
    ticket = encoder.commit()
    # Only another Python thread can end the kernel.
    timer = threading.Timer(0.2, lambda: writable.__setitem__(0, 1))
    timer.start()
    with pytest.raises(metalane.TimeoutError, match="still running"):
        ticket.wait(0.01)
    assert not ticket.done
    ticket.wait(20)
    assert ticket.status == "done"
    timer.join()


def test_a_time_limit_fails_the_ticket_and_its_readers(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("endless", ENDLESS)
    flag = cpu_device.zeros(1, "u32")
    encoder = cpu_device.command_encoder()
    encoder.dispatch("endless", [flag], threads=1, threads_per_threadgroup=1)
    ticket = encoder.commit(timeout=0.2)
    with pytest.raises(metalane.CommandBufferError) as caught:
        ticket.wait(20)
    assert caught.value.code == "timeout"
    assert ticket.status == "failed"
    assert isinstance(ticket.error, metalane.CommandBufferError)
    with pytest.raises(metalane.CommandBufferError):
        flag.numpy()
    after = cpu_device.zeros(4, "f32")
    encoder = cpu_device.command_encoder()
    encoder.fill(after, 2)
    encoder.commit_and_wait()
    assert after.tolist() == [2, 2, 2, 2]


def test_an_encoder_is_for_one_thread_at_a_time(device: metalane.Device) -> None:
    """Of many threads that record into one encoder each call either counts or raises; nothing is lost between."""
    encoder = device.command_encoder()
    buffer = device.zeros(4, "f32")
    refused: list[metalane.ArgumentError] = []
    recorded: list[int] = []

    def record() -> None:
        done = 0
        for _ in range(200):
            try:
                encoder.fill(buffer, 1)
                done += 1
            except metalane.ArgumentError as error:
                refused.append(error)
        recorded.append(done)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert encoder.launches == sum(recorded)
    assert sum(recorded) + len(refused) == 800
    assert all("thread" in str(error) for error in refused)
    encoder.commit_and_wait()


@pytest.mark.memory
@pytest.mark.linux
@pytest.mark.parametrize("kind", ["null", *KINDS])
def test_memory_is_flat_over_many_launches(kind: str) -> None:
    device = metalane.Device(kind)
    buffers = [device.zeros(64, "f32") for _ in range(2)]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    launches, at_start = 0, 0
    total = count("flat_memory_launches")
    while launches < total:
        encoder = device.command_encoder()
        for _ in range(50):
            encoder.copy(buffers[0], buffers[1])
            encoder.fill(buffers[0], 1)
        encoder.commit_and_wait()
        launches += 100
        if launches == 10_000:
            at_start = resident()
    assert resident() - at_start < 1 << 20


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_waiting_keeps_a_signal_handlers_own_exception(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("endless", ENDLESS)
    flag = cpu_device.zeros(1, "u32")
    writable = flag.numpy()
    encoder = cpu_device.command_encoder()
    encoder.dispatch("endless", [flag], threads=1, threads_per_threadgroup=1)
    ticket = encoder.commit()

    class Alarm(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Alarm):
            ticket.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        writable[0] = 1
    ticket.wait(20)


SLOW_COMPILER = """#!/bin/sh
case "$*" in *--version*) exec c++ --version;; esac
sleep 100 &
echo $! > "$METALANE_CACHE_DIR/../new"
mv "$METALANE_CACHE_DIR/../new" "$METALANE_CACHE_DIR/../started"
wait
"""


@pytest.mark.cpu
@pytest.mark.linux
@pytest.mark.parametrize("way", ["pipeline", "dispatch", "kill", "other thread"])
def test_an_end_while_a_kernel_compiles_leaves_nothing(tmp_path: Path, way: str) -> None:
    """Ctrl-C ends the wait for a compiler, death ends the process: what the compiler has started ends with it."""
    compiler = tmp_path / "c++"
    compiler.write_text(SLOW_COMPILER)
    compiler.chmod(0o700)
    cache = tmp_path / "cache"
    script = f"""
        os.environ.update(CXX={str(compiler)!r}, METALANE_CACHE_DIR={str(cache)!r})
        device = metalane.Device("cpu")
        device.registry.register_source("endless", SOURCE)
        sent, waiting = [], threading.Event()
        def interrupt():
            while not os.path.exists({str(tmp_path / "started")!r}):
                time.sleep(0.01)
            waiting.wait()
            time.sleep(0.2)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.{"SIGKILL" if way == "kill" else "SIGINT"})
        threading.Thread(target=interrupt).start()
        if {way == "other thread"}:
            threading.Thread(target=device.registry.pipeline, args=["endless"], daemon=True).start()
            time.sleep(0.2)
        try:
            waiting.set()
            if {way == "dispatch"}:
                device.command_encoder().dispatch("endless", [device.zeros(1, "u32")], threads=1,
                                                  threads_per_threadgroup=1)
            device.registry.pipeline("endless")
        except KeyboardInterrupt:
            print(time.monotonic() - sent[0], flush=True)
        if {way == "other thread"}:
            os._exit(0)
        del os.environ["CXX"]
        device.registry.pipeline("endless")
    """
    if way == "kill":
        assert python(script).returncode == -signal.SIGKILL
    else:
        assert float(succeeds(script)) < 1
    if way in ("pipeline", "dispatch"):
        assert [file.suffix for file in cache.glob("*") if not file.name.startswith("include-")] == [".so"]
    program = int((tmp_path / "started").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and runs(program):
        time.sleep(0.01)
    assert not runs(program)


def runs(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
