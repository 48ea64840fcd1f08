"""Profiles for reading: a table of launches, and a timeline as SVG. `device.profile()` makes them."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from ._core import Profile, ProfiledLaunch
from .check_command import table
from .inspect import printable

__all__ = ["table_text", "timeline_svg"]


@dataclass
class _Row:
    """Launches of one kernel under one label."""

    launches: int = 0
    timed: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    nbytes: int = 0

    def add(self, launch: ProfiledLaunch) -> None:
        self.launches += 1
        self.nbytes += launch.bytes_read + launch.bytes_written
        if launch.start_seconds is not None and launch.end_seconds is not None:
            seconds = launch.end_seconds - launch.start_seconds
            self.timed += 1
            self.seconds += seconds
            self.longest = max(self.longest, seconds)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


def _cells(label: str, kernel: str, row: _Row, total: float) -> tuple[str, ...]:
    shown = (printable(label), printable(kernel), str(row.launches))
    if row.timed == 0:
        return (*shown, "-", "-", "-", "-", f"{row.nbytes / 1e6:.3f}", "-")
    share = f"{100 * row.seconds / total:.1f}" if total else "-"
    speed = f"{row.nbytes / row.seconds / 1e9:.2f}" if row.seconds else "-"
    mean = _us(row.seconds / row.timed)
    return (*shown, _us(row.seconds), share, mean, _us(row.longest), f"{row.nbytes / 1e6:.3f}", speed)


def table_text(profile: Profile) -> str:
    """The text of ``profile.table()``."""
    rows: dict[tuple[str, str], _Row] = {}
    for submission in profile.submissions:
        for launch in submission.launches:
            rows.setdefault((launch.label, launch.kernel), _Row()).add(launch)
    total = sum(row.seconds for row in rows.values())
    order = sorted(rows.items(), key=lambda item: (-item[1].seconds, -item[1].launches, item[0]))
    text = []
    if order:
        head = (
            "label",
            "kernel",
            "launches",
            "us",
            "%",
            "mean us",
            "longest us",
            "MB at most",
            "GB/s at most",
        )
        text += table([head, *(_cells(*names, row, total) for names, row in order)], 2)
        text.append("")
    counters = profile.counters
    kept = sum(row.launches for row in rows.values())
    text.append(
        f"{counters.launches} launches, {counters.barriers} barriers in {counters.submissions} submissions "
        f"({counters.failed_submissions} failed), {_us(counters.device_seconds)} us on the device, "
        f"{counters.bytes_read / 1e6:.3f} MB bound for reading, {counters.bytes_written / 1e6:.3f} MB for writing"
    )
    if kept < counters.launches:
        text.append(f"{counters.launches - kept} launches past max_launches are counted only")
    return "\n".join(text) + "\n"


# Picture --------------------------------------------------------------------------------------------------------------

_WIDTH = 1100
_LEFT, _TOP, _ROW = 16, 64, 18
_CHARACTER = 6.2  # pixels of one at the size of the bars' text
# Colours that are told apart in every common form of colour blindness (Okabe and Ito, 2008), lightened.
_COLOURS = ("#7fb8d8", "#eaae7f", "#7fcfb9", "#e5bcd3", "#f2cf7f", "#aad9f4", "#b3b3b3", "#f7f1a0")
_KINDS = {"in flight": "#eeeeee", "submission": "#d5d5d5", "label": "#f0e8d8"}
_MOST_BARS = 20_000


@dataclass(frozen=True)
class _Bar:
    row: int
    start: float  # microseconds from the first commit on
    width: float
    name: str
    kind: str


def _bars(events: list[dict[str, Any]]) -> list[_Bar]:
    """Those of a trace: rows are what is in flight, the device's submissions, and the ranges and launches within."""
    bars = []
    begun: dict[int, float] = {}
    for event in events:
        if event["ph"] == "b":
            begun[event["id"]] = event["ts"]
        elif event["ph"] == "e":
            start = begun.pop(event["id"])
            bars.append(_Bar(0, start, event["ts"] - start, event["name"], event["cat"]))
        elif event["ph"] == "X":
            row = 1 if event["cat"] == "submission" else 2 + event["args"]["depth"]
            bars.append(_Bar(row, event["ts"], event["dur"], event["name"], event["cat"]))
    return bars


def _step(span: float) -> float:
    """A round distance between marks: at most a dozen of them."""
    step = 1e-3
    for factor in itertools.cycle((2.0, 2.5, 2.0)):
        if span / step <= 12:
            break
        step *= factor
    return step


def _drawn(bar: _Bar, scale: float, colour: str) -> list[str]:
    x, width = _LEFT + bar.start * scale, max(bar.width * scale, 0.5)
    if width > 3:
        width -= 1  # neighbours stand apart
    y = _TOP + bar.row * _ROW
    name = printable(bar.name)
    text = [
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 2}" fill="{colour}">'
        f"<title>{escape(f'{bar.kind}: {name}, {bar.width:.1f} us')}</title></rect>"
    ]
    letters = int((width - 4) / _CHARACTER)
    if letters >= 3:
        shown = name if len(name) <= letters else name[: letters - 1] + "…"
        text.append(f'<text x="{x + 2:.2f}" y="{y + _ROW - 6}">{escape(shown)}</text>')
    return text


def timeline_svg(profile: Profile) -> str:
    """The text of ``profile.timeline_svg()``."""
    bars = _bars(json.loads(profile.trace_json())["traceEvents"])
    counters = profile.counters
    title = f"{profile.device.kind}: {counters.launches} launches in {counters.submissions} submissions"
    if len(bars) > _MOST_BARS:
        title += f" (the last {len(bars) - _MOST_BARS} bars are left out)"
        del bars[_MOST_BARS:]
    span = max((bar.start + bar.width for bar in bars), default=1.0)
    scale = _WIDTH / span
    width, bottom = _WIDTH + 2 * _LEFT, _TOP + (1 + max((bar.row for bar in bars), default=0)) * _ROW
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 12}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{bottom + 12}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    step = _step(span)
    for i in range(int(span / step) + 1):
        x = _LEFT + i * step * scale
        text.append(f'<path d="M{x:.2f} {_TOP - 8}V{bottom}" stroke="#dddddd"/>')
        text.append(f'<text x="{x:.2f}" y="{_TOP - 12}" text-anchor="middle">{i * step:g} us</text>')
    kernels: dict[str, str] = {}
    for bar in bars:
        colour = _KINDS.get(bar.kind)
        if colour is None:
            colour = kernels.setdefault(bar.name, _COLOURS[len(kernels) % len(_COLOURS)])
        text += _drawn(bar, scale, colour)
    text.append("</svg>")
    return "\n".join(text) + "\n"
