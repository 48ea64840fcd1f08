"""Products with GGML weights as sides of a case: metalane, each build of ggml, NumPy, torch and MLX.

All read weights out of one ring that is larger than four last-level caches. Every side is checked against float64
before it is timed, and each measurement begins with the side's threads awake, as they are within a model.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ggml_library
import harness
import numpy as np

import metalane
from metalane.ops import ggml as products

sys.path.append(str(harness.HERE.parent / "tests"))
from ops.ggml_case import number, random_weight, values_of

TYPES = tuple(info.name for info in metalane.ggml_types() if info.decodes)
PLAIN = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(metalane.bfloat16)}
MLX_MOST_INPUTS = 8  # its CPU products do 2 to 5 GFLOP/s, with more inputs as well: those would take minutes
MLX_BITS = {"Q4_1": 4, "Q8_0": 8}  # of MLX's own types that are nearest: affine, in groups of 32
# Normalised mean squared error that peers may have: ggml rounds inputs to 8 bits, torch and MLX inputs of 16-bit types;
# MLX's own quantizer finds scales a little off those that the values were made with.
GGML_ERROR, PEER_ERROR = 1e-3, 1e-3
CHECKED_ROWS = 64
Side = Callable[[], float]


class WeightRing:
    """Copies of one random weight [rows, k], one behind another, at multiples of 64 bytes."""

    def __init__(self, device: metalane.Device, ggml_type: str, rows: int, k: int, nbytes: int) -> None:
        self.type, self.rows, self.k = ggml_type, rows, k
        few = random_weight(np.random.default_rng(0), ggml_type, min(rows, 512), k)
        self.raw = np.resize(few, (rows, few.shape[1]))
        self.stride = -(-self.raw.nbytes // 64) * 64
        self.count = max(2, nbytes // self.stride)
        self.buffer = device.empty(self.count * self.stride, np.uint8)
        self.memory = self.buffer.numpy()
        for slot in range(self.count):
            self.slot(slot)[:] = self.raw.reshape(-1)
        self._order = itertools.cycle(range(self.count))

    def on(self, device: metalane.Device) -> WeightRing:
        """The same memory for another device."""
        other = copy.copy(self)
        other.buffer = device.wrap(self.memory)
        return other

    @property
    def nbytes(self) -> int:
        """Of one weight."""
        return self.raw.nbytes

    def next(self) -> int:
        """Number of the slot that was used longest ago."""
        return next(self._order)

    def slot(self, index: int) -> np.ndarray:
        return self.memory[index * self.stride : index * self.stride + self.nbytes]

    def view(self, index: int) -> metalane.Buffer:
        dtype = PLAIN.get(self.type, np.dtype(np.uint8))
        return self.buffer.view(index * self.stride, (self.nbytes // dtype.itemsize,), dtype)

    def read(self) -> float:
        """Seconds to read one weight, cold, with as many threads as everybody has."""
        return harness.read_seconds(self.slot(self.next()))


class Waker:
    """A small launch, so that the device's threads are awake, as those of the peers are."""

    def __init__(self, device: metalane.Device) -> None:
        self.buffer = device.zeros(1 << 18, np.float32)
        self.device = device

    def __call__(self) -> None:
        encoder = self.device.command_encoder()
        encoder.fill(self.buffer, 0)
        encoder.commit_and_wait()


def normalised_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(((got - expected) ** 2).sum() / (expected**2).sum())


def check(name: str, got: np.ndarray, expected: np.ndarray, bound: float) -> None:
    error = normalised_error(got, expected)
    if not error <= bound:
        raise SystemExit(f"{name}: normalised mean squared error {error:.2g} above {bound:g}")


