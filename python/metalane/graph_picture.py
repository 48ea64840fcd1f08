"""Pictures of graphs: launches by level and what each waits for, as Graphviz's DOT and as SVG."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from . import _core
from .graph_places import Places, bound_buffers

__all__ = ["dot", "svg"]

# Colours that are told apart in every common form of colour blindness (Okabe and Ito, 2008).
_HAZARDS = {
    "write, then read": "#0072b2",
    "write, then write": "#d55e00",
    "read, then write": "#999999",
    "barrier": "#000000",
}
_KERNEL_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999")
_WIDTH, _HEIGHT = 208, 50  # of a launch's box
_GAP_X, _GAP_Y = 18, 34
_LEFT, _TOP = 76, 64
_PER_ROW = 6  # boxes side by side: about what a screen shows
_CHARACTERS = 33  # of a box's line
_MOST_RANGES = 12  # that a title lists


@dataclass
class _Edge:
    """One launch that another waits for, and the ranges in which they meet."""

    earlier: int
    later: int
    hazard: str
    ranges: list[tuple[int, int]] = field(default_factory=list)


class _Touched:
    """Who wrote each byte last and who has read it since, by pieces of addresses that were touched alike."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: list[tuple[int, int | None, list[int]]] = []  # end, writer, readers

    def _inside(self, begin: int, end: int) -> slice:
        """The pieces in a range; none lies across its ends."""
        for at in (begin, end):
            i = bisect_right(self._begins, at) - 1
            if i >= 0 and self._begins[i] < at < self._pieces[i][0]:
                last, writer, readers = self._pieces[i]
                self._pieces[i : i + 1] = [(at, writer, readers), (last, writer, list(readers))]
                self._begins.insert(i + 1, at)
        return slice(bisect_left(self._begins, begin), bisect_left(self._begins, end))

    def read(self, begin: int, end: int, node: int) -> Iterable[tuple[int, str, tuple[int, int]]]:
        inside = self._inside(begin, end)
        begins: list[int] = []
        pieces: list[tuple[int, int | None, list[int]]] = []
        at = begin
        for first, (last, writer, readers) in zip(self._begins[inside], self._pieces[inside], strict=True):
            if at < first:
                begins.append(at)
                pieces.append((first, None, [node]))
            if writer is not None:
                yield writer, "write, then read", (first, last)
            begins.append(first)
            pieces.append((last, writer, [*readers, node]))
            at = last
        if at < end:
            begins.append(at)
            pieces.append((end, None, [node]))
        self._begins[inside], self._pieces[inside] = begins, pieces

    def write(self, begin: int, end: int, node: int) -> Iterable[tuple[int, str, tuple[int, int]]]:
        inside = self._inside(begin, end)
        for first, (last, writer, readers) in zip(self._begins[inside], self._pieces[inside], strict=True):
            for reader in readers:
                yield reader, "read, then write", (first, last)
            if writer is not None:
                yield writer, "write, then write", (first, last)
        self._begins[inside], self._pieces[inside] = [begin], [(end, node, [])]


def _edges(nodes: list[_core.GraphNode]) -> list[_Edge]:
    """What each launch waits for; what follows from others is left out."""
    touched = _Touched()
    before: list[int] = []  # by launch, a bit for each that must have run before it
    kept: list[_Edge] = []
    call: list[int] = []  # launches of the open call
    for i, node in enumerate(nodes):
        if i == 0 or node.call != nodes[i - 1].call:
            call = []
        edges: dict[int, _Edge] = {}
        meetings = itertools.chain(
            *(touched.read(*range_, i) for range_ in node.reads if range_[0] < range_[1]),
            *(touched.write(*range_, i) for range_ in node.writes if range_[0] < range_[1]),
        )
        for earlier, hazard, range_ in meetings:
            if earlier != i:
                edges.setdefault(earlier, _Edge(earlier, i, hazard)).ranges.append(range_)
        if node.barrier_before:  # of a call's own launches; another one is drawn as a line
            for earlier in call:
                edges.setdefault(earlier, _Edge(earlier, i, "barrier"))
        call.append(i)
        implied = 0
        for earlier in edges:
            implied |= before[earlier]
        kept += [edge for earlier, edge in sorted(edges.items()) if not implied >> earlier & 1]
        before.append(implied | sum(1 << earlier for earlier in edges if not implied >> earlier & 1))
    return kept


def _barrier_levels(nodes: list[_core.GraphNode], levels: list[int]) -> set[int]:
    """Levels before which an explicit barrier stands that orders everything."""
    highest = -1
    found = set()
    for i, (node, level) in enumerate(zip(nodes, levels, strict=True)):
        if i > 0 and node.barrier_before and node.call != nodes[i - 1].call:
            found.add(highest + 1)
        highest = max(highest, level)
    return found


