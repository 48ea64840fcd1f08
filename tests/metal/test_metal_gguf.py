"""GGUF files on the Metal device: pages of the file as few buffers, each as long as the device allows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from host.gguf_builder import F32, UINT16, File, Tensor, entry

import metalane as ml
from metal_double import DOUBLE

PAGE = os.sysconf("SC_PAGESIZE")
MOST = 16 * PAGE

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    DOUBLE.set_max_buffer_length(MOST)
    yield
    DOUBLE.reset()


@pytest.fixture
def metal() -> ml.Device:
    return ml.Device("metal")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(*parts: list[tuple[str, int]], alignment: int = 32) -> Path:
        """A file of F32 tensors of these names and bytes, or the parts of one."""
        rng = np.random.default_rng(len(parts))
        paths = []
        for number, tensors in enumerate(parts):
            entries = [
                entry("split.no", UINT16, number),
                entry("split.count", UINT16, len(parts)),
                entry("general.alignment", 4, alignment),
            ]
            data = [
                Tensor(name, (n // 4,), F32, rng.standard_normal(n // 4, np.float32).tobytes())
                for name, n in tensors
            ]
            suffix = f"-{number + 1:05}-of-{len(parts):05}" if len(parts) > 1 else ""
            paths.append(tmp_path / f"model{suffix}.gguf")
            paths[-1].write_bytes(File(entries, data, alignment=alignment).build())
        return paths[0]

    return made


def buffers() -> int:
    return DOUBLE.live_objects(b"MTLBuffer")


def copied_on_the_gpu(device: ml.Device, tensor: ml.Buffer) -> bytes:
    target = device.empty(tensor.shape, tensor.dtype)
    encoder = device.command_encoder()
    encoder.copy(tensor, target)
    encoder.commit().wait(30)
    return target.numpy().tobytes()


def fewest(infos: list[ml.GgufTensorInfo]) -> int:
    """Windows of MOST bytes over whole pages that hold every tensor of one file whole, by trying every end."""
    pages = sorted((i.offset // PAGE * PAGE, -(-(i.offset + i.byte_len) // PAGE) * PAGE) for i in infos)
    best = [0]
    for count in range(1, len(pages) + 1):
        best.append(
            min(best[first] + 1 for first in range(count) if pages[count - 1][1] - pages[first][0] <= MOST)
        )
    return best[-1]


@pytest.mark.parametrize("seed", range(4))
def test_a_file_is_as_few_buffers_as_can_be(metal: ml.Device, write: Write, seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, MOST // 5, 30) * 4
    file = ml.GgufFile(write([(f"t{i}", int(n)) for i, n in enumerate(sizes) if n <= MOST - 2 * PAGE]))
    names = list(np.random.default_rng(seed).permutation(file.tensor_names))
    expected = fewest([file.tensor_info(name) for name in names])
    assert 5 < expected < len(names)
    before, made = buffers(), DOUBLE.made_objects(b"MTLBuffer")
    tensors = {name: file.load_tensor(name, metal) for name in names}
    again = {name: file.load_tensor(name, metal) for name in names}
    assert buffers() - before == DOUBLE.made_objects(b"MTLBuffer") - made == expected
    for name in names:
        assert tensors[name].readonly and again[name].address == tensors[name].address
        assert copied_on_the_gpu(metal, tensors[name]) == file.numpy(name).tobytes()
    tensors.clear()
    assert buffers() - before == expected
    again.clear()
    assert buffers() == before
    assert copied_on_the_gpu(metal, file.load_tensor(names[0], metal)) == file.numpy(names[0]).tobytes()


def test_only_what_is_asked_for_is_mapped(metal: ml.Device, write: Write) -> None:
    file = ml.GgufFile(write([("a", 12 * PAGE), ("b", 12 * PAGE), ("c", PAGE), ("d", 12 * PAGE)]))
    before = buffers()
    b = file.load_tensor("b", metal)
    c = file.load_tensor("c", metal)
    assert buffers() - before == 1
    d = file.load_tensor("d", metal)
    assert buffers() - before == 2
    b.release()
    assert b.released and c.tolist() == file.numpy("c").tolist()
    assert buffers() - before == 2
    c.release()
    assert buffers() - before == 1
    assert d.tolist() == file.numpy("d").tolist()
    other = ml.Device("metal:1")
    theirs = file.load_tensor("d", other)
    assert buffers() - before == 2
    assert copied_on_the_gpu(other, theirs) == file.numpy("d").tobytes()


def test_parts_have_buffers_of_their_own(metal: ml.Device, write: Write) -> None:
    """Twelve and nine pages: two buffers for the first part, one for each of the others."""
    path = write([("a", 12 * PAGE), ("b", 9 * PAGE)], [("c", 9 * PAGE)], [("d", 9 * PAGE), ("e", 64)])
    file = ml.GgufFile(path)
    before = buffers()
    tensors = {name: file.load_tensor(name, metal) for name in "edcba"}
    assert buffers() - before == 4
    for name, tensor in tensors.items():
        assert copied_on_the_gpu(metal, tensor) == file.numpy(name).tobytes()


def test_a_tensor_over_the_limit_is_one_error(metal: ml.Device, write: Write) -> None:
    file = ml.GgufFile(write([("a", 64), ("blk.0.large", MOST + 4), ("c", 64)]))
    made = DOUBLE.made_objects(b"MTLBuffer")
    with pytest.raises(
        ml.OutOfMemoryError,
        match=rf'model\.gguf: tensors\["blk\.0\.large"\]\.data: {MOST + 4} bytes .* {MOST} a buffer',
    ):
        file.load_tensor("blk.0.large", metal)
    assert DOUBLE.made_objects(b"MTLBuffer") == made
    a, c = file.load_tensor("a", metal), file.load_tensor("c", metal)
    assert [a.tolist(), c.tolist()] == [file.numpy("a").tolist(), file.numpy("c").tolist()]


@pytest.mark.parametrize(("alignment", "copied"), [(32, True), (PAGE, False)])
def test_a_tensor_whose_pages_pass_the_limit_is_copied(
    metal: ml.Device, write: Write, alignment: int, copied: bool
) -> None:
    file = ml.GgufFile(write([("whole", MOST)], alignment=alignment))
    tensor = file.load_tensor("whole", metal)
    assert (tensor.address % PAGE == file.tensor_info("whole").offset % PAGE) is not copied
    assert copied_on_the_gpu(metal, tensor) == file.numpy("whole").tobytes()


def test_what_metal_refuses_to_map_is_copied(metal: ml.Device, write: Write) -> None:
    file = ml.GgufFile(write([("a", 4 * PAGE), ("b", 4 * PAGE)]))
    DOUBLE.fail_allocations(0, 1)
    a, b = file.load_tensor("a", metal), file.load_tensor("b", metal)
    assert a.address % PAGE != file.tensor_info("a").offset % PAGE
    assert b.address % PAGE == file.tensor_info("b").offset % PAGE
    for name, tensor in {"a": a, "b": b}.items():
        assert tensor.readonly and copied_on_the_gpu(metal, tensor) == file.numpy(name).tobytes()


def test_work_in_flight_keeps_the_pages(metal: ml.Device, write: Write) -> None:
    file = ml.GgufFile(write([("a", 4 * PAGE), ("b", 4 * PAGE)]))
    expected = file.numpy("b").tobytes()
    before = buffers()
    tensor, target = file.load_tensor("b", metal), metal.empty(PAGE, ml.float32)
    DOUBLE.delay_completion(0.1)
    encoder = metal.command_encoder()
    encoder.copy(tensor, target)
    ticket = encoder.commit()
    tensor.release()
    file.close()
    del tensor, file
    assert buffers() - before == 2
    ticket.wait(30)
    assert target.numpy().tobytes() == expected
    del encoder, target
    assert buffers() == before
