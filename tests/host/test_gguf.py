"""GgufFile on correct files: metadata, tensors, buffers on the file's pages, closing, shrinking files."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from host.gguf_builder import ARRAY, F32, FORMATS, Q2_K, STRING, UINT8, File, Tensor, array, entry, small_file

import metalane

Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(data: bytes) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        path.write_bytes(data)
        return path

    return write_file


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value(write: Write, version: int) -> None:
    made = small_file()
    made.version = version
    with metalane.GgufFile(write(made.build())) as file:
        assert file.version == version
        want = {
            "general.architecture": "test",
            "general.alignment": 64,
            **{f"kind.{kind}": 1 for kind in FORMATS},
            "kind.text": "\N{GREEK SMALL LETTER ALPHA}",
            "kind.array": [-1, 0, 1],
            "kind.strings": ["a", "bc", ""],
            "kind.nested": [[1, 2], ["x", ""]],
            "kind.empty": [],
            "kind.bools": [False, True],
        }
        assert dict(file.metadata) == want
        assert list(file.metadata) == list(want)
        assert file.metadata["kind.7"] is True
        assert type(file.metadata["kind.6"]) is type(file.metadata["kind.12"]) is float
        assert file.metadata.type_of("kind.strings") == "array of 3 string"
        assert file.metadata.type_of("kind.12") == "float64"
        assert file.metadata.preview("kind.strings", 2) == ["a", "bc"]


@pytest.mark.parametrize("kind", sorted(FORMATS), ids=lambda kind: f"type={kind}")
def test_the_range_of_every_number(write: Write, kind: int) -> None:
    letter = FORMATS[kind][1]
    size = struct.calcsize(letter)
    if letter in "fd":
        numbers = [0.0, -0.0, 1.5, float("inf"), float("-inf"), 3.0e38]
        numbers = [struct.unpack(letter, struct.pack(letter, number))[0] for number in numbers]
    elif kind == 7:
        numbers = [False, True]
    elif letter.isupper():
        numbers = [0, 1, 2 ** (8 * size) - 1]
    else:
        numbers = [-(2 ** (8 * size - 1)), -1, 0, 2 ** (8 * size - 1) - 1]
    entries = [entry(f"n{i}", kind, number) for i, number in enumerate(numbers)]
    entries.append(entry("all", ARRAY, array(kind, numbers)))
    metadata = metalane.GgufFile(write(File(entries).build())).metadata
    assert [metadata[f"n{i}"] for i in range(len(numbers))] == numbers
    assert metadata["all"] == numbers
    assert list(map(str, metadata["all"])) == list(map(str, numbers))


def test_text_that_is_not_utf8_survives(write: Write) -> None:
    metadata = metalane.GgufFile(write(File([entry("k", STRING, b"a\xff\x80b")]).build())).metadata
    assert metadata["k"].encode("utf-8", "surrogateescape") == b"a\xff\x80b"


def test_arrays_are_read_four_deep(write: Write) -> None:
    value, payload = [7], array(UINT8, [7])
    for _ in range(3):
        value, payload = [value], array(ARRAY, [payload])
    metadata = metalane.GgufFile(write(File([entry("k", ARRAY, payload)]).build())).metadata
    assert metadata["k"] == value == [[[[7]]]]


def test_metadata_is_a_mapping(write: Write) -> None:
    metadata = metalane.GgufFile(write(small_file().build())).metadata
    assert "kind.text" in metadata
    assert "nothing" not in metadata
    assert 3 not in metadata
    assert metadata.get("nothing", 5) == 5
    with pytest.raises(KeyError):
        metadata["nothing"]
    with pytest.raises(KeyError):
        metadata["\udcff"]
    assert metadata["kind.strings"] is metadata["kind.strings"]


def test_no_metadata_and_no_tensors(write: Write) -> None:
    with metalane.GgufFile(write(File().build())) as file:
        assert (len(file.metadata), file.tensor_names, file.file_bytes) == (0, [], 32)
    assert metalane.GgufFile(write(File().header())).tensor_names == []


def test_tensors_as_the_package_writes_them(device: metalane.Device, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("tokens", ["a", "b"])
    tensors = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((2, 3, 4)).astype(np.float16),
        **{f"i{8 * n}": np.arange(-2, 4).astype(f"i{n}") for n in (1, 2, 4, 8)},
        "f64": rng.standard_normal(3),
    }
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    blocks = {}
    for info in metalane.ggml_types():
        if info.block_length == 1:
            continue
        blocks[info.name] = rng.integers(0, 256, (6, 2 * info.block_bytes), dtype=np.uint8)
        writer.add_tensor(info.name, blocks[info.name], raw_dtype=gguf.GGMLQuantizationType(int(info.type)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = metalane.GgufFile(path)
    assert file.tensor_names == [*tensors, *blocks]
    assert file.metadata["tokens"] == ["a", "b"]
    for name, data in tensors.items():
        info = file.tensor_info(name)
        assert info.shape == data.shape == info.ne[::-1]
        assert info.byte_len == data.nbytes
        array_ = file.numpy(name)
        if name == "f64":  # no element type of buffers
            assert array_.dtype == np.uint8
            assert array_.view(np.float64).tolist() == data.tolist()
            continue
        assert array_.dtype == data.dtype
        assert array_.tolist() == data.tolist()
        assert np.asarray(file.load_tensor(name, device)).tolist() == data.tolist()
    for name, data in blocks.items():
        info = file.tensor_info(name)
        length = metalane.ggml_type_info(name).block_length
        assert (info.ggml_type.name, info.shape) == (name, (6, 2 * length))
        buffer = file.load_tensor(name, device)
        assert (buffer.dtype, buffer.shape) == (np.uint8, data.shape)
        assert np.asarray(buffer).tobytes() == file.numpy(name).tobytes() == data.tobytes()


def test_bfloat16_has_its_dtype(write: Write, device: metalane.Device) -> None:
    data = np.array([1.5, -2], ml_dtypes.bfloat16)
    file = metalane.GgufFile(write(File(tensors=[Tensor("w", (2,), 30, data.tobytes())]).build()))
    assert file.numpy("w").dtype == metalane.bfloat16
    assert np.asarray(file.load_tensor("w", device)).tolist() == [1.5, -2]
    assert file.load_tensor_f32("w").tolist() == [1.5, -2]


def test_q2_k_gguf_type_10_parses_with_exact_block_size(write: Write) -> None:
    file = metalane.GgufFile(write(File(tensors=[Tensor("q2.weight", (256,), Q2_K, bytes(84))]).build()))
    info = file.tensor_info("q2.weight")
    assert info.ggml_type == metalane.GgmlType.Q2_K == 10
    assert info.byte_len == 84


def mapped(path: Path, address: int) -> bool:
    """Whether the address lies in a mapping of the file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        begin, end = (int(n, 16) for n in span.split("-"))
        if name == str(path) and begin <= address < end:
            return True
    return False


