"""metal_pack on the CPU device: every pack_ and unpack_ function, against exact rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from ops.oracle.msl_real import DTYPES, edges, error_in_ulps, float64
from ops.stdlib_case import run_kernel

import metalane

# Field widths from the lowest bit up, for each format.
FORMATS = {
    "unorm4x8": (8, 8, 8, 8),
    "snorm4x8": (8, 8, 8, 8),
    "unorm2x16": (16, 16),
    "snorm2x16": (16, 16),
    "unorm10a2": (10, 10, 10, 2),
    "snorm10a2": (10, 10, 10, 2),
    "unorm565": (5, 6, 5),
    "srgb_unorm4x8": (8, 8, 8, 8),
}
WORDS = {name: "ushort" if name == "unorm565" else "uint" for name in FORMATS}
SOURCES = ("float", "half")


def scale(name: str, bits: int) -> int:
    return (1 << (bits - 1)) - 1 if name.startswith("snorm") else (1 << bits) - 1


def inputs(dtype: str) -> np.ndarray:
    """Components: edge values, ties of every format, and random numbers in and somewhat out of range."""
    generator = np.random.default_rng(7)
    values = [float64(edges(dtype))]
    for bits in (2, 5, 6, 8, 10, 16):
        for top in ((1 << bits) - 1, (1 << (bits - 1)) - 1):
            steps = np.unique(generator.integers(0, top, 40)) + 0.5
            values += [steps / top, -steps / top]
    values.append(generator.uniform(-1.3, 1.3, 2000))
    column = np.concatenate(values).astype(DTYPES[dtype])
    return np.resize(column, -(-column.size // 12) * 12)


def quantized(value: float, name: str, bits: int) -> int:
    """Nearest integer, ties to even, of the clamped value times the largest one; NaN counts as 0."""
    if np.isnan(value):
        return 0
    low = -1.0 if name.startswith("snorm") else 0.0
    return round(Fraction(min(max(value, low), 1.0)) * scale(name, bits)) & ((1 << bits) - 1)


def fields(words: np.ndarray, name: str) -> np.ndarray:
    """One row a word, one column a field."""
    at, columns = 0, []
    for bits in FORMATS[name]:
        columns.append((words.astype(np.uint64) >> np.uint64(at)) & np.uint64((1 << bits) - 1))
        at += bits
    return np.stack(columns, axis=1).astype(np.int64)


@pytest.fixture(scope="module")
def packed(device: metalane.Device) -> dict[str, np.ndarray]:
    columns = {t: inputs(t) for t in SOURCES}
    n = columns["float"].size
    columns["half"] = np.resize(columns["half"], n)
    calls, outputs = [], {}
    for t in SOURCES:
        for name, layout in FORMATS.items():
            size = len(layout)
            parts = ", ".join(f"in_{t}[{size} * i + {k}]" for k in range(size))
            outputs[f"{t}_{name}"] = (n // size, WORDS[name])
            calls.append(f"if (i < n / {size}) {t}_{name}[i] = pack_{t}_to_{name}({t}{size}({parts}));")
    return columns | run_kernel(
        device, "packing", "", {f"in_{t}": (t, columns[t]) for t in SOURCES}, outputs, calls, threads=n
    )


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", [n for n in FORMATS if "srgb" not in n])
def test_pack(packed: dict[str, np.ndarray], name: str, source: str) -> None:
    size = len(FORMATS[name])
    rows = float64(packed[source]).reshape(-1, size)
    got = fields(packed[f"{source}_{name}"], name)
    exact = [[quantized(v, name, b) for v, b in zip(row, FORMATS[name], strict=True)] for row in rows]
    wrong = (got != np.array(exact)).any(axis=1)
    assert not wrong.any(), (rows[wrong][:5], got[wrong][:5], np.array(exact)[wrong][:5])


def srgb_from_linear(c: np.ndarray) -> np.ndarray:
    """IEC 61966-2-1, of the clamped value; NaN counts as 0."""
    c = np.clip(np.where(np.isnan(c), 0.0, c), 0.0, 1.0)
    return np.where(c <= 0.0031308, 12.92 * c, 1.055 * c ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("source", SOURCES)
def test_pack_srgb(packed: dict[str, np.ndarray], source: str) -> None:
    """Colours through the transfer function, alpha as it is; a power in float may miss a tie by a hair."""
    rows = float64(packed[source]).reshape(-1, 4)
    got = fields(packed[f"{source}_srgb_unorm4x8"], "srgb_unorm4x8")
    assert (np.abs(got[:, :3] - 255 * srgb_from_linear(rows[:, :3])) <= 0.5 + 1e-4).all()
    assert got[:, 3].tolist() == [quantized(v, "unorm", 8) for v in rows[:, 3]]


UNPACK = {f"unpack_{name}_to_": name for name in FORMATS if "srgb" not in name}
UNPACK["unpack_unorm4x8_srgb_to_"] = "srgb_unorm4x8"


@pytest.fixture(scope="module")
def unpacked(device: metalane.Device) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Words in which every field of up to 16 bits takes all its values."""
    n = 1 << 16
    low = np.arange(n, dtype=np.uint32)
    words = low | np.random.default_rng(2).permutation(low) << np.uint32(16)
    calls, outputs = [], {}
    for t in SOURCES:
        for function, name in UNPACK.items():
            outputs[f"{t}_{name}"] = (n * len(FORMATS[name]), t)
            calls.append(f"store({t}_{name}, i, {function}{t}({WORDS[name]}(words[i])));")
    return words, run_kernel(device, "unpacking", "", {"words": ("uint", words)}, outputs, calls, threads=n)


def value_of(field: int, name: str, bits: int) -> float:
    if name.startswith("snorm"):
        field = field - (1 << bits) if field >> (bits - 1) else field
        return max(field / scale(name, bits), -1.0)
    return field / scale(name, bits)


def linear_from_srgb(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


@pytest.mark.parametrize("target", SOURCES)
@pytest.mark.parametrize("name", FORMATS)
def test_unpack(unpacked: tuple[np.ndarray, dict[str, np.ndarray]], name: str, target: str) -> None:
    words, results = unpacked
    got = results[f"{target}_{name}"].reshape(-1, len(FORMATS[name]))
    columns = fields(words & np.uint32(0xFFFF) if WORDS[name] == "ushort" else words, name)
    for k, bits in enumerate(FORMATS[name]):
        curved = "srgb" in name and k < 3
        convert: Callable[[float], float] = linear_from_srgb if curved else float
        table = np.array([convert(value_of(f, name, bits)) for f in range(1 << bits)])
        errors = error_in_ulps(got[:, k], table[columns[:, k]], target)
        # A quotient is rounded to float, then to half; a power in float is some units off before it is rounded.
        bounds = {"float": 8, "half": 0.51} if curved else {"float": 0.5, "half": 0.5001}
        assert errors.max() <= bounds[target], (name, k)
