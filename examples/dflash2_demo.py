"""The DFlash2 selector at real size: 4 lanes of 16 rows over a vocabulary of 248,320, beside NumPy.

    python examples/dflash2_demo.py [--device cpu] [--kernels auto|native|shader] [--steps 9]

Logits and codebooks are synthetic: Zipf-distributed logits with noise, as a language model's are, and
bfloat16 codebooks whose edge scores are of the logits' size.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import metalane

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from ops.oracle import dflash2 as oracle

LANES, ROWS, VOCABULARY = 4, 16, 248_320
ANCHORS = [1_000, 20_000, 100_000, 248_319]
TEMPERATURES = [None, 0.7, None, 1.0]  # None: greedy
SEED = 2026


def say(text: str) -> None:
    print(text, flush=True)


def prepare(device: metalane.Device) -> metalane.DFlash2SelectorBuffers:
    """Fills the five inputs in place: what NumPy writes is what the device reads."""
    random = np.random.default_rng(SEED)
    buffers = metalane.DFlash2SelectorBuffers.alloc(device, LANES, ROWS, VOCABULARY)
    say(f"Preparing {LANES} x {ROWS} rows of {VOCABULARY:,} logits ...")
    zipf = (-1.1 * np.log(np.arange(1, VOCABULARY + 1))).astype(np.float32)
    logits = buffers.logits.numpy()
    for lane, row in np.ndindex(LANES, ROWS):
        noise = random.standard_normal(VOCABULARY, np.float32)
        logits[lane, row] = 20 + random.permutation(zipf) + np.float32(0.5) * noise
    for name, codebook in (
        ("predecessor", buffers.predecessor_codebook.numpy()),
        ("successor", buffers.successor_codebook.numpy()),
    ):
        for begin in range(0, VOCABULARY, 31_040):
            part = codebook[begin : begin + 31_040]
            part[...] = random.standard_normal(part.shape, np.float32)
            say(f"Preparing the {name} codebook ... {100 * (begin + len(part)) // VOCABULARY} %")
    buffers.selector_hidden.numpy()[...] = random.standard_normal((LANES, ROWS, 256), np.float32) / 16
    buffers.uniforms.numpy()[...] = random.random((LANES, ROWS - 1), np.float32)
    return buffers


def selector_params() -> metalane.DFlash2SelectorParams:
    return metalane.DFlash2SelectorParams(
        anchor=ANCHORS,
        temperature=[1.0 if t is None else t for t in TEMPERATURES],
        lanes=LANES,
        rows_per_lane=ROWS,
        vocabulary=VOCABULARY,
        sampling_mask=sum(1 << lane for lane, t in enumerate(TEMPERATURES) if t is not None),
    )


def verify_params() -> metalane.DFlash2VerifyRowsParams:
    # A verification pass costs a fixed part and a step for every eight rows, as matrix tiles make it.
    return metalane.DFlash2VerifyRowsParams.with_costs(
        costs=[1.0 + 0.12 * -(-rows // 8) for rows in range(65)],
        slope=0.9,
        intercept=[0.3 - 0.05 * position for position in range(15)],
        lanes=LANES,
        rows_per_lane=ROWS,
        every_row=0,
        maximum=[ROWS] * LANES,
    )


def numpy_step(
    buffers: metalane.DFlash2SelectorBuffers,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Candidates, tokens, proposal probabilities and confidence in float64."""
    ids, unary = oracle.candidates(buffers.logits.numpy())
    edges, _ = oracle.edges(
        ids,
        ANCHORS,
        buffers.selector_hidden.numpy(),
        buffers.predecessor_codebook.numpy(),
        buffers.successor_codebook.numpy(),
    )
    return ids, *oracle.path(ids, unary, edges, buffers.uniforms.numpy(), TEMPERATURES)


def main() -> int:
    parser = argparse.ArgumentParser(description="The DFlash2 selector at real size, beside NumPy.")
    parser.add_argument("--device", default=None, help="metal or cpu; default: Metal where there is one")
    parser.add_argument("--kernels", default="auto", choices=["auto", "native", "shader"])
    parser.add_argument("--steps", type=int, default=9, help="timed steps of each side")
    options = parser.parse_args()

    device = metalane.Device(options.device, kernels=options.kernels)
    say(f"Device: {device.name} ({device.kind}, kernels={options.kernels}), metalane {metalane.__version__}")
    buffers = prepare(device)
    verify_rows = device.zeros((LANES,), np.uint32)
    selector, verify = selector_params(), verify_params()
    encoded = {}

    def step() -> None:
        with device.command_encoder() as encoder:
            metalane.dispatch_dflash2_selector(encoder, buffers, selector)
            metalane.dispatch_dflash2_verify_rows(encoder, buffers.confidence, verify_rows, verify)
            encoded["launches"], encoded["barriers"] = encoder.launches, encoder.barriers
        encoder.ticket.wait()

    say("Running, in turn with NumPy ...")
    step()
    device_times, numpy_times = [], []
    for _ in range(options.steps):
        begin = time.perf_counter()
        step()
        between = time.perf_counter()
        ids, tokens, proposal, confidence = numpy_step(buffers)
        device_times.append(between - begin)
        numpy_times.append(time.perf_counter() - between)

    chosen = buffers.tokens.numpy()
    rows = verify_rows.numpy()
    survive = oracle.survival(buffers.confidence.numpy(), verify.slope, verify.intercept)
    costs = [*verify.cost, verify.cost_64]
    say("")
    for lane, temperature in enumerate(TEMPERATURES):
        kind = "greedy" if temperature is None else f"sampled at {temperature}"
        say(f"Lane {lane} ({kind}), anchor {ANCHORS[lane]}: verify {rows[lane]} of {ROWS} rows")
        say(f"  tokens {' '.join(str(token) for token in chosen[lane])}")
    same_candidates = bool((buffers.candidates.numpy() == ids).all())
    same_tokens = int((chosen == tokens).sum())
    q_gap = float(np.abs(buffers.proposal_probabilities.numpy() - proposal).max())
    c_gap = float(np.abs(buffers.confidence.numpy() - confidence).max())
    ratio = oracle.worth(survive, rows.tolist()) / costs[int(rows.sum())]
    best = oracle.best_ratio(survive, costs, [ROWS] * LANES)
    say("")
    say("Agreement with the float64 oracle")
    say(f"  candidates    {'all equal' if same_candidates else 'DIFFER'} ({ids.size})")
    say(f"  tokens        {same_tokens} of {tokens.size} equal")
    say(f"  probabilities within {q_gap:.1e}, confidence within {c_gap:.1e}")
    say(f"  rows          {ratio:.6f} tokens per cost, global maximum {best:.6f}")
    device_time, numpy_time = statistics.median(device_times), statistics.median(numpy_times)
    say("")
    codebook_shape = list(buffers.predecessor_codebook.shape)
    say(f"Shapes: logits {list(buffers.logits.shape)} f32, codebooks {codebook_shape} bf16")
    say(f"A step: {encoded['launches']} launches, {encoded['barriers']} barriers")
    say(f"  metalane {1e3 * device_time:9.3f} ms  (median of {options.steps})")
    say(f"  NumPy    {1e3 * numpy_time:9.3f} ms  ({numpy_time / device_time:.1f} times as long)")
    agree = same_candidates and same_tokens == tokens.size and ratio >= best * (1 - 1e-6)
    if not agree:
        say("The device and the oracle disagree.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
