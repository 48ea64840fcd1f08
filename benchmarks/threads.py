"""Measures the CPU device's threads: scaling, wake-ups, an idle device, and processors shared with other processes.

    python benchmarks/threads.py [--rounds 30] [--quick] [--only PATTERN]

Neighbours are processes that do nothing but compute. ggml's threads spin while they wait; what that costs once another
process wants the processors is what the last table shows.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dflash2_selector as selector
import harness
import numpy as np
from products import Dense, Ggmls, WeightRing

import metalane

TYPE, N, K = "Q4_K", 4096, 4096
NEIGHBOURS = (0, 1, 2)


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Of devices that are opened inside."""
    metalane.cpu.set_thread_count(count)
    yield
    metalane.cpu.set_thread_count(0)


def spin() -> None:
    while True:
        pass


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many busy processes beside this one."""
    processes = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    time.sleep(0.5 if count else 0)
    yield
    for process in processes:
        process.terminate()
        process.join()


def devices(counts: tuple[int, ...]) -> dict[int, metalane.Device]:
    opened = {}
    for count in counts:
        with thread_count(count):
            opened[count] = metalane.Device("cpu")
    return opened


def scaling(options: harness.Options) -> dict[str, harness.Samples]:
    """Seconds of each work over numbers of threads, twice the processors included."""
    counts = tuple(sorted({1, *(2**i for i in range(harness.THREADS.bit_length() + 1)), harness.THREADS}))
    opened = devices(counts)
    any_device = opened[counts[0]]
    results = {}
    weights = WeightRing(any_device, TYPE, N, K, options.ring_bytes())
    logits = selector.Ring(any_device, options.ring_bytes())
    slots = logits.slots("normal")

    def top16(device: metalane.Device) -> Callable[[], float]:
        top, ring = selector.Top16(device), logits.on(device)

        def side() -> float:
            lane = ring.lanes(next(slots), 1)
            top.wake()
            return harness.seconds_of(lambda: top.run(lane))

        return side

    def read(nbytes: int, take: Callable[[], np.ndarray]) -> dict[str, Callable[[], float]]:
        return {
            f"read {count}": lambda count=count: harness.read_seconds(take()[:nbytes], count)
            for count in counts
            if count <= harness.THREADS
        }

    def product(m: int) -> dict[str, Callable[[], float]]:
        sides = {}
        for count, device in opened.items():
            dense = Dense(device, weights.on(device), m)
            dense.check()
            sides[str(count)] = dense.side
        return sides

    works = {
        f"mat-vec {TYPE}": lambda: {
            **product(1),
            **read(weights.nbytes, lambda: weights.slot(weights.next())),
        },
        f"mat-mat {TYPE}, 128 inputs": lambda: product(128),
        "DFlash2 top-16": lambda: {
            **{str(count): top16(device) for count, device in opened.items()},
            **read(selector.TOP16_BYTES, lambda: logits.values[next(slots)].reshape(-1)),
        },
    }
    for name in options.chosen(works):
        results[name] = harness.in_turn(works[name](), options.rounds)
    return results


def switches() -> int:
    """Times that this process's threads went to sleep and were woken."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def wake_ups(options: harness.Options) -> dict[str, float]:
    """Of all threads together, by launch: launches one behind another in a submission, and a submission each."""
    device = metalane.Device("cpu")
    dense = Dense(device, WeightRing(device, TYPE, 1024, 1024, 1 << 20), 1)
    weight = dense.ring.view(0)
    launches = 100 if options.quick else 1000

    def in_one_submission() -> None:
        encoder = device.command_encoder()
        for _ in range(launches):
            dense.record(encoder, weight)
        encoder.commit_and_wait()

    def one_each() -> None:
        for _ in range(launches):
            dense.run(weight)

    def one_each_after_sleep() -> None:
        for _ in range(launches // 10):
            time.sleep(0.001)
            dense.run(weight)

    result = {}
    for name, work, count in (
        ("in one submission", in_one_submission, launches),
        ("a submission each, one behind another", one_each, launches),
        ("a submission each, a pause of 1 ms before it", one_each_after_sleep, launches // 10),
    ):
        work()
        before = switches()
        work()
        result[name] = (switches() - before) / count
    return result


def idle_share() -> float:
    """Processor time of this process by elapsed time, a second long, with a device that has worked and waits."""
    device = metalane.Device("cpu")
    dense = Dense(device, WeightRing(device, TYPE, 1024, 1024, 1 << 20), 1)
    dense.run(dense.ring.view(0))
    time.sleep(0.1)
    begin, elapsed = time.process_time(), time.perf_counter()
    time.sleep(1)
    return (time.process_time() - begin) / (time.perf_counter() - elapsed)


def first_launch() -> tuple[float, float]:
    """Seconds of a device's first launch of a work, threads started in it, and of the second."""
    device = metalane.Device("cpu")
    dense = Dense(device, WeightRing(device, TYPE, N, K, 64 << 20), 1)
    return tuple(harness.seconds_of(lambda: dense.run(dense.ring.view(0))) for _ in range(2))


def beside_neighbours(options: harness.Options) -> dict[int, harness.Samples]:
    """A model's worth of small products in one submission (metalane) or graph (ggml), beside busy processes."""
    device = metalane.Device("cpu")
    ring = WeightRing(device, TYPE, 1024, 4096, 64 << 20)
    dense = Dense(device, ring, 1)
    dense.check()
    weights = [ring.view(slot) for slot in range(ring.count)]

    def ours() -> float:
        def run() -> None:
            encoder = device.command_encoder()
            for weight in weights:
                dense.record(encoder, weight)
            encoder.commit_and_wait()

        dense.wake()
        return harness.seconds_of(run)

    results = {}
    with Ggmls() as ggmls:
        sides = {"metalane": ours, **ggmls.dense_in_one_graph(dense)}
        for count in NEIGHBOURS:
            with neighbours(count):
                results[count] = harness.in_turn(sides, max(3, options.rounds // 3))
    return results


def scaling_report(scaled: dict[str, harness.Samples]) -> tuple[list[str], list[harness.Target]]:
    body = ["Median ms by threads, in one run; reading the same bytes, where memory may be the limit.", ""]
    counts = sorted({int(side) for samples in scaled.values() for side in samples if side.isdigit()})
    body += [f"| work | {' | '.join(map(str, counts))} |", "|---" * (len(counts) + 1) + "|"]
    targets = []
    cores = harness.THREADS
    for name, samples in scaled.items():
        median = {side: float(np.median(values)) for side, values in samples.items()}
        for label, prefix in ((name, ""), (f"reading as much as {name}", "read ")):
            cells = [
                f"{1e3 * median[side]:.3g}" if (side := f"{prefix}{n}") in median else "" for n in counts
            ]
            if any(cells):
                body.append(f"| {label} | {' | '.join(cells)} |")
        possible = max(median["1"] / cores, median.get(f"read {cores}", 0.0))
        targets += [
            harness.Target(
                f"{name}: {cores} threads by an even share or reading",
                median[str(cores)] / possible,
                1.25,
                "times",
            ),
            harness.Target(
                f"{name}: {2 * cores} threads by {cores}",
                median[str(2 * cores)] / median[str(cores)],
                1.5,
                "times",
            ),
        ]
    return body, targets


def sharing_report(beside: dict[int, harness.Samples]) -> tuple[list[str], list[harness.Target]]:
    body = [
        "",
        f"Products one behind another, {harness.THREADS} threads, beside busy processes.",
        "",
        "| side, neighbours | median ms | 10-90 % | times metalane |",
        "|---|---|---|---|",
    ]
    targets = []
    alone = float(np.median(beside[0]["metalane"]))
    for count, samples in beside.items():
        for side, spread in harness.spreads(samples).items():
            times = harness.ratio(samples, side, "metalane")
            body.append(harness.spread_row(f"{side}, {count}", spread, 1e3, f"{times:.2f}"))
            if side != "metalane":
                name = f"{count} busy neighbours: {side} by metalane"
                targets.append(harness.Target(name, times, 1, "times", at_least=True))
        if count:
            fair = (harness.THREADS + count) / harness.THREADS
            slower = float(np.median(samples["metalane"])) / alone / fair
            name = f"{count} busy neighbours: by a fair share of the processors"
            targets.append(harness.Target(name, slower, 1.5, "times"))
    return body, targets


def main() -> None:
    options = harness.Options.parse("Benchmark of the CPU device's threads.", rounds=30)
    harness.check_reader()
    woken, idle, (first, second) = wake_ups(options), idle_share(), first_launch()
    scaled = scaling(options)
    beside = beside_neighbours(options)
    body, targets = scaling_report(scaled)
    more_body, more_targets = sharing_report(beside)
    body += more_body
    body += ["", "Times that a thread of the process goes to sleep, a launch:", ""]
    body += [f"- {name}: {count:.2f}" for name, count in woken.items()]
    body += ["", f"First launch of a device {1e3 * first:.3g} ms, its second {1e3 * second:.3g} ms."]
    # Asleep before such a launch: the caller, and every thread of the device.
    after_pause = next(reversed(woken.values()))
    targets += [
        *more_targets,
        harness.Target(
            "sleeps of all threads, a launch after a pause", after_pause, harness.THREADS + 1.5, ""
        ),
        harness.Target("processor time of an idle device", 100 * idle, 1, "%"),
    ]
    cases = {
        "scaling": {name: harness.spreads(samples) for name, samples in scaled.items()},
        "neighbours": {count: harness.spreads(samples) for count, samples in beside.items()},
        "sleeps_by_launch": woken,
        "idle_share": idle,
        "first_launches": [first, second],
    }
    harness.write("threads", "Threads of the CPU device", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
