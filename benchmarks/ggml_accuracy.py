"""Errors of the GGML products against float64, metalane's algorithms beside ggml's own: writes docs/ggml_accuracy.md.

    python benchmarks/ggml_accuracy.py

Weights are blocks of random bits with scales of normal size, inputs are normal; both sides get the same ones.
"""

from __future__ import annotations

from collections.abc import Callable

import ggml_library
import harness
import numpy as np
from products import TYPES, number, random_weight, values_of

import metalane
from metalane.ops import ggml as products

N, K, SEED = 256, 4096, 0
SHADERS = {"mv": 1, "mm": 33, "mm_simd": 33}  # and how many input rows they get
NATIVE = {"mv": 1, "mm": 33}  # mm and mm_simd are one there
Product = Callable[[np.ndarray, np.ndarray, str], np.ndarray]


def by_metalane(device: metalane.Device, algorithm: str) -> Product:
    def multiply(x: np.ndarray, raw: np.ndarray, name: str) -> np.ndarray:
        output = device.zeros((len(x), N), np.float32)
        params = products.GgmlQuantizedMatmulParams(len(x), N, K, number(name))
        with device.command_encoder() as encoder:
            products.quantized_matmul_ggml(
                encoder, device.from_numpy(x), device.from_numpy(raw), output, params, algorithm
            )
        return np.array(output)

    return multiply


def by_ggml(x: np.ndarray, raw: np.ndarray, name: str) -> np.ndarray:
    """ggml's CPU backend, which rounds inputs to 8 bits for most types."""
    ggml = ggml_library.Ggml(ggml_library.libraries()["ggml"], harness.THREADS)
    weight = ggml.tensor(ggml_library.aligned(raw), number(name), (K, N))
    compute, output = ggml.mul_mat([weight], x)
    compute()
    ggml.close()
    return output


def errors(multiply: Product, x: np.ndarray, raw: np.ndarray, name: str) -> tuple[float, float]:
    """Largest error over sum |w| |x|, and the normalised mean squared error."""
    w = values_of(raw, name).astype(np.float64)
    expected = x.astype(np.float64) @ w.T
    error = multiply(x, raw, name) - expected
    scale = np.abs(x.astype(np.float64)) @ np.abs(w).T
    return float(np.max(np.abs(error) / scale)), float((error**2).sum() / (expected**2).sum())


def main() -> None:
    sides = [
        (f"{kernels} {algorithm}", m, by_metalane(metalane.Device("cpu", kernels=kernels), algorithm))
        for kernels, algorithms in (("shader", SHADERS), ("native", NATIVE))
        for algorithm, m in algorithms.items()
    ]
    sides.append(("ggml", 33, by_ggml))
    rng = np.random.default_rng(SEED)
    lines = [
        "# Accuracy of the GGML products",
        "",
        f"Errors against float64 products of the decoded weights: n = {N}, k = {K}, random blocks, normal inputs, the "
        "`.metal` shaders and the native kernels on the CPU device. First the largest |error| / sum |w| |x|, for which "
        "mat-vec promises 1e-6; then the normalised mean squared error, for which mat-mat promises 1e-6. ggml: its CPU "
        "backend on the same machine. Made by `benchmarks/ggml_accuracy.py`.",
        "",
        f"| type | {' | '.join(f'{name}, m = {m}' for name, m, _ in sides)} |",
        "|---" * (len(sides) + 1) + "|",
    ]
    for name in TYPES:
        raw = random_weight(rng, name, N, K)
        x = rng.standard_normal((33, K)).astype(np.float32)
        row = [errors(multiply, x[:m], raw, name) for _, m, multiply in sides]
        lines.append(f"| {name} | " + " | ".join(f"{a:.1e}, {b:.1e}" for a, b in row) + " |")
        print(lines[-1], flush=True)
    (harness.HERE.parent / "docs" / "ggml_accuracy.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
