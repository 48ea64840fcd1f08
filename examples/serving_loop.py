"""A serving loop: requests come and go on a few lanes, and drafts make each step worth several tokens.

    python examples/serving_loop.py [--device cpu] [--lanes 3] [--rows 4] [--requests 24] [--tokens 64]
                                    [--acceptance 0.8] [--temperature 0] [--vocabulary 32768] [--seed 1] [--small]

A step is one replay of one captured graph:

    drafter -> DFlash2 selector -> rows to verify -> rows packed -> target -> logits put back -> verification

Nothing is read back in between: how many rows the target multiplies is decided on the device. The host writes the last
token of each lane, replays, awaits the ticket, and hands out what was accepted. The same requests are served without
drafts, with the same number of rows in every lane, and with rows that follow from the drafter's confidence, what it
turned out to be worth, and what rows cost on this device.

Target and drafter are synthetic, of real shapes: serving_models.py has them.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from serving_models import SOURCE, Drafter, Shape, Target, Weights

import metalane

# ---------------------------------------------------------------------------------------------------------------------
# A step
# ---------------------------------------------------------------------------------------------------------------------


class Engine:
    """What lives as long as the models: buffers, and a captured graph for steps with drafts and for those without.

    The arrays are the buffers' own memory. The host writes the first five between steps and reads the others.
    """

    def __init__(self, device: metalane.Device, shape: Shape, seed: int) -> None:
        self.device, self.shape = device, shape
        self.kernels = kernels = device.compile(SOURCE, name="serving_loop.metal")
        self.weights = Weights(device, shape, seed)
        sizes = shape.lanes, shape.rows, shape.vocabulary
        selection = metalane.DFlash2SelectorBuffers.alloc(device, *sizes)
        selection.predecessor_codebook = self.weights.predecessor
        selection.successor_codebook = self.weights.successor
        verification = metalane.SpeculativeVerifyBuffers.alloc(device, *sizes)
        for name in ("tokens", "candidates", "proposal_probabilities"):
            setattr(verification, name, getattr(selection, name))
        self.selection, self.verification = selection, verification
        self.target = Target(device, kernels, shape, self.weights)
        self.drafter = Drafter(device, kernels, shape, self.weights, selection)
        self.anchor_buffer = device.zeros((shape.lanes,), np.uint32)
        self.usual_buffer = device.zeros((shape.rows - 1,), np.float32)
        self.used_buffer = device.zeros((shape.lanes, shape.rows - 1), np.float32)
        self.packing = self.target.rows_params()
        self.row_tokens, self.row_places = (device.zeros((shape.places,), np.uint32) for _ in range(2))
        self.grids = device.zeros((self.packing.n_grids, 3), np.uint32)

        self.anchors = self.anchor_buffer.numpy()
        self.temperature = verification.temperature.numpy()
        self.select_uniforms = selection.uniforms.numpy()
        self.verify_uniforms = verification.uniforms.numpy()
        self.usual_confidence = self.usual_buffer.numpy()
        self.confidence = selection.confidence.numpy()
        self.used_confidence = self.used_buffer.numpy()
        self.rows = verification.verify_rows.numpy()
        self.drafted_tokens = selection.tokens.numpy()
        self.accepted = verification.accepted.numpy()
        self.next_tokens = verification.next_tokens.numpy()

        self.drafted = self._captured(lambda encoder: self._encode_drafted(encoder, shape.places))
        self.plain = self._captured(self._encode_plain)
        self.costs, self.plain_cost = self._measured_costs()

    def _measured_costs(self) -> tuple[list[float], float]:
        """Seconds of a step with drafts by its rows, and of one without."""
        shape = self.shape
        table = metalane.VerifyCostTable.measure(
            self.device,
            self._encode_drafted,
            rows=shape.places,
            shape=(shape.lanes, shape.rows, shape.vocabulary, shape.width, shape.hidden, shape.layers),
            quantization="Q4_K, Q8_0",
        )
        one_row_a_lane = {"choose": self.every_row([1] * shape.lanes)}
        # In turn, so that a slow moment of the machine meets both.
        quotients = [
            self._seconds(self.plain.replay()) / self._seconds(self.drafted.replay(one_row_a_lane))
            for _ in range(15)
        ]
        return table.costs(), statistics.median(quotients) * table.costs()[shape.lanes]

    def _captured(self, encode: Callable[[metalane.CommandEncoder], None]) -> metalane.ComputeGraph:
        encoder = self.device.command_encoder()
        with encoder.capture() as captured:
            encode(encoder)
        encoder.discard()
        return captured.graph

    @staticmethod
    def _seconds(ticket: metalane.Ticket) -> float:
        ticket.wait()
        return ticket.gpu_time

    def _encode_drafted(self, encoder: metalane.CommandEncoder, rows: int) -> None:
        """`rows` in all, one a lane at least; a replay may choose others."""
        shape, verification = self.shape, self.verification
        self.drafter.encode(encoder, self.anchor_buffer)
        with encoder.label("select"):
            metalane.dispatch_dflash2_selector(encoder, self.selection, self.select_params())
        self.kernels.fair_confidence(
            self.selection.confidence, verification.temperature, self.usual_buffer, self.used_buffer,
            shape.rows - 1, threads=shape.lanes * (shape.rows - 1), encoder=encoder,
        )  # fmt: skip
        with encoder.label("choose"):
            chosen = self.every_row([max(1, (rows + lane) // shape.lanes) for lane in range(shape.lanes)])
            metalane.dispatch_dflash2_verify_rows(encoder, self.used_buffer, verification.verify_rows, chosen)
        metalane.dispatch_speculative_rows(
            encoder, verification.verify_rows, self.anchor_buffer, self.selection.tokens, self.row_tokens,
            self.row_places, self.grids, self.packing,
        )  # fmt: skip
        grids = [self.grids.view(12 * g, (3,)) for g in range(self.packing.n_grids)]
        self.target.encode(encoder, self.row_tokens, shape.places, grids)
        self._encode_verification(encoder, self.row_places, verification, grids[3])

    def _encode_plain(self, encoder: metalane.CommandEncoder) -> None:
        """The same step with one row a lane, its sizes fixed by the host."""
        shape = self.shape
        places = np.full(shape.places, metalane.SPECULATIVE_ROWS_NOWHERE, np.uint32)
        places[: shape.lanes] = np.arange(shape.lanes) * shape.rows
        fields = {name: getattr(self.verification, name) for name in self.verification.__match_args__}
        fields["verify_rows"] = self.device.from_numpy(np.ones(shape.lanes, np.uint32))
        verification = metalane.SpeculativeVerifyBuffers(**fields)
        self.target.encode(encoder, self.anchor_buffer, shape.lanes, [None] * 6)
        self._encode_verification(encoder, self.device.from_numpy(places), verification, None)

    def _encode_verification(
        self,
        encoder: metalane.CommandEncoder,
        places: metalane.Buffer,
        verification: metalane.SpeculativeVerifyBuffers,
        grid: metalane.Buffer | None,
    ) -> None:
        shape = self.shape
        scatter = metalane.ScatterRowsParams(shape.vocabulary, shape.places)
        metalane.scatter_rows(encoder, self.target.logits, places, verification.logits, scatter, grid=grid)
        params = metalane.SpeculativeVerifyParams(
            shape.lanes, shape.rows, shape.vocabulary, metalane.DFLASH2_CANDIDATES
        )
        metalane.dispatch_speculative_verify(encoder, verification, params)

    def select_params(self) -> metalane.DFlash2SelectorParams:
        """Of the lanes as `anchors` and `temperature` have them."""
        spare = [0] * (metalane.DFLASH2_MAX_LANES - self.shape.lanes)
        samples = self.temperature > 0
        return metalane.DFlash2SelectorParams(
            anchor=[*self.anchors.tolist(), *spare],
            temperature=[*np.where(samples, self.temperature, 1).tolist(), *spare],
            lanes=self.shape.lanes,
            rows_per_lane=self.shape.rows,
            vocabulary=self.shape.vocabulary,
            sampling_mask=sum(1 << lane for lane in np.flatnonzero(samples).tolist()),
        )

    def every_row(self, maximum: Sequence[int]) -> metalane.DFlash2VerifyRowsParams:
        """So many rows in each lane, whatever the confidence."""
        spare = [0] * (metalane.DFLASH2_MAX_LANES - self.shape.lanes)
        return metalane.DFlash2VerifyRowsParams.with_costs(
            costs=[1.0] * metalane.DFLASH2_VERIFY_COSTS,
            slope=1.0,
            intercept=[0.0] * metalane.DFLASH2_MAX_POSITIONS,
            lanes=self.shape.lanes,
            rows_per_lane=self.shape.rows,
            every_row=1,
            maximum=[*maximum, *spare],
        )

    def step_tokens(self, lane: int) -> list[int]:
        """What the last step gave a lane."""
        kept = int(self.accepted[lane])
        return [*self.drafted_tokens[lane, :kept].tolist(), int(self.next_tokens[lane])]

    def launches_and_barriers(self, graph: metalane.ComputeGraph) -> tuple[int, int]:
        encoder = self.device.command_encoder()
        graph.encode(encoder)
        counts = encoder.launches, encoder.barriers
        encoder.discard()
        return counts


# ---------------------------------------------------------------------------------------------------------------------
# How much to draft
# ---------------------------------------------------------------------------------------------------------------------


class Drafting(Protocol):
    """Decides before each step; `maximum` has the most rows that each lane can use."""

    def choose(self, maximum: Sequence[int]) -> metalane.DFlash2VerifyRowsParams | None:
        """None: a step without drafts."""

    def learn(self, busy: Sequence[int]) -> None:
        """Called behind a step with drafts, with the lanes that served a request."""


class NoDrafts:
    def __init__(self, engine: Engine) -> None:
        pass

    def choose(self, maximum: Sequence[int]) -> metalane.DFlash2VerifyRowsParams | None:
        return None

    def learn(self, busy: Sequence[int]) -> None:
        pass


class FixedRows:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def choose(self, maximum: Sequence[int]) -> metalane.DFlash2VerifyRowsParams | None:
        return self.engine.every_row(maximum)

    def learn(self, busy: Sequence[int]) -> None:
        pass


class AdaptiveRows:
    """The rows that promise most tokens for their cost; no drafts at all while they do not pay.

    The device chooses rows by the drafter's confidence, as the acceptance model reads it, and by what rows cost.
    Whether drafts pay is seen afterwards: tokens by cost, beside those of a step without drafts.
    """

    PROBE_STEPS, PROBE_ROWS = 128, 2  # while they do not pay, a few rows are drafted so often
    FIT_STEPS = 32
    NEWEST = 0.1  # weight of the newest step in the running mean

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = metalane.AcceptanceModel(forgetting=0.9, capacity=512)
        self.gain = 1.0
        self.steps = self.drafted_steps = 0
        self.probing = False
        engine.usual_confidence[:] = 0.5

    def choose(self, maximum: Sequence[int]) -> metalane.DFlash2VerifyRowsParams | None:
        self.steps += 1
        self.probing = self.gain < 1 and self.steps % self.PROBE_STEPS == 0
        if self.probing:
            return self.engine.every_row([min(rows, self.PROBE_ROWS) for rows in maximum])
        if self.gain < 1:
            return None
        rows_per_lane = self.engine.shape.rows
        return self.model.verify_rows_params(self.engine.costs, rows_per_lane=rows_per_lane, maximum=maximum)

    def learn(self, busy: Sequence[int]) -> None:
        engine = self.engine
        self.model.observe_verified(engine.used_confidence, engine.accepted, engine.rows)
        if sampling := [lane for lane in busy if engine.temperature[lane] > 0]:
            now = engine.confidence[sampling].mean(axis=0)
            engine.usual_confidence += self.NEWEST * (now - engine.usual_confidence)
        self.drafted_steps += 1
        if self.drafted_steps % self.FIT_STEPS == 0:
            self.model.fit()
        tokens = 1 + engine.accepted[busy].mean()
        gain = tokens * engine.plain_cost / engine.costs[engine.rows.sum()]
        # One probe that pays is reason enough to try again.
        self.gain = gain if self.probing and gain >= 1 else (1 - self.NEWEST) * self.gain + self.NEWEST * gain


Way = Callable[[Engine], Drafting]

# ---------------------------------------------------------------------------------------------------------------------
# Requests, lanes, the loop
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """Tokens behind the last one of a prompt."""

    prompt: int
    remaining: int
    temperature: float
    """0: greedy."""
    stream: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)


@dataclass
class Statistics:
    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted_steps: int = 0
    drafted_lanes: int = 0
    rows: int = 0
    """Of lanes with drafts."""
    accepted: int = 0
    seconds: float = 0.0
    python_seconds: float = 0.0
    """Processor time of the loop between one step and the next."""


class Server:
    """Continuous batching: whenever a lane is free, the next request in the queue takes it."""

    def __init__(self, engine: Engine, drafting: Drafting, acceptance: float, seed: int) -> None:
        self.engine, self.drafting, self.acceptance, self.seed = engine, drafting, acceptance, seed
        self.waiting: asyncio.Queue[Request] = asyncio.Queue()
        self.lanes: list[Request | None] = [None] * engine.shape.lanes
        self.random = np.random.default_rng(seed)
        self.statistics = Statistics()

    async def generate(self, prompt: int, length: int, temperature: float) -> AsyncIterator[int]:
        """What clients call."""
        request = Request(prompt, length, temperature)
        self.waiting.put_nowait(request)
        try:
            while (token := await request.stream.get()) is not None:
                yield token
        finally:
            request.remaining = 0  # a client that leaves early frees its lane

    async def serve(self) -> None:
        """Until it is cancelled."""
        while True:
            if not any(self.lanes):
                self._admit(0, await self.waiting.get())
            for lane, request in enumerate(self.lanes):
                if request is None and not self.waiting.empty():
                    self._admit(lane, self.waiting.get_nowait())
            await self._step()

    def _admit(self, lane: int, request: Request) -> None:
        self.lanes[lane] = request
        self.engine.anchors[lane] = request.prompt
        self.engine.temperature[lane] = request.temperature

    async def _step(self) -> None:
        engine, done = self.engine, self.statistics
        begin = time.thread_time()
        busy = [lane for lane, request in enumerate(self.lanes) if request]
        wanted = [request.remaining if request else 0 for request in self.lanes]
        maximum = [min(max(tokens, 1), engine.shape.rows) for tokens in wanted]
        rows = self.drafting.choose(maximum)
        if engine.temperature.any():
            self.random.random(out=engine.verify_uniforms, dtype=np.float32)
            self.random.random(out=engine.select_uniforms, dtype=np.float32)
        if rows is None:
            ticket = engine.plain.replay()
        else:
            draft = engine.drafter.params(self.acceptance, self.seed, done.steps)
            ticket = engine.drafted.replay(
                {"propose": draft, "select": engine.select_params(), "choose": rows}
            )
        committed = time.thread_time()
        await ticket
        awake = time.thread_time()

        if rows is not None:
            done.drafted_steps += 1
            done.drafted_lanes += len(busy)
            done.rows += int(engine.rows[busy].sum())
            done.accepted += int(engine.accepted[busy].sum())
            self.drafting.learn(busy)
        for lane in busy:
            self._hand_out(lane, engine.step_tokens(lane))
        done.steps += 1
        done.python_seconds += committed - begin + time.thread_time() - awake

    def _hand_out(self, lane: int, tokens: list[int]) -> None:
        request = self.lanes[lane]
        for token in tokens:
            request.stream.put_nowait(token)
        self.engine.anchors[lane] = tokens[-1]
        self.statistics.tokens += len(tokens)
        request.remaining -= len(tokens)
        if request.remaining <= 0:
            request.stream.put_nowait(None)
            self.lanes[lane] = None
            self.engine.temperature[lane] = 0
            self.statistics.requests += 1


# ---------------------------------------------------------------------------------------------------------------------
# Clients, and the comparison
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Requests, the same for every way to serve them."""

    requests: int
    tokens: int
    """Of a request, in the mean."""
    temperature: float
    """Of every other request; the others are greedy."""
    seed: int

    def drawn(self, vocabulary: int) -> list[tuple[int, int, float]]:
        """Last token of the prompt, length, temperature."""
        random = np.random.default_rng(self.seed)
        prompts = random.integers(0, vocabulary, self.requests).tolist()
        lengths = random.integers(self.tokens // 2 + 1, self.tokens * 3 // 2 + 1, self.requests).tolist()
        temperatures = [self.temperature * (number % 2) for number in range(self.requests)]
        return list(zip(prompts, lengths, temperatures, strict=True))


async def client(
    server: Server, requests: Iterator[tuple[int, tuple[int, int, float]]], outputs: dict[int, list[int]]
) -> None:
    """Sends a request, reads its tokens, sends the next."""
    for number, request in requests:
        outputs[number] = [token async for token in server.generate(*request)]


async def show_progress(server: Server, name: str, requests: int) -> None:
    begin = time.perf_counter()
    while True:
        await asyncio.sleep(0.1)
        done, seconds = server.statistics, time.perf_counter() - begin
        lanes = "".join(" " if request is None else "#" for request in server.lanes)
        line = f"{name:<22} [{lanes}] {done.requests:>4} of {requests} requests  {done.tokens:>6} tokens"
        print(f"\r{line}  {done.tokens / seconds:8.1f} tokens/s", end="", file=sys.stderr, flush=True)


async def serve_all(
    engine: Engine, way: Way, load: Load, acceptance: float, progress: str | None = None
) -> tuple[Statistics, dict[int, list[int]]]:
    """Serves the load and gives each request's tokens; `progress` is what the live line is called, None: no line."""
    server = Server(engine, way(engine), acceptance, load.seed)
    outputs: dict[int, list[int]] = {}
    requests = enumerate(load.drawn(engine.shape.vocabulary))

    async def all_clients() -> None:
        # Twice as many as lanes: somebody always waits.
        await asyncio.gather(*(client(server, requests, outputs) for _ in range(2 * engine.shape.lanes)))

    serving = asyncio.create_task(server.serve())
    clients = asyncio.create_task(all_clients())
    tasks = [serving, clients]
    if progress:
        tasks.append(asyncio.create_task(show_progress(server, progress, load.requests)))
    begin = time.perf_counter()
    await asyncio.wait([serving, clients], return_when=asyncio.FIRST_COMPLETED)
    server.statistics.seconds = time.perf_counter() - begin
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    if progress:
        print("\r" + 100 * " " + "\r", end="", file=sys.stderr, flush=True)
    return server.statistics, outputs


def differing(engine: Engine, load: Load, outputs: dict[int, list[int]]) -> int:
    """Greedy requests whose tokens are not the target's favourites, one behind another."""
    wrong = 0
    for number, (token, length, temperature) in enumerate(load.drawn(engine.shape.vocabulary)):
        expected = []
        for _ in range(length):
            token = int(engine.weights.favourites[token])
            expected.append(token)
        wrong += temperature == 0 and outputs[number] != expected
    return wrong


def row(name: str, engine: Engine, done: Statistics) -> str:
    plain, drafted = map(engine.launches_and_barriers, (engine.plain, engine.drafted))
    per_step = [
        (p * (done.steps - done.drafted_steps) + d * done.drafted_steps) / done.steps
        for p, d in zip(plain, drafted, strict=True)
    ]
    drafts = done.rows - done.drafted_lanes
    kept = f"{100 * done.accepted / drafts:.0f} %" if drafts else "-"
    rows = f"{done.rows / done.drafted_lanes:.2f}" if done.drafted_lanes else "1"
    return (
        f"{name:<22} {done.tokens / done.seconds:9.1f} {done.tokens / done.steps:11.2f} {rows:>9} {kept:>7} "
        f"{done.drafted_steps:>6}/{done.steps:<6} {per_step[0]:8.1f} {per_step[1]:8.1f} "
        f"{1e6 * done.python_seconds / done.steps:9.0f}"
    )


HEADING = (
    f"{'':<22} {'tokens/s':>9} {'tokens/step':>11} {'rows/lane':>9} {'kept':>7} {'drafted/steps':>13} "
    f"{'launches':>8} {'barriers':>8} {'Python us':>9}"
)
WAYS: dict[str, Way] = {
    "without drafts": NoDrafts,
    "selector, fixed rows": FixedRows,
    "adaptive rows": AdaptiveRows,
}


def within(kind: type[int] | type[float], least: float, most: float = math.inf) -> Callable[[str], float]:
    """What argparse reads a number by."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:  # NaN is nowhere
            limits = f"{least:g} to {most:g}" if most < math.inf else f"at least {least:g}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {text}")
        return value

    number.__name__ = kind.__name__  # argparse's word for it
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description="A serving loop with and without drafts.")
    parser.add_argument("--device", choices=["metal", "cpu"], help="default: Metal where there is one")
    parser.add_argument("--lanes", type=within(int, 1, 4), default=3, help="requests served at once, 1 to 4")
    parser.add_argument("--rows", type=within(int, 2, 16), default=4, help="rows a lane at most, 2 to 16")
    parser.add_argument("--requests", type=within(int, 1), default=24)
    parser.add_argument("--tokens", type=within(int, 1), default=64, help="of a request, in the mean")
    parser.add_argument(
        "--acceptance", type=within(float, 0, 1), default=0.8, help="how often the drafter is right"
    )
    parser.add_argument(
        "--temperature",
        type=within(float, 0, 100),
        default=0.0,
        help="of every other request; 0: all are greedy",
    )
    parser.add_argument("--vocabulary", type=within(int, 16, 1 << 20), default=32_768)
    parser.add_argument("--seed", type=within(int, 0), default=1)
    parser.add_argument("--small", action="store_true", help="models and vocabulary of toy size, for tests")
    options = parser.parse_args()

    device = metalane.Device(options.device)
    shape = Shape(options.lanes, options.rows, options.vocabulary)
    if options.small:
        shape = shape.small()
    print(f"Device: {device.name} ({device.kind}), metalane {metalane.__version__}")
    print(
        f"Target: vocabulary {shape.vocabulary:,}, width {shape.width}, {shape.layers} layers of {shape.hidden}"
    )
    engine = Engine(device, shape, options.seed)
    load = Load(options.requests, options.tokens, options.temperature, options.seed)
    wrong = 0
    print(HEADING)
    for name, way in WAYS.items():
        progress = name if sys.stderr.isatty() else None
        done, outputs = asyncio.run(serve_all(engine, way, load, options.acceptance, progress))
        wrong += differing(engine, load, outputs)
        print(row(name, engine, done), flush=True)
    greedy = sum(temperature == 0 for *_, temperature in load.drawn(shape.vocabulary))
    print(f"Greedy requests that differ from plain greedy decoding: {wrong} of {len(WAYS) * greedy}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
