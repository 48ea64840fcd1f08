"""Split files: all parts open as one, and parts that do not belong together are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from host.gguf_builder import F32, INT32, STRING, UINT16, UINT32, File, Tensor, entry

import metalane


def name(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def parts(count: int = 3) -> list[File]:
    made = []
    for i in range(count):
        entries = [
            entry("split.no", UINT16, i),
            entry("split.count", UINT16, count),
            entry("split.tensors.count", INT32, count),
        ]
        if i == 0:
            entries.insert(0, entry("general.architecture", STRING, "test"))
        made.append(File(entries, [Tensor(f"t{i}", (2,), F32, struct.pack("<2f", i, 10 * i))]))
    return made


def write(folder: Path, made: list[File], stem: str = "model") -> Path:
    for i, part in enumerate(made):
        (folder / name(stem, i + 1, len(made))).write_bytes(part.build())
    return folder / name(stem, 1, len(made))


def test_parts_are_one_file(tmp_path: Path, device: metalane.Device) -> None:
    made = parts()
    made[2].entries += [entry("late", UINT32, 7), entry("general.architecture", STRING, "test")]
    made[1].entries.append(entry("general.alignment", UINT32, 64))
    made[1].alignment = 64
    first = write(tmp_path, made)
    with metalane.GgufFile(first) as file:
        assert file.paths == [str(tmp_path / name("model", i, 3)) for i in (1, 2, 3)]
        assert file.file_bytes == sum(len(part.build()) for part in made)
        assert file.tensor_names == ["t0", "t1", "t2"]
        assert dict(file.metadata) == {
            "general.architecture": "test",
            "split.no": 0,
            "split.count": 3,
            "split.tensors.count": 3,
            "general.alignment": 64,
            "late": 7,
        }
        for i in range(3):
            assert file.tensor_info(f"t{i}").part == i
            for values in (
                file.load_tensor(f"t{i}", device).tolist(),
                file.load_tensor_f32(f"t{i}").tolist(),
                file.numpy(f"t{i}").tolist(),
            ):
                assert values == [i, 10 * i]


def test_parts_as_the_package_writes_them(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "test", split_max_tensors=2)
    data = {f"t{i}": np.full((3, 4), i, np.float32) for i in range(5)}
    for key, value in data.items():
        writer.add_tensor(key, value)
    writer.add_uint32("answer", 42)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with metalane.GgufFile(tmp_path / name("w", 1, 3)) as file:
        assert file.tensor_names == list(data)
        assert file.metadata["answer"] == 42
        for key, value in data.items():
            assert (file.numpy(key) == value).all()


def test_one_part_is_a_file(tmp_path: Path) -> None:
    made = File([entry("split.count", UINT16, 1), entry("split.no", UINT16, 0)])
    (tmp_path / "any.gguf").write_bytes(made.build())
    assert metalane.GgufFile(tmp_path / "any.gguf").metadata["split.count"] == 1


def refuse(first: Path, part: int, field: str, count: int = 3) -> str:
    with pytest.raises(metalane.GgufError) as caught:
        metalane.GgufFile(first)
    assert caught.value.path == str(first.parent / name("model", part, count))
    assert caught.value.field == field
    return str(caught.value)


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    write(tmp_path, parts())
    second = tmp_path / name("model", 2, 3)
    assert "part 2 of 3; open the first" in refuse(second, 2, 'metadata["split.no"].value')


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    first = write(tmp_path, parts())
    (tmp_path / name("model", 3, 3)).unlink()
    assert "No such file" in refuse(first, 3, "file")


def test_a_part_that_is_malformed(tmp_path: Path) -> None:
    first = write(tmp_path, parts())
    third = tmp_path / name("model", 3, 3)
    third.write_bytes(third.read_bytes()[:-1])
    refuse(first, 3, 'tensors["t2"].offset')


@pytest.mark.parametrize(
    ("key", "index", "wrong"),
    [
        ("split.count", 1, entry("split.count", UINT16, 2)),
        ("split.no", 0, entry("split.no", UINT16, 2)),
        ("split.no", 0, entry("split.no", STRING, "1")),
        ("split.tensors.count", 2, entry("split.tensors.count", INT32, 4)),
        ("split.tensors.count", 2, entry("split.tensors.count", INT32, -3)),
    ],
)
def test_parts_that_contradict(tmp_path: Path, key: str, index: int, wrong: bytes) -> None:
    made = parts()
    made[1].entries[index] = wrong
    refuse(write(tmp_path, made), 2, f'metadata["{key}"].value')


def test_parts_without_their_keys(tmp_path: Path) -> None:
    made = parts()
    made[1].entries = []
    refuse(write(tmp_path, made), 2, 'metadata["split.count"].value')


def test_parts_of_another_file(tmp_path: Path) -> None:
    made = parts()
    made[2].entries.append(entry("general.architecture", STRING, "other"))
    message = refuse(write(tmp_path, made), 3, 'metadata["general.architecture"].value')
    assert "differs from the first part's" in message


def test_tensors_that_two_parts_have(tmp_path: Path) -> None:
    made = parts()
    made[2].tensors[0].name = "t0"
    refuse(write(tmp_path, made), 3, 'tensors["t0"].name')


def test_a_wrong_sum_of_tensors(tmp_path: Path) -> None:
    made = parts()
    for part in made:
        part.entries = [e for e in part.entries if b"split.tensors.count" not in e]
        part.entries.append(entry("split.tensors.count", INT32, 4))
    message = refuse(write(tmp_path, made), 1, 'metadata["split.tensors.count"].value')
    assert "all parts have 3 tensors" in message
