"""Measures the DFlash2 selector: top-16 beside read bandwidth, torch.topk and argpartition; the whole step.

    python benchmarks/dflash2_selector.py [--rounds 30]

Inputs are cold: they lie in a ring larger than four last-level caches, and each measurement takes the next of its kind.
Read bandwidth is read_bandwidth.cpp over 256 MiB that are cold as well, with as many threads as the device has; its
median in the same rounds is what every share is a share of.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np

import metalane

sys.path.insert(0, str(harness.HERE.parent / "tests"))
from ops.oracle import dflash2 as oracle

torch = harness.optional("torch")
VOCABULARY, LANES, ROWS = 248_320, 4, 16
SMALL_VOCABULARY = 4096
ROW_BYTES = 4 * VOCABULARY
SLOT_BYTES = ROWS * ROW_BYTES  # one lane's logits: the anchor's row, then 15 rows to look through
TOP16_BYTES = (ROWS - 1) * ROW_BYTES
READ_BYTES = 256 << 20
KINDS = ("normal", "ascending", "descending", "all-equal", "all-nan")


def params_for(lanes: int, vocabulary: int = VOCABULARY) -> metalane.DFlash2SelectorParams:
    return metalane.DFlash2SelectorParams(
        anchor=[1, 2, 3, 4],
        temperature=[1.0] * 4,
        lanes=lanes,
        rows_per_lane=ROWS,
        vocabulary=vocabulary,
        sampling_mask=(1 << lanes) - 2,
    )


class Ring:
    """Logits in slots of one lane: three fifths are normal rows, the others the kinds that could be slow."""

    def __init__(self, device: metalane.Device, nbytes: int) -> None:
        each = max(2, nbytes // SLOT_BYTES // 10)  # slots of each of the four other kinds
        self.counts = {kind: 6 * each if kind == "normal" else each for kind in KINDS}
        self.buffer = device.empty((sum(self.counts.values()), ROWS, VOCABULARY), np.float32)
        self.values = self.buffer.numpy()
        self.first = dict(zip(KINDS, itertools.accumulate([0, *self.counts.values()]), strict=False))
        random = np.random.default_rng(1)
        normal = random.standard_normal(VOCABULARY, np.float32)
        for slot in range(self.counts["normal"]):
            for row in range(ROWS):
                self.values[slot, row] = np.roll(normal, int(random.integers(VOCABULARY)))
        ramp = np.arange(VOCABULARY, dtype=np.float32)
        rows = {
            "ascending": ramp,
            "descending": -ramp,
            "all-equal": np.ones(VOCABULARY, np.float32),
            "all-nan": np.full(VOCABULARY, np.nan, np.float32),
        }
        for kind, row in rows.items():
            self.values[self.first[kind] : self.first[kind] + self.counts[kind]] = row

    def on(self, device: metalane.Device) -> Ring:
        """The same memory for another device."""
        other = copy.copy(self)
        other.buffer = device.wrap(self.values)
        return other

    def slots(self, kind: str) -> Iterator[int]:
        first = self.first[kind]
        return itertools.cycle(range(first, first + self.counts[kind]))

    def lanes(self, slot: int, lanes: int) -> metalane.Buffer:
        return self.buffer.view(slot * SLOT_BYTES, (lanes, ROWS, VOCABULARY))


def aligned_zeros(nbytes: int) -> np.ndarray:
    whole = np.ones(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]


def bandwidth_side(nbytes: int) -> Callable[[], float]:
    pieces = itertools.cycle(np.split(aligned_zeros(nbytes // READ_BYTES * READ_BYTES), nbytes // READ_BYTES))
    return lambda: harness.read_seconds(next(pieces))


class Top16:
    """The top-16 kernel alone, on one lane."""

    def __init__(self, device: metalane.Device) -> None:
        self.device = device
        self.ids = device.zeros((1, ROWS - 1, 8, 16), np.uint32)
        self.values = device.zeros((1, ROWS - 1, 8, 16), np.float32)
        self.params = params_for(1)
        self.small_logits = device.zeros((1, ROWS, SMALL_VOCABULARY), np.float32)
        self.small_params = params_for(1, SMALL_VOCABULARY)

    def wake(self) -> None:
        """A small launch, so that the device's threads are awake, as those of read_bandwidth.cpp are."""
        self.run(self.small_logits, self.small_params)

    def run(self, logits: metalane.Buffer, params: metalane.DFlash2SelectorParams | None = None) -> None:
        encoder = self.device.command_encoder()
        encoder.dispatch(
            "dflash2_select_top16",
            [logits, self.ids, self.values, params or self.params],
            threadgroups=(ROWS - 1) * 8,
            threads_per_threadgroup=256,
        )
        encoder.commit_and_wait()

    def check(self, ring: Ring) -> None:
        """Against the float64 oracle, each kind of row."""
        for kind in KINDS:
            self.run(ring.lanes(ring.first[kind], 1))
            expected = oracle.candidates(ring.values[ring.first[kind]][None])[0][0]
            ids, values = self.ids.numpy()[0].reshape(15, -1), self.values.numpy()[0].reshape(15, -1)
            for position in range(ROWS - 1):
                order = np.lexsort((ids[position], -values[position].astype(np.float64)))[:16]
                if not np.array_equal(ids[position][order], expected[position]):
                    raise SystemExit(f"top-16 of {kind} rows is wrong at position {position}")


