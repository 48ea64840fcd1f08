"""Q2_K from decoding to expert-routed products, with the blocks, sizes and bounds of the library that these operators
come from: one test for each of its thirteen."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import metalane
from devices import ggml_devices, open_device
from metalane.ops import ggml

QK_K = 256
BLOCK_BYTES = 84
Q2_K = metalane.GgmlType.Q2_K


@pytest.fixture(scope="module", params=ggml_devices())
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return open_device(request.param)


def block(seed: int) -> bytes:
    group, index = np.arange(16), np.arange(64)
    scales = (group + seed) % 256 % 15 + 1
    minimums = 15 - (group * 3 + seed) % 256 % 16
    quants = (index * 73 + seed * 19) % 256
    return (
        bytes((minimums << 4 | scales).astype(np.uint8))
        + bytes(quants.astype(np.uint8))
        + struct.pack("<ee", 0.125, 0.0625)
    )


def decoded(data: bytes) -> np.ndarray:
    """float32 [256], in the order of GGML's own loops."""
    d, dmin = (np.float32(value) for value in struct.unpack_from("<ee", data, 80))
    values = []
    for group in range(16):
        half, shift, segment = group // 8, group % 8 // 2 * 2, group % 2
        scale, minimum = d * np.float32(data[group] & 15), dmin * np.float32(data[group] >> 4)
        quants = np.frombuffer(data, np.uint8, 16, 16 + 32 * half + 16 * segment)
        values.append(scale * (quants >> shift & 3).astype(np.float32) - minimum)
    return np.concatenate(values)


def inputs(rows: int) -> np.ndarray:
    index = np.arange(rows * QK_K)
    return (((index * 17 + 11) % 97).astype(np.float32) / np.float32(48) - np.float32(1)).reshape(rows, QK_K)


