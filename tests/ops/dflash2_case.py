"""Runs the DFlash2 operators on NumPy inputs, outputs poisoned and guarded on both sides."""

from __future__ import annotations

import dataclasses

import numpy as np
from ops.guarded import Guarded

import metalane

BF16 = np.dtype(metalane.bfloat16)
OUTPUTS = (
    "partial_ids",
    "partial_values",
    "candidates",
    "unary",
    "edges",
    "tokens",
    "proposal_probabilities",
    "confidence",
)


@dataclasses.dataclass
class Inputs:
    """What one selector step reads. `temperature` None: the lane is greedy."""

    logits: np.ndarray
    selector_hidden: np.ndarray
    predecessor_codebook: np.ndarray
    successor_codebook: np.ndarray
    uniforms: np.ndarray
    anchors: list[int]
    temperatures: list[float | None]

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.logits.shape

    def params(self) -> metalane.DFlash2SelectorParams:
        lanes, rows, vocabulary = self.sizes
        spare = 4 - lanes
        return metalane.DFlash2SelectorParams(
            anchor=[*self.anchors, *[0] * spare],
            temperature=[*(1.0 if t is None else t for t in self.temperatures), *[1.0] * spare],
            lanes=lanes,
            rows_per_lane=rows,
            vocabulary=vocabulary,
            sampling_mask=sum(1 << lane for lane, t in enumerate(self.temperatures) if t is not None),
        )


def random_inputs(random: np.random.Generator, lanes: int, rows: int, vocabulary: int) -> Inputs:
    """Normal logits, codebooks that make edges of about the logits' size, all lanes greedy."""

    def bf16(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32).astype(BF16)

    def codebook() -> np.ndarray:
        rows = bf16(min(vocabulary, 4099), 256)  # repeated: a large one takes seconds to make
        return np.resize(rows, (vocabulary, 256))

    return Inputs(
        logits=random.standard_normal((lanes, rows, vocabulary), np.float32) * np.float32(2),
        selector_hidden=(bf16(lanes, rows, 256).astype(np.float32) / 16).astype(BF16),
        predecessor_codebook=codebook(),
        successor_codebook=codebook(),
        uniforms=random.random((lanes, rows - 1), np.float32),
        anchors=random.integers(0, vocabulary, lanes).tolist(),
        temperatures=[None] * lanes,
    )


def shapes(lanes: int, rows: int, vocabulary: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of the thirteen buffers, in the order of the class's fields."""
    positions = rows - 1
    f32, u32 = np.dtype(np.float32), np.dtype(np.uint32)
    return {
        "logits": ((lanes, rows, vocabulary), f32),
        "selector_hidden": ((lanes, rows, 256), BF16),
        "predecessor_codebook": ((vocabulary, 256), BF16),
        "successor_codebook": ((vocabulary, 256), BF16),
        "uniforms": ((lanes, positions), f32),
        "partial_ids": ((lanes, positions, 8, 16), u32),
        "partial_values": ((lanes, positions, 8, 16), f32),
        "candidates": ((lanes, positions, 16), u32),
        "unary": ((lanes, positions, 16), f32),
        "edges": ((lanes, positions, 16, 16), f32),
        "tokens": ((lanes, positions), u32),
        "proposal_probabilities": ((lanes, positions, 16), f32),
        "confidence": ((lanes, positions), f32),
    }


def run_selector(
    device: metalane.Device, inputs: Inputs, *, auto_barriers: bool = True
) -> dict[str, np.ndarray]:
    """All eight outputs as arrays, after checking that nothing around any buffer was written."""
    buffers = {name: Guarded(device, shape, dtype) for name, (shape, dtype) in shapes(*inputs.sizes).items()}
    for name, guarded in buffers.items():
        if name not in OUTPUTS:
            guarded.set(getattr(inputs, name))
    with device.command_encoder(auto_barriers=auto_barriers) as encoder:
        metalane.dispatch_dflash2_selector(
            encoder,
            metalane.DFlash2SelectorBuffers(**{name: guarded.buffer for name, guarded in buffers.items()}),
            inputs.params(),
        )
    outputs = {name: np.array(buffers[name].buffer) for name in OUTPUTS}
    for name, guarded in buffers.items():
        guarded.check(name)
        if name not in OUTPUTS:
            given = np.ascontiguousarray(getattr(inputs, name)).view(np.uint8)
            left = np.array(guarded.buffer).view(np.uint8)
            assert (given.reshape(-1) == left.reshape(-1)).all(), f"{name}: an input was written"
    return outputs


def run_verify_rows(
    device: metalane.Device, confidence: np.ndarray, params: metalane.DFlash2VerifyRowsParams
) -> list[int]:
    given = Guarded(device, confidence.shape, np.dtype(np.float32))
    given.set(confidence)
    rows = Guarded(device, (confidence.shape[0],), np.dtype(np.uint32))
    with device.command_encoder() as encoder:
        metalane.dispatch_dflash2_verify_rows(encoder, given.buffer, rows.buffer, params)
    result = np.array(rows.buffer).tolist()
    given.check("confidence")
    rows.check("verify_rows")
    return result
