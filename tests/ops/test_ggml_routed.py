"""Embedding gather and expert-routed GGML products against float64, routed by NumPy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from ops.ggml_case import (
    TYPES,
    Output,
    assert_accurate_by_vectors,
    block_size,
    number,
    padded,
    random_bytes,
    random_weight,
    row_lengths,
    values_of,
)
from ops.guarded import at_page_end

import metalane
from devices import ggml_devices, open_device
from metalane.ops import ggml

OPERATORS = ["mv", "mm_simd", "pooled", "slotted"]
WRITE_IDS = """
kernel void write_ids(device const uint* x, device uint* ids, uint i [[thread_position_in_grid]]) { ids[i] = x[i]; }
"""


@pytest.fixture(scope="module", params=ggml_devices())
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return open_device(request.param)


class Routed:
    """A random routed product: experts [E, n, k], ids [tokens, top_k]."""

    def __init__(
        self, rng: np.random.Generator, ggml_type: str, k: int, n: int, experts: int, ids: np.ndarray
    ) -> None:
        self.ggml_type, self.k, self.n, self.experts, self.ids = ggml_type, k, n, experts, ids
        self.raw = random_weight(rng, ggml_type, experts * n, k)
        self.w = values_of(self.raw, ggml_type).reshape(experts, n, k)
        self.x = rng.standard_normal((ids.size, k)).astype(np.float32)  # of which only slotted calls read all

    def params(self) -> ggml.GgmlQuantizedMatmulIdParams:
        tokens, top_k = self.ids.shape
        return ggml.GgmlQuantizedMatmulIdParams(
            tokens,
            top_k,
            self.n,
            self.k,
            self.experts,
            self.raw.nbytes // self.experts,
            number(self.ggml_type),
        )

    def run(
        self,
        device: metalane.Device,
        operator: str,
        ids: metalane.Buffer | None = None,
        scratch: metalane.IdMmScratch | None = None,
    ) -> tuple[np.ndarray, Any]:
        """The output [routes, n] and the ticket's status."""
        tokens, top_k = self.ids.shape
        output = Output(device, tokens * top_k, self.n)
        x = self.x if operator == "slotted" else self.x[:tokens]
        scratch = scratch or metalane.IdMmScratch.alloc(device, self.experts, tokens, top_k)
        arguments = [
            padded(device, x, 12),
            padded(device, self.raw, 2 * block_size(self.ggml_type)[1]),
            ids or padded(device, self.ids, 8),
            output.buffer,
        ]
        with device.command_encoder() as encoder:
            if operator == "pooled":
                ggml.quantized_matmul_id_ggml_pooled(encoder, *arguments, scratch, self.params())
            elif operator == "slotted":
                ggml.quantized_matmul_id_ggml_pooled_slotted(encoder, *arguments, scratch, self.params())
            else:
                ggml.quantized_matmul_id_ggml(encoder, *arguments, self.params(), operator)
        encoder.ticket.wait()
        return output.result(), encoder.ticket.status

    def check(self, got: np.ndarray, operator: str) -> None:
        """Route by route where the products are mat-vec, else all at once."""
        tokens, top_k = self.ids.shape
        ids = self.ids.reshape(-1)
        x = self.x if operator == "slotted" else np.repeat(self.x[:tokens], top_k, axis=0)
        real = np.flatnonzero(ids < self.experts)
        assert (got[ids >= self.experts] == 0).all()
        if operator == "mv":
            for route in real:
                assert_accurate_by_vectors(got[route : route + 1], x[route : route + 1], self.w[ids[route]])
        elif real.size:
            expected = np.stack([self.w[ids[r]].astype(np.float64) @ x[r] for r in real])
            error = ((got[real] - expected) ** 2).sum() / (expected**2).sum()
            assert error <= 1e-6


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("ggml_type", TYPES)
def test_routed_products(device: metalane.Device, ggml_type: str, operator: str) -> None:
    rng = np.random.default_rng(TYPES.index(ggml_type))
    lengths = row_lengths(ggml_type)
    many = 256 if ggml_type == "Q2_K" else 16
    sizes = [(1, 1, 1, 7), (2, 2, 3, 8), (33, 6, 8, 17), (65, 8, many, 1), (9, 1, 5, 96), (40, 8, 2, 33)]
    for i, (tokens, top_k, experts, n) in enumerate(sizes):
        ids = rng.integers(0, experts, (tokens, top_k), dtype=np.uint32)  # duplicates in a row among them
        routed = Routed(rng, ggml_type, lengths[i % len(lengths)], n, experts, ids)
        got, status = routed.run(device, operator)
        routed.check(got, operator)
        assert status == "done"


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_to_one_expert_and_to_few(device: metalane.Device, operator: str) -> None:
    rng = np.random.default_rng(1)
    for ids in (
        np.full((65, 6), 255, np.uint32),
        np.zeros((65, 6), np.uint32),
        rng.choice(np.array([3, 200], np.uint32), (33, 8)),
    ):
        routed = Routed(rng, "Q2_K", 256, 9, 256, ids)
        routed.check(routed.run(device, operator)[0], operator)


