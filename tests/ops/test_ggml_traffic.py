"""What the GGML products read of their weights, as the checker counts it: distinct bytes over all bytes."""

from __future__ import annotations

import numpy as np
import pytest
from ops.ggml_case import TYPES, block_size, number, random_weight

import metalane
from metalane.ops import ggml

pytestmark = [pytest.mark.cpu, pytest.mark.linux]


@pytest.fixture(scope="module")
def device() -> metalane.Device:
    return metalane.Device("cpu", check="traffic", reports="list")


def weight_traffic(
    device: metalane.Device, ggml_type: str, m: int, n: int, algorithm: str
) -> tuple[float, float]:
    """Distinct bytes of simdgroups and of threadgroups over the weight's bytes. At most eight threadgroups, so that all
    of them are logged."""
    k = 2 * max(block_size(ggml_type)[0], 32)
    rng = np.random.default_rng(m)
    raw = random_weight(rng, ggml_type, n, k)
    output = device.zeros((m, n), np.float32)
    device.clear_check_report()
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_ggml(
            encoder,
            device.from_numpy(rng.standard_normal((m, k)).astype(np.float32)),
            device.from_numpy(raw),
            output,
            ggml.GgmlQuantizedMatmulParams(m, n, k, number(ggml_type)),
            algorithm,
        )
    encoder.ticket.wait()
    (row,) = [row for row in device.check_report().arguments if row.argument == "weight"]
    assert row.sampled_nbytes == row.loaded_nbytes
    assert row.stored_nbytes == 0
    return row.simdgroup_nbytes / raw.nbytes, row.threadgroup_nbytes / raw.nbytes


@pytest.mark.parametrize("ggml_type", TYPES)
def test_vectors_read_each_weight_once(device: metalane.Device, ggml_type: str) -> None:
    assert weight_traffic(device, ggml_type, 1, 45, "mv") == (1.0, 1.0)
    assert weight_traffic(device, ggml_type, 8, 45, "mv") == (1.0, 1.0)


@pytest.mark.parametrize("m", range(2, 8))
def test_few_rows_read_each_weight_once_together(device: metalane.Device, m: int) -> None:
    assert weight_traffic(device, "Q2_K", m, 45, "mv") == (1.0, 1.0)


@pytest.mark.parametrize("ggml_type", TYPES)
def test_tiles_read_each_weight_once_for_32_rows(device: metalane.Device, ggml_type: str) -> None:
    for m in (9, 33, 65):
        assert weight_traffic(device, ggml_type, m, 70, "mm_simd")[1] == -(-m // 32)


def test_tiles_of_scalars_do_so_too(device: metalane.Device) -> None:
    assert weight_traffic(device, "Q4_0", 33, 70, "mm")[1] == 2