def _is_unannotated(node: _core.GraphNode) -> bool:
    return not node.reads and not node.writes and bool(bound_buffers(node))


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number} bytes"


def _size(ranges: list[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in ranges)


# What neither XML nor terminals take.
_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _shown(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


class _Words:
    """What a picture says of launches and ranges."""

    def __init__(self, op: str, graph: _core.ComputeGraph, names: Mapping[str, _core.Buffer] | None) -> None:
        self.nodes = graph.nodes
        self.levels = graph.levels()
        self.edges = _edges(self.nodes)
        self.barriers = _barrier_levels(self.nodes, self.levels)
        self._places = Places(op, self.nodes, graph.device, names)

    def range(self, begin: int, end: int) -> str:
        place = self._places.find(begin, end)
        if place is None:
            return f"addresses {begin:#x} to {end:#x}"
        name, offset = place
        return f"{name if isinstance(name, str) else f'buffer {name}'}[{offset}:{offset + end - begin}]"

    def ranges(self, ranges: list[tuple[int, int]]) -> str:
        shown = [self.range(*range_) for range_ in ranges[:_MOST_RANGES]]
        more = len(ranges) - len(shown)
        return ", ".join(shown or ["nothing"]) + (f" and {more} more" if more else "")

    def summary(self, node: _core.GraphNode) -> str:
        if _is_unannotated(node):
            return "ranges unknown"
        return f"reads {_bytes(_size(node.reads))}, writes {_bytes(_size(node.writes))}"

    def title(self, number: int) -> str:
        node = self.nodes[number]
        lines = [f"{number}: {node.kernel}" + (f" of {node.op}" if node.op != "dispatch" else "")]
        if node.label:
            lines.append(node.label)
        if isinstance(node.threadgroups, _core.Buffer):
            address = node.threadgroups.address
            lines.append(f"threadgroups read from {self.range(address, address + 12)}")
        else:
            size = node.threadgroups or node.threads
            lines.append(f"{size} {'threads' if node.threads else 'threadgroups'}")
        lines[-1] += f", {node.threads_per_threadgroup} in a threadgroup"
        if _is_unannotated(node):
            return "\n".join([*lines, "ranges unknown: it runs alone"])
        return "\n".join([*lines, f"reads {self.ranges(node.reads)}", f"writes {self.ranges(node.writes)}"])

    def edge_title(self, edge: _Edge) -> str:
        where = f": {self.ranges(edge.ranges)}" if edge.ranges else ""
        return f"{edge.earlier} to {edge.later}, {edge.hazard}{where}"

    def rows(self) -> list[list[int]]:
        """Launches by level."""
        rows: list[list[int]] = [[] for _ in range(max(self.levels, default=-1) + 1)]
        for number, level in enumerate(self.levels):
            rows[level].append(number)
        return rows


def _quoted(text: str) -> str:
    """As a string of DOT, in which Graphviz reads entities and backslashes."""
    text = _shown(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\t", " ") + '"'


def dot(graph: _core.ComputeGraph, names: Mapping[str, _core.Buffer] | None) -> str:
    """See :meth:`ComputeGraph.dot`."""
    words = _Words("ComputeGraph.dot", graph, names)
    rows = words.rows()
    lines = [
        "digraph graph_of_launches {",
        '  node [shape=box, fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=8];',
    ]
    for level, row in enumerate(rows):
        text = f"level {level}" + (", behind a barrier" if level in words.barriers else "")
        lines.append(f"  {{ rank=same; level{level} [shape=plaintext, label={_quoted(text)}];")
        for number in row:
            node = words.nodes[number]
            label = "\n".join(filter(None, (node.kernel, node.label, words.summary(node))))
            style = ", style=dashed" if _is_unannotated(node) else ""
            lines.append(
                f"    n{number} [label={_quoted(label)}, tooltip={_quoted(words.title(number))}{style}];"
            )
        lines.append("  }")
    if len(rows) > 1:
        lines.append(f"  {' -> '.join(f'level{i}' for i in range(len(rows)))} [style=invis];")
    for edge in words.edges:
        colour, title = _HAZARDS[edge.hazard], _quoted(words.edge_title(edge))
        lines.append(f'  n{edge.earlier} -> n{edge.later} [color="{colour}", tooltip={title}];')
    return "\n".join([*lines, "}"]) + "\n"


def _xml(text: str) -> str:
    return escape(_shown(text))


def _clipped(text: str, keep_end: bool = False) -> str:
    if len(text) <= _CHARACTERS:
        return text
    return "\u2026" + text[1 - _CHARACTERS :] if keep_end else text[: _CHARACTERS - 1] + "\u2026"


class _Layout:
    """Where boxes stand: levels from top to bottom, long ones in several rows."""

    def __init__(self, words: _Words) -> None:
        waits = defaultdict(list)
        for edge in words.edges:
            waits[edge.later].append(edge.earlier)
        self.boxes: dict[int, tuple[int, int]] = {}
        self.bands: list[tuple[int, int]] = []  # y and height by level
        y = _TOP
        for row in words.rows():

            def wish(number: int) -> float:
                """Below what it waits for."""
                above = [self.boxes[earlier][0] for earlier in waits[number]]
                return sum(above) / len(above) if above else 0.0

            ordered = sorted(row, key=wish)
            lines = -(-len(row) // _PER_ROW)
            for i, number in enumerate(ordered):
                line, column = divmod(i, _PER_ROW)
                self.boxes[number] = (
                    _LEFT + column * (_WIDTH + _GAP_X),
                    y + _GAP_Y // 2 + line * (_HEIGHT + _GAP_Y),
                )
            height = lines * (_HEIGHT + _GAP_Y)
            self.bands.append((y, height))
            y += height
        columns = max((min(len(row), _PER_ROW) for row in words.rows()), default=1)
        self.width = max(_LEFT + columns * (_WIDTH + _GAP_X), 560)
        self.height = y + 16

    def curve(self, edge: _Edge) -> str:
        x0, y0 = self.boxes[edge.earlier]
        x1, y1 = self.boxes[edge.later]
        x0, y0, x1 = x0 + _WIDTH // 2, y0 + _HEIGHT, x1 + _WIDTH // 2
        # A long one swings into the gap between columns, off the boxes that it passes.
        swing = (_WIDTH + _GAP_X) // 2 if y1 - y0 > 2 * _GAP_Y else 0
        bend = max((y1 - y0) // 3, 12)
        return f"M{x0} {y0}C{x0 + swing} {y0 + bend} {x1 + swing} {y1 - bend} {x1} {y1}"


def svg(graph: _core.ComputeGraph, names: Mapping[str, _core.Buffer] | None) -> str:
    """See :meth:`ComputeGraph.svg`."""
    words = _Words("ComputeGraph.svg", graph, names)
    layout = _Layout(words)
    kernels = list(dict.fromkeys(node.kernel for node in words.nodes))
    colours = {name: _KERNEL_COLOURS[i % len(_KERNEL_COLOURS)] for i, name in enumerate(kernels)}
    title = f"{len(words.nodes)} launches on {len(layout.bands)} levels"
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width}" height="{layout.height}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{title}</title>",
        "<style>.edge{fill:none;stroke-width:1.3;stroke-opacity:0.7}.edge:hover{stroke-width:4}</style>",
        f'<rect width="{layout.width}" height="{layout.height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14">{title}</text>',
    ]
    for i, (hazard, colour) in enumerate(_HAZARDS.items()):
        x = 12 + 135 * i
        text.append(f'<path d="M{x} 40h18" stroke="{colour}" stroke-width="2"/>')
        text.append(f'<text x="{x + 24}" y="44">{hazard}</text>')
    for level, (y, height) in enumerate(layout.bands):
        if level % 2 == 0:
            text.append(f'<rect y="{y}" width="{layout.width}" height="{height}" fill="#f4f4f4"/>')
        text.append(f'<text x="12" y="{y + height // 2 + 4}">level {level}</text>')
        if level in words.barriers:
            text.append(
                f'<path class="barrier" d="M0 {y}H{layout.width}" stroke="#000000" stroke-width="2" '
                'stroke-dasharray="8 4"><title>explicit barrier</title></path>'
            )
    for edge in words.edges:
        text.append(
            f'<path class="edge" d="{layout.curve(edge)}" stroke="{_HAZARDS[edge.hazard]}">'
            f"<title>{_xml(words.edge_title(edge))}</title></path>"
        )
    for number, (x, y) in sorted(layout.boxes.items()):
        text.append(_box(words, number, x, y, colours[words.nodes[number].kernel]))
    text.append("</svg>")
    return "\n".join(text) + "\n"


def _box(words: _Words, number: int, x: int, y: int, colour: str) -> str:
    node = words.nodes[number]
    dashes = ' stroke-dasharray="4 2"' if _is_unannotated(node) else ""
    lines = [
        (15, "#000000", _clipped(f"{number} {node.kernel}")),
        (29, "#444444", _clipped(node.label, keep_end=True)),
        (43, "#777777", _clipped(words.summary(node))),
    ]
    return (
        f'<g class="node"><title>{_xml(words.title(number))}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="3" fill="#ffffff" stroke="#888888"{dashes}/>'
        f'<rect x="{x}" y="{y}" width="5" height="{_HEIGHT}" fill="{colour}"/>'
        + "".join(
            f'<text x="{x + 11}" y="{y + down}" fill="{fill}">{_xml(line)}</text>'
            for down, fill, line in lines
            if line
        )
        + "</g>"
    )
