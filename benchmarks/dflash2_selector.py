"""Measures the DFlash2 selector: top-16 beside read bandwidth, torch.topk, argpartition; steps; calls.

    python benchmarks/dflash2_selector.py [--rounds 15] [--out benchmarks/results]

Both sides of every ratio run in one process and in turn; medians, with the 10th and 90th percentile beside.
Caches are emptied before each measurement by writing a large array. Read bandwidth is NumPy's int32 maximum over
256 MiB, the fastest of its reductions here, one slice a thread, as many threads as the device has.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import metalane

try:
    import torch
except ImportError:
    torch = None

VOCABULARY = 248_320
READ_BYTES = 256 << 20
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_turn(
    sides: dict[str, Callable[[], Any]], rounds: int, before: Callable[[], None]
) -> dict[str, dict[str, float]]:
    """Seconds of each side, all sides once a round: median, 10th and 90th percentile."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(rounds):
        for name, side in sides.items():
            before()
            begin = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - begin)
    return {
        name: {
            "median": statistics.median(values),
            "p10": float(np.percentile(values, 10)),
            "p90": float(np.percentile(values, 90)),
        }
        for name, values in times.items()
    }


def cache_emptier() -> Callable[[], None]:
    large = np.zeros(32 << 20, np.uint64)  # 256 MiB, past any last-level cache's share

    def empty() -> None:
        np.add(large, 1, out=large)

    return empty


