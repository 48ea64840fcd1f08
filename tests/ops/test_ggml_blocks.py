"""shaders/lib/ggml_blocks.h: weights that kernels unpack are the gguf package's float32, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import metalane
from metalane import metal_struct, u32

# One kernel for all types, so that one module is compiled; threads unpack one unit each. Every second one stores
# integers and scales apart, as products do with half tiles.
SOURCE = """
#include <metal_stdlib>
#include <metalane/lib/ggml_blocks.h>
using namespace metal;

struct UnpackParams {
  uint type;
  uint units;
};

template <uint id>
void unpack_unit(device const uchar* blocks, device float* out, uint unit) {
  typedef GgmlBlock<id> Block;
  const uint units = Block::length / Block::unit;
  device const uchar* const block = blocks + (unit / units) * Block::bytes;
  device float* const to = out + unit * Block::unit;
  if (Block::unit != 1 && (unit & 1) != 0) {
    half q[Block::unit];
    const GgmlScale made = Block::unpack(block, unit % units, q);
    for (uint i = 0; i < Block::unit; ++i) to[i] = made.scale * float(q[i]) + made.offset;
  } else {
    float q[Block::unit];
    const GgmlScale made = Block::unpack(block, unit % units, q);
    for (uint i = 0; i < Block::unit; ++i) to[i] = made.scale * q[i] + made.offset;
  }
}

kernel void unpack(device const uchar* blocks [[buffer(0)]], device float* out [[buffer(1)]],
                   constant UnpackParams& params [[buffer(2)]], uint unit [[thread_position_in_grid]]) {
  if (unit >= params.units) return;
  switch (params.type) {
#define UNPACK(name, id, block_length, block_bytes) \\
  case id: unpack_unit<id>(blocks, out, unit); break;
    METALANE_GGML_WEIGHT_TYPES(UNPACK)
  }
}
"""


@metal_struct
class UnpackParams:
    type: u32
    units: u32


DECODED = [info for info in metalane.ggml_types() if info.decodes]
DEVICE = metalane.Device("cpu")
KERNELS = DEVICE.compile(SOURCE, name="ggml_blocks")


@pytest.mark.parametrize("info", DECODED, ids=lambda info: info.name)
def test_unpacking_in_a_kernel(info: metalane.GgmlTypeInfo) -> None:
    count = 1000
    rng = np.random.default_rng(int(info.type) + 100)
    data = rng.integers(0, 256, count * info.block_bytes, dtype=np.uint8)
    guard = 64
    length = count * info.block_length
    out = DEVICE.from_numpy(np.full(length + 2 * guard, 0x7FA5A5A5, np.uint32).view(np.float32))
    inner = out.view(4 * guard, length)
    units = length // (1 if info.block_length == 1 else 16)
    KERNELS.unpack(DEVICE.from_numpy(data), inner, UnpackParams(int(info.type), units), threads=units)
    given = inner.numpy()
    with np.errstate(all="ignore"):
        kind = gguf.GGMLQuantizationType(int(info.type))
        wanted = gguf.dequantize(data.reshape(count, -1), kind).reshape(-1)
    same = (given.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(given) & np.isnan(wanted))
    at = np.flatnonzero(~same)[:5]
    assert same.all(), f"at {at}: {given[at]} != {wanted[at]}"
    bits = out.numpy().view(np.uint32)
    assert (bits[:guard] == 0x7FA5A5A5).all()
    assert (bits[-guard:] == 0x7FA5A5A5).all()