@pytest.mark.linux
def test_tensors_lie_on_the_pages_of_the_file(write: Write, device: metalane.Device) -> None:
    path = write(small_file().build())
    file = metalane.GgufFile(path)
    for name in file.tensor_names:
        buffer = file.load_tensor(name, device)
        view = np.asarray(buffer)
        assert mapped(path, buffer.address)
        assert view.ctypes.data == buffer.address
        assert buffer.readonly
        assert not view.flags.writeable
        copy = file.numpy(name)
        assert copy.flags.owndata
        assert copy.tobytes() == view.tobytes()
    assert not mapped(path, file.numpy("c").ctypes.data)


def test_mapped_tensors_are_not_written(write: Write, device: metalane.Device) -> None:
    buffer = metalane.GgufFile(write(small_file().build())).load_tensor("a.weight", device)
    encoder = device.command_encoder()
    source = device.zeros(buffer.shape, buffer.dtype)
    for target in (buffer, buffer.view(0, 12)):
        with pytest.raises(metalane.ArgumentError, match="read-only|readonly|writable"):
            encoder.copy(source, target)
        with pytest.raises(metalane.ArgumentError, match="read-only|readonly|writable"):
            encoder.fill(target, 1.0)
    encoder.copy(buffer, source)
    encoder.commit().wait()
    assert source.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.linux