def weights(first: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Packed uint8 [rows, 84] and decoded float32 [rows, 256] of blocks `first`, `first` + 1, ..."""
    blocks = [block((first + row) % 256) for row in range(rows)]
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(rows, -1), np.stack([decoded(b) for b in blocks])


def test_q2_k_host_decode_matches_all_256_canonical_values() -> None:
    expected = decoded(block(5))
    actual = metalane.dequantize(block(5), Q2_K)
    assert np.array_equal(actual, expected)
    assert (actual < 0).any() and (actual > 0).any()


def test_q2_k_host_decode_rejects_malformed_buffers() -> None:
    with pytest.raises(metalane.ArgumentError):
        metalane.dequantize(block(1)[: BLOCK_BYTES - 1], Q2_K, out=np.zeros(QK_K, np.float32))
    with pytest.raises(metalane.ArgumentError):
        metalane.dequantize(block(1), Q2_K, out=np.zeros(QK_K - 1, np.float32))


def test_q2_k_embedding_gather_matches_canonical_rows_and_rejects_bad_ids(device: metalane.Device) -> None:
    raw, values = weights(2, 3)
    weight, ids = device.from_numpy(raw), device.from_numpy(np.array([2, 0], np.uint32))
    output = device.zeros((2, QK_K), np.float32)
    params = ggml.EmbeddingQ2KParams(vocab_size=3, embed_dim=QK_K, n_tokens=2)
    with device.command_encoder() as encoder:
        ggml.embedding_gather_q2_k(encoder, weight, ids, output, params)
    assert np.abs(output.numpy() - values[[2, 0]]).max() <= 1e-6
    ids.numpy()[1] = 3
    with device.command_encoder() as encoder, pytest.raises(metalane.ArgumentError, match=r"ids\[1\]"):
        ggml.embedding_gather_q2_k(encoder, weight, ids, output, params)


def test_q2_k_gguf_type_10_parses_with_exact_block_size(tmp_path: Path) -> None:
    name = b"q2.weight"
    data = b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, len(name)) + name + struct.pack("<IQIQ", 1, QK_K, 10, 0)
    path = tmp_path / "q2.gguf"
    path.write_bytes(data + bytes(-len(data) % 32) + block(3))
    info = metalane.GgufFile(path).tensor_info("q2.weight")
    assert info.ggml_type == Q2_K
    assert info.byte_len == BLOCK_BYTES


def check_dense(device: metalane.Device, rows: int, algorithm: str = "auto") -> None:
    raw, values = weights(1, 8)
    x = inputs(rows)
    output = device.zeros((rows, 8), np.float32)
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_ggml(
            encoder,
            device.from_numpy(x),
            device.from_numpy(raw.reshape(-1)),
            output,
            ggml.GgmlQuantizedMatmulParams(rows, 8, QK_K, Q2_K),
            algorithm,
        )
    expected = x.astype(np.float64) @ values.astype(np.float64).T
    tolerance = 2e-4 if algorithm == "auto" and rows <= 8 else 1e-2
    assert np.abs(output.numpy() - expected).max() <= tolerance


def test_q2_k_dense_metal_decode_matches_reference(device: metalane.Device) -> None:
    check_dense(device, 1)


def test_q2_k_batched_mv_is_byte_identical_to_independent_dispatches(device: metalane.Device) -> None:
    batches, n = 3, 8
    weight = device.from_numpy(weights(1, batches * n)[0].reshape(-1))
    x = device.from_numpy(inputs(batches).reshape(batches, 1, QK_K))
    batched, serial = (device.zeros((batches, 1, n), np.float32) for _ in range(2))
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_q2_k_batched_mv(encoder, x, weight, batched, batches, 1, n, QK_K)
        for batch in range(batches):
            ggml.quantized_matmul_ggml(
                encoder,
                x.view(batch * QK_K * 4, QK_K),
                weight.view(batch * n * BLOCK_BYTES, n * BLOCK_BYTES),
                serial.view(batch * n * 4, n),
                ggml.GgmlQuantizedMatmulParams(1, n, QK_K, Q2_K),
            )
    assert np.array_equal(batched.numpy(), serial.numpy())
    assert batched.numpy().any()


def test_q2_k_dense_metal_prefill_matches_reference(device: metalane.Device) -> None:
    check_dense(device, 9)


def test_q2_k_dense_forced_mm_matches_reference(device: metalane.Device) -> None:
    check_dense(device, 9, "mm")


def test_q2_k_dense_forced_simd_mm_matches_reference(device: metalane.Device) -> None:
    check_dense(device, 9, "mm_simd")


def check_experts(device: metalane.Device, tokens: int, top_k: int, experts: int, force_mm: bool) -> None:
    n = 8
    raw, values = weights(1, experts * n)
    values = values.reshape(experts, n, QK_K).astype(np.float64)
    x = inputs(tokens)
    ids = ((np.arange(tokens)[:, None] * 3 + np.arange(top_k)) % experts).astype(np.uint32)
    expected = np.einsum("tsnk,tk->tsn", values[ids], x.astype(np.float64)).reshape(-1, n)
    weight, ids_buffer = device.from_numpy(raw.reshape(-1)), device.from_numpy(ids.reshape(-1))
    output, second = (device.zeros(expected.size, np.float32) for _ in range(2))
    params = ggml.GgmlQuantizedMatmulIdParams(tokens, top_k, n, QK_K, experts, n * BLOCK_BYTES, Q2_K)
    with device.command_encoder() as encoder:
        if force_mm:
            scratch = metalane.IdMmScratch.alloc(device, experts, tokens)
            ggml.quantized_matmul_id_ggml_pooled_pair(
                encoder, device.from_numpy(x), weight, weight, ids_buffer, output, second, scratch, params
            )
        else:
            ggml.quantized_matmul_id_ggml(encoder, device.from_numpy(x), weight, ids_buffer, output, params)
    if force_mm:
        assert np.array_equal(output.numpy(), second.numpy())
    by_tiles = force_mm or (tokens > 32 and top_k in (1, 6, 8))
    error = np.abs(output.numpy().reshape(expected.shape) - expected).max()
    assert error <= (1e-2 if by_tiles else 2e-4)


def test_q2_k_expert_routed_metal_matches_reference(device: metalane.Device) -> None:
    check_experts(device, 2, 2, 3, force_mm=False)


def test_q2_k_expert_mm_id_top_k_6_matches_reference(device: metalane.Device) -> None:
    check_experts(device, 33, 6, 8, force_mm=True)


def test_q2_k_public_prefill_top_k_6_matches_reference(device: metalane.Device) -> None:
    check_experts(device, 33, 6, 8, force_mm=False)


def test_q2_k_slotted_down_mm_is_byte_identical_to_flattened_rows(device: metalane.Device) -> None:
    tokens, top_k, experts, n = 33, 6, 8, 8
    routes = tokens * top_k
    weight = device.from_numpy(weights(1, experts * n)[0].reshape(-1))
    x = device.from_numpy(inputs(routes).reshape(tokens, top_k, QK_K))
    ids = ((np.arange(tokens)[:, None] * 3 + np.arange(top_k)) % experts).astype(np.uint32)
    ids_buffer = device.from_numpy(ids)
    flat, slotted = device.zeros((routes, n), np.float32), device.zeros((tokens, top_k, n), np.float32)
    flat_params = ggml.GgmlQuantizedMatmulIdParams(routes, 1, n, QK_K, experts, n * BLOCK_BYTES, Q2_K)
    params = ggml.GgmlQuantizedMatmulIdParams(tokens, top_k, n, QK_K, experts, n * BLOCK_BYTES, Q2_K)
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_id_ggml_pooled(
            encoder,
            x,
            weight,
            ids_buffer,
            flat,
            metalane.IdMmScratch.alloc(device, experts, routes),
            flat_params,
        )
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_id_ggml_pooled_slotted(
            encoder,
            x,
            weight,
            ids_buffer,
            slotted,
            metalane.IdMmScratch.alloc(device, experts, tokens),
            params,
        )
    assert np.array_equal(slotted.numpy().reshape(routes, n), flat.numpy())
    assert flat.numpy().any()
