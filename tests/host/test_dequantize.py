"""dequantize: bit for bit the gguf package's float32, for every type and any block; and what it refuses.

NaNs count as equal: which one an operation on NaNs or infinities gives differs between processors, and between
NumPy's own vector and scalar loops.
"""

from __future__ import annotations

import array
import threading
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

import metalane
from counts import count

DECODED = [info for info in metalane.ggml_types() if info.decodes]
OTHERS = [info for info in metalane.ggml_types() if not info.decodes]
REQUIRED = (
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()  # noqa: SIM905
)


def by_type(infos: list[metalane.GgmlTypeInfo]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("info", infos, ids=lambda info: info.name)


def oracle(blocks: np.ndarray, info: metalane.GgmlTypeInfo) -> np.ndarray:
    kind = gguf.GGMLQuantizationType(int(info.type))
    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks.reshape(-1, info.block_bytes), kind).reshape(-1)


def assert_same_bits(given: np.ndarray, wanted: np.ndarray) -> None:
    assert given.dtype == wanted.dtype == np.float32
    assert given.shape == wanted.shape
    same = (given.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(given) & np.isnan(wanted))
    if not same.all():
        at = np.flatnonzero(~same.reshape(-1))[:5]
        pytest.fail(f"{len(at)} differ, first at {at}: {given.reshape(-1)[at]} != {wanted.reshape(-1)[at]}")


def poisoned(length: int) -> np.ndarray:
    return np.full(length, 0x7FA5A5A5, np.uint32).view(np.float32)


def test_the_table_agrees_with_the_package() -> None:
    assert [info.name for info in DECODED] == REQUIRED
    known = {info.type: (info.name, info.block_length, info.block_bytes) for info in metalane.ggml_types()}
    sizes = gguf.GGML_QUANT_SIZES
    # Of Q8_1 the package has another size than ggml, and files do not hold it.
    theirs = {int(kind): (kind.name, *size) for kind, size in sizes.items() if kind.name != "Q8_1"}
    assert known == theirs
    assert {int(kind) for kind in metalane.GgmlType} == set(theirs)
    for info in metalane.ggml_types():
        for spelling in (info.type, info.name, int(info.type), gguf.GGMLQuantizationType(int(info.type))):
            assert metalane.ggml_type_info(spelling).type == info.type
    for info in metalane.ggml_types():
        assert info.block_bytes % info.alignment == 0
        assert info.alignment == min(4, info.block_bytes & -info.block_bytes) or info.name == "I64"
    dtypes = {info.name: info.dtype for info in metalane.ggml_types() if info.dtype is not None}
    assert dtypes == {
        "F32": metalane.float32,
        "F16": metalane.float16,
        "BF16": metalane.bfloat16,
        "I8": metalane.int8,
        "I16": metalane.int16,
        "I32": metalane.int32,
        "I64": metalane.int64,
    }


@by_type(DECODED)
def test_random_blocks(info: metalane.GgmlTypeInfo) -> None:
    blocks = count("dequantize_blocks")
    data = np.random.default_rng(int(info.type)).integers(0, 256, blocks * info.block_bytes, dtype=np.uint8)
    guard = 64
    out = poisoned(guard + blocks * info.block_length + guard)
    inner = out[guard:-guard]
    assert metalane.dequantize(data, info.type, out=inner) is inner
    assert_same_bits(inner, oracle(data, info))
    for edge in (out[:guard], out[-guard:]):
        assert (edge.view(np.uint32) == 0x7FA5A5A5).all()


@by_type(DECODED)
def test_scales_that_are_special(info: metalane.GgmlTypeInfo) -> None:
    """Each 16 bits of a block in turn take every special value of a half, and so the scales do."""
    halves = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF]
    halves += [0x7F80, 0xFF80]  # a bfloat's infinities
    rng = np.random.default_rng(2)
    rows = []
    for at in range(0, info.block_bytes - 1, 2 if info.block_bytes % 2 == 0 else 1):
        for half in halves:
            row = rng.integers(0, 256, info.block_bytes, dtype=np.uint8)
            row[at : at + 2] = np.array([half], "<u2").view(np.uint8)
            rows.append(row)
    data = np.concatenate(rows)
    given = metalane.dequantize(data, info.type)
    assert_same_bits(given, oracle(data, info))
    if info.name not in ("MXFP4", "F32"):
        assert np.isnan(given).any()
        assert np.isinf(given).any()


