"""Kernels that count on the lanes of a simdgroup to run in step, as shipped ones do, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from host_memory import paged

# What these kernels do is what the checker warns of.
pytestmark = pytest.mark.metalane_check(allow="lockstep same-value")

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// A tree over threadgroup memory without barriers.
kernel void tree(device const float* x, device float* y, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[32];
  part[lane] = x[lane];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane < 16) part[lane] += part[lane + 16];
  if (lane < 8) part[lane] += part[lane + 8];
  if (lane < 4) part[lane] += part[lane + 4];
  if (lane < 2) part[lane] += part[lane + 2];
  if (lane < 1) y[0] = part[0] + part[1];
}

// All lanes read a state that the first one overwrites, and read it again.
kernel void state(device const float* x, device float* y, threadgroup float* shared [[threadgroup(0)]],
                  uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* mine = shared + 2 * group;
  if (lane == 0) {
    mine[0] = 1;
    mine[1] = 0;
  }
  float result = 0;
  for (int i = 0; i < 4; ++i) {
    const float scale = mine[0], offset = mine[1];
    const float total = simd_sum(x[32 * group + lane]) * scale + offset + mine[1];
    if (lane == 0) {
      mine[0] = scale * 0.5f;
      *(mine + 1) = offset + total;
    }
    result += total * (1 + lane) + mine[1];
  }
  y[32 * group + lane] = result;
}

// Lanes overlap in what they write; the lower ones write last.
kernel void overlap(device const float* x, device float* y, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float kept[32];
  float own[4];
  for (int i = 0; i < 4; ++i) own[i] = x[8 * i + lane % 8];
  for (int i = 0; i < 4; ++i) own[i] += lane < 8 ? 0 : 1000;
  for (uint i = lane; i < 32; i += 8) kept[i] = own[i / 8];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[lane] = kept[lane];
}

// Matrices and plain accesses take turns with the same memory.
kernel void matrices(device const float* x, device float* y, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[72], scales[64];  // loads at tile + 4 take rows of 8 from there
  tile[lane] = x[lane];
  tile[lane + 32] = x[lane + 32];
  if (lane < 8) tile[lane + 64] = 0;
  scales[lane] = scales[lane + 32] = 0;
  for (ushort i = 0; i < 8; ++i) {
    if (lane == i) scales[9 * i] = i + 1;
  }
  simdgroup_float8x8 a, s, product;
  simdgroup_load(a, tile);
  simdgroup_load(s, scales);
  simdgroup_multiply(product, s, a);
  simdgroup_store(product, tile);
  const float left = tile[63 - lane], right = tile[31 - lane];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  tile[lane] = left;
  tile[lane + 32] = right;
  simdgroup_float8x8 halves[2];
  for (short i = 0; i < 2; ++i) simdgroup_load(halves[i], tile + 4 * i, 8);
  simdgroup_store(halves[0], y);
}
"""


@pytest.fixture(scope="module")
def kernels(device):
    return device.compile(SOURCE)


def poisoned(count):
    return paged(np.full(count, np.nan, np.float32))


def test_tree_without_barriers(kernels):
    x, y = np.arange(1, 33, dtype=np.float32) ** 2, poisoned(1)
    kernels.tree(x, y, threads=32)
    assert y[0] == (np.arange(1, 33) ** 2).sum()


@pytest.mark.parametrize("groups", [1, 3])
def test_first_lane_overwrites_what_all_read(kernels, groups):
    x, y = (np.arange(32 * groups) % 11).astype(np.float32), poisoned(32 * groups)
    kernels.state(x, y, threads=32 * groups, threads_per_threadgroup=32 * groups, threadgroup_memory={0: 64})
    for group in range(groups):
        scale, offset, result = 1.0, 0.0, np.zeros(32)
        for _ in range(4):
            total = x[32 * group : 32 * group + 32].astype(np.float64).sum() * scale + 2 * offset
            scale, offset = scale * 0.5, offset + total
            result += total * np.arange(1, 33) + offset
        np.testing.assert_allclose(y[32 * group : 32 * group + 32], result, rtol=1e-6)


def test_lower_lanes_write_last(kernels):
    x, y = np.arange(32, dtype=np.float32), poisoned(32)
    kernels.overlap(x, y, threads=32)
    np.testing.assert_array_equal(y, x)


def test_matrices_share_memory_with_plain_accesses(kernels):
    x, y = np.arange(64, dtype=np.float32), poisoned(64)
    kernels.matrices(x, y, threads=32)
    product = (np.arange(1, 9)[:, None] * np.arange(64).reshape(8, 8)).ravel()
    np.testing.assert_array_equal(y, np.concatenate([product[63:31:-1], product[31::-1]]))
