"""Rows packed on the device, products whose number of rows is read there, and rows put back, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from ops.ggml_case import Output, number, random_weight, values_of
from ops.guarded import Guarded

import metalane
from devices import ggml_devices, open_device
from metalane.ops import ggml

U32 = np.dtype(np.uint32)
NOWHERE = metalane.SPECULATIVE_ROWS_NOWHERE


@pytest.fixture(scope="module", params=ggml_devices())
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return open_device(request.param)


def packed(verify_rows: np.ndarray, rows: int) -> list[int]:
    """Places in [L, R] of the rows in use, lane after lane."""
    return [lane * rows + r for lane, n in enumerate(verify_rows) for r in range(min(int(n), rows))]


def grids_for(params: metalane.SpeculativeRowsParams, total: int) -> list[list[int]]:
    return [[params.weight_tiles[g], -(-total // params.input_rows[g]), 1] for g in range(params.n_grids)]


@pytest.mark.parametrize(("lanes", "rows"), [(1, 1), (1, 16), (3, 7), (4, 16), (17, 5), (70, 40)])
def test_rows_are_packed(device: metalane.Device, lanes: int, rows: int) -> None:
    rng = np.random.default_rng(lanes)
    tiles, per_tile = [3, 1, 500], [1, 8, 32]
    params = metalane.SpeculativeRowsParams(lanes, rows, 3, [*tiles, *[0] * 13], [*per_tile, *[0] * 13])
    anchors = rng.integers(1 << 32, size=lanes, dtype=np.uint32)
    tokens = rng.integers(1 << 32, size=(lanes, rows - 1), dtype=np.uint32)
    for verify_rows in (
        rng.integers(0, rows + 1, lanes, dtype=np.uint32),
        np.zeros(lanes, U32),
        np.full(lanes, rows, U32),
        np.full(lanes, 0xFFFFFFFF, U32),  # more than there are: all
    ):
        shapes = [(lanes,), (lanes,), (lanes, rows - 1), (lanes * rows,), (lanes * rows,), (3, 3)]
        buffers = [Guarded(device, shape, U32) for shape in shapes]
        for buffer, values in zip(buffers, (verify_rows, anchors, tokens), strict=False):
            buffer.set(values)
        with device.command_encoder() as encoder:
            metalane.dispatch_speculative_rows(encoder, *(b.buffer for b in buffers), params)
        places = packed(verify_rows, rows)
        spare = lanes * rows - len(places)
        every = np.concatenate([anchors[:, None], tokens], axis=1).reshape(-1)
        for buffer, expected in (
            (buffers[3], [*every[places], *[0] * spare]),
            (buffers[4], [*places, *[NOWHERE] * spare]),
            (buffers[5], grids_for(params, len(places))),
        ):
            np.testing.assert_array_equal(
                np.array(buffer.buffer), np.array(expected, U32).reshape(buffer.buffer.shape)
            )
        for i, buffer in enumerate(buffers):
            buffer.check(str(i))


@pytest.mark.parametrize("algorithm", ["mv", "mm", "mm_simd"])
@pytest.mark.parametrize("ggml_type", ["Q4_K", "Q8_0", "F32"])
def test_products_read_their_rows_on_the_device(
    device: metalane.Device, ggml_type: str, algorithm: str
) -> None:
    """Rows of tiles that the grid counts are those of a product of all rows, bit for bit; others stay as they are."""
    rng = np.random.default_rng(5)
    m, n, k = 70, 83, 256
    x = rng.standard_normal((m, k), np.float32)
    raw = random_weight(rng, ggml_type, n, k)
    params = ggml.GgmlQuantizedMatmulParams(m, n, k, number(ggml_type))
    rows = metalane.SpeculativeRowsParams.of(1, m, [params], algorithm=algorithm)
    weight, given = device.from_numpy(raw), device.from_numpy(x)
    grid = device.zeros(3, "u32")
    all_rows = device.zeros((m, n), "f32")
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_ggml(encoder, given, weight, all_rows, params, algorithm)
    expected = all_rows.numpy().copy()
    np.testing.assert_allclose(expected, x.astype(np.float64) @ values_of(raw, ggml_type).T, atol=1e-2)
    output = Output(device, m, n)
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        ggml.quantized_matmul_ggml(encoder, given, weight, output.buffer, params, algorithm, grid=grid)
    poison = np.array(output.buffer).view(np.uint32).copy()
    for total in (0, 1, 8, 31, 33, 64, 70):
        output.buffer.numpy().view(np.uint32)[...] = poison
        grid.numpy()[:] = grids_for(rows, total)[0]
        captured.graph.replay().wait()
        got = np.array(output.buffer).view(np.uint32)
        reached = min(-(-total // rows.input_rows[0]) * rows.input_rows[0], m)
        np.testing.assert_array_equal(got[:reached], expected.view(np.uint32)[:reached])
        np.testing.assert_array_equal(got[reached:], poison[reached:])
    output.buffer.numpy().view(np.uint32)[...] = poison
    grid.numpy()[:2] += 3  # more tiles than there are: they do nothing
    captured.graph.replay().wait()
    np.testing.assert_array_equal(np.array(output.buffer).view(np.uint32), expected.view(np.uint32))
    output.check("output")


@pytest.mark.parametrize("length", [1, 3, 1023, 1024, 1025, 4099])
def test_rows_are_put_back(device: metalane.Device, length: int) -> None:
    rng = np.random.default_rng(length)
    rows = 9
    x = rng.standard_normal((rows, length), np.float32)
    x[0, 0] = np.nan  # moved like any other
    places = np.array([4, 0, 8, NOWHERE, 2, rows, 7, NOWHERE, 1], U32)
    grid = device.from_numpy(np.array([-(-length // 1024), 6, 1], U32))
    for counts, moved in ((None, range(rows)), (grid, range(6))):
        buffers = [Guarded(device, (rows, length), np.dtype(np.float32)) for _ in range(2)]
        buffers[0].set(x)
        expected = np.array(buffers[1].buffer)
        with device.command_encoder() as encoder:
            metalane.scatter_rows(
                encoder,
                buffers[0].buffer,
                device.from_numpy(places),
                buffers[1].buffer,
                metalane.ScatterRowsParams(length, rows),
                counts,
            )
        for i in moved:
            if places[i] < rows:
                expected[places[i]] = x[i]
        np.testing.assert_array_equal(np.array(buffers[1].buffer).view(U32), expected.view(U32))
        for buffer in buffers:
            buffer.check("rows")


def test_one_graph_serves_every_number_of_rows(device: metalane.Device) -> None:
    """Packed rows -> gather -> product -> put back, without a look of the host: rows not in use are never written."""
    rng = np.random.default_rng(2)
    lanes, rows, vocabulary, k = 3, 6, 90, 256
    table, head = (random_weight(rng, "Q8_0", vocabulary, k) for _ in range(2))
    m = lanes * rows
    product = ggml.GgmlQuantizedMatmulParams(m, vocabulary, k, number("Q8_0"))
    params = metalane.SpeculativeRowsParams.of(lanes, rows, [product], scatter=vocabulary, algorithm="mv")
    verify_rows, anchors = device.zeros(lanes, "u32"), device.zeros(lanes, "u32")
    tokens = device.zeros((lanes, rows - 1), "u32")
    row_tokens, row_places, grids = (
        device.zeros(m, "u32"),
        device.zeros(m, "u32"),
        device.zeros((2, 3), "u32"),
    )
    x, packed_logits = device.zeros((m, k), "f32"), device.zeros((m, vocabulary), "f32")
    logits = Output(device, m, vocabulary)
    weights = [device.from_numpy(w) for w in (table, head)]
    encoder = device.command_encoder()
    with encoder.capture() as captured:
        metalane.dispatch_speculative_rows(
            encoder, verify_rows, anchors, tokens, row_tokens, row_places, grids, params
        )
        gather = ggml.EmbeddingGgmlParams(vocabulary, k, m, number("Q8_0"))
        ggml.embedding_gather_ggml(encoder, weights[0], row_tokens, x, gather)
        ggml.quantized_matmul_ggml(
            encoder, x, weights[1], packed_logits, product, "mv", grid=grids.view(0, 3)
        )
        metalane.scatter_rows(
            encoder,
            packed_logits,
            row_places,
            logits.buffer,
            metalane.ScatterRowsParams(vocabulary, m),
            grids.view(12, 3),
        )
    assert captured.graph.levels() == [0, 1, 2, 3]
    poison = np.array(logits.buffer)
    w, e = values_of(head, "Q8_0").astype(np.float64), values_of(table, "Q8_0").astype(np.float64)
    for _ in range(10):
        verify_rows.numpy()[:] = rng.integers(0, rows + 2, lanes)
        anchors.numpy()[:] = rng.integers(0, vocabulary, lanes)
        tokens.numpy()[:] = rng.integers(0, vocabulary, (lanes, rows - 1))
        logits.buffer.numpy()[...] = poison
        captured.graph.replay().wait()
        every = np.concatenate([anchors.numpy()[:, None], tokens.numpy()], axis=1).reshape(-1)
        expected = poison.astype(np.float64)
        places = packed(verify_rows.numpy(), rows)
        expected[places] = e[every[places]] @ w.T
        np.testing.assert_allclose(np.array(logits.buffer), expected, rtol=0, atol=1e-3)
    logits.check("logits")


def test_arguments_are_checked(device: metalane.Device) -> None:
    a, b, c = (device.zeros(24, "u32") for _ in range(3))
    x, y = device.zeros((2, 12), "f32"), device.zeros((2, 12), "f32")
    good = metalane.SpeculativeRowsParams(2, 3, 1, [1] * 16, [1] * 16)
    encoder = device.command_encoder()

    def pack(*buffers: metalane.Buffer, params: object = good) -> None:
        metalane.dispatch_speculative_rows(encoder, *buffers, params)

    def bad(**fields: object) -> metalane.SpeculativeRowsParams:
        values = {
            "lanes": 2,
            "rows_per_lane": 3,
            "n_grids": 1,
            "weight_tiles": [1] * 16,
            "input_rows": [1] * 16,
        }
        return metalane.SpeculativeRowsParams(**{**values, **fields})

    d, e, f = (device.zeros(24, "u32") for _ in range(3))
    for params, word in (
        (bad(lanes=0), "lanes"),
        (bad(rows_per_lane=0), "rows_per_lane"),
        (bad(lanes=4096, rows_per_lane=4096), r"lanes \* rows_per_lane"),
        (bad(n_grids=0), "n_grids"),
        (bad(n_grids=17), "n_grids"),
        (bad(input_rows=[0] * 16), r"input_rows\[0\]"),
        (bad(weight_tiles=[0] * 16), r"weight_tiles\[0\]"),
        (bad(rows_per_lane=13), "row_tokens|tokens"),
    ):
        with pytest.raises(metalane.ArgumentError, match=word):
            pack(a, b, c, d, e, f, params=params)
    with pytest.raises(metalane.ArgumentError, match="row_places must be memory of its own"):
        pack(a, b, c, d, d, f)
    with pytest.raises(metalane.DTypeError, match="anchors"):
        pack(a, x, c, d, e, f)
    with pytest.raises(metalane.DTypeError, match="SpeculativeRowsParams"):
        pack(a, b, c, d, e, f, params=3)
    with pytest.raises(metalane.ArgumentError, match="1 to 16 grids, got 0"):
        metalane.SpeculativeRowsParams.of(1, 1, [])
    scatter = metalane.ScatterRowsParams(12, 2)
    for arguments, error, word in (
        ((x, a, y, metalane.ScatterRowsParams(13, 2)), metalane.ArgumentError, "input"),
        ((x, a, x, scatter), metalane.ArgumentError, "memory of its own"),
        ((x, a.view(0, 1), y, scatter), metalane.ArgumentError, "places"),
        ((x, a, y, scatter, b.view(0, 2)), metalane.ArgumentError, "grid"),
        ((x, a, y, scatter, x), metalane.DTypeError, "grid"),
        ((x, a, y, scatter, 3), metalane.DTypeError, "grid"),
    ):
        with pytest.raises(error, match=word):
            metalane.scatter_rows(encoder, *arguments)
    assert encoder.launches == 0
