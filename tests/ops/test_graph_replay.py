"""Every operator in a graph: replayed, reordered, rebound and patched, bit for bit as the eager call; and fusions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from ops.dflash2_case import random_inputs, shapes
from ops.ggml_case import number, random_weight

import metalane
from devices import ggml_devices, open_device
from metalane.ops import ggml


@pytest.fixture(scope="module", params=ggml_devices())
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return open_device(request.param)


class Case(NamedTuple):
    """An operator's call, what it reads and writes, and other params that its launches can take."""

    call: Callable[[metalane.CommandEncoder, dict[str, metalane.Buffer], Any], None]
    buffers: dict[str, metalane.Buffer]
    outputs: tuple[str, ...]
    params: Any
    other: Any
    another_launch: Any


def on_device(device: metalane.Device, **arrays: np.ndarray) -> dict[str, metalane.Buffer]:
    return {name: device.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def selector(device: metalane.Device, rng: np.random.Generator) -> Case:
    inputs = random_inputs(rng, 2, 5, 300)
    buffers = {name: device.zeros(shape, dtype) for name, (shape, dtype) in shapes(2, 5, 300).items()}
    for name, buffer in buffers.items():
        if hasattr(inputs, name):
            buffer.numpy()[...] = getattr(inputs, name)
    params = inputs.params()
    sampled = replace(params, sampling_mask=3, temperature=[0.5, 2.0, 1.0, 1.0])

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        metalane.dispatch_dflash2_selector(encoder, metalane.DFlash2SelectorBuffers(**b), p)

    return Case(call, buffers, ("tokens", "confidence", "proposal_probabilities"), params, sampled, None)


def verify_rows(device: metalane.Device, rng: np.random.Generator) -> Case:
    buffers = on_device(device, confidence=rng.random((3, 6), np.float32))
    buffers["rows"] = device.zeros(3, "u32")
    costs = np.linspace(1, 2, 64)
    common = {
        "lanes": 3,
        "rows_per_lane": 7,
        "slope": 1.0,
        "intercept": [0.0] * 15,
        "maximum": [7, 7, 7, 0],
        "every_row": 0,
    }
    params = metalane.DFlash2VerifyRowsParams.with_costs(costs=[1.0, *costs], **common)
    other = metalane.DFlash2VerifyRowsParams.with_costs(costs=[1.0, *costs**3], **common)

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        metalane.dispatch_dflash2_verify_rows(encoder, b["confidence"], b["rows"], p)

    return Case(call, buffers, ("rows",), params, other, None)


def gather(device: metalane.Device, rng: np.random.Generator) -> Case:
    buffers = on_device(
        device,
        weight=random_weight(rng, "Q6_K", 30, 512),
        ids=rng.integers(0, 20, 9, dtype=np.uint32),
        output=np.zeros((9, 512), np.float32),
    )
    params = ggml.EmbeddingGgmlParams(30, 512, 9, number("Q6_K"))

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        ggml.embedding_gather_ggml(encoder, b["weight"], b["ids"], b["output"], p)

    return Case(
        call, buffers, ("output",), params, replace(params, vocab_size=20), replace(params, n_tokens=8)
    )


def dense(algorithm: str, m: int) -> Callable[[metalane.Device, np.random.Generator], Case]:
    def make(device: metalane.Device, rng: np.random.Generator) -> Case:
        buffers = on_device(
            device,
            input=rng.standard_normal((m, 512), np.float32),
            weight=random_weight(rng, "Q4_K", 70, 512),
            output=np.zeros((m, 70), np.float32),
        )
        params = ggml.GgmlQuantizedMatmulParams(m, 70, 512, number("Q4_K"))

        def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
            ggml.quantized_matmul_ggml(encoder, b["input"], b["weight"], b["output"], p, algorithm)

        return Case(call, buffers, ("output",), params, replace(params, k=256), replace(params, n=8))

    return make


def batched(device: metalane.Device, rng: np.random.Generator) -> Case:
    buffers = on_device(
        device,
        input=rng.standard_normal((3, 256), np.float32),
        weight=random_weight(rng, "Q8_0", 3 * 40, 256),
        output=np.zeros((3, 40), np.float32),
    )

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        arguments = (b["input"], b["weight"], b["output"], 3, p.m, p.n, p.k, metalane.GgmlType(p.ggml_type))
        ggml.quantized_matmul_batched_mv(encoder, *arguments)

    params = ggml.GgmlQuantizedMatmulParams(1, 40, 256, number("Q8_0"))
    return Case(call, buffers, ("output",), params, replace(params, k=128), replace(params, n=4))


def routed(operator: str) -> Callable[[metalane.Device, np.random.Generator], Case]:
    def make(device: metalane.Device, rng: np.random.Generator) -> Case:
        tokens, top_k, n, k, experts = 5, 2, 40, 256, 4
        rows = tokens * (top_k if operator == "slotted" else 1)
        buffers = on_device(
            device,
            input=rng.standard_normal((rows, k), np.float32),
            weight=random_weight(rng, "Q5_K", experts * n, k),
            weight_b=random_weight(rng, "Q5_K", experts * n, k),
            ids=rng.integers(0, experts - 1, (tokens, top_k), dtype=np.uint32),
            output=np.zeros((tokens * top_k, n), np.float32),
            output_b=np.zeros((tokens * top_k, n), np.float32),
        )
        stride = buffers["weight"].nbytes // experts
        params = ggml.GgmlQuantizedMatmulIdParams(tokens, top_k, n, k, experts, stride, number("Q5_K"))
        scratch = metalane.IdMmScratch.alloc(device, experts, tokens, top_k)

        def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
            if operator == "pooled":
                ggml.quantized_matmul_id_ggml_pooled(
                    encoder, b["input"], b["weight"], b["ids"], b["output"], scratch, p
                )
            elif operator == "slotted":
                ggml.quantized_matmul_id_ggml_pooled_slotted(
                    encoder, b["input"], b["weight"], b["ids"], b["output"], scratch, p
                )
            elif operator == "pair":
                ggml.quantized_matmul_id_ggml_pooled_pair(
                    encoder,
                    b["input"],
                    b["weight"],
                    b["weight_b"],
                    b["ids"],
                    b["output"],
                    b["output_b"],
                    scratch,
                    p,
                )
            else:
                ggml.quantized_matmul_id_ggml(
                    encoder, b["input"], b["weight"], b["ids"], b["output"], p, operator
                )

        if operator != "pair":
            del buffers["weight_b"], buffers["output_b"]
        outputs = ("output", "output_b") if operator == "pair" else ("output",)
        # Rows of 256 are one block, so that n = 39 needs no other grid of tiles, and no expert moves.
        return Case(call, buffers, outputs, params, replace(params, n=39), replace(params, n_tokens=2))

    return make


def speculative_rows(device: metalane.Device, rng: np.random.Generator) -> Case:
    buffers = on_device(
        device,
        verify_rows=np.array([3, 0, 5], np.uint32),
        anchors=rng.integers(0, 99, 3, dtype=np.uint32),
        tokens=rng.integers(0, 99, (3, 4), dtype=np.uint32),
        row_tokens=np.zeros(15, np.uint32),
        row_places=np.zeros(15, np.uint32),
        grids=np.zeros((2, 3), np.uint32),
    )
    params = metalane.SpeculativeRowsParams(3, 5, 2, [7, 9, *[0] * 14], [8, 1, *[0] * 14])

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        metalane.dispatch_speculative_rows(encoder, *(b[name] for name in buffers), p)

    outputs = ("row_tokens", "row_places", "grids")
    return Case(call, buffers, outputs, params, replace(params, rows_per_lane=4), None)


def scatter(device: metalane.Device, rng: np.random.Generator) -> Case:
    buffers = on_device(
        device,
        input=rng.standard_normal((5, 70), np.float32),
        places=np.array([4, 2, 0, 1, 3], np.uint32),
        output=np.zeros((5, 70), np.float32),
        grid=np.array([1, 4, 1], np.uint32),
    )
    params = metalane.ScatterRowsParams(70, 5)

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        metalane.scatter_rows(encoder, b["input"], b["places"], b["output"], p, b["grid"])

    return Case(call, buffers, ("output",), params, replace(params, row_length=69), None)


def speculative_verify(device: metalane.Device, rng: np.random.Generator) -> Case:
    lanes, rows, vocabulary, k = 3, 5, 700, 4
    candidates = rng.integers(0, vocabulary, (lanes, rows - 1, k), dtype=np.uint32)
    arrays = {
        "logits": rng.standard_normal((lanes, rows, vocabulary), np.float32),
        "verify_rows": np.array([5, 0, 3], np.uint32),
        "temperature": np.array([0, 1, 0.7], np.float32),
        "tokens": candidates[..., 1],
        "candidates": candidates,
        "proposal_probabilities": np.full(candidates.shape, 0.25, np.float32),
        "uniforms": rng.random((lanes, rows), np.float32),
    }
    fields = metalane.SpeculativeVerifyBuffers.alloc(device, lanes, rows, vocabulary, k)
    names = [*arrays, "partial_ids", "partial_sums", "accepted", "next_tokens"]
    buffers = {name: getattr(fields, name) for name in names}
    for name, array in arrays.items():
        buffers[name].numpy()[...] = array
    params = metalane.SpeculativeVerifyParams(lanes, rows, vocabulary, k)

    def call(encoder: metalane.CommandEncoder, b: dict[str, metalane.Buffer], p: Any) -> None:
        metalane.dispatch_speculative_verify(encoder, metalane.SpeculativeVerifyBuffers(**b), p)

    return Case(call, buffers, ("accepted", "next_tokens"), params, params, None)


CASES = {
    "speculative_verify": speculative_verify,
    "speculative_rows": speculative_rows,
    "scatter_rows": scatter,
    "dflash2_selector": selector,
    "dflash2_verify_rows": verify_rows,
    "gather": gather,
    "mv_1": dense("mv", 1),
    "mv_8": dense("mv", 8),
    "mm": dense("mm", 33),
    "mm_simd": dense("mm_simd", 9),
    "batched_mv": batched,
    "id_mv": routed("mv"),
    "id_mm_simd": routed("mm_simd"),
    "id_pooled": routed("pooled"),
    "id_pair": routed("pair"),
    "id_slotted": routed("slotted"),
}


class Run:
    """Runs a case in several ways on poisoned outputs."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def poison(self, buffers: dict[str, metalane.Buffer]) -> None:
        for name in self.case.outputs:
            buffers[name].numpy().view(np.uint8)[...] = 0xA5

    def result(
        self, submit: Callable[[], metalane.Ticket], buffers: dict[str, metalane.Buffer]
    ) -> list[bytes]:
        self.poison(buffers)
        submit().wait()
        return [buffers[name].numpy().tobytes() for name in self.case.outputs]

    def eager(self, device: metalane.Device, params: Any) -> list[bytes]:
        def submit() -> metalane.Ticket:
            encoder = device.command_encoder()
            self.case.call(encoder, self.case.buffers, params)
            return encoder.commit()

        return self.result(submit, self.case.buffers)

    def graph(self, device: metalane.Device) -> metalane.ComputeGraph:
        encoder = device.command_encoder()
        with encoder.capture() as captured, encoder.label("layer"):
            self.case.call(encoder, self.case.buffers, self.case.params)
        return captured.graph


@pytest.mark.parametrize("name", CASES)
def test_replays_are_bit_identical(device: metalane.Device, name: str) -> None:
    case = CASES[name](device, np.random.default_rng(len(name)))
    run = Run(case)
    expected = run.eager(device, case.params)
    graph = run.graph(device)
    assert graph.validate() == []
    assert run.result(graph.replay, case.buffers) == expected
    assert run.result(graph.reorder().graph.replay, case.buffers) == expected
    new = {b: device.from_numpy(b.numpy().copy()) for b in case.buffers.values()}
    moved = {key: new[buffer] for key, buffer in case.buffers.items()}
    assert run.result(lambda: graph.replay(buffers=new), moved) == expected
    if case.other != case.params:
        other = run.eager(device, case.other)
        assert other != expected or name == "gather"  # whose ids are below both vocabularies
        assert run.result(lambda: graph.replay({"layer": case.other}), case.buffers) == other
        both = graph.rebind(new)
        assert run.result(lambda: both.replay({"layer": case.other}), moved) == other
    if case.another_launch is not None:
        run.poison(case.buffers)
        with pytest.raises(
            metalane.ArgumentError, match=r"ComputeGraph.replay: params\['layer'\] must be such that"
        ):
            graph.replay({"layer": case.another_launch})
        for output in case.outputs:
            assert (case.buffers[output].numpy().view(np.uint8) == 0xA5).all()


def test_an_operator_checks_rebound_buffers(device: metalane.Device) -> None:
    """Alone the new buffer is fine: beside the call's others it is not."""
    case = CASES["mv_8"](device, np.random.default_rng(1))
    graph = Run(case).graph(device)
    big = device.zeros(8 * 512 + 8 * 70, "f32")
    inputs, outputs = big.view(0, (8, 512)), big.view(4 * 100, (8, 70))
    with pytest.raises(metalane.ArgumentError, match="quantized_matmul_ggml"):
        graph.rebind({case.buffers["input"]: inputs, case.buffers["output"]: outputs})


class Pooled:
    """Two pooled products of one input, as a mixture of experts has them for gate and up."""

    def __init__(self, device: metalane.Device) -> None:
        rng = np.random.default_rng(3)
        self.tokens, self.top_k, self.n, self.k, self.experts = 7, 2, 33, 256, 5
        self.x = device.from_numpy(rng.standard_normal((self.tokens, self.k), np.float32))
        self.ids = device.from_numpy(
            rng.integers(0, self.experts, (self.tokens, self.top_k), dtype=np.uint32)
        )
        self.weights = [
            device.from_numpy(random_weight(rng, "Q4_K", self.experts * self.n, self.k)) for _ in range(2)
        ]
        self.outputs = [device.zeros((self.tokens * self.top_k, self.n), "f32") for _ in range(2)]
        self.scratch = metalane.IdMmScratch.alloc(device, self.experts, self.tokens, self.top_k)
        stride = self.weights[0].nbytes // self.experts
        self.params = ggml.GgmlQuantizedMatmulIdParams(
            self.tokens, self.top_k, self.n, self.k, self.experts, stride, number("Q4_K")
        )

    def record(self, encoder: metalane.CommandEncoder, which: int, **changed: Any) -> None:
        given = {
            "x": self.x,
            "output": self.outputs[which],
            "scratch": self.scratch,
            "params": self.params,
        } | changed
        ggml.quantized_matmul_id_ggml_pooled(
            encoder,
            given["x"],
            self.weights[which],
            self.ids,
            given["output"],
            given["scratch"],
            given["params"],
        )

    def results(self, submit: Callable[[], metalane.Ticket]) -> list[bytes]:
        for output in self.outputs:
            output.numpy()[...] = np.nan
        submit().wait()
        return [output.numpy().tobytes() for output in self.outputs]


def captured_graph(
    device: metalane.Device, record: Callable[[metalane.CommandEncoder], None]
) -> metalane.ComputeGraph:
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        record(encoder)
    return captured.graph


def test_two_pooled_products_become_a_pair(device: metalane.Device) -> None:
    pooled = Pooled(device)

    def record(encoder: metalane.CommandEncoder) -> None:
        with encoder.label("moe"):
            pooled.record(encoder, 0)
            pooled.record(encoder, 1)

    graph = captured_graph(device, record)
    fused = graph.fuse()
    assert [(f.rule, f.nodes) for f in fused.fusions] == [("id_pooled_pair", [0, 1, 2, 3, 4, 5])]
    assert [n.label for n in fused.graph.nodes] == 4 * ["moe/quantized_matmul_id_ggml_pooled_pair"]
    expected = pooled.results(graph.replay)
    assert pooled.results(fused.graph.replay) == expected
    assert np.isfinite(pooled.outputs[1].numpy()).all()
    fewer = replace(pooled.params, n=32)
    assert pooled.results(lambda: fused.graph.replay({"moe": fewer})) != expected
    assert fused.graph.fuse().fusions == []


@pytest.mark.parametrize(
    "between",
    ["barrier", "writes input", "reads second output", "uses scratch", "other params", "given ranges"],
)
def test_pooled_products_stay_apart(device: metalane.Device, between: str) -> None:
    pooled = Pooled(device)
    seen = device.zeros(pooled.outputs[1].shape, "f32")
    other_x = device.zeros(pooled.x.shape, "f32")
    changed = {"params": replace(pooled.params, n=pooled.n - 1)} if between == "other params" else {}

    def record(encoder: metalane.CommandEncoder) -> None:
        pooled.record(encoder, 0)
        if between == "barrier":
            encoder.memory_barrier()
        elif between == "writes input":
            encoder.fill(pooled.x, 0.5)
        elif between == "reads second output":
            encoder.copy(pooled.outputs[1], seen)
        elif between == "uses scratch":
            pooled.record(encoder, 0, x=other_x, output=seen)
        elif between == "given ranges":
            encoder.set_pending_buffer_ranges([pooled.ids], [])
        pooled.record(encoder, 1, **changed)

    graph = captured_graph(device, record)
    fused = graph.fuse()
    assert fused.fusions == []
    assert len(fused.graph) == len(graph)


class Heads:
    """Mat-vecs of equal size whose inputs, weights and outputs lie one behind another, as attention heads have them."""

    def __init__(self, device: metalane.Device, heads: int, gap: int = 0) -> None:
        rng = np.random.default_rng(11)
        self.n, self.k = 24, 256
        self.params = ggml.GgmlQuantizedMatmulParams(1, self.n, self.k, number("Q6_K"))
        raw = random_weight(rng, "Q6_K", heads * self.n, self.k)
        self.weight = device.from_numpy(raw.reshape(heads, -1))
        self.x = device.from_numpy(rng.standard_normal((heads, self.k), np.float32))
        self.y = device.zeros(heads * (self.n + gap), "f32")
        self.places = [4 * head * (self.n + gap) for head in range(heads)]

    def record(self, encoder: metalane.CommandEncoder, head: int, params: Any = None) -> None:
        row = self.weight.nbytes // len(self.places)
        ggml.quantized_matmul_ggml(
            encoder,
            self.x.view(4 * head * self.k, self.k),
            self.weight.view(head * row, row),
            self.y.view(self.places[head], self.n),
            params or self.params,
        )

    def result(self, submit: Callable[[], metalane.Ticket]) -> np.ndarray:
        self.y.numpy()[...] = np.nan
        submit().wait()
        return self.y.numpy().copy()


def test_adjacent_products_become_a_batch(device: metalane.Device) -> None:
    heads = Heads(device, 5)

    def record(encoder: metalane.CommandEncoder) -> None:
        for head in range(5):
            with encoder.label(f"head{head}"):
                heads.record(encoder, head)

    graph = captured_graph(device, record)
    fused = graph.fuse()
    assert [(f.rule, f.nodes) for f in fused.fusions] == [("batched_mv", [0, 1, 2, 3, 4])]
    (node,) = fused.graph.nodes
    assert (node.op, node.label) == ("quantized_matmul_batched_mv", "head0/quantized_matmul_batched_mv")
    expected = heads.result(graph.replay)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(
        heads.result(fused.graph.replay).view(np.uint32), expected.view(np.uint32), strict=True
    )

    # where something lies between, the ones before and after it each go together
    def interrupted(encoder: metalane.CommandEncoder) -> None:
        for head in range(5):
            if head == 2:
                encoder.fill(heads.x.view(4 * 2 * heads.k, heads.k), 1.0)
            heads.record(encoder, head)

    assert [f.nodes for f in captured_graph(device, interrupted).fuse().fusions] == [[0, 1], [3, 4, 5]]


def test_products_stay_apart(device: metalane.Device) -> None:
    def fusions(heads: Heads, order: list[int], params: Any = None) -> list[metalane.Fusion]:
        return captured_graph(device, lambda e: [heads.record(e, h, params) for h in order]).fuse().fusions

    heads = Heads(device, 4)
    assert fusions(heads, [3, 1]) == []  # not adjacent
    assert fusions(heads, [1, 0]) == []  # the other way round
    assert [f.nodes for f in fusions(heads, [0, 2, 1, 3])] == [[0, 2], [1, 3]]
    assert fusions(Heads(device, 4, gap=1), [0, 1, 2]) == []  # outputs with a gap
    assert fusions(heads, [0, 1], replace(heads.params, n=23)) == []  # rows left over between weights

    def chained(encoder: metalane.CommandEncoder) -> None:
        heads.record(encoder, 0)
        encoder.copy(heads.y.view(0, 16), heads.x.view(4 * heads.k, 16))
        heads.record(encoder, 1)

    assert captured_graph(device, chained).fuse().fusions == []