def test_what_is_not_aligned_is_copied(write: Write, device: metalane.Device) -> None:
    data = struct.pack("<3f", 1, 2, 3)
    made = File([entry("general.alignment", 4, 1)], [Tensor("w", (3,), F32, data)], alignment=1)
    path = write(made.build())
    file = metalane.GgufFile(path)
    assert file.tensor_info("w").offset % 4 != 0
    buffer = file.load_tensor("w", device)
    assert not mapped(path, buffer.address)
    assert buffer.readonly
    assert not np.asarray(buffer).flags.writeable
    assert buffer.tolist() == file.numpy("w").tolist() == file.load_tensor_f32("w").tolist() == [1, 2, 3]


@pytest.mark.linux
@pytest.mark.parametrize(("kind", "blocks", "copied"), [(Q2_K, 84, True), (39, 17, False)])
def test_blocks_that_are_not_aligned(
    write: Write, device: metalane.Device, kind: int, blocks: int, copied: bool
) -> None:
    """Kernels read halves of a Q2_K block, and single bytes of an MXFP4 block."""
    data = bytes(range(blocks))
    length = metalane.ggml_type_info(kind).block_length
    made = File([entry("general.alignment", 4, 1)], [Tensor("wx", (length,), kind, data)], alignment=1)
    path = write(made.build())
    file = metalane.GgufFile(path)
    assert file.tensor_info("wx").offset % 2 == 1
    buffer = file.load_tensor("wx", device)
    assert mapped(path, buffer.address) is not copied
    assert np.asarray(buffer).tobytes() == data


def test_empty_tensors(write: Write, device: metalane.Device) -> None:
    tensors = [Tensor("a", (0,), F32, b""), Tensor("b", (256, 0), Q2_K, b""), Tensor("c", (0, 2), Q2_K, b"")]
    file = metalane.GgufFile(write(File(tensors=tensors).build()))
    assert [file.load_tensor(name, device).shape for name in "abc"] == [(0,), (0, 84), (2, 0)]
    assert [file.load_tensor_f32(name).shape for name in "abc"] == [(0,), (0, 256), (2, 0)]


def test_types_that_do_not_decode_are_loaded_as_they_are(write: Write, device: metalane.Device) -> None:
    data = bytes(range(66))
    file = metalane.GgufFile(write(File(tensors=[Tensor("w", (256,), 16, data)]).build()))
    assert np.asarray(file.load_tensor("w", device)).tobytes() == data
    with pytest.raises(metalane.ArgumentError, match=r"one of F32, .*Q2_K.*, got IQ2_XXS"):
        file.load_tensor_f32("w")


def test_names_that_are_not_there(write: Write, device: metalane.Device) -> None:
    file = metalane.GgufFile(write(small_file().build()))
    calls = [
        file.tensor_info,
        file.numpy,
        file.load_tensor_f32,
        lambda name: file.load_tensor(name, device),
    ]
    for call in calls:
        for name in ("nothing", "", "a.weight\0", "a.weigh", "a.weightt"):
            with pytest.raises(metalane.TensorNotFoundError, match="no tensor"):
                call(name)
        with pytest.raises(KeyError):
            call("nothing")
        for name in (None, 3, b"a.weight"):
            with pytest.raises(metalane.DTypeError):
                call(name)
        with pytest.raises(metalane.ArgumentError, match="surrogates"):
            call("\udcff")
    with pytest.raises(metalane.DTypeError):
        file.load_tensor("c", None)


