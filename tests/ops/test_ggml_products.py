"""Dense GGML products against float64 products of the weights as `gguf` decodes them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from host_memory import paged
from ops.ggml_case import (
    TYPES,
    Output,
    assert_accurate_by_tiles,
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

ROWS = [1, 2, 7, 8, 10, 17, 31, 33, 96]
INPUTS = [*range(1, 10), 31, 32, 33, 65]
ALGORITHMS = ["mv", "mm", "mm_simd"]


@pytest.fixture(scope="module", params=ggml_devices())
def device(request: pytest.FixtureRequest) -> metalane.Device:
    return open_device(request.param)


def multiply(
    device: metalane.Device,
    x: np.ndarray,
    raw: np.ndarray,
    ggml_type: str,
    algorithm: str = "auto",
    policy: metalane.GgmlPolicy | None = None,
) -> np.ndarray:
    m, k = x.shape
    n = raw.shape[0]
    output = Output(device, m, n)
    offset = block_size(ggml_type)[1] * 3
    with device.command_encoder() as encoder:
        ggml.quantized_matmul_ggml(
            encoder,
            padded(device, x, 12),
            padded(device, raw, offset),
            output.buffer,
            ggml.GgmlQuantizedMatmulParams(m, n, k, number(ggml_type)),
            algorithm,
            policy,
        )
    return output.result()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ggml_type", TYPES)
def test_products_of_all_shapes(device: metalane.Device, ggml_type: str, algorithm: str) -> None:
    """Every n, m and k of the lists at least once."""
    rng = np.random.default_rng(TYPES.index(ggml_type))
    lengths = row_lengths(ggml_type)
    for i in range(max(len(ROWS), len(INPUTS))):
        m, n, k = INPUTS[i % len(INPUTS)], ROWS[(2 * i + 1) % len(ROWS)], lengths[i % len(lengths)]
        raw = random_weight(rng, ggml_type, n, k)
        x = rng.standard_normal((m, k)).astype(np.float32)
        got = multiply(device, x, raw, ggml_type, algorithm)
        if algorithm == "mv":
            assert_accurate_by_vectors(got, x, values_of(raw, ggml_type))
        else:
            assert_accurate_by_tiles(got, x, values_of(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", ["Q8_0", "Q4_0", "Q5_0", "BF16", "F16"])
def test_an_output_that_hangs_on_one_small_input(device: metalane.Device, ggml_type: str) -> None:
    """One weight a row: the promise holds for inputs far below their neighbours, too."""
    rng = np.random.default_rng(0)
    raw = gguf.quantize(np.eye(512, dtype=np.float32) * np.float32(-3), number(ggml_type))
    x = rng.standard_normal((4, 512)) * 10.0 ** rng.uniform(-6, 0, (4, 512))
    x = x.astype(np.float32)
    got = multiply(device, x, raw.view(np.uint8).reshape(512, -1), ggml_type, "mv")
    assert_accurate_by_vectors(got, x, values_of(raw.view(np.uint8).reshape(512, -1), ggml_type))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ggml_type", TYPES)
def test_a_row_has_the_same_bits_whatever_stands_around_it(
    device: metalane.Device, ggml_type: str, algorithm: str
) -> None:
    rng = np.random.default_rng(1)
    k = 3 * max(block_size(ggml_type)[0], 32)
    raw = random_weight(rng, ggml_type, 41, k)
    x = rng.standard_normal((65, k)).astype(np.float32)
    whole = multiply(device, x, raw, ggml_type, algorithm)
    assert np.array_equal(whole, multiply(device, x, raw, ggml_type, algorithm))
    for first, m in [(0, 1), (64, 1), (3, 2), (10, 3), (20, 5), (7, 9), (30, 33)]:
        part = multiply(device, x[first : first + m], raw, ggml_type, algorithm)
        assert np.array_equal(part, whole[first : first + m]), (first, m)
    # Neighbours of the row with NaN and infinities, and fewer weight rows.
    x[1:] = rng.choice(np.array([np.nan, np.inf, -np.inf, 1e38], np.float32), x[1:].shape)
    assert np.array_equal(multiply(device, x, raw, ggml_type, algorithm)[0], whole[0])
    assert np.array_equal(multiply(device, x[:1], raw[5:20], ggml_type, algorithm)[0], whole[0, 5:20])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ggml_type", TYPES)
def test_random_bytes_as_weights(device: metalane.Device, ggml_type: str, algorithm: str) -> None:
    """Rows whose scales are NaN, infinite, subnormal or negative are themselves alone."""
    rng = np.random.default_rng(2)
    k = 2 * max(block_size(ggml_type)[0], 32)
    raw = random_bytes(rng, ggml_type, 96, k)
    w = values_of(raw, ggml_type)
    if block_size(ggml_type)[0] == 1:
        w[:8] = rng.choice(np.array([np.nan, np.inf, 1e-40, -2.0], np.float32), w[:8].shape)
        w[8:] = rng.standard_normal(w[8:].shape)
        raw = w.astype(metalane.bfloat16 if ggml_type == "BF16" else "f4" if ggml_type == "F32" else "f2")
        raw = raw.view(np.uint8)
        w = values_of(raw, ggml_type)
    x = rng.standard_normal((33, k)).astype(np.float32)
    got = multiply(device, x, raw, ggml_type, algorithm)
    sane = np.isfinite(w).all(axis=1) & (np.abs(w).max(axis=1) < 1e30)
    assert sane.any()
    assert_accurate_by_vectors(got[:, sane] if algorithm == "mv" else x @ w[sane].T, x, w[sane])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float64) @ w.astype(np.float64).T
    scale = np.abs(x.astype(np.float64)) @ np.abs(w[sane].astype(np.float64)).T
    assert (np.abs(got[:, sane] - expected[:, sane]) <= 1e-5 * scale + 1e-30).all()
    assert np.isnan(got[:, np.isnan(w).any(axis=1)]).all()


@pytest.mark.parametrize("ggml_type", TYPES)
def test_batches_have_the_bits_of_calls_of_their_own(device: metalane.Device, ggml_type: str) -> None:
    rng = np.random.default_rng(3)
    batches, n = 3, 10
    k = 2 * block_size(ggml_type)[0] + (3 if block_size(ggml_type)[0] == 1 else 0)
    for m in (1, 2, 5, 9):
        raw = random_weight(rng, ggml_type, batches * n, k)
        x = rng.standard_normal((batches * m, k)).astype(np.float32)
        output = Output(device, batches, m, n)
        with device.command_encoder() as encoder:
            ggml.quantized_matmul_batched_mv(
                encoder,
                device.from_numpy(x.reshape(batches, m, k)),
                device.from_numpy(raw),
                output.buffer,
                batches,
                m,
                n,
                k,
                ggml_type,
            )
        got = output.result()
        for batch in range(batches):
            alone = multiply(
                device,
                x[batch * m : (batch + 1) * m],
                raw[batch * n : (batch + 1) * n],
                ggml_type,
                "mv",
            )
            assert np.array_equal(got[batch], alone)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ggml_type", TYPES)
def test_nothing_is_read_behind_the_inputs(device: metalane.Device, ggml_type: str, algorithm: str) -> None:
    rng = np.random.default_rng(4)
    k = 3 * block_size(ggml_type)[0]
    for m, n in [(1, 7), (2, 10), (3, 1), (9, 33), (33, 65)]:
        raw = random_weight(rng, ggml_type, n, k)
        x = rng.standard_normal((m, k)).astype(np.float32)
        output = Output(device, m, n)
        with device.command_encoder() as encoder:
            ggml.quantized_matmul_ggml(
                encoder,
                at_page_end(device, x),
                at_page_end(device, raw.reshape(-1)),
                output.buffer,
                ggml.GgmlQuantizedMatmulParams(m, n, k, number(ggml_type)),
                algorithm,
            )
        assert_accurate_by_tiles(output.result(), x, values_of(raw, ggml_type))


@pytest.mark.parametrize("m", [1, 8, 9])
def test_auto_is_what_the_policy_says(device: metalane.Device, m: int) -> None:
    rng = np.random.default_rng(5)
    raw = random_weight(rng, "Q4_K", 33, 512)
    x = rng.standard_normal((m, 512)).astype(np.float32)
    plan = metalane.GgmlPolicy().plan(ggml.GgmlQuantizedMatmulParams(m, 33, 512, number("Q4_K")))
    assert plan.algorithm == ("mv" if m <= 8 else "mm_simd")
    assert np.array_equal(multiply(device, x, raw, "Q4_K"), multiply(device, x, raw, "Q4_K", plan.algorithm))
    own = metalane.GgmlPolicy([metalane.GgmlRule("mm", ggml_type="Q4_K", first_rows=2, last_rows=8)])
    expected = "mm" if m == 8 else "mv"
    assert own.plan(ggml.GgmlQuantizedMatmulParams(m, 33, 512, number("Q4_K"))).algorithm == expected
    assert np.array_equal(
        multiply(device, x, raw, "Q4_K", policy=own), multiply(device, x, raw, "Q4_K", expected)
    )


def test_plans_name_kernels_that_exist(device: metalane.Device) -> None:
    policy = metalane.GgmlPolicy()
    for ggml_type in TYPES:
        k = block_size(ggml_type)[0]
        for m in INPUTS:
            for algorithm in ("auto", *ALGORITHMS):
                params = ggml.GgmlQuantizedMatmulParams(m, 5, k, number(ggml_type))
                plan = policy.plan(params, algorithm)
                assert device.registry.pipeline(plan.kernel).signature.name == plan.kernel
                assert plan.scratch_bytes == 0
                if plan.algorithm == "mv":
                    assert plan.input_rows == min(8, 1 << (m - 1).bit_length())


def test_wrong_arguments_name_what_is_wrong(device: metalane.Device) -> None:
    x, w, y = (
        device.zeros((2, 256), np.float32),
        device.zeros(3 * 84, np.uint8),
        device.zeros((2, 3), np.float32),
    )
    q2_k = number("Q2_K")

    def call(*args: object, **kwargs: object) -> None:
        with device.command_encoder() as encoder:
            ggml.quantized_matmul_ggml(encoder, *args, **kwargs)

    good = ggml.GgmlQuantizedMatmulParams(2, 3, 256, q2_k)
    call(x, w, y, good)
    for change, argument, expected in [
        ({"m": 0}, "m", "1 to"),
        ({"n": 0}, "n", "1 to"),
        ({"k": 0}, "k", "multiple of 256"),
        ({"k": 128}, "k", "multiple of 256"),
        ({"m": 3}, "input", "at least 768 float32"),
        ({"n": 4}, "weight", "at least 336 uint8"),
        ({"m": 2**31 - 1}, "input", "at least"),
        ({"n": 2**32 - 1}, "n", "1 to"),
        ({"ggml_type": 16}, "ggml_type", "one of F32"),
        ({"ggml_type": 9999}, "ggml_type", "one of F32"),
    ]:
        params = ggml.GgmlQuantizedMatmulParams(
            **{"m": 2, "n": 3, "k": 256, "ggml_type": q2_k, **change}  # type: ignore[arg-type]
        )
        with pytest.raises(metalane.ArgumentError, match=f"quantized_matmul_ggml.*{argument}.*{expected}"):
            call(x, w, y, params)
    with pytest.raises(metalane.DTypeError, match="input.*float32.*float16"):
        call(device.zeros((4, 256), np.float16), w, y, good)
    with pytest.raises(metalane.DTypeError, match="weight.*uint8.*float32"):
        call(x, device.zeros(252, np.float32), y, good)
    with pytest.raises(metalane.ArgumentError, match="output.*at least 6 float32"):
        call(x, w, device.zeros(5, np.float32), good)
    with pytest.raises(metalane.ArgumentError, match="output.*memory of its own.*overlaps input"):
        call(x, w, x, good)
    with pytest.raises(metalane.ArgumentError, match="aligned to 4 bytes"):
        call(x, device.zeros(3 * 84 + 1, np.uint8).view(1, 3 * 84), y, good)
    with pytest.raises(metalane.ArgumentError, match="output.*writable"):
        frozen = paged(np.zeros((2, 3), np.float32))
        frozen.flags.writeable = False
        call(x, w, device.wrap(frozen), good)
    with pytest.raises(metalane.ArgumentError, match="weight.*another device"):
        call(x, metalane.Device(device.kind).zeros(252, np.uint8), y, good)
    with pytest.raises(metalane.ArgumentError, match="algorithm.*auto, mv, mm or mm_simd"):
        call(x, w, y, good, "simd")
    for place, (name, kind) in enumerate([("input", "Buffer"), ("weight", "Buffer"), ("output", "Buffer")]):
        arguments: list[object] = [x, w, y]
        arguments[place] = np.zeros(9)
        with pytest.raises(metalane.DTypeError, match=f"quantized_matmul_ggml: {name} must be a {kind}"):
            call(*arguments, good)
    with pytest.raises(metalane.DTypeError, match="params"):
        call(x, w, y, (2, 3, 256, 10))
    with pytest.raises(metalane.ArgumentError, match="first_rows <= last_rows"):
        metalane.GgmlPolicy([metalane.GgmlRule("mv", first_rows=9, last_rows=8)])
    with pytest.raises(metalane.ArgumentError, match="mv or mm_simd"):
        metalane.GgmlPolicy([metalane.GgmlRule("mm", routed=True)])


def test_a_call_that_fails_records_nothing(device: metalane.Device) -> None:
    encoder = device.command_encoder()
    with pytest.raises(metalane.ArgumentError):
        ggml.quantized_matmul_ggml(
            encoder,
            device.zeros(1, np.float32),
            device.zeros(84, np.uint8),
            device.zeros(1, np.float32),
            ggml.GgmlQuantizedMatmulParams(1, 1, 256, number("Q2_K")),
        )
    assert encoder.launches == 0
    encoder.discard()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_left_of_the_product_before(device: metalane.Device, algorithm: str) -> None:
    """Rows that end within 16 elements, after rows of NaN that went through the same scratch memory."""
    nans = np.full((64, 256 * 4), 0xFF, np.uint8)
    x = np.ones((33, 256), np.float32)
    assert np.isnan(multiply(device, x, nans, "F32", algorithm)).all()
    for k in (1, 7, 15, 17, 31, 33, 1023, 1024, 1025, 2071):
        weights = (np.arange(64 * k) % 7).astype(np.float32).reshape(64, k)
        got = multiply(device, np.ones((33, k), np.float32), weights.view(np.uint8), "F32", algorithm)
        np.testing.assert_array_equal(got, np.broadcast_to(weights.sum(1, dtype=np.float64), (33, 64)))
