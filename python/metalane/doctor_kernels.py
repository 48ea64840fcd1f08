"""The self-test of `python -m metalane doctor`: every built-in kernel on a device, against float64 NumPy.

Outputs hold NaN or 0xFF before a launch, so that what is never written shows. Weights are random blocks, whose
values come from the host's decoder, which shares no code with the kernels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import doctor_dflash2 as dflash2_oracle
from . import doctor_speculative as speculative_oracle
from ._core import Buffer, CommandEncoder, Device, GgmlTypeInfo, IdMmScratch
from .errors import Error
from .gguf import dequantize, ggml_types
from .ops import dflash2_selector as dflash2
from .ops import ggml, speculative_rows, speculative_verify

TIMEOUT_SECONDS = 60.0
Array = NDArray[Any]


@dataclass(frozen=True)
class Result:
    """One line of the table. `error`: the worst one, in the bound's measure; None: there is no number."""

    family: str
    type: str
    error: float | None
    bound: float
    seconds: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= self.bound


@dataclass(frozen=True)
class Case:
    """Kernels of one family and type. `run` launches them and gives the worst error."""

    family: str
    type: str
    bound: float
    run: Callable[[Launcher], float]


class Launcher:
    """A device, and the seconds that it has spent on the launches of one case."""

    def __init__(self, device: Device, seed: str) -> None:
        self.device = device
        self.random = np.random.default_rng(zlib.crc32(seed.encode()))
        self.seconds = 0.0

    def launch(self, operator: Callable[..., object], *arguments: Any) -> None:
        """Records `operator(encoder, *arguments)` and waits for it."""
        encoder = self.device.command_encoder()
        operator(encoder, *arguments)
        ticket = encoder.commit()
        ticket.wait(TIMEOUT_SECONDS)
        self.seconds += ticket.gpu_time or 0.0

    def buffer(self, values: Array) -> Buffer:
        return self.device.from_numpy(values)

    def output(self, *shape: int, dtype: Any = np.float32) -> Buffer:
        """Every byte 0xFF, which is NaN."""
        buffer = self.device.empty(shape, dtype)
        buffer.numpy().view(np.uint8)[...] = 0xFF
        return buffer


def worst(got: Array, expected: Array, scale: Array | float = 1.0) -> float:
    """The largest |got - expected| / scale; infinite where a number is missing."""
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - expected) / scale
    return float(np.nan_to_num(error, nan=np.inf).max())


def different(got: Array, expected: Array) -> float:
    """How many elements have other bits."""
    bits = f"u{expected.dtype.itemsize}"
    return float((np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(expected).view(bits)).sum())


# Copies and fills.


def copies(on: Launcher) -> float:
    wrong = 0.0
    for count in (1, 15, 16, 17, 4099):
        given = on.random.integers(0, 256, count, np.uint8)
        whole = on.output(count + 32, dtype=np.uint8)
        on.launch(CommandEncoder.copy, on.buffer(given), whole.view(16, count))
        around = np.full(16, 0xFF, np.uint8)
        wrong += different(whole.numpy(), np.concatenate([around, given, around]))
    return wrong


def fills(on: Launcher) -> float:
    wrong = 0.0
    for dtype in (np.uint8, np.float16, ml_dtypes.bfloat16, np.float32, np.int64):
        for count in (1, 7, 1000):
            out = on.output(count, dtype=dtype)
            on.launch(CommandEncoder.fill, out, 3)
            wrong += different(out.numpy(), np.full(count, 3, dtype))
    return wrong


# The DFlash2 selector: each stage is judged from what the device gave for the stage before.

LANES, ROWS, VOCABULARY = 2, 5, 5003


@dataclass(frozen=True)
class Selection:
    logits: Array
    hidden: Array
    predecessor: Array
    successor: Array
    uniforms: Array
    params: dflash2.DFlash2SelectorParams
    outputs: dict[str, Array]


