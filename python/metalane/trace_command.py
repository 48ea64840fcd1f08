"""``python -m metalane trace``: runs a script and shows what its devices did meanwhile."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from ._core import Profile
from .inspect import printable
from .profile_session import ProfileSession


def add_parser(commands: Any) -> None:
    """Adds the command to those of the command line."""
    parser = commands.add_parser(
        "trace",
        help="run a script and show what its devices did",
        description="Runs a Python script with a profile on every device that it opens, then prints each profile's "
        "table of launches.",
        epilog="Where several devices were opened, the files of those after the first get numbers: trace.1.json. Exit "
        "status: that of the script; 2 for a wrong command.",
    )
    parser.add_argument("script", type=Path, help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write a trace for Perfetto (ui.perfetto.dev)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a timeline")
    parser.add_argument(
        "--max-launches",
        type=int,
        default=1 << 20,
        metavar="N",
        help="launches of a device that are kept one by one (default: 1,048,576)",
    )


def _status_of(stop: SystemExit) -> int:
    """What Python itself would exit with."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _write(path: Path | None, number: int, text: str) -> None:
    if path is not None:
        place = path if number == 0 else path.with_suffix(f".{number}{path.suffix}")
        place.write_text(text, encoding="utf-8")


def _report(profiles: list[Profile], options: argparse.Namespace) -> None:
    for number, profile in enumerate(profiles):
        device = profile.device
        print(f"{'' if number == 0 else chr(10)}{device.kind}: {printable(device.name)}")
        print(profile.table(), end="")
        _write(options.json, number, profile.trace_json())
        _write(options.svg, number, profile.timeline_svg())
    if not profiles:
        print("the script opened no device")


def run(options: argparse.Namespace) -> int:
    """The command; gives the exit status."""
    if not options.script.is_file():
        print(f"metalane trace: {printable(str(options.script))}: no such file", file=sys.stderr)
        return 2
    for path in filter(None, (options.json, options.svg)):
        # Before the script runs, which may take long.
        if path.is_dir() or not path.parent.is_dir():
            print(f"metalane trace: {printable(str(path))}: no place for a file", file=sys.stderr)
            return 2
    before = sys.argv, sys.path[:]
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    session = ProfileSession(options.max_launches)
    try:
        with session:
            runpy.run_path(str(options.script), run_name="__main__")
    except SystemExit as stop:
        return _status_of(stop)
    finally:
        sys.argv, sys.path[:] = before
        _report(session.profiles, options)
    return 0