def test_every_half_and_bfloat() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        assert_same_bits(metalane.dequantize(bits, "F16"), bits.view(np.float16).astype(np.float32))
    # Only moved, NaNs too.
    moved = metalane.dequantize(bits, "BF16").view(np.uint32)
    assert (moved == bits.astype(np.uint32) << 16).all()
    nans = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x80000000], np.uint32)
    assert (metalane.dequantize(nans, "F32").view(np.uint32) == nans).all()


def q2_k_block(seed: int) -> bytes:
    groups = range(16)
    scales = [(15 - (3 * g + seed) % 16) << 4 | (g + seed) % 15 + 1 for g in groups]
    quants = [(73 * i + 19 * seed) % 256 for i in range(64)]
    return bytes(scales + quants) + np.array([0.125, 0.0625], np.float16).tobytes()


def q2_k_reference(block: bytes) -> list[float]:
    """The loop of ggml: halves of 128, shifts, segments of 16."""
    scales, quants = block[:16], block[16:80]
    d, minimum = (float(x) for x in np.frombuffer(block[80:], np.float16))
    out, group = [], 0
    for half in range(2):
        for shift in (0, 2, 4, 6):
            for segment in range(2):
                scale = d * (scales[group] & 15)
                offset = minimum * (scales[group] >> 4)
                group += 1
                at = 32 * half + 16 * segment
                out += [scale * (q >> shift & 3) - offset for q in quants[at : at + 16]]
    return out


def test_q2_k_host_decode_matches_all_256_canonical_values() -> None:
    block = q2_k_block(5)
    decoded = metalane.dequantize(block, metalane.GgmlType.Q2_K)
    assert decoded.tolist() == q2_k_reference(block)
    assert decoded.min() < 0 < decoded.max()


def test_q2_k_host_decode_rejects_malformed_buffers() -> None:
    block = q2_k_block(1)
    out = np.zeros(256, np.float32)
    with pytest.raises(metalane.ArgumentError, match="multiple of 84"):
        metalane.dequantize(block[:83], metalane.GgmlType.Q2_K, out)
    with pytest.raises(metalane.ArgumentError, match="length of out must be 256"):
        metalane.dequantize(block, metalane.GgmlType.Q2_K, out[:255])
    assert not out.any()


@by_type(DECODED)
def test_lengths_that_are_no_whole_blocks(info: metalane.GgmlTypeInfo) -> None:
    for length in {info.block_bytes - 1, info.block_bytes + 1, 3 * info.block_bytes - 1}:
        for data in (bytes(length), np.zeros(length, np.uint8), np.zeros((2, length), np.uint8)):
            with pytest.raises(metalane.ArgumentError, match=f"multiple of {info.block_bytes}"):
                metalane.dequantize(data, info.type)


@by_type(OTHERS)
def test_types_that_do_not_decode(info: metalane.GgmlTypeInfo) -> None:
    with pytest.raises(metalane.ArgumentError, match=rf"one of F32, .*MXFP4, got {info.name} "):
        metalane.dequantize(bytes(info.block_bytes), info.type)


@pytest.mark.parametrize("wrong", [9, 255, 2**32, 2**64, -1, "q2_k", "", "Q2_K\0", "\udcff"])
def test_types_that_are_not_there(wrong: Any) -> None:
    with pytest.raises(metalane.ArgumentError, match="ggml_type"):
        metalane.dequantize(bytes(84), wrong)


@pytest.mark.parametrize("wrong", [None, 2.0, True, b"Q2_K", [10], np.array([10, 11])])
def test_types_of_another_class(wrong: Any) -> None:
    with pytest.raises(metalane.DTypeError, match="ggml_type"):
        metalane.dequantize(bytes(84), wrong)