@dataclass
class Dense:
    """y = x W^T, x [m, k], by metalane."""

    device: metalane.Device
    ring: WeightRing
    m: int
    algorithm: str = "auto"
    x: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        ring = self.ring
        self.x = np.random.default_rng(1).standard_normal((self.m, ring.k)).astype(np.float32)
        self._x = self.device.from_numpy(self.x)
        self._y = self.device.empty((self.m, ring.rows), np.float32)
        self._params = products.GgmlQuantizedMatmulParams(self.m, ring.rows, ring.k, number(ring.type))
        self.wake = Waker(self.device)
        rows = np.unique(np.linspace(0, ring.rows - 1, CHECKED_ROWS).astype(int))
        self._checked = rows
        self.expected = self.x.astype(np.float64) @ values_of(ring.raw[rows], ring.type).astype(np.float64).T

    @property
    def flops(self) -> int:
        return 2 * self.m * self.ring.rows * self.ring.k

    @property
    def nbytes(self) -> int:
        return self.ring.nbytes + 4 * self.m * (self.ring.rows + self.ring.k)

    def record(self, encoder: metalane.CommandEncoder, weight: metalane.Buffer) -> None:
        products.quantized_matmul_ggml(encoder, self._x, weight, self._y, self._params, self.algorithm)

    def run(self, weight: metalane.Buffer) -> None:
        encoder = self.device.command_encoder()
        self.record(encoder, weight)
        encoder.commit_and_wait()

    def side(self) -> float:
        weight = self.ring.view(self.ring.next())
        self.wake()
        return harness.seconds_of(lambda: self.run(weight))

    def check(self) -> None:
        self._y.numpy()[:] = np.nan
        self.run(self.ring.view(self.ring.count - 1))
        self.check_result("metalane", self._y.numpy(), 1e-6)

    def check_result(self, name: str, result: np.ndarray, bound: float) -> None:
        check(f"{name}, {self.ring.type}", result[:, self._checked], self.expected, bound)


class Ggmls:
    """Every build of ggml that is installed, with as many threads as metalane has."""

    def __init__(self) -> None:
        self.builds = {
            name: ggml_library.Ggml(library, harness.THREADS)
            for name, library in ggml_library.libraries().items()
        }

    def __enter__(self) -> Ggmls:
        return self

    def __exit__(self, *_: object) -> None:
        for build in self.builds.values():
            build.close()

    def dense(self, case: Dense) -> dict[str, Side]:
        ring = case.ring
        sides = {}
        for name, build in self.builds.items():
            graphs = [build.mul_mat([weight], case.x) for weight in _tensors(build, ring)]
            compute, output = graphs[-1]
            compute()
            case.check_result(name, output, GGML_ERROR)
            sides[name] = _side_of_ggml(build, ring, [compute for compute, _ in graphs])
        return sides

    def dense_in_one_graph(self, case: Dense) -> dict[str, Side]:
        """Products with each weight of the ring, one behind another."""
        sides = {}
        for name, build in self.builds.items():
            compute, output = build.mul_mat(_tensors(build, case.ring), case.x)
            compute()
            case.check_result(name, output, GGML_ERROR)
            sides[name] = _awake(build, compute)
        return sides


def _tensors(build: ggml_library.Ggml, ring: WeightRing) -> list[int]:
    return [
        build.tensor(ring.slot(slot), number(ring.type), (ring.k, ring.rows)) for slot in range(ring.count)
    ]


def _awake(build: ggml_library.Ggml, compute: Callable[[], None]) -> Side:
    return lambda: build.awake(lambda: harness.seconds_of(compute))


def _side_of_ggml(build: ggml_library.Ggml, ring: WeightRing, graphs: Sequence[Callable[[], None]]) -> Side:
    def side() -> float:
        compute = graphs[ring.next()]
        return build.awake(lambda: harness.seconds_of(compute))

    return side


def peers_of_dense(case: Dense) -> dict[str, Side]:
    """NumPy, torch and MLX, where they have the type or a similar one and are installed."""
    sides: dict[str, Side] = {}
    for name, make in (("NumPy", _numpy), ("torch", _torch), ("MLX", _mlx)):
        multiply = make(case)
        if multiply is not None:
            case.check_result(name, multiply(0), PEER_ERROR)
            sides[name] = _side_of_peer(case.ring, multiply)
    return sides


