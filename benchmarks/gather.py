"""Measures the embedding gather beside ggml's get_rows, NumPy's take, torch and MLX: a prompt's rows of a large table.

python benchmarks/gather.py [--rounds 15] [--quick] [--only PATTERN]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from products import PLAIN, TYPES, Ggmls, Waker, WeightRing, case_of, check, number, others, values_of

import metalane
from metalane.ops import ggml as products

VOCABULARY, DIM, TOKENS = 65_536, 2048, 512
PROMPTS = 64


class Prompts:
    """Ids of several prompts, each with a slot of the ring: rows of each are cold again when its turn comes."""

    def __init__(self, ring: WeightRing) -> None:
        random = np.random.default_rng(2)
        self.slots = [turn % ring.count for turn in range(max(ring.count, PROMPTS))]
        self.ids = [random.integers(0, ring.rows, TOKENS).astype(np.uint32) for _ in self.slots]
        self._order = itertools.cycle(range(len(self.ids)))

    def next(self) -> int:
        return next(self._order)


def ours(device: metalane.Device, ring: WeightRing, prompts: Prompts) -> Callable[[], float]:
    output = device.zeros((TOKENS, ring.k), np.float32)
    ids = [device.from_numpy(prompt) for prompt in prompts.ids]
    params = products.EmbeddingGgmlParams(ring.rows, ring.k, TOKENS, number(ring.type))
    wake = Waker(device)

    def run(turn: int) -> None:
        encoder = device.command_encoder()
        products.embedding_gather_ggml(encoder, ring.view(prompts.slots[turn]), ids[turn], output, params)
        encoder.commit_and_wait()

    run(0)
    expected = values_of(ring.raw[prompts.ids[0]], ring.type)
    if not np.array_equal(output.numpy(), expected):
        raise SystemExit(f"gathered rows of {ring.type} have other bits than gguf's")

    def side() -> float:
        turn = prompts.next()
        wake()
        return harness.seconds_of(lambda: run(turn))

    return side


def of_ggml(ggmls: Ggmls, ring: WeightRing, prompts: Prompts) -> dict[str, Callable[[], float]]:
    sides = {}
    for name, build in ggmls.builds.items():
        graphs = []
        for slot, ids in zip(prompts.slots, prompts.ids, strict=True):
            table = build.tensor(ring.slot(slot), number(ring.type), (ring.k, ring.rows))
            graphs.append(build.get_rows(table, ids))
        compute, output = graphs[0]
        compute()
        check(f"{name}, rows of {ring.type}", output, values_of(ring.raw[prompts.ids[0]], ring.type), 1e-9)

        def side(build: Any = build, graphs: Any = graphs) -> float:
            compute, _ = graphs[prompts.next()]
            return build.awake(lambda: harness.seconds_of(compute))

        sides[name] = side
    return sides


def of_others(ring: WeightRing, prompts: Prompts) -> dict[str, Callable[[], float]]:
    """Of the plain types alone: the others have no type of GGML's."""
    if ring.type not in PLAIN:
        return {}
    tables = [ring.slot(slot).view(PLAIN[ring.type]).reshape(ring.rows, ring.k) for slot in range(ring.count)]
    takes: dict[str, Callable[[int], object]] = {
        "NumPy": lambda turn: tables[prompts.slots[turn]][prompts.ids[turn]].astype(np.float32)
    }
    torch, mx = harness.optional("torch"), harness.optional("mlx.core")
    if torch is not None:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[ring.type]
        theirs = [torch.from_numpy(table.view(np.uint8)).view(dtype) for table in tables]
        chosen = [torch.from_numpy(prompt.astype(np.int64)) for prompt in prompts.ids]
        takes["torch"] = lambda turn: torch.nn.functional.embedding(
            chosen[turn], theirs[prompts.slots[turn]]
        ).float()
    if mx is not None and ring.type == "F32":
        copies, places = [mx.array(table) for table in tables], [mx.array(prompt) for prompt in prompts.ids]
        mx.eval(copies, places)
        takes["MLX"] = lambda turn: mx.eval(mx.take(copies[prompts.slots[turn]], places[turn], axis=0))

    def side(take: Callable[[int], object]) -> Callable[[], float]:
        def measure() -> float:
            turn = prompts.next()
            seconds = harness.seconds_of(lambda: take(turn))
            harness.settle()
            return seconds

        return measure

    return {name: side(take) for name, take in takes.items()}


def main() -> None:
    options = harness.Options.parse("Benchmark of the embedding gather.", rounds=15)
    device = metalane.Device("cpu")
    rows, dim = (2048, 512) if options.quick else (VOCABULARY, DIM)
    cases: list[harness.Case] = []
    targets: list[harness.Target] = []
    body = [
        f"{TOKENS} rows of {rows:,} x {dim}, at random; a ratio is another's time by metalane's.",
        "",
        "| type | median us | 10-90 % | GB/s written | times ggml | which ggml | times others |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in options.chosen(("F32", "Q4_K") if options.quick else TYPES):
        ring = WeightRing(device, name, rows, dim, options.ring_bytes())
        prompts = Prompts(ring)
        with Ggmls() as ggmls:
            sides = {"metalane": ours(device, ring, prompts), **of_ggml(ggmls, ring, prompts)}
            samples = harness.in_turn({**sides, **of_others(ring, prompts)}, options.rounds)
        written = 4 * TOKENS * dim
        parameters = {"type": name, "tokens": TOKENS, "vocabulary": rows, "dim": dim}
        case = case_of(parameters, written + TOKENS * ring.nbytes // rows, 0, samples)
        cases.append(case)
        spread = case.seconds["metalane"]
        more = (
            f"{written / spread.median / 1e9:.1f}",
            f"{case.times_ggml:.2f}",
            case.fastest_ggml,
            others(case),
        )
        body.append(harness.spread_row(name, spread, 1e6, *more))
        print(body[-1], flush=True)
        targets.append(
            harness.Target(f"{name}: times ggml's get_rows", case.times_ggml, 1, "times", at_least=True)
        )
    harness.write("gather", f"Embedding gather, {device.name}", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
