"""The example of a serving loop: its target is what it says, drafts change no token, lanes and drafts come and go."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import metalane

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serving_loop.py"
# A loop of hundreds of steps takes minutes under the checker.
pytestmark = [pytest.mark.cpu, pytest.mark.metalane_check(False)]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Clients of a server that has failed would wait for ever."""
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.fixture(scope="module")
def example() -> ModuleType:
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        return importlib.import_module(EXAMPLE.stem)
    finally:
        sys.path.remove(str(EXAMPLE.parent))


@pytest.fixture(scope="module")
def engine(example: ModuleType):
    """With costs of its own: a step is worth a token a lane, and more rows cost little or, past eight, much."""
    engine = example.Engine(metalane.Device("cpu"), example.Shape(lanes=3, rows=5).small(), seed=7)
    engine.plain_cost = 1.0
    engine.costs = [1.0 + 0.02 * rows + 0.5 * (rows > 8) for rows in range(65)]
    return engine


def test_the_program_serves_every_request_exactly() -> None:
    options = ["--device", "cpu", "--small", "--requests", "6", "--tokens", "20", "--temperature", "0.8"]
    done = subprocess.run([sys.executable, EXAMPLE, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("Greedy requests that differ from plain greedy decoding: 0 of 9\n")
    rows = re.findall(r"^(\w[\w ,]+?) +[\d.]+ +([\d.]+) .* (\d+)/(\d+) ", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["without drafts", "selector, fixed rows", "adaptive rows"]
    (_, plain, none, _), (_, fixed, drafted, steps), _ = rows
    assert none == "0" and drafted == steps
    assert float(fixed) > 1.5 * float(plain)


@pytest.mark.parametrize(
    "given",
    [
        "--lanes 0", "--lanes 5", "--rows 1", "--rows 17", "--requests 0", "--tokens 0", "--acceptance 1.1",
        "--acceptance nan", "--temperature -1", "--temperature inf", "--vocabulary 15", "--seed -1", "--device null",
        "--tokens many",
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_refused_by_name(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["serving_loop.py", *given.split()])
    with pytest.raises(SystemExit) as stop:
        example.main()
    assert stop.value.code == 2
    assert f"error: argument {given.split()[0]}: " in capsys.readouterr().err


def test_the_targets_argmax_is_its_favourite(example: ModuleType, engine) -> None:
    """By the weights in float64."""
    shape, w = engine.shape, engine.weights
    tokens = np.random.default_rng(3).integers(0, shape.vocabulary, 40)

    def weight(buffer: metalane.Buffer, n: int, k: int, ggml_type: metalane.GgmlType) -> np.ndarray:
        return metalane.dequantize(buffer, ggml_type).reshape(n, k).astype(np.float64)

    types = metalane.GgmlType
    x = weight(w.embedding, shape.vocabulary, shape.width, types.Q8_0)[tokens]
    scale = importlib.import_module("serving_models").LAYER_SCALE
    for up, down in zip(w.up, w.down, strict=True):
        h = np.maximum(x @ weight(up, shape.hidden, shape.width, types.Q4_K).T, 0) ** 2
        x = x + scale * (h @ weight(down, shape.width, shape.hidden, types.Q4_K).T)
    logits = x @ weight(w.head, shape.vocabulary, shape.width, types.Q8_0).T
    assert logits.argmax(axis=1).tolist() == w.favourites[tokens].tolist()
    first, second = np.sort(logits, axis=1)[:, :-3:-1].T
    assert (first - second).min() > 0.1  # far more than products and their algorithms differ by


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("way", ["selector, fixed rows", "adaptive rows"])
def test_drafts_change_no_token(example: ModuleType, engine, way: str, acceptance: float) -> None:
    load = example.Load(requests=8, tokens=24, temperature=0.0, seed=5)
    done, outputs = run(example.serve_all(engine, example.WAYS[way], load, acceptance))
    assert example.differing(engine, load, outputs) == 0
    assert [len(outputs[i]) for i in range(8)] == [length for _, length, _ in load.drawn(2048)]
    assert done.requests == 8 and done.tokens == sum(map(len, outputs.values()))
    if acceptance == 0:
        assert done.accepted == 0
    if acceptance == 1:
        assert done.accepted == done.rows - done.drafted_lanes > 0
    if acceptance == 0.6 and way == "selector, fixed rows":
        drafts = done.rows - done.drafted_lanes
        # Of four drafts a lane 0.6 + 0.6^2 + ... are kept, of fewer more; some 100 lanes: four deviations either way.
        assert 0.2 < done.accepted / drafts < 0.55


def test_a_wrong_token_is_noticed(example: ModuleType, engine) -> None:
    load = example.Load(requests=4, tokens=8, temperature=0.9, seed=5)  # two are greedy
    _, outputs = run(example.serve_all(engine, example.NoDrafts, load, 0.0))
    assert example.differing(engine, load, outputs) == 0
    for tokens in outputs.values():
        tokens[-1] ^= 1
    assert example.differing(engine, load, outputs) == 2


def test_a_client_that_leaves_frees_its_lane(example: ModuleType, engine) -> None:
    async def serve() -> tuple[list[int], int]:
        server = example.Server(engine, example.FixedRows(engine), 1.0, seed=2)
        serving = asyncio.create_task(server.serve())
        endless = [server.generate(prompt, 10**6, 0.0) for prompt in range(engine.shape.lanes)]
        for tokens in endless:
            await anext(tokens)
        late = asyncio.create_task(anext(server.generate(9, 5, 0.0)))  # no lane is free
        steps = server.statistics.steps
        while server.statistics.steps < steps + 3:
            await asyncio.sleep(0)
        assert not late.done()
        await endless[1].aclose()
        token = await asyncio.wait_for(late, 30)
        serving.cancel()
        return token, server.statistics.requests

    token, finished = run(serve())
    assert token == engine.weights.favourites[9]
    assert finished >= 1


def test_drafting_stops_where_it_does_not_pay_and_comes_back(example: ModuleType, engine) -> None:
    async def serve() -> tuple[int, int, int]:
        server = example.Server(engine, example.AdaptiveRows(engine), 0.0, seed=2)
        serving = asyncio.create_task(server.serve())
        clients = [server.generate(prompt, 10**6, 0.0) for prompt in range(engine.shape.lanes)]

        async def drafted_of(steps: int) -> int:
            """Of so many steps from now."""
            begin, drafted = server.statistics.steps, server.statistics.drafted_steps
            while server.statistics.steps < begin + steps:
                for tokens in clients:
                    await anext(tokens)
            return server.statistics.drafted_steps - drafted

        at_first, useless = await drafted_of(40), await drafted_of(256)
        server.acceptance = 1.0
        await drafted_of(2 * example.AdaptiveRows.PROBE_STEPS)
        useful = await drafted_of(100)
        serving.cancel()
        return at_first, useless, useful

    at_first, useless, useful = run(serve())
    assert at_first >= 1  # it tries
    assert useless <= 6
    assert useful >= 95


def test_rows_of_a_lane_that_samples_do_not_follow_its_drafts(example: ModuleType, engine) -> None:
    """Else the tokens that are verified are no fair draw, and what is emitted has another distribution."""

    class Watching(example.AdaptiveRows):
        def learn(self, busy: list[int]) -> None:
            if len(busy) == engine.shape.lanes:  # the first steps come before the last client
                rows.append(engine.rows.tolist())
                confidence.append(engine.confidence.tolist())

    async def serve(temperature: float) -> None:
        server = example.Server(engine, Watching(engine), 0.7, seed=2)
        serving = asyncio.create_task(server.serve())
        clients = [server.generate(prompt, 10**6, temperature) for prompt in range(engine.shape.lanes)]
        while len(rows) < 20:
            for tokens in clients:
                await anext(tokens)
        serving.cancel()

    chosen = {}
    for temperature in (0.0, 1.0):
        rows: list[list[int]] = []
        confidence: list[list[float]] = []
        run(serve(temperature))
        assert np.std(confidence, axis=0).min() > 0.05
        chosen[temperature] = {tuple(step) for step in rows}
    assert len(chosen[1.0]) == 1
    assert len(chosen[0.0]) > 1


def test_an_error_of_a_step_reaches_the_caller(example: ModuleType, engine) -> None:
    class Failing(example.NoDrafts):
        def choose(self, maximum: object) -> None:
            raise metalane.DeviceError("gone")

    load = example.Load(requests=2, tokens=4, temperature=0.0, seed=5)
    with pytest.raises(metalane.DeviceError, match="gone"):
        run(example.serve_all(engine, Failing, load, 0.0))