def measure_top16(device: metalane.Device, ring: Ring, rounds: int, read: Callable[[], float]) -> Any:
    top16 = Top16(device)
    top16.check(ring)
    slots = {kind: ring.slots(kind) for kind in KINDS}

    def ours(kind: str) -> Callable[[], float]:
        def side() -> float:
            logits = ring.lanes(next(slots[kind]), 1)
            top16.wake()
            return harness.seconds_of(lambda: top16.run(logits))

        return side

    def peer(call: Callable[[np.ndarray], object]) -> Callable[[], float]:
        def side() -> float:
            rows = ring.values[next(slots["normal"]), 1:]
            seconds = harness.seconds_of(lambda: call(rows))
            harness.settle()
            return seconds

        return side

    sides = {kind: ours(kind) for kind in KINDS}
    sides["read"] = read
    sides["numpy.argpartition"] = peer(lambda rows: np.argpartition(rows, VOCABULARY - 16, axis=1)[:, -16:])
    if torch is not None:
        torch.set_num_threads(harness.THREADS)
        sides["torch.topk"] = peer(lambda rows: torch.topk(torch.from_numpy(rows), 16, dim=1))
    return harness.in_turn(sides, rounds)


def selector_buffers(device: metalane.Device) -> metalane.DFlash2SelectorBuffers:
    random = np.random.default_rng(2)
    buffers = metalane.DFlash2SelectorBuffers.alloc(device, LANES, ROWS, VOCABULARY)
    for buffer in (buffers.predecessor_codebook, buffers.successor_codebook, buffers.selector_hidden):
        flat = buffer.numpy().reshape(-1)
        flat[:] = np.resize(random.standard_normal(1 << 20, np.float32).astype(flat.dtype), flat.shape)
    buffers.uniforms.numpy()[:] = random.random((LANES, ROWS - 1), np.float32)
    return buffers


def check_step(buffers: metalane.DFlash2SelectorBuffers) -> None:
    """The path that the selector took is one that the float64 oracle allows; edges are near its own."""
    ids, unary = oracle.candidates(buffers.logits.numpy())
    edges, magnitude = oracle.edges(
        ids,
        params_for(LANES).anchor,
        buffers.selector_hidden.numpy(),
        buffers.predecessor_codebook.numpy(),
        buffers.successor_codebook.numpy(),
    )
    same = np.array_equal(buffers.candidates.numpy(), ids) and np.array_equal(buffers.unary.numpy(), unary)
    near = (np.abs(buffers.edges.numpy() - edges) <= 1e-5 * (1 + magnitude)).all()
    temperatures = [None, 1.0, 1.0, 1.0]
    tokens = oracle.path(ids, unary, edges, buffers.uniforms.numpy(), temperatures)[0]
    if not (same and near and (tokens == buffers.tokens.numpy()).mean() > 0.9):
        raise SystemExit("the selector disagrees with the oracle")