def test_memory_of_every_kind(device: metalane.Device) -> None:
    block = q2_k_block(3)
    wanted = metalane.dequantize(block, "Q2_K").tolist()
    flat = np.frombuffer(block, np.uint8)
    for data in (
        bytearray(block),
        memoryview(block),
        array.array("B", block),
        flat,
        flat.view(np.int8),
        flat.view(np.uint32),
        np.concatenate([flat[:1], flat])[1:],  # not aligned
        flat.view("u1,u1,u2"),
        device.from_numpy(flat),
    ):
        assert metalane.dequantize(data, "Q2_K").tolist() == wanted
    assert metalane.dequantize(b"", "Q2_K").shape == (0,)
    assert metalane.dequantize(np.array(1.5, np.float32), "F32").tolist() == [1.5]
    assert metalane.dequantize(np.array([1.5], ml_dtypes.bfloat16), "BF16").tolist() == [1.5]


def test_rows_stay_rows() -> None:
    data = np.zeros((2, 3, 168), np.uint8)
    assert metalane.dequantize(data, "Q2_K").shape == (2, 3, 512)
    assert metalane.dequantize(np.zeros((4, 5), np.float16), "F16").shape == (4, 5)
    assert metalane.dequantize(np.zeros((0, 84), np.uint8), "Q2_K").shape == (0, 256)


@pytest.mark.parametrize(
    "wrong",
    [None, 3, "text", [1, 2], object(), np.array([None] * 84)],
    ids=lambda value: type(value).__name__,
)
def test_memory_that_is_none(wrong: Any) -> None:
    with pytest.raises(metalane.DTypeError, match="data must be contiguous bytes"):
        metalane.dequantize(wrong, "Q2_K")


def test_memory_that_is_strided() -> None:
    for data in (np.zeros(168, np.uint8)[::2], np.zeros((84, 84), np.uint8).T[1:]):
        with pytest.raises(metalane.ArgumentError, match="contiguous"):
            metalane.dequantize(data, "Q2_K")
    with pytest.raises(metalane.DTypeError, match="contiguous"):
        metalane.dequantize(memoryview(bytes(168))[::2], "Q2_K")


def test_out_is_checked() -> None:
    block = q2_k_block(1)
    read_only = np.zeros(256, np.float32)
    read_only.flags.writeable = False
    for wrong in (
        np.zeros(256, np.float64),
        np.zeros(256, np.int32),
        np.zeros(256, np.uint32),
        np.zeros(256, ">f4"),
        np.zeros(512, np.float32)[::2],
        np.zeros((16, 16), np.float32)[:, ::-1],
        np.zeros(256, ml_dtypes.bfloat16),
        read_only,
        bytearray(1024),
        [0.0] * 256,
        3,
    ):
        with pytest.raises(metalane.DTypeError, match="out must be a writable, contiguous float32 array"):
            metalane.dequantize(block, "Q2_K", wrong)
    for length in (0, 255, 257, 512):
        out = poisoned(length)
        with pytest.raises(metalane.ArgumentError, match="length of out must be 256"):
            metalane.dequantize(block, "Q2_K", out)
        assert (out.view(np.uint32) == 0x7FA5A5A5).all()
    shaped = np.zeros((4, 64), np.float32)
    assert metalane.dequantize(block, "Q2_K", shaped) is shaped
    assert shaped.reshape(-1).tolist() == q2_k_reference(block)


def test_out_that_overlaps() -> None:
    memory = np.zeros(64, np.float32)
    for out in (memory[:8], memory[4:12], memory[7:15]):
        with pytest.raises(metalane.ArgumentError, match="overlaps"):
            metalane.dequantize(memory[:8], "F32", out)
    metalane.dequantize(memory[:8], "F32", memory[8:16])


def test_a_bytearray_is_held_while_it_is_decoded() -> None:
    """Resizing what another thread decodes is refused, as for every holder of a buffer."""
    data = bytearray(84 * 20_000)
    out = np.empty(256 * 20_000, np.float32)
    ends = []

    def decode() -> None:
        for _ in range(20):
            metalane.dequantize(data, "Q2_K", out)
        ends.append(out.any())

    threads = [threading.Thread(target=decode) for _ in range(2)]
    for thread in threads:
        thread.start()
    refused = 0
    while any(thread.is_alive() for thread in threads):
        try:
            data.extend(b"x")
            del data[-1:]
        except BufferError:
            refused += 1
    for thread in threads:
        thread.join()
    assert ends == [False, False] or refused > 0