@pytest.mark.linux
def test_closing(write: Write, device: metalane.Device) -> None:
    path = write(small_file().build())
    with metalane.GgufFile(path) as file:
        buffer = file.load_tensor("a.weight", device)
        info, value = file.tensor_info("a.weight"), file.metadata["kind.strings"]
        metadata = file.metadata
        assert not file.closed
    assert file.closed
    file.close()
    assert "closed" in repr(file)
    assert file.path == str(path)
    for use in (
        lambda: file.metadata,
        lambda: file.tensor_names,
        lambda: file.version,
        lambda: file.paths,
        lambda: file.tensor_info("c"),
        lambda: file.load_tensor("c", device),
        lambda: file.load_tensor_f32("c"),
        lambda: file.numpy("c"),
        lambda: metadata["kind.text"],
    ):
        with pytest.raises(metalane.ArgumentError, match="closed"):
            use()
    # What was taken stays.
    assert value == metadata["kind.strings"] == ["a", "bc", ""]
    assert info.name == "a.weight"
    assert buffer.tolist()[2] == [8, 9, 10, 11]
    assert mapped(path, address := buffer.address)
    buffer.release()
    assert not mapped(path, address)


def test_paths(write: Write, tmp_path: Path) -> None:
    path = write(small_file().build())
    for given in (path, str(path), os.fsencode(path)):
        assert metalane.GgufFile(given).path == str(path)
    odd = os.fsencode(tmp_path) + b"/\xff.gguf"
    os.rename(path, odd)
    assert os.fsencode(metalane.GgufFile(odd).path) == odd
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused = {
        tmp_path / "nothing": "No such file",
        tmp_path: "not a regular file",
        fifo: "not a regular file",
    }
    for wrong, words in refused.items():
        with pytest.raises(metalane.GgufError, match=words) as caught:
            metalane.GgufFile(wrong)
        assert (caught.value.path, caught.value.field) == (str(wrong), "file")
    with pytest.raises(metalane.ArgumentError, match="null"):
        metalane.GgufFile("a\0b")
    for wrong in (None, 3, [path]):
        with pytest.raises(metalane.DTypeError):
            metalane.GgufFile(wrong)


