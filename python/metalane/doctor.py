"""``python -m metalane doctor``: what this machine has, and whether every built-in kernel computes what it should."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from . import _core, doctor_kernels
from ._core import Device
from .doctor_kernels import Case, Result
from .doctor_machine import Fact, facts
from .errors import DeviceError
from .inspect import printable


def add_parser(commands: Any) -> None:
    """Adds the command to those of the command line."""
    parser = commands.add_parser(
        "doctor",
        help="show what this machine has, and test every built-in kernel on its devices",
        description="Shows versions, compilers, caches and devices, and runs every built-in kernel on every device "
        "against float64. Please add its output to a bug report.",
        epilog="Exit status: 0 where all is well, 1 where something is wrong, 2 for a wrong command.",
    )
    parser.add_argument("--device", metavar="KIND", help="test this device only")
    parser.add_argument("--json", action="store_true", help="print JSON")


def say(text: str) -> None:
    """Prints what the terminal's encoding has, the rest escaped, at once."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def fact_line(fact: Fact) -> str:
    return f"{'!' if fact.problem else ' '} {fact.section:<10} {fact.name:<14} {printable(fact.value)}"


def test_line(device: str, result: Result) -> str:
    error = "" if result.error is None else f"{result.error:.2g}"
    row = (
        f"{' ' if result.passed else '!'} {device:<11} {result.family:<30} {result.type:<7} "
        f"{'ok' if result.passed else 'FAILED':<7} {error:<8} {result.bound:<8.2g} {result.seconds * 1e3:9.3f} ms"
    )
    return row if not result.problem else f"{row}\n    {printable(result.problem)}"


HEADING = f"\n  {'device':<11} {'kernels':<30} {'type':<7} {'':<7} {'error':<8} {'bound':<8} {'time':>12}"


def tests(kinds: list[str]) -> Iterator[tuple[str, Device, Case]]:
    """Every case on every device; what has kernels of its own on the CPU, by its shader, too."""
    for kind in kinds:
        try:
            device = Device(kind)
        except DeviceError:  # a fact says why
            continue
        yield from ((kind, device, case) for case in doctor_kernels.CASES)
        if kind == "cpu":
            shader = Device(kind, "shader")
            yield from (("cpu shader", shader, case) for case in doctor_kernels.DFLASH2)


def run(options: argparse.Namespace) -> int:
    """0 where all is well, 1 where something is wrong, 2 where there is no such device."""
    kinds = list(dict.fromkeys(info.kind for info in _core.devices() if info.kind != "null"))
    if options.device is not None:
        if options.device not in kinds:
            print(f"metalane: this machine has {', '.join(kinds)}, no {options.device!r}", file=sys.stderr)
            return 2
        kinds = [options.device]
    found: list[Fact] = []
    for fact in facts():
        found.append(fact)
        if not options.json:
            say(fact_line(fact))
    if not options.json:
        say(HEADING)
    results: list[tuple[str, Result]] = []
    for name, device, case in tests(kinds):
        results.append((name, doctor_kernels.run(device, case)))
        if not options.json:
            say(test_line(*results[-1]))
    problems = sum(fact.problem for fact in found)
    failures = sum(not result.passed for _, result in results)
    if options.json:
        rows = [{"device": name, **asdict(result), "passed": result.passed} for name, result in results]
        say(json.dumps({"facts": [asdict(fact) for fact in found], "tests": rows}, indent=1))
    else:
        say(f"\n{len(results) - failures} of {len(results)} tests passed; {problems} problems")
    return int(bool(problems or failures))