def _side_of_peer(ring: WeightRing, multiply: Callable[[int], Any]) -> Side:
    def side() -> float:
        slot = ring.next()
        seconds = harness.seconds_of(lambda: multiply(slot))
        harness.settle()
        return seconds

    return side


def _numpy(case: Dense) -> Callable[[int], np.ndarray] | None:
    if case.ring.type != "F32":
        return None
    ring = case.ring
    return lambda slot: case.x @ ring.slot(slot).view(np.float32).reshape(ring.rows, ring.k).T


def _torch(case: Dense) -> Callable[[int], np.ndarray] | None:
    torch = harness.optional("torch") if case.ring.type in PLAIN else None
    if torch is None:
        return None
    torch.set_num_threads(harness.THREADS)
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[case.ring.type]
    memory = torch.from_numpy(case.ring.memory)
    x = torch.from_numpy(case.x).to(dtype)

    def multiply(slot: int) -> np.ndarray:
        begin = slot * case.ring.stride
        weight = memory[begin : begin + case.ring.nbytes].view(dtype).reshape(case.ring.rows, case.ring.k)
        return torch.nn.functional.linear(x, weight).to(torch.float32).numpy()

    return multiply


def _mlx(case: Dense) -> Callable[[int], np.ndarray] | None:
    mx = harness.optional("mlx.core")
    ring = case.ring
    if mx is None or case.m > MLX_MOST_INPUTS or not (ring.type in PLAIN or ring.type in MLX_BITS):
        return None
    decoded = values_of(ring.raw, ring.type)
    if ring.type in PLAIN:
        dtype = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}[ring.type]
        x = mx.array(case.x).astype(dtype)
        copies = [mx.array(decoded).astype(dtype) for _ in range(ring.count)]
        return lambda slot: np.array((x @ copies[slot].T).astype(mx.float32))
    bits = MLX_BITS[ring.type]
    x = mx.array(case.x)
    packed = mx.quantize(mx.array(decoded), group_size=32, bits=bits)
    copies = [[mx.array(np.array(part)) for part in packed] for _ in range(ring.count)]
    mx.eval(x, copies)
    return lambda slot: np.array(mx.quantized_matmul(x, *copies[slot], group_size=32, bits=bits))


def fastest(samples: harness.Samples, names: Sequence[str]) -> str:
    """Who of `names` has the smallest median; empty: none was measured."""
    present = [name for name in names if name in samples]
    return min(present, key=lambda name: float(np.median(samples[name])), default="")


PEERS = ("NumPy", "torch", "MLX")


def measure_dense(device: metalane.Device, ring: WeightRing, m: int, rounds: int) -> harness.Case:
    dense = Dense(device, ring, m)
    dense.check()
    with Ggmls() as ggmls:
        sides = {"metalane": dense.side, "read": ring.read, **ggmls.dense(dense), **peers_of_dense(dense)}
        samples = harness.in_turn(sides, rounds)
    parameters = {"type": ring.type, "m": m, "n": ring.rows, "k": ring.k}
    return case_of(parameters, dense.nbytes, dense.flops, samples)


def case_of(parameters: dict[str, Any], nbytes: int, flops: int, samples: harness.Samples) -> harness.Case:
    return harness.Case(
        parameters,
        nbytes,
        flops,
        harness.spreads(samples),
        {side: harness.ratio(samples, side, "metalane") for side in samples if side != "metalane"},
        fastest(samples, list(ggml_library.PACKAGES)),
    )


def others(case: harness.Case) -> str:
    """Ratios to the peers that are not ggml, for a table."""
    return ", ".join(f"{peer} {case.ratios[peer]:.1f}" for peer in PEERS if peer in case.ratios)