@pytest.mark.memory
@pytest.mark.linux
def test_a_large_file_is_not_read(device: metalane.Device, tmp_path: Path) -> None:
    """20 GB (sparse) open in 20 ms, and under 16 MiB of them are read."""
    size, count = 50 * 10**6 // 2048 * 2048, 400
    made = File([entry("tokens", ARRAY, array(STRING, ["token"] * 100_000))])
    made.tensors = [Tensor(f"w{i}", (512, size // 2048), F32, b"", offset=i * size) for i in range(count)]
    path = tmp_path / "large.gguf"
    path.write_bytes(made.build())
    os.truncate(path, made.data_begin() + count * size)

    def bytes_read() -> int:
        fields = Path("/proc/self/io").read_text().split()
        return int(fields[fields.index("rchar:") + 1])

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    times = []
    for _ in range(5):
        read, memory, start = bytes_read(), resident(), time.perf_counter()
        with metalane.GgufFile(path) as file:
            times.append(time.perf_counter() - start)
            assert file.tensor_info(f"w{count - 1}").byte_len == size
            assert bytes_read() - read < 16 << 20
            assert resident() - memory < 16 << 20
    assert min(times) < 0.02
    tail = metalane.GgufFile(path).load_tensor(f"w{count - 1}", device).view(size - 8, 2)
    assert tail.tolist() == [0, 0]


SHRINK = """
import os, sys
import numpy as np
import metalane

path, names = sys.argv[1], sys.argv[2:]
device = metalane.Device("cpu")
file = metalane.GgufFile(path)
buffers = {name: file.load_tensor(name, device) for name in names}
target = device.zeros(buffers["far"].nbytes, metalane.uint8)

def launch():
    encoder = device.command_encoder()
    encoder.copy(buffers["far"].view(0, buffers["far"].nbytes, metalane.uint8), target)
    encoder.commit().wait()

launch()
os.truncate(path, 4096)
def outcome(call):
    try:
        call()
    except metalane.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"

print(outcome(launch))
print(outcome(lambda: np.asarray(buffers["far"])))
print(outcome(buffers["far"].tolist))
print(outcome(lambda: file.numpy("far")))
print(outcome(lambda: file.load_tensor_f32("far")))
print(outcome(lambda: file.load_tensor("far", device)))
print(outcome(lambda: metalane.dequantize(buffers["far"], "F32")))
print(np.asarray(buffers["near"]).tolist(), file.load_tensor_f32("near").tolist(), file.metadata["k"])
"""


@pytest.mark.cpu
@pytest.mark.parametrize("kernels", ["auto", "shader"])
def test_a_file_that_shrinks(tmp_path: Path, kernels: str) -> None:
    made = File([entry("k", STRING, "v")])
    made.tensors = [
        Tensor("near", (2,), F32, struct.pack("<2f", 1, 2)),
        Tensor("far", (4096,), F32, bytes(16384)),
    ]
    path = tmp_path / "shrinks.gguf"
    path.write_bytes(made.build())
    script = SHRINK.replace('Device("cpu")', f'Device("cpu", kernels="{kernels}")')
    done = subprocess.run(
        [sys.executable, "-c", script, path, "near", "far"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    launch, *reads, near = done.stdout.splitlines()
    assert launch.startswith("CommandBufferError:"), launch
    assert "bus error" in launch
    assert len(reads) == 6
    for read in reads:
        assert read.startswith("GgufError:"), done.stdout
        assert "shrunk to 4096 bytes" in read
    assert near == "[1.0, 2.0] [1.0, 2.0] v"


def test_threads_share_a_file(write: Write, device: metalane.Device) -> None:
    file = metalane.GgufFile(write(small_file().build()))
    failures = []

    def use() -> None:
        try:
            for _ in range(200):
                assert file.load_tensor("a.weight", device).tolist()[0] == [0, 1, 2, 3]
                assert file.load_tensor_f32("a.weight")[2, 3] == 11
                assert file.metadata["kind.strings"][1] == "bc"
        except BaseException as error:
            failures.append(error)

    def close_one() -> None:
        try:
            for _ in range(50):
                with metalane.GgufFile(file.path) as own:
                    assert len(own.tensor_names) == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)] + [threading.Thread(target=close_one)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.linux
def test_closing_while_another_thread_reads(write: Write) -> None:
    data = np.arange(1 << 18, dtype=np.float32)
    path = write(File(tensors=[Tensor("w", data.shape, F32, data.tobytes())]).build())
    for _ in range(20):
        file = metalane.GgufFile(path)
        results = []

        def use(file: metalane.GgufFile = file, results: list = results) -> None:
            try:
                while True:
                    results.append(float(file.load_tensor_f32("w")[-1]))
            except metalane.ArgumentError as error:
                results.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        time.sleep(0.002)
        file.close()
        thread.join()
        assert set(results[:-1]) <= {float(data[-1])}
        assert results[-1] == "GgufFile: it was closed"


def test_reading_lets_other_threads_run(write: Write) -> None:
    """While one thread decodes, another one that holds the interpreter lock most of the time gets on."""
    data = bytes(84 * 200_000)
    file = metalane.GgufFile(write(File(tensors=[Tensor("w", (256, 200_000), Q2_K, data)]).build()))
    decoding, done = threading.Event(), threading.Event()
    counted = 0

    def decode() -> None:
        decoding.set()
        file.load_tensor_f32("w")
        done.set()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is asked to let go of the lock
    try:
        thread = threading.Thread(target=decode)
        thread.start()
        decoding.wait()
        while not done.is_set():
            counted += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert counted > 10
