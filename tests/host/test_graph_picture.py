"""Pictures of graphs: every launch once on its level, what it waits for and no more, whatever labels say."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

import metalane

SVG = "{http://www.w3.org/2000/svg}"
LEGEND = 4


def captured(
    device: metalane.Device, record: Callable[[metalane.CommandEncoder], object]
) -> metalane.ComputeGraph:
    encoder = device.command_encoder()
    with encoder.capture() as capture:
        record(encoder)
    return capture.graph


def titles(svg: str, name: str) -> list[str]:
    """Of the elements of a class."""
    root = ElementTree.fromstring(svg)
    return [element.findtext(f"{SVG}title") or "" for element in root.iter() if element.get("class") == name]


def dot_edges(dot: str) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in re.findall(r"^  n(\d+) -> n(\d+) ", dot, re.MULTILINE)}


def svg_edges(svg: str) -> set[tuple[int, int]]:
    return {tuple(map(int, re.match(r"(\d+) to (\d+), ", t).groups())) for t in titles(svg, "edge")}


def dot_levels(dot: str) -> dict[int, int]:
    levels = {}
    for level, block in re.findall(r"\{ rank=same; level(\d+) (.*?)\n  \}", dot, re.DOTALL):
        levels.update(
            {int(number): int(level) for number in re.findall(r"^    n(\d+) ", block, re.MULTILINE)}
        )
    return levels


def test_what_a_picture_says(null_device) -> None:
    x, y, z = (null_device.zeros(256, "f32") for _ in range(3))

    def record(encoder: metalane.CommandEncoder) -> None:
        with encoder.label("first"):
            encoder.copy(x, y)
        encoder.copy(y.view(0, 16), z.view(64, 16))
        encoder.memory_barrier()
        encoder.fill(x, 1.0)

    graph = captured(null_device, record)
    svg, dot = graph.svg({"x": x, "out": z}), graph.dot({"x": x, "out": z})
    assert titles(svg, "node") == [
        "0: metalane_copy of copy\nfirst\n(64, 1, 1) threads, (256, 1, 1) in a threadgroup\n"
        "reads x[0:1024]\nwrites buffer 0[0:1024]",
        "1: metalane_copy of copy\n(4, 1, 1) threads, (256, 1, 1) in a threadgroup\n"
        "reads buffer 0[0:64]\nwrites out[64:128]",
        "2: metalane_fill of fill\n(64, 1, 1) threads, (256, 1, 1) in a threadgroup\n"
        "reads nothing\nwrites x[0:1024]",
    ]
    assert titles(svg, "edge") == [
        "0 to 1, write, then read: buffer 0[0:64]",
        "0 to 2, read, then write: x[0:1024]",
    ]
    assert titles(svg, "barrier") == ["explicit barrier"]
    assert "3 launches on 3 levels" in svg
    assert "reads 1 KiB, writes 1 KiB" in svg
    assert dot_edges(dot) == {(0, 1), (0, 2)}
    assert dot_levels(dot) == {0: 0, 1: 1, 2: 2}
    assert 'label="level 2, behind a barrier"' in dot
    assert "level0 -> level1 -> level2 [style=invis];" in dot


def random_graph(device: metalane.Device, rng: np.random.Generator, launches: int) -> metalane.ComputeGraph:
    memory = device.zeros(4096, "u8")

    def record(encoder: metalane.CommandEncoder) -> None:
        for _ in range(launches):
            n = int(rng.integers(1, 64))
            a, b = (int(v) for v in rng.choice(4096 // 64, 2, replace=False) * 64)
            if rng.random() < 0.3:
                encoder.fill(memory.view(int(rng.integers(0, 4096 - n)), n), 0)
            else:
                encoder.copy(memory.view(a, n), memory.view(b, n))
            if rng.random() < 0.05:
                encoder.memory_barrier()

    return captured(device, record)


def overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    return any(p < s and r < q for p, q in a for r, s in b)


def test_edges_are_the_conflicts_without_those_that_follow(null_device) -> None:
    """Against every pair of launches: reachable is what conflicts lead to, and no edge can be left out."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        graph = random_graph(null_device, rng, 40)
        nodes, levels = graph.nodes, graph.levels()
        spans = [(node.reads, node.writes) for node in nodes]
        expected: list[set[int]] = []  # all that must run before
        direct: list[set[int]] = []
        for i, (reads, writes) in enumerate(spans):
            conflicts = {
                j
                for j, (r, w) in enumerate(spans[:i])
                if overlap(w, reads) or overlap(w, writes) or overlap(r, writes)
            }
            implied = set().union(*(expected[j] for j in conflicts))
            expected.append(conflicts | implied)
            direct.append(conflicts - implied)
        edges = {(j, i) for i, before in enumerate(direct) for j in before}
        assert dot_edges(graph.dot()) == svg_edges(graph.svg()) == edges
        assert dot_levels(graph.dot()) == dict(enumerate(levels))
        # Levels follow from the edges and the barriers that are drawn.
        fences = [i for i, node in enumerate(nodes) if node.barrier_before and i > 0]
        assert len(titles(graph.svg(), "barrier")) == len({max(levels[:i]) + 1 for i in fences})


