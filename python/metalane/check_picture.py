"""Pictures of what the checker saw: which thread of a threadgroup accessed which bytes of an argument, as SVG."""

from __future__ import annotations

from collections import defaultdict
from typing import NoReturn
from xml.sax.saxutils import escape

from .check import CheckReport, CheckTraffic
from .errors import ArgumentError

__all__ = ["access_picture"]

_CELLS = 450  # across: more than that are drawn together
_ROWS = 256
_CELL_WIDTH = 2
_LEFT, _TOP = 70, 46
_LINE_BYTES = 128  # of Apple's caches
_SIMDGROUP = 32
# Colours that are told apart in every common form of colour blindness (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")


def _refuse(argument: str, expected: str, given: str) -> NoReturn:
    error = ArgumentError(f"access_picture: {argument} must be {expected}, got {given}")
    error.op, error.argument, error.expected, error.given = "access_picture", argument, expected, given
    raise error


def access_picture(report: CheckReport, argument: str, kernel: str | None = None) -> str:
    """The accesses of a sampled threadgroup to one argument or threadgroup variable, as an SVG document.

    Across are bytes from the argument's start, down are threads by their index in the threadgroup; each line of the
    source has a colour. A device opened with ``check="traffic"`` takes the samples.

    Raises ArgumentError where the report has none of that argument, or has it of several kernels and none is named.
    """
    rows = {i: row for i, row in enumerate(report.traffic) if row.argument == argument}
    kernels = sorted({row.kernel for row in rows.values()})
    if kernel is not None:
        if kernel not in kernels:
            _refuse("kernel", f"one of {', '.join(kernels) or 'none'}", repr(kernel))
        rows = {i: row for i, row in rows.items() if row.kernel == kernel}
    elif len(kernels) > 1:
        _refuse("kernel", f"given, one of {', '.join(kernels)}", "None")
    samples = [sample for sample in report.samples if sample.traffic in rows]
    if not samples:
        known = sorted({report.traffic[sample.traffic].argument for sample in report.samples})
        _refuse("argument", f"one of {', '.join(known) or 'none: no traffic was watched'}", repr(argument))

    first = min(sample.byte_offset for sample in samples)
    end = max(sample.byte_offset + sample.nbytes for sample in samples)
    step = min(max(sample.nbytes, 1) for sample in samples)
    first -= first % step
    while (end - first) / step > _CELLS:
        step *= 2
    threads = max(sample.thread_index for sample in samples) + 1
    together = -(-threads // _ROWS)
    cells: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for sample in samples:
        begin = (sample.byte_offset - first) // step
        stop = (sample.byte_offset + max(sample.nbytes, 1) - 1 - first) // step
        cells[sample.traffic].update((sample.thread_index // together, x) for x in range(begin, stop + 1))
    return _svg(rows, cells, first, -(-(end - first) // step), step, threads, together)


def _path(cells: set[tuple[int, int]], height: int) -> str:
    """Rectangles round runs of cells."""
    parts = []
    row = begin = end = -1
    for y, x in [*sorted(cells), (-1, -1)]:
        if y == row and x == end:
            end += 1
            continue
        if row >= 0:
            width = (end - begin) * _CELL_WIDTH
            parts.append(f"M{_LEFT + begin * _CELL_WIDTH} {_TOP + row * height}h{width}v{height}h-{width}z")
        row, begin, end = y, x, x + 1
    return "".join(parts)


def _svg(
    rows: dict[int, CheckTraffic],
    cells: dict[int, set[tuple[int, int]]],
    first: int,
    columns: int,
    step: int,
    threads: int,
    together: int,
) -> str:
    lines = -(-threads // together)
    height = max(2, min(12, 384 // lines))
    width, bottom = columns * _CELL_WIDTH, _TOP + lines * height
    row = next(iter(rows.values()))
    title = escape(f"{row.kernel}: {row.memory} memory '{row.argument}'")
    legend = bottom + 46
    drawn = [i for i in rows if i in cells]
    total = (max(_LEFT + width + 30, 560), legend + 18 * len(drawn) + 6)
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{title}</title>",
        f'<rect width="{total[0]}" height="{total[1]}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{title}</text>',
        f'<text x="{_LEFT}" y="{_TOP - 8}">threads down, bytes across: {step} a cell</text>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{width}" height="{bottom - _TOP}" fill="#f4f4f4"/>',
    ]
    for thread in range(0, threads, _SIMDGROUP):
        y = _TOP + thread // together * height
        text.append(f'<text x="{_LEFT - 6}" y="{y + 9}" text-anchor="end">{thread}</text>')
        text.append(f'<path d="M{_LEFT - 4} {y}h{width + 4}" stroke="#bbbbbb"/>')
    for number, i in enumerate(drawn):
        text.append(
            f'<path d="{_path(cells[i], height)}" fill="{_COLOURS[number % len(_COLOURS)]}" fill-opacity="0.75"/>'
        )
    # Borders of cache lines where they stand apart, else a few places.
    mark = _LINE_BYTES
    while mark / step * _CELL_WIDTH < 48:
        mark *= 2
    for offset in range(-(-first // mark) * mark, first + columns * step + 1, mark):
        x = _LEFT + (offset - first) // step * _CELL_WIDTH
        text.append(f'<path d="M{x} {_TOP}V{bottom + 5}" stroke="#888888" stroke-dasharray="2 2"/>')
        text.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{offset}</text>')
    for number, i in enumerate(drawn):
        y = legend + 18 * number
        text.append(
            f'<rect x="{_LEFT}" y="{y - 9}" width="12" height="10" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
        label = escape(f"{rows[i].access} at {rows[i].file}:{rows[i].line}, {rows[i].count} times")
        text.append(f'<text x="{_LEFT + 18}" y="{y}">{label}</text>')
    text.append("</svg>")
    return "\n".join(text) + "\n"
