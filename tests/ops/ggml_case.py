"""Weights of GGML types for tests: random blocks, and their values by the `gguf` package."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize
from ops.guarded import Guarded

import metalane

TYPES = [info.name for info in metalane.ggml_types() if info.decodes]
# Byte offsets of the f16 scales and minimums in a block.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
Rng = np.random.Generator


def number(ggml_type: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[ggml_type]


def block_size(ggml_type: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return gguf.GGML_QUANT_SIZES[number(ggml_type)]


def row_lengths(ggml_type: str) -> list[int]:
    """Row lengths worth testing: one block, odd counts of blocks, 16 blocks; of plain types any number."""
    length = block_size(ggml_type)[0]
    return [1, 15, 16, 33, 77, 256] if length == 1 else [length * blocks for blocks in (1, 2, 3, 5, 16)]


def random_weight(rng: Rng, ggml_type: str, rows: int, k: int) -> np.ndarray:
    """uint8 [rows, bytes of a row]: every bit random but for scales, which are of a size that real weights have."""
    length, nbytes = block_size(ggml_type)
    blocks = rows * k // length
    raw = rng.integers(0, 256, (blocks, nbytes), dtype=np.uint8)
    if length == 1:
        values = rng.standard_normal(blocks).astype(np.float32)
        plain = {"F32": values, "F16": values.astype(np.float16), "BF16": values.astype(metalane.bfloat16)}
        raw = plain[ggml_type].view(np.uint8)
    elif ggml_type == "MXFP4":
        raw[:, 0] = rng.integers(118, 130, blocks)
    for offset in SCALES.get(ggml_type, ()):
        scale = (rng.standard_normal(blocks) * 0.05).astype(np.float16)
        raw[:, offset : offset + 2] = scale.view(np.uint8).reshape(blocks, 2)
    return raw.reshape(rows, -1)


def random_bytes(rng: Rng, ggml_type: str, rows: int, k: int) -> np.ndarray:
    """uint8 [rows, bytes of a row]: every bit random, NaN and infinite scales among them."""
    length, nbytes = block_size(ggml_type)
    return rng.integers(0, 256, (rows, k // length * nbytes), dtype=np.uint8)


def values_of(raw: np.ndarray, ggml_type: str) -> np.ndarray:
    """float32 [rows, k], decoded by gguf."""
    with np.errstate(all="ignore"):
        return dequantize(raw, number(ggml_type)).astype(np.float32).reshape(raw.shape[0], -1)


def padded(device: metalane.Device, values: np.ndarray, offset: int) -> metalane.Buffer:
    """The values as a view that starts `offset` bytes into a buffer that goes on behind it."""
    flat = np.ascontiguousarray(values).reshape(-1)
    whole = device.zeros(offset + flat.nbytes + 64, np.uint8)
    whole.numpy()[:] = 0xFF  # NaN, should anything read it
    whole.numpy()[offset : offset + flat.nbytes] = flat.view(np.uint8)
    return whole.view(offset, values.shape, flat.dtype)


class Output(Guarded):
    """A float32 output between guards."""

    def __init__(self, device: metalane.Device, *shape: int) -> None:
        super().__init__(device, shape, np.dtype(np.float32))

    def result(self) -> np.ndarray:
        values = np.array(self.buffer)
        self.check("output")
        return values


def assert_accurate_by_vectors(got: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """|error| <= 1e-6 * sum |w| |x| + 1e-30 an element, of x float32 [m, k] and w float32 [n, k]."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    error = np.abs(got - x @ w.T)
    bound = 1e-6 * (np.abs(x) @ np.abs(w).T) + 1e-30
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), f"{worst}: error {error[worst]} above {bound[worst]}"


def assert_accurate_by_tiles(got: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """Normalised mean squared error of at most 1e-6."""
    expected = x.astype(np.float64) @ w.astype(np.float64).T
    error = ((got - expected) ** 2).sum() / (expected**2).sum()
    assert error <= 1e-6, error
