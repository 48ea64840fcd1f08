"""Measures expert products beside ggml's: 128 experts, 8 of them a token, 1 to 512 tokens.

    python benchmarks/experts.py [--rounds 7] [--quick] [--only PATTERN]

Each measurement takes other experts or other weights than those before: all have had their turn before one comes again.
The experts are of the size of a current model's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import ggml_library
import harness
import numpy as np
from products import TYPES, Ggmls, Waker, WeightRing, case_of, check, number, values_of

import metalane
from metalane.ops import ggml as products

EXPERTS, TOP_K = 128, 8
N, K = 768, 2048
TOKENS = (1, 8, 64, 512)
CHECKED_TOKENS = 4


@dataclass
class Routed:
    """output[token, slot] = x[token] W[ids[token, slot]]^T."""

    device: metalane.Device
    ring: WeightRing  # of experts * n rows
    tokens: int
    experts: int = EXPERTS
    ids: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(1)
        ring, tokens = self.ring, self.tokens
        self.n = ring.rows // self.experts
        self.x = random.standard_normal((tokens, ring.k)).astype(np.float32)
        # As many routings as it takes for each expert to be touched; a token's experts differ from each other.
        self.ids = [
            random.permuted(np.tile(np.arange(self.experts, dtype=np.uint32), (tokens, 1)), axis=1)[:, :TOP_K]
            for _ in range(max(1, self.experts // (TOP_K * tokens)))
        ]
        self._x = self.device.from_numpy(self.x)
        self._ids = [self.device.from_numpy(np.ascontiguousarray(ids)) for ids in self.ids]
        self._y = self.device.empty((tokens * TOP_K, self.n), np.float32)
        self._params = products.GgmlQuantizedMatmulIdParams(
            tokens,
            TOP_K,
            self.n,
            ring.k,
            self.experts,
            expert_stride=ring.nbytes // self.experts,
            ggml_type=number(ring.type),
        )
        self._wake = Waker(self.device)
        self._order = itertools.cycle(range(self.turns))
        few = min(tokens, CHECKED_TOKENS)
        self.expected = np.concatenate([self._product(t, e) for t in range(few) for e in self.ids[0][t]])

    def _product(self, token: int, expert: int) -> np.ndarray:
        rows = self.ring.raw[expert * self.n : (expert + 1) * self.n]
        weight = values_of(rows, self.ring.type).astype(np.float64)
        return weight @ self.x[token].astype(np.float64)

    @property
    def touched_experts(self) -> float:
        """Mean over the routings."""
        return float(np.mean([len(np.unique(ids)) for ids in self.ids]))

    @property
    def nbytes(self) -> int:
        weights = self.touched_experts * self.ring.nbytes / self.experts
        return int(weights) + 4 * self.tokens * (self.ring.k + TOP_K * self.n)

    @property
    def flops(self) -> int:
        return 2 * self.tokens * TOP_K * self.n * self.ring.k

    def run(self, weight: metalane.Buffer, ids: metalane.Buffer) -> None:
        encoder = self.device.command_encoder()
        products.quantized_matmul_id_ggml(encoder, self._x, weight, ids, self._y, self._params)
        encoder.commit_and_wait()

    @property
    def turns(self) -> int:
        """Pairs of a slot of the ring and a routing."""
        return self.ring.count * len(self.ids)

    def turn(self, number: int) -> tuple[int, int]:
        return number % self.ring.count, number // self.ring.count

    def next(self) -> int:
        """Number of the turn that was longest ago."""
        return next(self._order)

    def side(self) -> float:
        slot, routing = self.turn(self.next())
        weight = self.ring.view(slot)
        self._wake()
        return harness.seconds_of(lambda: self.run(weight, self._ids[routing]))

    def check(self) -> None:
        self._y.numpy()[:] = np.nan
        self.run(self.ring.view(0), self._ids[0])
        self.check_result("metalane", self._y.numpy(), 1e-6)

    def check_result(self, name: str, result: np.ndarray, bound: float) -> None:
        got = result[: min(self.tokens, CHECKED_TOKENS) * TOP_K].reshape(-1)
        check(f"{name}, {self.ring.type} experts", got, self.expected, bound)


def sides_of_ggml(ggmls: Ggmls, routed: Routed) -> dict[str, Callable[[], float]]:
    return {name: _side(name, build, routed) for name, build in ggmls.builds.items()}


def _side(name: str, build: ggml_library.Ggml, routed: Routed) -> Callable[[], float]:
    ring = routed.ring
    graphs = []
    for turn in range(routed.turns):
        slot, routing = routed.turn(turn)
        weight = build.tensor(ring.slot(slot), number(ring.type), (ring.k, routed.n, routed.experts))
        graphs.append(build.mul_mat_id(weight, routed.x, routed.ids[routing]))
    compute, output = graphs[0]
    compute()
    routed.check_result(name, output, 1e-3)

    def side() -> float:
        compute, _ = graphs[routed.next()]
        return build.awake(lambda: harness.seconds_of(compute))

    return side


def measure(device: metalane.Device, ring: WeightRing, tokens: int, rounds: int) -> harness.Case:
    routed = Routed(device, ring, tokens)
    routed.check()
    with Ggmls() as ggmls:
        samples = harness.in_turn({"metalane": routed.side, **sides_of_ggml(ggmls, routed)}, rounds)
    parameters = {
        "type": ring.type, "tokens": tokens, "top_k": TOP_K, "experts": EXPERTS, "n": routed.n, "k": ring.k
    }  # fmt: skip
    return case_of(parameters, routed.nbytes, routed.flops, samples)


def main() -> None:
    options = harness.Options.parse("Benchmark of expert products.", rounds=7)
    device = metalane.Device("cpu")
    n, k = (128, 512) if options.quick else (N, K)
    types, tokens = (("F32", "Q4_K"), (1, 64)) if options.quick else (TYPES, TOKENS)
    cases: list[harness.Case] = []
    targets: list[harness.Target] = []
    body = [
        f"{EXPERTS} experts of {n} x {k}, {TOP_K} a token. A ratio is ggml's time (the faster of its builds) by "
        "metalane's.",
        "",
        "| type, tokens | median ms | 10-90 % | GFLOP/s | GB/s of weights | times ggml | which ggml |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in types:
        chosen = [m for m in tokens if options.only.search(f"{name} m={m}")]
        if not chosen:
            continue
        ring = WeightRing(device, name, EXPERTS * n, k, options.ring_bytes())
        for m in chosen:
            case = measure(device, ring, m, options.rounds)
            cases.append(case)
            ours = case.seconds["metalane"]
            speed = (f"{case.flops / ours.median / 1e9:.0f}", f"{case.nbytes / ours.median / 1e9:.1f}")
            ratio = (f"{case.times_ggml:.2f}", case.fastest_ggml)
            body.append(harness.spread_row(f"{name}, {m}", ours, 1e3, *speed, *ratio))
            print(body[-1], flush=True)
            targets.append(
                harness.Target(f"{name}, {m} tokens: times ggml", case.times_ggml, 1, "times", at_least=True)
            )
    harness.write("experts", f"Expert products, {device.name}", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