@pytest.mark.parametrize("operator", OPERATORS)
def test_ids_that_a_kernel_writes_out_of_range_give_zeros_and_a_status(
    device: metalane.Device, operator: str
) -> None:
    rng = np.random.default_rng(2)
    write = device.compile(WRITE_IDS).write_ids
    for bad in ([0], [5, 6, 100], range(66)):
        ids = rng.integers(0, 4, (33, 2), dtype=np.uint32)
        for place, route in enumerate(bad):
            if route < ids.size:
                ids.reshape(-1)[route] = [4, 5, 2**32 - 1][place % 3]
        count = int((ids >= 4).sum())
        routed = Routed(rng, "Q8_0", 64, 19, 4, ids)
        written = device.zeros(ids.shape, np.uint32)
        gate = device.from_numpy(ids)
        scratch = metalane.IdMmScratch.alloc(device, 7, 100)
        output = Output(device, ids.size, 19)
        x = device.from_numpy(routed.x if operator == "slotted" else routed.x[:33])
        with device.command_encoder() as encoder:
            write(gate, written, threads=ids.size, encoder=encoder)
            arguments = [x, device.from_numpy(routed.raw), written, output.buffer]
            if operator in ("pooled", "slotted"):
                call = {
                    "pooled": ggml.quantized_matmul_id_ggml_pooled,
                    "slotted": ggml.quantized_matmul_id_ggml_pooled_slotted,
                }[operator]
                call(encoder, *arguments, scratch, routed.params())
            else:
                ggml.quantized_matmul_id_ggml(encoder, *arguments, routed.params(), operator)
        encoder.ticket.wait()
        routed.check(output.result(), operator)
        assert encoder.ticket.status.endswith(f": {count} ids out of range")
        assert encoder.ticket.error is None
        if operator in ("pooled", "slotted"):
            assert scratch.status == f"{count} ids out of range"
        # The next submission starts at 0 again.
        ids[...] = 1
        assert routed.run(device, operator)[1] == "done"


def test_ids_that_the_host_sees_out_of_range_raise(device: metalane.Device) -> None:
    rng = np.random.default_rng(3)
    ids = np.array([[0, 1], [2, 3]], np.uint32)
    for operator in OPERATORS:
        routed = Routed(rng, "Q4_0", 32, 3, 3, ids)
        with pytest.raises(metalane.ArgumentError, match=r"ids\[3\].*below n_experts \(3\).*3"):
            routed.run(device, operator)


