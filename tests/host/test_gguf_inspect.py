"""python -m metalane inspect: the table, JSON, and files that try to write to the terminal."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from host.gguf_builder import (
    ARRAY,
    F32,
    FLOAT32,
    FLOAT64,
    STRING,
    UINT8,
    File,
    Tensor,
    array,
    entry,
    small_file,
)

import metalane


def inspect(path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metalane", "inspect", str(path), *options]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(small_file().build())
    return path


def test_table(small: Path) -> None:
    done = inspect(small)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert done.stdout.startswith(f"{small}\nGGUF version 3, {small.stat().st_size:,} bytes\n")
    info = metalane.GgufFile(small).tensor_info("b.weight")
    assert rows["b.weight"] == ["Q4_K", "2", "x", "256", "288", f"{info.offset:,}"]
    assert rows["a.weight"][:5] == ["F32", "3", "x", "4", "48"]
    assert rows["general.architecture"] == ["string", "'test'"]
    assert "'a', 'bc', ''" in done.stdout
    assert rows["Q4_K"] == ["1", "512", "288"]


def test_json(small: Path) -> None:
    done = inspect(small, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    with metalane.GgufFile(small) as file:
        assert shown["paths"] == [str(small)]
        assert (shown["version"], shown["bytes"]) == (3, small.stat().st_size)
        assert {key: entry["value"] for key, entry in shown["metadata"].items()} == dict(file.metadata)
        assert shown["metadata"]["kind.11"]["type"] == "int64"
        infos = [file.tensor_info(name) for name in file.tensor_names]
        assert shown["tensors"] == [
            {
                "name": info.name,
                "type": info.ggml_type.name,
                "shape": list(info.shape),
                "bytes": info.byte_len,
                "offset": info.offset,
                "part": 0,
            }
            for info in infos
        ]


def test_text_does_not_reach_the_terminal_as_it_is(tmp_path: Path) -> None:
    escape = "\x1b]0;owned\x07\x9b2J\n\u202e\u2028"
    path = tmp_path / "escape.gguf"
    entries = [entry("key" + escape, STRING, "value" + escape), entry("bytes", STRING, b"\xff\x1b")]
    entries.append(entry("list", ARRAY, array(STRING, [escape])))
    path.write_bytes(File(entries, [Tensor("w" + escape, (2,), F32, bytes(8))]).build())
    for encoding in ("utf-8", "ascii", "latin-1"):
        done = subprocess.run(
            [sys.executable, "-m", "metalane", "inspect", str(path)],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode(encoding)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "w\\x1b]0;owned" in text
        rows = [line for line in text.splitlines() if line.startswith("w")]
        assert len(rows) == 1


def test_json_has_no_infinities(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    nan = struct.unpack("<f", b"\1\0\x80\x7f")[0]
    entries = [entry("nan", FLOAT32, nan), entry("inf", FLOAT64, float("-inf"))]
    entries.append(entry("list", ARRAY, array(FLOAT32, [float("inf"), 1.0])))
    path.write_bytes(File(entries).build())

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    shown = json.loads(inspect(path, "--json").stdout, parse_constant=refuse)["metadata"]
    assert {key: entry["value"] for key, entry in shown.items()} == {
        "nan": "nan",
        "inf": "-inf",
        "list": ["inf", 1.0],
    }


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    for wrong, words in ((path, "version: is 0"), (tmp_path / "none", "No such file")):
        done = inspect(wrong)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"metalane: {wrong}: ")
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_a_long_array_is_not_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(File([entry("k", ARRAY, array(UINT8, [1] * 100_000))]).build())
    done = inspect(path)
    assert "array of 100000 uint8  [1, 1, 1, 1, ...]" in done.stdout
