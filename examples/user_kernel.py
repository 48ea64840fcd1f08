"""A kernel of one's own: heat spreads over a plate, compared with NumPy.

    python examples/user_kernel.py [--device cpu] [--size 96] [--steps 200]

The steps go into one encoder: barriers between them follow from what each launch reads and writes.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import metalane

SOURCE = """
#include <metal_stdlib>
using namespace metal;

struct Plate { uint width; uint height; float rate; };

// One step of the heat equation; the rim stays as it is.
kernel void spread(device const float* heat, device float* next, constant Plate& plate,
                   uint2 at [[thread_position_in_grid]]) {
  const uint i = at.y * plate.width + at.x;
  const bool rim = at.x == 0 || at.y == 0 || at.x + 1 == plate.width || at.y + 1 == plate.height;
  const float around = rim ? 0 : heat[i - 1] + heat[i + 1] + heat[i - plate.width] + heat[i + plate.width];
  next[i] = rim ? heat[i] : heat[i] + plate.rate * (around - 4 * heat[i]);
}
"""
RATE = 0.2


def numpy_steps(heat: np.ndarray, steps: int) -> np.ndarray:
    heat = heat.astype(np.float64)
    for _ in range(steps):
        inner = heat[1:-1, 1:-1]
        around = heat[1:-1, :-2] + heat[1:-1, 2:] + heat[:-2, 1:-1] + heat[2:, 1:-1]
        heat[1:-1, 1:-1] = inner + RATE * (around - 4 * inner)
    return heat


def main() -> int:
    parser = argparse.ArgumentParser(description="Heat on a plate by a kernel of one's own, beside NumPy.")
    parser.add_argument("--device", default=None, help="metal or cpu; default: Metal where there is one")
    parser.add_argument("--size", type=int, default=96, help="rows and columns of the plate")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    device = metalane.Device(options.device)
    spread = device.compile(SOURCE, name="heat.metal").spread
    start = np.zeros((options.size, options.size), np.float32)
    start[0] = 1  # a hot edge
    heat, following = device.from_numpy(start), device.zeros(start.shape, metalane.float32)
    plate = {"width": options.size, "height": options.size, "rate": RATE}
    with device.command_encoder() as encoder:
        for _ in range(options.steps):
            spread(heat, following, plate, threads=start.shape[::-1], encoder=encoder)
            heat, following = following, heat
    gap = float(np.abs(heat.numpy() - numpy_steps(start, options.steps)).max())
    middle = float(heat.numpy()[options.size // 8, options.size // 2])
    print(f"Heat after {options.steps} steps near the hot edge: {middle:.4f}")
    print(f"{spread!r}: within {gap:.1e} of NumPy in float64")
    return 0 if gap < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