def select(on: Launcher) -> Selection:
    """One greedy lane and one at temperature 1."""
    normal = on.random.standard_normal
    logits = normal((LANES, ROWS, VOCABULARY), np.float32) * np.float32(2)
    hidden = (normal((LANES, ROWS, 256)) / 16).astype(ml_dtypes.bfloat16)
    predecessor, successor = (normal((VOCABULARY, 256)).astype(ml_dtypes.bfloat16) for _ in range(2))
    uniforms = on.random.random((LANES, ROWS - 1), np.float32)
    buffers = dflash2.DFlash2SelectorBuffers.alloc(on.device, LANES, ROWS, VOCABULARY)
    given = (logits, hidden, predecessor, successor, uniforms)
    names = ("logits", "selector_hidden", "predecessor_codebook", "successor_codebook", "uniforms")
    for name, values in zip(names, given, strict=True):
        getattr(buffers, name).numpy()[...] = values
    results = ("candidates", "unary", "edges", "tokens", "proposal_probabilities", "confidence")
    for name in results:
        getattr(buffers, name).numpy().view(np.uint8)[...] = 0xFF
    params = dflash2.DFlash2SelectorParams(
        [17, 4999, 0, 0], [1.0] * 4, LANES, ROWS, VOCABULARY, sampling_mask=2
    )
    on.launch(dflash2.dispatch_dflash2_selector, buffers, params)
    return Selection(*given, params, {name: np.array(getattr(buffers, name)) for name in results})


def top16(on: Launcher) -> float:
    step = select(on)
    ids, unary = dflash2_oracle.candidates(step.logits)
    return different(step.outputs["candidates"], ids) + different(step.outputs["unary"], unary)


def edges(on: Launcher) -> float:
    step = select(on)
    ids, _ = dflash2_oracle.candidates(step.logits)
    expected, magnitude = dflash2_oracle.edges(
        ids, step.params.anchor, step.hidden, step.predecessor, step.successor
    )
    return worst(step.outputs["edges"], expected, magnitude)


def path(on: Launcher) -> float:
    step = select(on)
    ids, unary = dflash2_oracle.candidates(step.logits)
    tokens, proposal, confidence = dflash2_oracle.path(
        ids, unary, step.outputs["edges"], step.uniforms, [None, 1.0]
    )
    if different(step.outputs["tokens"], tokens):
        return float("inf")
    return max(
        worst(step.outputs["proposal_probabilities"], proposal), worst(step.outputs["confidence"], confidence)
    )


def verify_rows(on: Launcher) -> float:
    """How far the chosen rows stay behind the best ratio of expected tokens and cost."""
    confidence = on.random.random((LANES, ROWS - 1), np.float32)
    costs = on.random.uniform(0.5, 2.0, 65).astype(np.float32).tolist()
    maximum = [ROWS] * LANES
    params = dflash2.DFlash2VerifyRowsParams.with_costs(
        costs=costs,
        slope=1.5,
        intercept=[0.25] * 15,
        lanes=LANES,
        rows_per_lane=ROWS,
        maximum=[*maximum, 0, 0],
        every_row=0,
    )
    out = on.output(LANES, dtype=np.uint32)
    on.launch(dflash2.dispatch_dflash2_verify_rows, on.buffer(confidence), out, params)
    rows = out.tolist()
    if not all(1 <= row <= most for row, most in zip(rows, maximum, strict=True)):
        return float("inf")
    survive = dflash2_oracle.survival(confidence, params.slope, params.intercept)
    best = dflash2_oracle.best_ratio(survive, costs, maximum)
    return float(1 - dflash2_oracle.worth(survive, rows) / costs[sum(rows)] / best)


# Rows of a verification.