def measure_step(device: metalane.Device, ring: Ring, rounds: int, read: Callable[[], float]) -> Any:
    buffers, params = selector_buffers(device), params_for(LANES)
    waker = Top16(device)
    starts = itertools.cycle(range(0, ring.counts["normal"] - LANES + 1, LANES))

    def run() -> None:
        encoder = device.command_encoder()
        metalane.dispatch_dflash2_selector(encoder, buffers, params)
        encoder.commit_and_wait()

    def selector() -> float:
        buffers.logits = ring.lanes(next(starts), LANES)
        waker.wake()
        return harness.seconds_of(run)

    selector()
    check_step(buffers)
    return harness.in_turn({"selector": selector, "read": read}, rounds)


def report(top16: harness.Samples, step: harness.Samples) -> tuple[list[str], list[harness.Target]]:
    spread, step_spread = harness.spreads(top16), harness.spreads(step)
    share = {kind: 100 * TOP16_BYTES / READ_BYTES * harness.ratio(top16, "read", kind) for kind in KINDS}
    slower = {kind: harness.ratio(top16, kind, "normal") for kind in KINDS}
    once = LANES * TOP16_BYTES / READ_BYTES
    step_ratio = harness.ratio(step, "selector", "read") / once
    targets = [
        harness.Target("top-16, cold: share of read bandwidth", share["normal"], 60, "%", at_least=True),
        *(harness.Target(f"{kind} rows by normal rows", slower[kind], 3, "times") for kind in KINDS[1:]),
        harness.Target("whole step by reading its logits once", step_ratio, 2, "times"),
    ]
    body = [
        f"Top-16 of 15 x {VOCABULARY:,}, cold; read bandwidth "
        f"{READ_BYTES / spread['read'].median / 1e9:.1f} GB/s with {harness.THREADS} threads.",
        "",
        "| | median ms | 10-90 % | times normal rows | of read bandwidth |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        row = harness.spread_row(
            f"{kind} rows", spread[kind], 1e3, f"{slower[kind]:.2f}", f"{share[kind]:.0f} %"
        )
        body.append(row)
    for name in ("numpy.argpartition", "torch.topk"):
        if name not in top16:
            body += [f"| {name}: not installed | | | | |"]
            continue
        times = harness.ratio(top16, name, "normal")
        body.append(harness.spread_row(f"{name}, normal rows", spread[name], 1e3, f"{times:.2f}", ""))
        if name == "torch.topk":
            targets.insert(1, harness.Target("torch.topk by top-16", times, 3, "times", at_least=True))
    body += [
        "",
        f"Whole selector step, {LANES} x {ROWS} x {VOCABULARY:,}, logits and codebook rows cold.",
        "",
        "| | median ms | 10-90 % | times reading its logits |",
        "|---|---|---|---|",
        harness.spread_row("selector", step_spread["selector"], 1e3, f"{step_ratio:.2f}"),
        harness.spread_row("reading its logits once", step_spread["read"], 1e3 * once, "1"),
    ]
    return body, targets


def main() -> None:
    options = harness.Options.parse("Benchmark of the DFlash2 selector.", rounds=30)
    harness.check_reader()
    device = metalane.Device("cpu")
    ring = Ring(device, options.ring_bytes())
    read = bandwidth_side(4 * READ_BYTES)
    top16 = measure_top16(device, ring, options.rounds, read)
    step = measure_step(device, ring, options.rounds, read)
    body, targets = report(top16, step)
    cases = {
        "ring_bytes": ring.buffer.nbytes,
        "read_bytes": READ_BYTES,
        "top16_seconds": harness.spreads(top16),
        "step_seconds": harness.spreads(step),
    }
    harness.write("dflash2_selector", f"DFlash2 selector, {device.name}", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
