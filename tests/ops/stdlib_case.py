"""Kernels made of many expressions of metal_stdlib: written from a table, compiled once, run over whole arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from ops.oracle.msl_real import DTYPES

import metalane

POISON = 0xAB

HEADER = """
#include <metal_stdlib>
using namespace metal;

template <typename O, typename T> void store(device O* out, uint i, T value) { out[i] = value; }
template <typename O, typename T, int N> void store(device O* out, uint i, vec<T, N> value) {
  for (int k = 0; k < N; ++k) out[N * i + k] = value[k];
}
"""


@dataclass(frozen=True)
class Expression:
    """`text` in x, y, z, of type `result`; in vectors of each of `widths`, 1 being a scalar."""

    name: str
    text: str
    result: str
    widths: tuple[int, ...] = (1, 2, 3, 4)


@dataclass(frozen=True)
class Batch:
    """Expressions over the same arguments: x, y and z of these element types."""

    name: str
    elements: tuple[str, ...]
    expressions: tuple[Expression, ...]
    prelude: str = ""

    def slots(self) -> list[tuple[Expression, int]]:
        return [(e, width) for width in (1, 2, 3, 4) for e in self.expressions if width in e.widths]

    def results(self) -> list[str]:
        return sorted({e.result for e in self.expressions})

    def source(self) -> str:
        """One function a width, kept apart so that the host's compiler is quick; each result's type is checked."""
        parameters = [f"device const {t}* {v}s" for v, t in zip("xyz", self.elements, strict=False)]
        parameters += [f"device {stored(r)}* out_{r}" for r in self.results()]
        names = [p.split("* ")[1] for p in parameters]
        parts = [HEADER, self.prelude]
        slots = dict.fromkeys(self.results(), 0)
        for width in (1, 2, 3, 4):
            lines = [
                f"__attribute__((noinline)) void width_{width}({', '.join(parameters)}, uint n, uint i) {{"
            ]
            for v, t in zip("xyz", self.elements, strict=False):
                lines.append(f"  {spelt(t, width)} {v} = {loaded(v, t, width)};")
            for expression, at in self.slots():
                if at != width:
                    continue
                result = spelt(expression.result, width)
                lines.append(f"  static_assert(is_same<decltype({expression.text}), {result}>::value, ")
                lines.append(f'                "{expression.name} of width {width}");')
                place = f"out_{expression.result} + n * {slots[expression.result]}"
                lines.append(f"  store({place}, i, {expression.text});")
                slots[expression.result] += 1
            parts.append("\n".join([*lines, "}", ""]))
        calls = [f"  if (i < n / {w}) width_{w}({', '.join(names)}, n, i);" for w in (1, 2, 3, 4)]
        parameters += ["constant uint& n", "uint i [[thread_position_in_grid]]"]
        return "\n".join([*parts, f"kernel void {self.name}({', '.join(parameters)}) {{", *calls, "}", ""])

    def run(
        self, device: metalane.Device, arguments: Sequence[np.ndarray], math: str = "safe"
    ) -> dict[tuple[str, int], np.ndarray]:
        """What each expression gives in each width. Arguments are repeated up to a multiple of 12."""
        kernel = device.compile(self.source(), math=math)[self.name]
        count = arguments[0].size
        padded = [np.resize(a, -(-count // 12) * 12) for a in arguments]
        n = padded[0].size
        outputs = {}
        for result in self.results():
            slots = sum(len(e.widths) for e in self.expressions if e.result == result)
            outputs[result] = device.empty((slots * n,), DTYPES[stored(result)])
            outputs[result].numpy().view(np.uint8)[:] = POISON
        kernel(*map(device.from_numpy, padded), *outputs.values(), n, threads=n, threads_per_threadgroup=64)
        rows = {r: iter(outputs[r].numpy().reshape(-1, n)) for r in outputs}
        return {
            (e.name, width): restored(next(rows[e.result])[:count], e.result) for e, width in self.slots()
        }


def spelt(element: str, width: int) -> str:
    return element if width == 1 else f"{element}{width}"


def loaded(name: str, element: str, width: int) -> str:
    if width == 1:
        return f"{name}s[i]"
    return f"{element}{width}({', '.join(f'{name}s[{width} * i + {k}]' for k in range(width))})"


def stored(result: str) -> str:
    """bool goes out as a byte: poison in it is seen."""
    return "uchar" if result == "bool" else result


def restored(values: np.ndarray, result: str) -> np.ndarray:
    if result != "bool":
        return values.copy()
    assert (values <= 1).all(), "a bool that was never written"
    return values.astype(np.bool_)


def run_all(
    device: metalane.Device,
    batches: dict[str, tuple[Batch, Sequence[np.ndarray]]],
) -> dict[str, dict[tuple[str, int], np.ndarray]]:
    """Every batch, two at a time: each waits for the host's compiler."""
    with ThreadPoolExecutor(2) as pool:
        waiting = {
            key: pool.submit(batch.run, device, arguments) for key, (batch, arguments) in batches.items()
        }
        return {key: future.result() for key, future in waiting.items()}


def run_kernel(
    device: metalane.Device,
    name: str,
    prelude: str,
    inputs: dict[str, tuple[str, np.ndarray]],
    outputs: dict[str, tuple[int, str]],
    lines: Sequence[str],
    *,
    threads: int,
    threads_per_threadgroup: int = 64,
    attributes: str = "uint i [[thread_position_in_grid]]",
    initial: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Runs the lines as a kernel's body. Inputs are (element type, array), outputs (count, element type).

    Outputs hold poison before the launch, or what `initial` has under their name.
    """
    parameters = [f"device const {t}* {v}" for v, (t, _) in inputs.items()]
    parameters += [f"device {t}* {v}" for v, (_, t) in outputs.items()]
    parameters += ["constant uint& n", attributes]
    body = "\n".join(f"  {line}" for line in lines)
    source = f"{HEADER}{prelude}\nkernel void {name}({', '.join(parameters)}) {{\n{body}\n}}\n"
    device.registry.register_source(name, source)
    buffers = {v: device.empty((count,), DTYPES[t]) for v, (count, t) in outputs.items()}
    for v, buffer in buffers.items():
        buffer.numpy().view(np.uint8)[:] = initial[v].view(np.uint8) if v in initial else POISON
    arguments = [*(device.from_numpy(a) for _, a in inputs.values()), *buffers.values(), threads]
    encoder = device.command_encoder()
    encoder.dispatch(name, arguments, threads=threads, threads_per_threadgroup=threads_per_threadgroup)
    encoder.commit_and_wait()
    return {v: buffer.numpy().copy() for v, buffer in buffers.items()}