def test_barriers_inside_operators_and_unknown_ranges(null_device) -> None:
    experts, tokens, top_k, n, k = 4, 40, 2, 32, 256
    row = k // 32 * 34
    params = metalane.GgmlQuantizedMatmulIdParams(
        tokens, top_k, n, k, experts, n * row, int(metalane.GgmlType.Q8_0)
    )
    x, ids = null_device.zeros((tokens, k), "f32"), null_device.zeros((tokens, top_k), "u32")
    weight = null_device.zeros(experts * n * row, "u8")
    y = null_device.zeros((tokens, top_k, n), "f32")
    scratch = metalane.IdMmScratch.alloc(null_device, experts, tokens, top_k)

    def record(encoder: metalane.CommandEncoder) -> None:
        metalane.quantized_matmul_id_ggml_pooled(encoder, x, weight, ids, y, scratch, params)
        encoder.set_pending_buffer_ranges([], [])
        encoder.copy(x.view(0, 16), y.view(0, 16))

    graph = captured(null_device, record)
    assert len(graph) == 4
    svg = graph.svg()
    assert svg_edges(svg) == {(0, 1), (1, 2)}
    assert titles(svg, "barrier") == []  # they order their own call only
    assert titles(svg, "node")[3].endswith("ranges unknown: it runs alone")
    assert svg.count('stroke-dasharray="4 2"') == 1
    assert "ranges unknown" in graph.dot()


HOSTILE = '<b>&"\\"]; x -> y //\n\x1b[31m\x00 \u2028 \U0001f600 {|}'


def test_labels_are_text(null_device) -> None:
    x, y = null_device.zeros(16, "f32"), null_device.zeros(16, "f32")

    def record(encoder: metalane.CommandEncoder) -> None:
        with encoder.label(HOSTILE):
            encoder.copy(x, y)
        with encoder.label("layer/" * 30 + "last"):
            encoder.copy(y, x)

    graph = captured(null_device, record)
    svg = graph.svg({'<&"\\': x})
    assert (
        HOSTILE.replace("\x1b", "\ufffd").replace("\x00", "\ufffd").replace("\u2028", "\u2028")
        in titles(svg, "node")[0]
    )
    assert 'reads <&"\\[0:64]' in titles(svg, "node")[0]
    shown = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert any(text.startswith("\u2026") and text.endswith("layer/last") for text in shown if text)
    dot = graph.dot()
    # One string a label: quotes and backslashes in it are escaped.
    (label,) = re.findall(
        r'^    n0 \[label=("(?:[^"\\]|\\.)*"), tooltip="(?:[^"\\]|\\.)*"\];$', dot, re.MULTILINE
    )
    assert label.startswith(r'"metalane_copy\n<b>&amp;\"\\\"]; x -> y //\n')
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=dot.encode(), check=True, capture_output=True)


@pytest.mark.parametrize("launches", [0, 1, 500])
def test_pictures_of_any_size(null_device, launches: int) -> None:
    """Every box is inside the picture, and none covers another."""
    graph = random_graph(null_device, np.random.default_rng(launches), launches)
    root = ElementTree.fromstring(graph.svg())
    boxes = []
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        boxes.append([int(rect.get(key, "")) for key in ("x", "y", "width", "height")])
    assert len(boxes) == launches
    cells = {(x, y) for x, y, _, _ in boxes}
    assert len(cells) == launches
    for x, y, width, height in boxes:
        assert x >= 0 and x + width <= int(root.get("width", ""))
        assert y >= 0 and y + height <= int(root.get("height", ""))
        assert not any(0 < abs(x - a) < width and abs(y - b) < height for a, b in cells)
    assert len(dot_levels(graph.dot())) == launches


def test_names_are_checked(null_device) -> None:
    graph = captured(null_device, lambda encoder: encoder.fill(null_device.zeros(4, "u8"), 0))
    for draw, op in ((graph.dot, "ComputeGraph.dot"), (graph.svg, "ComputeGraph.svg")):
        with pytest.raises(metalane.DTypeError, match=f"{op}: names must be a dict"):
            draw({"x": 3})
