"""GgufFile on malformed files: one fault each, cut at every byte, changed at random. GgufError or a correct read."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from host.gguf_builder import FORMATS, STRING, File, Tensor, entry, small_file
from host.gguf_faults import WILD, Fault, faults

import metalane
from counts import count

FAULTS = faults()
# What reading one file may take: bytes beyond its own size, seconds of the processor.
MOST_MEMORY, MOST_SECONDS = 64 << 20, 1.0


def test_fault_names_are_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 150


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    path = tmp_path / "fault.gguf"
    path.write_bytes(fault.data)
    with pytest.raises(metalane.GgufError) as caught:
        metalane.GgufFile(path)
    assert caught.value.field.startswith(fault.field), str(caught.value)
    assert caught.value.path == str(path)
    assert str(caught.value).startswith(f"{path}: {caught.value.field}: ")
    assert len(str(caught.value)) < 1000


def test_the_files_that_faults_are_made_from_are_correct(tmp_path: Path) -> None:
    path = tmp_path / "correct.gguf"
    path.write_bytes(small_file().build())
    assert len(metalane.GgufFile(path).tensor_names) == 3


def test_a_file_cut_at_any_byte(tmp_path: Path) -> None:
    data = small_file().build()
    path = tmp_path / "cut.gguf"
    for length in range(len(data)):
        path.unlink(missing_ok=True)  # writing over a file can wait for the disk
        path.write_bytes(data[:length])
        with pytest.raises(metalane.GgufError):
            metalane.GgufFile(path)
    path.write_bytes(data)
    assert len(metalane.GgufFile(path).tensor_names) == 3


def test_names_in_errors_are_shortened_and_escaped(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    path.write_bytes(
        File(tensors=[Tensor("\x1b[2J\n" + "\N{EURO SIGN}" * 1000, (8,), 99, bytes(32))]).build()
    )
    with pytest.raises(metalane.GgufError) as caught:
        metalane.GgufFile(path)
    assert caught.value.field.startswith('tensors["\\x1b[2J\\x0a\N{EURO SIGN}')
    assert len(caught.value.field) < 100


def mutate(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(out))
        match rng.randrange(7):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                size = rng.choice([4, 8])
                value = rng.choice([0, 1, 255, *WILD, rng.randrange(1 << 64)]) & ((1 << 8 * size) - 1)
                out[at : at + size] = value.to_bytes(size, "little")
            case 3:
                del out[at : at + rng.randrange(1, 33)]
            case 4:
                out[at:at] = rng.randbytes(rng.randrange(1, 33))
            case 5:
                other = rng.randrange(len(out))
                out[at : at + 16] = out[other : other + 16]
            case 6:
                del out[at:]
        if not out:
            return b""
    return bytes(out)


def read_everything(path: Path, device: metalane.Device) -> None:
    """Every value and tensor of a file that opens; tensors must be the file's own bytes."""
    data = path.read_bytes()
    with metalane.GgufFile(path) as file:
        for key in file.metadata:
            assert isinstance(key, str)
            assert file.metadata[key] is not None
            assert file.metadata.type_of(key)
        for name in file.tensor_names:
            info = file.tensor_info(name)
            own = data[info.offset : info.offset + info.byte_len]
            assert len(own) == info.byte_len
            assert file.numpy(name).tobytes() == own
            assert np.asarray(file.load_tensor(name, device)).tobytes() == own
            kind = metalane.ggml_type_info(info.ggml_type)
            if kind.decodes:
                assert (
                    file.load_tensor_f32(name).size == info.byte_len // kind.block_bytes * kind.block_length
                )


def test_mutated_files(tmp_path: Path, device: metalane.Device) -> None:
    rng = random.Random(0)
    plain = File([entry("k", STRING, "v")], [Tensor("w", (32,), 8, bytes(34))])
    numbers = File([entry(f"n{kind}", kind, 1) for kind in FORMATS])
    seeds = [
        small_file().build(),
        plain.build(),
        numbers.build(),
        *(f.data for f in FAULTS if 0 < len(f.data) < 4096),
    ]
    path = tmp_path / "mutated.gguf"
    opened = 0
    for i in range(count("gguf_mutations")):
        # The correct ones lead to more code than those that end early.
        data = mutate(rng, seeds[rng.randrange(3)] if rng.random() < 0.7 else rng.choice(seeds))
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        try:
            read_everything(path, device)
            opened += 1
        except metalane.GgufError as error:
            assert error.field, f"case {i}"
    assert 0.02 < opened / count("gguf_mutations") < 0.7


MEASURE = """
import resource, sys, time
import metalane

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

for path in sys.argv[1:]:
    before, start = peak(), time.process_time()
    try:
        metalane.GgufFile(path)
    except metalane.GgufError:
        pass
    print(time.process_time() - start, peak() - before)
"""


def large_files(folder: Path) -> list[Path]:
    """Files that make a reader work: as many tensors and keys as are read, and long names that begin alike."""
    many = File([entry(f"{i:x}", 0, 1) for i in range(65_536)])
    many.tensors = [Tensor(f"{i:x}", (0,), 0, b"") for i in range(262_144)]
    alike = File([entry("k" * 60_000 + f"{i:04}", 0, 1) for i in range(2000)])
    sparse = File([entry("k", STRING, b"")[:-8] + (200 << 20).to_bytes(8, "little")])
    files = {"many": many.build(), "alike": alike.build(), "sparse": sparse.header()}
    paths = []
    for name, data in files.items():
        paths.append(folder / f"{name}.gguf")
        paths[-1].write_bytes(data)
    with paths[-1].open("r+b") as file:
        file.truncate(20 * 10**9)
    return paths


@pytest.mark.memory
@pytest.mark.linux
def test_time_and_memory_are_bounded(tmp_path: Path) -> None:
    paths = large_files(tmp_path)
    for fault in FAULTS:
        if len(fault.data) > 65_536:
            paths.append(tmp_path / f"{fault.name}.gguf")
            paths[-1].write_bytes(fault.data)
    done = subprocess.run([sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths) >= 5
    for path, line in zip(paths, lines, strict=True):
        seconds, memory = map(float, line.split())
        assert seconds < MOST_SECONDS, path.name
        assert memory < MOST_MEMORY + path.stat().st_size, path.name
