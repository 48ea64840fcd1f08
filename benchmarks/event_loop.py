"""Measures how late an asyncio loop is while 1,000 tickets are awaited on it and the CPU device uses every processor.

    python benchmarks/event_loop.py [--quick]

One task repeats `asyncio.sleep(0.001)` and notes by how much each is late. Beside it 1,000 tasks commit one launch at a
time and await its ticket; a launch is long enough to keep all processors busy. Sides: that loop; the same with nothing
but sleeps; and sleeps alone while other processes keep the processors busy, which is what the system's scheduler costs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from dataclasses import dataclass

import harness
import numpy as np

import metalane

IN_FLIGHT = 1000
SECONDS_A_LAUNCH = 1.5e-3
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void spin(device uint* x [[buffer(0)]], constant uint& n [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  uint a = x[i];
  for (uint k = 0; k < n; ++k) a = a * 1664525u + 1013904223u;
  x[i] = a;
}
"""


class Launches:
    """Launches that keep every thread of the device busy for about SECONDS_A_LAUNCH."""

    def __init__(self) -> None:
        self.device = metalane.Device("cpu")
        self.device.registry.register_source("spin", SOURCE)
        self._pipeline = self.device.registry.pipeline("spin")
        self._threads = 64 * harness.THREADS
        self._buffer = self.device.zeros(self._threads, "u32")
        self._count = 1000
        self._count = max(1, int(self._count * SECONDS_A_LAUNCH / self._seconds()))

    def commit(self) -> metalane.Ticket:
        encoder = self.device.command_encoder()
        encoder.dispatch(
            self._pipeline, [self._buffer, self._count], threads=self._threads, threads_per_threadgroup=4
        )
        return encoder.commit()

    def _seconds(self) -> float:
        self.commit().wait()
        tickets = [self.commit() for _ in range(50)]
        tickets[-1].wait()
        return float(np.median([ticket.gpu_time for ticket in tickets]))


@dataclass
class Measured:
    late: list[float]
    completed_per_second: float = 0.0
    device_busy: float = 0.0
    """Part of the time in which the device ran a launch."""


async def lateness(until: float) -> list[float]:
    late = []
    while (begin := time.perf_counter()) < until:
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - begin - 0.001)
    return late


async def with_tickets(launches: Launches, seconds: float) -> Measured:
    completed = 0
    busy = 0.0
    stop = False

    async def keep_one() -> None:
        nonlocal completed, busy
        while not stop:
            ticket = launches.commit()
            await ticket
            completed += 1
            busy += ticket.gpu_time

    tasks = [asyncio.create_task(keep_one()) for _ in range(IN_FLIGHT)]
    await asyncio.sleep(2 * IN_FLIGHT * SECONDS_A_LAUNCH)  # until all have come round
    completed, busy, begin = 0, 0.0, time.perf_counter()
    late = await lateness(begin + seconds)
    passed = time.perf_counter() - begin
    result = Measured(late, completed / passed, busy / passed)
    stop = True
    await asyncio.gather(*tasks)
    return result


def keep_busy() -> None:
    while True:
        pass


def among_processes(seconds: float) -> Measured:
    processes = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(harness.THREADS)]
    for process in processes:
        process.start()
    try:
        return Measured(asyncio.run(lateness(time.perf_counter() + seconds)))
    finally:
        for process in processes:
            process.terminate()
            process.join()


def main() -> None:
    multiprocessing.set_start_method("spawn")
    options = harness.Options.parse("Benchmark of the event loop.", rounds=30, quick_rounds=3)
    seconds = float(options.rounds)
    launches = Launches()
    measured = {
        "1,000 tickets awaited, all processors busy": asyncio.run(with_tickets(launches, seconds)),
        "nothing else": Measured(asyncio.run(lateness(time.perf_counter() + seconds / 3))),
        "other processes keep all processors busy": among_processes(seconds / 3),
    }
    first = next(iter(measured.values()))
    targets = [
        harness.Target("lateness, 99th percentile", 1e3 * float(np.percentile(first.late, 99)), 2, "ms"),
        harness.Target("tickets a second", first.completed_per_second, 500, "", at_least=True),
        harness.Target("device busy", 100 * first.device_busy, 90, "%", at_least=True),
    ]
    body = ["| loop | sleeps | median ms late | 99 % | 99.9 % | most |", "|---|---|---|---|---|---|"]
    cases = {}
    for name, one in measured.items():
        quantiles = [1e3 * float(v) for v in np.percentile(one.late, [50, 99, 99.9, 100])]
        body.append(f"| {name} | {len(one.late)} | " + " | ".join(f"{v:.3f}" for v in quantiles) + " |")
        cases[name] = {
            "sleeps": len(one.late),
            "milliseconds_late": dict(zip(("median", "p99", "p99.9", "most"), quantiles, strict=True)),
            "tickets_per_second": one.completed_per_second,
            "device_busy": one.device_busy,
        }
    harness.write("event_loop", "asyncio beside the CPU device", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