def test_pair_slotted_and_pooled_have_the_bits_of_single_calls(device: metalane.Device) -> None:
    rng = np.random.default_rng(4)
    for ggml_type in TYPES:
        k = 2 * max(block_size(ggml_type)[0], 16)
        ids = rng.integers(0, 8, (33, 6), dtype=np.uint32)
        a, b = (Routed(rng, ggml_type, k, 70, 8, ids) for _ in range(2))
        b.x = a.x
        scratch = metalane.IdMmScratch.alloc(device, 8, 33)
        out_a, out_b = Output(device, ids.size, 70), Output(device, ids.size, 70)
        with device.command_encoder() as encoder:
            ggml.quantized_matmul_id_ggml_pooled_pair(
                encoder,
                device.from_numpy(a.x[:33]),
                device.from_numpy(a.raw),
                device.from_numpy(b.raw),
                device.from_numpy(ids),
                out_a.buffer,
                out_b.buffer,
                scratch,
                a.params(),
            )
        single = a.run(device, "pooled", scratch=scratch)[0]
        assert np.array_equal(out_a.result(), single)
        assert np.array_equal(out_b.result(), b.run(device, "mm_simd")[0])
        flat = Routed(rng, ggml_type, k, 70, 8, ids.reshape(-1, 1))
        flat.raw, flat.w, flat.x = a.raw, a.w, a.x
        assert np.array_equal(a.run(device, "slotted")[0], flat.run(device, "pooled")[0])


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_route_has_the_same_bits_whatever_others_do(device: metalane.Device, operator: str) -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 8, (40, 4), dtype=np.uint32)
    routed = Routed(rng, "Q5_K", 512, 40, 8, ids)
    whole = routed.run(device, operator)[0]
    assert np.array_equal(whole, routed.run(device, operator)[0])
    kept = slice(0, 4)  # the routes of token 0
    routed.ids = np.concatenate([ids[:1], rng.integers(0, 8, (20, 4), dtype=np.uint32)])
    routed.x = np.concatenate([routed.x[:4], np.full((80, 512), np.nan, np.float32)])
    if operator != "slotted":
        routed.x[1:] = np.inf
    assert np.array_equal(routed.run(device, operator)[0][kept], whole[kept])


@pytest.mark.parametrize("operator", ["mv", "pooled", "slotted"])
@pytest.mark.parametrize("ggml_type", TYPES)
def test_nothing_is_read_behind_the_inputs(device: metalane.Device, ggml_type: str, operator: str) -> None:
    rng = np.random.default_rng(6)
    ids = rng.integers(0, 3, (9, 2), dtype=np.uint32)
    k = 3 * block_size(ggml_type)[0]
    routed = Routed(rng, ggml_type, k, 17, 3, ids)
    output = Output(device, 18, 17)
    arguments = [
        at_page_end(device, routed.x if operator == "slotted" else routed.x[:9]),
        at_page_end(device, routed.raw.reshape(-1)),
        at_page_end(device, ids),
        output.buffer,
    ]
    with device.command_encoder() as encoder:
        scratch = metalane.IdMmScratch.alloc(device, 3, 9, 2)
        if operator == "pooled":
            ggml.quantized_matmul_id_ggml_pooled(encoder, *arguments, scratch, routed.params())
        elif operator == "slotted":
            ggml.quantized_matmul_id_ggml_pooled_slotted(encoder, *arguments, scratch, routed.params())
        else:
            ggml.quantized_matmul_id_ggml(encoder, *arguments, routed.params(), operator)
    routed.check(output.result(), operator)


@pytest.mark.parametrize(
    ("n_tokens", "top_k", "algorithm"),
    [
        (32, 1, "mv"),
        (33, 1, "mm_simd"),
        (32, 6, "mv"),
        (33, 6, "mm_simd"),
        (33, 8, "mm_simd"),
        (33, 2, "mv"),
        (33, 7, "mv"),
        (33, 9, "mv"),
        (1, 6, "mv"),
    ],
)
def test_policy_at_its_edges(device: metalane.Device, n_tokens: int, top_k: int, algorithm: str) -> None:
    rng = np.random.default_rng(7)
    ids = rng.integers(0, 4, (n_tokens, top_k), dtype=np.uint32)
    routed = Routed(rng, "Q6_K", 256, 5, 4, ids)
    plan = metalane.GgmlPolicy().plan(routed.params())
    assert plan.algorithm == algorithm
    assert (plan.scratch_bytes > 0) == (algorithm == "mm_simd")
    assert device.registry.pipeline(plan.kernel).signature.name == plan.kernel
    assert np.array_equal(routed.run(device, "auto")[0], routed.run(device, algorithm)[0])


