"""Pictures of accesses: what is drawn where, read back from the SVG."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import metalane
from metalane.__main__ import main
from metalane.check import CheckReport, CheckSample, CheckTraffic
from metalane.check_picture import access_picture

LEFT, TOP, CELL = 70, 46, 2


def row(kernel: str, argument: str, line: int, access: str = "load", memory: str = "device") -> CheckTraffic:
    numbers = dict.fromkeys(CheckTraffic.__dataclass_fields__, 3)
    words = {"kernel": kernel, "argument": argument, "memory": memory, "file": "a.metal", "line": line}
    return CheckTraffic(**{**numbers, **words, "access": access})  # type: ignore[arg-type]


def report(rows: list[CheckTraffic], samples: list[tuple[int, int, int, int]]) -> CheckReport:
    """Samples are (row, thread, byte offset, bytes)."""
    made = tuple(
        CheckSample(traffic, thread, 0, offset, nbytes) for traffic, thread, offset, nbytes in samples
    )
    return CheckReport(findings=(), traffic=tuple(rows), arguments=(), waits=(), samples=made)


def drawn(svg: str, height: int) -> list[set[tuple[int, int]]]:
    """Of each colour, the (thread row, cell) pairs that are filled."""
    pictures = []
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        if element.get("fill") is None:
            continue
        filled = set()
        for x, y, width, down in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z", element.get("d", "")):
            assert int(down) == height
            begin = (int(x) - LEFT) // CELL
            filled |= {((int(y) - TOP) // height, begin + i) for i in range(int(width) // CELL)}
        pictures.append(filled)
    return pictures


def words(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_each_access_has_its_cells() -> None:
    rows = [row("k", "x", 3), row("k", "x", 7, "store"), row("k", "y", 7)]
    loads = [(0, t, 4 * t, 4) for t in range(32)]
    stores = [(1, t, 128 * t, 8) for t in range(8)]
    svg = access_picture(report(rows, [*loads, *stores, (2, 0, 0, 4)]), "x")
    first, second = drawn(svg, 12)
    # Cells are as small as there is room for: 904 bytes in at most 450 cells are cells of 4 bytes.
    assert first == {(t, t) for t in range(32)}
    assert second == {(t, 32 * t + i) for t in range(8) for i in range(2)}
    assert words(svg)[0] == "k: device memory 'x'"
    assert "threads down, bytes across: 4 a cell" in words(svg)
    assert words(svg)[-2:] == ["load at a.metal:3, 3 times", "store at a.metal:7, 3 times"]


def test_large_pictures_draw_cells_together() -> None:
    samples = [(0, t, 1_000_000 + 4096 * t, 4) for t in range(1024)]
    svg = access_picture(report([row("k", "x", 3)], samples), "x")
    (cells,) = drawn(svg, 2)
    # 1,023 * 4,096 + 4 bytes in at most 450 cells of 4 bytes times a power of two; four threads a row.
    step = 16384
    assert cells == {(t // 4, 4096 * t // step) for t in range(1024)}
    assert f"threads down, bytes across: {step} a cell" in words(svg)
    assert len(svg) < 30_000


def test_offsets_before_the_argument_and_odd_sizes() -> None:
    svg = access_picture(report([row("k", "x", 3)], [(0, 0, -8, 4), (0, 1, 3, 1), (0, 2, 0, 0)]), "x")
    (cells,) = drawn(svg, 12)
    assert cells == {(0, i) for i in range(4)} | {(1, 11), (2, 8)}


def test_names_are_escaped() -> None:
    svg = access_picture(report([row("f<half>", "a&b", 3)], [(0, 0, 0, 4)]), "a&b")
    assert words(svg)[0] == "f<half>: device memory 'a&b'"


def test_what_cannot_be_drawn() -> None:
    rows = [row("k", "x", 3), row("j", "x", 4), row("k", "y", 5)]
    some = report(rows, [(0, 0, 0, 4), (1, 0, 0, 4)])
    with pytest.raises(metalane.ArgumentError, match="kernel must be given, one of j, k"):
        access_picture(some, "x")
    assert words(access_picture(some, "x", "j"))[0] == "j: device memory 'x'"
    with pytest.raises(metalane.ArgumentError, match="kernel must be one of j, k, got 'i'"):
        access_picture(some, "x", "i")
    with pytest.raises(metalane.ArgumentError, match="argument must be one of x, got 'y'"):
        access_picture(some, "y")
    with pytest.raises(metalane.ArgumentError, match="no traffic was watched"):
        access_picture(report([], []), "x")


KERNEL = """
#include <metal_stdlib>
using namespace metal;
kernel void columns(device const float* x, device float* y, uint t [[thread_position_in_threadgroup]]) {
  y[t] = x[16 * t];
}
"""


def test_picture_of_a_launch(tmp_path: Path) -> None:
    device = metalane.Device("cpu", check="traffic")
    kernels = device.compile(KERNEL, name="columns.metal")
    kernels.columns(
        np.zeros(1024, np.float32), np.zeros(64, np.float32), threads=64, threads_per_threadgroup=64
    )
    (loads,) = drawn(access_picture(device.check_report(), "x"), 6)
    step = 16  # 4,036 bytes in at most 450 cells
    assert loads == {(t, 64 * t // step) for t in range(64)}
    (stores,) = drawn(access_picture(device.check_report(), "y"), 6)
    assert stores == {(t, t) for t in range(64)}

    source, picture = tmp_path / "columns.metal", tmp_path / "x.svg"
    source.write_text(KERNEL)
    arguments = ["check", str(source), "--threads", "64", "--set", "x={count=1024}", "--picture", "x"]
    assert main([*arguments, str(picture)]) == 0
    assert drawn(picture.read_text(), 6) == [loads]
    assert main([*arguments, str(tmp_path / "no" / "x.svg")]) == 2
    assert main(["check", str(source), "--picture", "z", str(picture)]) == 2
