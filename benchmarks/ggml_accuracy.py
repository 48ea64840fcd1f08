"""Errors of the GGML products against float64, metalane's algorithms beside ggml's own: writes docs/ggml_accuracy.md.

Weights are blocks of random bits with scales of normal size, inputs are normal; both sides get the same ones.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import ggml
import numpy as np

import metalane
from metalane.ops import ggml as products

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
from ops.ggml_case import number, random_weight, values_of  # noqa: E402

N, K, SEED = 256, 4096, 0
ALGORITHMS = {"mv": 1, "mm": 33, "mm_simd": 33}  # and how many input rows they get
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
    memory = raw.nbytes + x.nbytes + 4 * N * len(x) + (64 << 20)
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=memory, mem_buffer=None, no_alloc=False))
    weight = ggml.ggml_new_tensor_2d(context, getattr(ggml, f"GGML_TYPE_{name}"), K, N)
    inputs = ggml.ggml_new_tensor_2d(context, ggml.GGML_TYPE_F32, K, len(x))
    ctypes.memmove(ggml.ggml_get_data(weight), raw.ctypes.data, raw.nbytes)
    ctypes.memmove(ggml.ggml_get_data(inputs), x.ctypes.data, x.nbytes)
    output = ggml.ggml_mul_mat(context, weight, inputs)
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, output)
    ggml.ggml_graph_compute_with_ctx(context, graph, 1)
    result = np.empty((len(x), N), np.float32)
    ctypes.memmove(result.ctypes.data, ggml.ggml_get_data(output), result.nbytes)
    ggml.ggml_free(context)
    return result


def errors(multiply: Product, x: np.ndarray, raw: np.ndarray, name: str) -> tuple[float, float]:
    """Largest error over sum |w| |x|, and the normalised mean squared error."""
    w = values_of(raw, name).astype(np.float64)
    expected = x.astype(np.float64) @ w.T
    error = multiply(x, raw, name) - expected
    scale = np.abs(x.astype(np.float64)) @ np.abs(w).T
    return float(np.max(np.abs(error) / scale)), float((error**2).sum() / (expected**2).sum())


def main() -> None:
    device = metalane.Device("cpu", kernels="shader")
    rng = np.random.default_rng(SEED)
    columns = " | ".join(f"{name}, m = {m}" for name, m in ALGORITHMS.items())
    lines = [
        "# Accuracy of the GGML products",
        "",
        f"Errors against float64 products of the decoded weights: n = {N}, k = {K}, random blocks, normal inputs, the "
        "`.metal` shaders on the CPU device. First the largest |error| / sum |w| |x|, for which mat-vec promises 1e-6; "
        "then the normalised mean squared error, for which mat-mat promises 1e-6. ggml: its CPU backend on the same "
        "machine, m = 33. Made by `benchmarks/ggml_accuracy.py`.",
        "",
        f"| type | {columns} | ggml |",
        "|---" * (len(ALGORITHMS) + 2) + "|",
    ]
    for info in metalane.ggml_types():
        if not info.decodes:
            continue
        raw = random_weight(rng, info.name, N, K)
        x = rng.standard_normal((33, K)).astype(np.float32)
        row = [errors(by_metalane(device, name), x[:m], raw, info.name) for name, m in ALGORITHMS.items()]
        row.append(errors(by_ggml, x, raw, info.name))
        lines.append(f"| {info.name} | " + " | ".join(f"{a:.1e}, {b:.1e}" for a, b in row) + " |")
        print(lines[-1], flush=True)
    (ROOT / "docs" / "ggml_accuracy.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