def packed_rows(on: Launcher) -> float:
    rows_in_use = np.array([2, 0, ROWS, ROWS + 3], np.uint32)
    anchors, tokens = (on.random.integers(0, 99, shape, np.uint32) for shape in ((4,), (4, ROWS - 1)))
    places = [lane * ROWS + r for lane, n in enumerate(rows_in_use) for r in range(min(int(n), ROWS))]
    every = np.concatenate([anchors[:, None], tokens], axis=1).reshape(-1)
    spare = 4 * ROWS - len(places)
    expected = (
        np.concatenate([every[places], np.zeros(spare)]),
        np.concatenate([places, np.full(spare, speculative_rows.SPECULATIVE_ROWS_NOWHERE)]),
        np.array([7, -(-len(places) // 8), 1]),
    )
    outputs = [on.output(values.size, dtype=np.uint32) for values in expected]
    params = speculative_rows.SpeculativeRowsParams(4, ROWS, 1, [7, *[0] * 15], [8, *[0] * 15])
    given = (on.buffer(values) for values in (rows_in_use, anchors, tokens))
    on.launch(speculative_rows.dispatch_speculative_rows, *given, *outputs, params)
    return sum(
        different(out.numpy(), values.astype(np.uint32))
        for out, values in zip(outputs, expected, strict=True)
    )


def scattered_rows(on: Launcher) -> float:
    x = on.random.standard_normal((5, 1030), np.float32)
    places = on.random.permutation(5).astype(np.uint32)
    out = on.output(*x.shape)
    params = speculative_rows.ScatterRowsParams(x.shape[1], x.shape[0])
    on.launch(speculative_rows.scatter_rows, on.buffer(x), on.buffer(places), out, params)
    return different(out.numpy()[places], x)


# Verification of drafted tokens.


def verified(on: Launcher, dtype: Any) -> float:
    """How many lanes came to an outcome that float32 cannot come to."""
    lanes, rows, vocabulary, candidates = 20, 4, 17_000, 16
    logits = (on.random.standard_normal((lanes, rows, vocabulary), np.float32) * np.float32(2)).astype(dtype)
    sizes = (lanes, rows - 1, candidates)
    ids = np.argsort(-logits[:, :-1].astype(np.float32), axis=2)[:, :, :candidates].astype(np.uint32)
    q = on.random.dirichlet(np.ones(candidates), sizes[:2]).astype(np.float32)
    given = {
        "logits": logits,
        "verify_rows": np.arange(lanes, dtype=np.uint32) % (rows + 1),
        "temperature": (np.arange(lanes) % 3 / 2).astype(np.float32),
        "tokens": ids[:, :, 0],
        "candidates": ids,
        "proposal_probabilities": q,
        "uniforms": on.random.random((lanes, rows), np.float32),
    }
    buffers = speculative_verify.SpeculativeVerifyBuffers.alloc(
        on.device, lanes, rows, vocabulary, candidates, dtype
    )
    for name, values in given.items():
        getattr(buffers, name).numpy()[...] = values
    buffers.accepted, buffers.next_tokens = (on.output(lanes, dtype=np.uint32) for _ in range(2))
    params = speculative_verify.SpeculativeVerifyParams(lanes, rows, vocabulary, candidates)
    on.launch(speculative_verify.dispatch_speculative_verify, buffers, params)
    got = zip(buffers.accepted.tolist(), buffers.next_tokens.tolist(), strict=True)
    outcomes = (
        speculative_oracle.verify(speculative_oracle.Lane(*lane))
        for lane in zip(*given.values(), strict=True)
    )
    return float(sum(one not in outcome.allowed for one, outcome in zip(got, outcomes, strict=True)))


# Operators on GGML weights.


def weight(random: np.random.Generator, info: GgmlTypeInfo, rows: int, k: int) -> tuple[Array, Array]:
    """Packed uint8 [rows, bytes of a row] of random bits, and its values float32 [rows, k].

    Blocks are drawn until their largest value is of the size of real ones: none drowns in another's rounding.
    """
    blocks = rows * k // info.block_length
    raw = np.empty((blocks, info.block_bytes), np.uint8)
    redraw = np.ones(blocks, bool)
    while redraw.any():
        raw[redraw] = random.integers(0, 256, (int(redraw.sum()), info.block_bytes), np.uint8)
        largest = np.abs(dequantize(raw[redraw], info.type)).max(axis=1)
        redraw[redraw] = ~((largest > 0.01) & (largest < 10))
    raw = raw.reshape(rows, -1)
    return raw, dequantize(raw, info.type)


def row_length(info: GgmlTypeInfo) -> int:
    """Three blocks; of plain numbers one that no vector width divides."""
    return 77 if info.block_length == 1 else 3 * info.block_length


def gather(on: Launcher, info: GgmlTypeInfo) -> float:
    k, vocabulary = row_length(info), 11
    raw, values = weight(on.random, info, vocabulary, k)
    ids = np.resize(on.random.permutation(vocabulary), vocabulary + 2).astype(np.uint32)
    out = on.output(ids.size, k)
    params = ggml.EmbeddingGgmlParams(vocabulary, k, ids.size, info.type)
    on.launch(ggml.embedding_gather_ggml, on.buffer(raw), on.buffer(ids), out, params)
    return different(out.numpy(), values[ids])


def product_error(got: Array, x: Array, w: Array) -> float:
    """Of float32 products with float64 ones, over the sum of magnitudes. x [m, k], w [m or 1, n, k]."""
    wide, exact = w.astype(np.float64), x.astype(np.float64)[:, :, None]
    return worst(got, (wide @ exact)[..., 0], (np.abs(wide) @ np.abs(exact))[..., 0])


def dense(on: Launcher, info: GgmlTypeInfo, algorithm: str, inputs: tuple[int, ...]) -> float:
    k, n, error = row_length(info), 70, 0.0
    for m in inputs:
        raw, values = weight(on.random, info, n, k)
        x = on.random.standard_normal((m, k), np.float32)
        out = on.output(m, n)
        params = ggml.GgmlQuantizedMatmulParams(m, n, k, info.type)
        on.launch(ggml.quantized_matmul_ggml, on.buffer(x), on.buffer(raw), out, params, algorithm)
        error = max(error, product_error(out.numpy(), x, values[None]))
    return error


def routed(on: Launcher, info: GgmlTypeInfo, algorithm: str) -> float:
    k, n, experts, tokens, top_k = row_length(info), 70, 3, 34, 2
    raw, values = weight(on.random, info, experts * n, k)
    ids = on.random.integers(0, experts, (tokens, top_k), np.uint32)
    slotted = algorithm == "slotted"
    x = on.random.standard_normal((tokens * (top_k if slotted else 1), k), np.float32)
    out = on.output(tokens * top_k, n)
    params = ggml.GgmlQuantizedMatmulIdParams(tokens, top_k, n, k, experts, raw.nbytes // experts, info.type)
    arguments = on.buffer(x), on.buffer(raw), on.buffer(ids), out

    if slotted:
        scratch = IdMmScratch.alloc(on.device, experts, tokens, top_k)
        on.launch(ggml.quantized_matmul_id_ggml_pooled_slotted, *arguments, scratch, params)
    else:
        on.launch(ggml.quantized_matmul_id_ggml, *arguments, params, algorithm)
    rows = x if slotted else np.repeat(x, top_k, axis=0)
    return product_error(out.numpy(), rows, values.reshape(experts, n, k)[ids.reshape(-1)])


def ggml_cases(info: GgmlTypeInfo) -> Iterator[Case]:
    yield Case("embedding_gather", info.name, 0, lambda on: gather(on, info))
    yield Case("quantized_matmul_mv", info.name, 1e-6, lambda on: dense(on, info, "mv", (1, 2, 4, 8)))
    yield Case("quantized_matmul_mm", info.name, 1e-5, lambda on: dense(on, info, "mm", (33,)))
    yield Case("quantized_matmul_mm_simd", info.name, 1e-5, lambda on: dense(on, info, "mm_simd", (33,)))
    yield Case("quantized_matmul_id_mv", info.name, 1e-6, lambda on: routed(on, info, "mv"))
    yield Case("quantized_matmul_id_mm", info.name, 1e-5, lambda on: routed(on, info, "mm_simd"))
    yield Case("quantized_matmul_id_mm_slotted", info.name, 1e-5, lambda on: routed(on, info, "slotted"))


# A kernel that no build has seen: what compiles on this machine.

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void doctor_axpy(device float* y, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  y[i] = fma(a, x[i], y[i]);
}
"""


def from_source(on: Launcher) -> float:
    x, y = (on.random.standard_normal(1000, np.float32) for _ in range(2))
    kernel = on.device.compile(SOURCE, name="doctor_axpy.metal").doctor_axpy
    out = on.buffer(y)
    on.launch(lambda encoder: kernel(out, on.buffer(x), 1.5, threads=1000, encoder=encoder))
    return worst(out.numpy(), 1.5 * x.astype(np.float64) + y, np.abs(1.5 * x.astype(np.float64)) + np.abs(y))


DFLASH2 = (
    Case("dflash2_select_top16", "f32", 0, top16),
    Case("dflash2_select_edges", "bf16", 2e-6, edges),
    Case("dflash2_select_path", "f32", 2e-5, path),
    Case("dflash2_select_verify_rows", "f32", 1e-6, verify_rows),
)
SPECULATIVE = (
    Case("speculative_verify", "f32", 0, lambda on: verified(on, np.float32)),
    Case("speculative_verify", "f16", 0, lambda on: verified(on, np.float16)),
    Case("speculative_verify", "bf16", 0, lambda on: verified(on, ml_dtypes.bfloat16)),
)
CASES = (
    Case("from source", "f32", 2**-24, from_source),
    Case("metalane_copy", "bytes", 0, copies),
    Case("metalane_fill", "all", 0, fills),
    *DFLASH2,
    Case("speculative_rows", "u32", 0, packed_rows),
    Case("scatter_rows", "f32", 0, scattered_rows),
    *SPECULATIVE,
    *(case for info in ggml_types() if info.decodes for case in ggml_cases(info)),
)


def run(device: Device, case: Case) -> Result:
    """What the case gives on the device; an error that it raises is the result's problem."""
    on = Launcher(device, f"{case.family} {case.type}")
    try:
        error = case.run(on)
    except Error as raised:
        return Result(
            case.family, case.type, None, case.bound, on.seconds, f"{type(raised).__name__}: {raised}"
        )
    if np.isinf(error):
        return Result(
            case.family, case.type, None, case.bound, on.seconds, "results are missing, or no numbers"
        )
    return Result(case.family, case.type, error, case.bound, on.seconds)