def test_threads_share_a_device_and_its_scratch(device: metalane.Device) -> None:
    def run(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            ids = rng.integers(0, 8, (int(rng.integers(33, 60)), 6), dtype=np.uint32)
            routed = Routed(rng, "Q2_K", 256, 20, 8, ids)
            routed.check(routed.run(device, "mm_simd")[0], "mm_simd")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def test_scratch_that_is_too_small_names_both_numbers(device: metalane.Device) -> None:
    rng = np.random.default_rng(8)
    routed = Routed(rng, "Q2_K", 256, 5, 4, rng.integers(0, 4, (33, 6), dtype=np.uint32))
    with pytest.raises(metalane.ArgumentError, match=r"scratch.*198 routes.*room for 192"):
        routed.run(device, "pooled", scratch=metalane.IdMmScratch.alloc(device, 4, 24))
    with pytest.raises(metalane.ArgumentError, match=r"scratch.*4 experts.*room for 3"):
        routed.run(device, "pooled", scratch=metalane.IdMmScratch.alloc(device, 3, 33))
    with pytest.raises(metalane.ArgumentError, match="scratch of another device"):
        other = metalane.Device(device.kind)
        routed.run(device, "pooled", scratch=metalane.IdMmScratch.alloc(other, 4, 33))
    for arguments in ((0, 1), (1, 0), (1, 1, 0), (2**40, 1), (4, 2**31, 1), (4, 2**20, 2**20)):
        with pytest.raises(metalane.ArgumentError, match=r"IdMmScratch\.alloc"):
            metalane.IdMmScratch.alloc(device, *arguments)


def test_expert_stride_is_checked_and_used(device: metalane.Device) -> None:
    rng = np.random.default_rng(9)
    ids = rng.integers(0, 3, (5, 2), dtype=np.uint32)
    routed = Routed(rng, "Q2_K", 256, 4, 3, ids)
    expert = routed.raw.nbytes // 3
    apart = np.full((3, expert + 84), 0xFF, np.uint8)
    apart[:, :expert] = routed.raw.reshape(3, -1)
    for stride, weight, good in [
        (expert + 84, apart, True),
        (expert - 84, apart, False),
        (expert + 1, apart, False),
        (expert + 840, apart, False),
        (2**63, apart, False),
    ]:
        params = routed.params()
        params.expert_stride = stride
        output = Output(device, 10, 4)
        with device.command_encoder() as encoder:
            arguments = [
                device.from_numpy(routed.x[:5]),
                device.from_numpy(weight),
                device.from_numpy(ids),
                output.buffer,
                params,
            ]
            if good:
                ggml.quantized_matmul_id_ggml(encoder, *arguments)
            else:
                with pytest.raises(metalane.ArgumentError, match="expert_stride|weight|params"):
                    ggml.quantized_matmul_id_ggml(encoder, *arguments)
        if good:
            routed.check(output.result(), "mv")


def test_scratch_of_the_pool_is_allocated_once(device: metalane.Device) -> None:
    rng = np.random.default_rng(10)
    routed = Routed(rng, "Q2_K", 256, 5, 4, rng.integers(0, 4, (33, 6), dtype=np.uint32))
    fresh = metalane.Device(device.kind, device.kernels)
    x, raw, ids = fresh.from_numpy(routed.x[:33]), fresh.from_numpy(routed.raw), fresh.from_numpy(routed.ids)
    out = fresh.zeros((198, 5), np.float32)
    operands = fresh.allocated_bytes
    assert operands >= routed.raw.nbytes + out.nbytes
    counts = []
    for _ in range(50):
        with fresh.command_encoder() as encoder:
            ggml.quantized_matmul_id_ggml(encoder, x, raw, ids, out, routed.params())
        encoder.ticket.wait()
        counts.append(fresh.allocated_bytes)
    assert counts[0] > operands
    assert counts == counts[:1] * 50


@pytest.mark.parametrize("ggml_type", TYPES)
def test_gather(device: metalane.Device, ggml_type: str) -> None:
    """The bits of gguf's decoding, NaN as any NaN."""
    rng = np.random.default_rng(11)
    for case, k in enumerate(row_lengths(ggml_type)):
        vocab, tokens = int(rng.integers(1, 50)), int(rng.integers(1, 66))
        raw = random_bytes(rng, ggml_type, vocab, k)
        ids = rng.integers(0, vocab, tokens, dtype=np.uint32)
        output = Output(device, tokens, k)
        with device.command_encoder() as encoder:
            ggml.embedding_gather_ggml(
                encoder,
                at_page_end(device, raw) if case % 2 else padded(device, raw, block_size(ggml_type)[1]),
                at_page_end(device, ids),
                output.buffer,
                ggml.EmbeddingGgmlParams(vocab, k, tokens, number(ggml_type)),
            )
        encoder.ticket.wait()
        got, expected = output.result(), values_of(raw, ggml_type)[ids]
        assert encoder.ticket.status == "done"
        nan = np.isnan(expected)
        assert np.array_equal(nan, np.isnan(got))
        assert np.array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def test_gather_of_ids_out_of_range(device: metalane.Device) -> None:
    rng = np.random.default_rng(12)
    raw = random_weight(rng, "Q4_K", 5, 512)
    params = ggml.EmbeddingGgmlParams(5, 512, 4, number("Q4_K"))
    bad = np.array([4, 5, 0, 2**32 - 1], np.uint32)
    weight, output = at_page_end(device, raw), Output(device, 4, 512)
    encoder = device.command_encoder()
    with pytest.raises(
        metalane.ArgumentError, match=r"embedding_gather_ggml.*ids\[1\].*below vocab_size \(5\).*5"
    ):
        ggml.embedding_gather_ggml(encoder, weight, device.from_numpy(bad), output.buffer, params)
    assert encoder.launches == 0
    ids = device.zeros(4, np.uint32)
    write = device.compile(WRITE_IDS).write_ids
    write(device.from_numpy(bad), ids, threads=4, encoder=encoder)
    ggml.embedding_gather_ggml(encoder, weight, ids, output.buffer, params)
    ticket = encoder.commit()
    ticket.wait()
    got, expected = output.result(), values_of(raw, "Q4_K")
    assert np.array_equal(got, np.stack([expected[4], expected[0] * 0, expected[0], expected[0] * 0]))
    assert ticket.status == "embedding_gather_ggml: 2 ids out of range"


def test_captured_calls_leave_ids_to_the_device(device: metalane.Device) -> None:
    """A graph is replayed with ids of then: nothing is looked at while it is captured, and a replay reports."""
    rng = np.random.default_rng(13)
    raw = random_weight(rng, "Q8_0", 3, 32)
    ids, output = device.from_numpy(np.array([7, 1], np.uint32)), Output(device, 2, 32)
    encoder = device.command_encoder()
    encoder.start_capture()
    ggml.embedding_gather_ggml(
        encoder,
        device.from_numpy(raw),
        ids,
        output.buffer,
        ggml.EmbeddingGgmlParams(3, 32, 2, number("Q8_0")),
    )
    graph = encoder.take_capture()
    encoder.discard()
    expected = values_of(raw, "Q8_0")
    for given, zeros in [([7, 1], 1), ([2, 0], 0), ([9, 9], 2)]:
        ids.numpy()[:] = given
        with device.command_encoder() as encoder:
            graph.encode(encoder)
        encoder.ticket.wait()
        got = output.result()
        for row, one in zip(got, given, strict=True):
            assert np.array_equal(row, expected[one] if one < 3 else expected[0] * 0)
        status = encoder.ticket.status
        assert status == ("done" if zeros == 0 else f"embedding_gather_ggml: {zeros} ids out of range")