def reader(pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Reads READ_BYTES of memory once, split over the pool's threads."""
    parts = np.array_split(np.ones(READ_BYTES // 4, np.int32), THREADS)

    def read() -> None:
        list(pool.map(np.maximum.reduce, parts))

    return read


def params_for(lanes: int, rows: int) -> metalane.DFlash2SelectorParams:
    return metalane.DFlash2SelectorParams(
        anchor=[1, 2, 3, 4],
        temperature=[1.0] * 4,
        lanes=lanes,
        rows_per_lane=rows,
        vocabulary=VOCABULARY,
        sampling_mask=(1 << lanes) - 2,
    )


ROW_KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda random: random.standard_normal(VOCABULARY, np.float32),
    "ascending": lambda _: np.arange(VOCABULARY, dtype=np.float32),
    "descending": lambda _: -np.arange(VOCABULARY, dtype=np.float32),
    "all-equal": lambda _: np.ones(VOCABULARY, np.float32),
    "all-nan": lambda _: np.full(VOCABULARY, np.nan, np.float32),
}


def measure_top16(device: metalane.Device, rounds: int, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """15 rows: every kind of row beside the bandwidth of reading."""
    random = np.random.default_rng(1)
    logits = device.empty((1, 16, VOCABULARY), np.float32)
    ids = device.zeros((1, 15, 8, 16), np.uint32)
    values = device.zeros((1, 15, 8, 16), np.float32)
    params = params_for(1, 16)
    rows = logits.numpy()[0, 1:]
    read = reader(pool)

    def top16() -> None:
        encoder = device.command_encoder()
        encoder.dispatch(
            "dflash2_select_top16",
            [logits, ids, values, params],
            threadgroups=(120, 1, 1),
            threads_per_threadgroup=(256, 1, 1),
        )
        encoder.commit_and_wait()

    result: dict[str, Any] = {}
    for kind, make in ROW_KINDS.items():
        for row in rows:
            row[:] = make(random)
        sides: dict[str, Callable[[], Any]] = {"top16": top16, "read": read}
        if kind == "normal":
            sides["argpartition"] = lambda: np.argpartition(rows, VOCABULARY - 16, axis=1)[:, -16:]
            if torch is not None:
                torch.set_num_threads(THREADS)
                tensor = torch.from_numpy(rows)
                sides["torch.topk"] = functools.partial(torch.topk, tensor, 16, dim=1)
        result[kind] = in_turn(sides, rounds, cache_emptier())
    return result


def measure_step(device: metalane.Device, rounds: int, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """The whole selector at 4 x 16 x 248,320 beside the bandwidth of reading."""
    random = np.random.default_rng(2)
    buffers = metalane.DFlash2SelectorBuffers.alloc(device, 4, 16, VOCABULARY)
    logits = buffers.logits.numpy()
    for lane, row in np.ndindex(4, 16):
        logits[lane, row] = random.standard_normal(VOCABULARY, np.float32)
    for buffer in (buffers.predecessor_codebook, buffers.successor_codebook, buffers.selector_hidden):
        flat = buffer.numpy().reshape(-1)
        flat[:] = np.resize(random.standard_normal(1 << 20, np.float32).astype(flat.dtype), flat.shape)
    params = params_for(4, 16)

    def selector() -> None:
        encoder = device.command_encoder()
        metalane.dispatch_dflash2_selector(encoder, buffers, params)
        encoder.commit_and_wait()

    return in_turn({"selector": selector, "read": reader(pool)}, rounds, cache_emptier())


def seconds_per_call(
    call: Callable[[Any], None], make: Callable[[], Any], finish: Callable[[Any], None]
) -> float:
    """Median over 100 batches of 100 calls; `make` and `finish` of a batch are not counted."""
    batches = []
    for _ in range(100):
        subject = make()
        begin = time.perf_counter()
        for _ in range(100):
            call(subject)
        batches.append((time.perf_counter() - begin) / 100)
        finish(subject)
    return statistics.median(batches)


def measure_calls() -> dict[str, float]:
    """Python calls on the null device: what encoding costs."""
    device = metalane.Device("null")
    buffers = metalane.DFlash2SelectorBuffers.alloc(device, 4, 16, 1024)
    rows = device.zeros((4,), np.uint32)
    params = metalane.DFlash2SelectorParams(
        anchor=[1, 2, 3, 4],
        temperature=[1.0] * 4,
        lanes=4,
        rows_per_lane=16,
        vocabulary=1024,
        sampling_mask=6,
    )
    verify = metalane.DFlash2VerifyRowsParams.with_costs(
        costs=[1.0] * 65,
        slope=1.0,
        intercept=[0.0] * 15,
        lanes=4,
        rows_per_lane=16,
        every_row=0,
        maximum=[16] * 4,
    )
    selector_call, verify_call = metalane.dispatch_dflash2_selector, metalane.dispatch_dflash2_verify_rows
    anchor, temperature = [1, 2, 3, 4], [1.0] * 4
    make_params = metalane.DFlash2SelectorParams

    def build(_: None) -> None:
        make_params(
            anchor=anchor,
            temperature=temperature,
            lanes=4,
            rows_per_lane=16,
            vocabulary=1024,
            sampling_mask=6,
        )

    def commit(encoder: metalane.CommandEncoder) -> None:
        encoder.commit_and_wait()

    return {
        "dispatch_dflash2_selector": seconds_per_call(
            lambda encoder: selector_call(encoder, buffers, params), device.command_encoder, commit
        ),
        "dispatch_dflash2_verify_rows": seconds_per_call(
            lambda encoder: verify_call(encoder, buffers.confidence, rows, verify),
            device.command_encoder,
            commit,
        ),
        "DFlash2SelectorParams(...)": seconds_per_call(build, lambda: None, lambda _: None),
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['device']}, {result['threads']} threads, {result['rounds']} rounds",
        "",
        "| top-16 of 15 x 248,320, cold | ms | 10-90 % | GB/s | of read bandwidth | beside normal rows |",
        "|---|---|---|---|---|---|",
    ]
    top16 = result["top16"]
    nbytes = 15 * VOCABULARY * 4
    for kind, sides in top16.items():
        one, read = sides["top16"], READ_BYTES / sides["read"]["median"]
        lines.append(
            f"| {kind} | {1e3 * one['median']:.3f} | {1e3 * one['p10']:.3f} to {1e3 * one['p90']:.3f} "
            f"| {nbytes / one['median'] / 1e9:.1f} | {100 * nbytes / one['median'] / read:.0f} % of {read / 1e9:.1f} "
            f"| {one['median'] / top16['normal']['top16']['median']:.2f} |"
        )
    lines += ["", "| normal rows | ms | times top-16 |", "|---|---|---|"]
    for name, side in top16["normal"].items():
        if name == "read":
            continue
        ratio = side["median"] / top16["normal"]["top16"]["median"]
        lines.append(f"| {name} | {1e3 * side['median']:.3f} | {ratio:.2f} |")
    if "torch.topk" not in top16["normal"]:
        lines.append("| torch.topk | torch is not installed | |")
    step = result["step"]
    once = 4 * 15 * VOCABULARY * 4 * step["read"]["median"] / READ_BYTES
    lines += [
        "",
        "| step at 4 x 16 x 248,320 | ms | times reading its logits |",
        "|---|---|---|",
        f"| selector | {1e3 * step['selector']['median']:.3f} | {step['selector']['median'] / once:.2f} |",
        f"| reading the logits once | {1e3 * once:.3f} | 1 |",
        "",
        "| Python call, null device | us |",
        "|---|---|",
        *(f"| {name} | {1e6 * seconds:.2f} |" for name, seconds in result["calls"].items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the DFlash2 selector.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", default="auto", choices=["auto", "native", "shader"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    device = metalane.Device("cpu", kernels=options.kernels)
    with ThreadPoolExecutor(THREADS) as pool:
        result = {
            "device": device.name,
            "kernels": options.kernels,
            "threads": THREADS,
            "rounds": options.rounds,
            "top16": measure_top16(device, options.rounds, pool),
            "step": measure_step(device, options.rounds, pool),
            "calls": measure_calls(),
        }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "dflash2_selector.json").write_text(json.dumps(result, indent=2) + "\n")
    text = table(result)
    (options.out / "dflash2_selector.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
