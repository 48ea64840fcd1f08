"""``python -m metalane check``: launches the kernels of a source under the checker and prints what it finds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import _core
from .check import CheckAccess, CheckFinding, CheckReport
from .check_cases import (
    DEFAULT_THREADS,
    Case,
    Inputs,
    UsageError,
    assignments,
    group_of,
    headers_of,
    read_cases,
    read_source,
    sizes,
)
from .check_picture import access_picture
from .compiled import CompiledSource
from .errors import CommandBufferError, CompileError, Error
from .inspect import printable

KINDS = "races bounds uninitialised divergence"


def add_parser(commands: Any) -> None:
    """Adds the command to those of the command line."""
    parser = commands.add_parser(
        "check",
        help="run kernels under the checker",
        description="Launches kernels of a .metal file on the CPU under the checker. Inputs that are not given are "
        "made up from the kernel's signature: arrays of as many elements as there are threads, small numbers.",
        epilog="VALUE is written as in TOML: 7, 0.5, true, [1, 2] for a vector or an array, {rows = 3} for a struct, "
        "{count = 100, fill = 'zeros'} for an array of that many elements (fill: random, zeros, arange, empty). Exit "
        "status: 0 where nothing was found, 1 for errors (with --strict also for warnings), 2 for a wrong command.",
    )
    parser.add_argument("file", type=Path, help="the Metal source")
    parser.add_argument("--kernel", action="append", metavar="NAME", help="a kernel to launch (default: all)")
    parser.add_argument("--threads", metavar="N[,N,N]", help=f"threads in all (default: {DEFAULT_THREADS})")
    parser.add_argument("--group", metavar="N[,N,N]", help="threads of a threadgroup (default: 64)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="an argument's value"
    )
    parser.add_argument(
        "--constant", action="append", default=[], metavar="NAME=VALUE", help="a function constant's value"
    )
    parser.add_argument(
        "--memory",
        action="append",
        default=[],
        metavar="NAME=BYTES",
        help="size of a threadgroup argument (default: an element a thread)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of random inputs (default: 0)")
    parser.add_argument(
        "--cases", type=Path, metavar="FILE", help="TOML with [[case]] tables, in place of options"
    )
    parser.add_argument(
        "--include", action="append", type=Path, default=[], metavar="FOLDER", help="for #include"
    )
    parser.add_argument("--math", choices=("safe", "fast"), default="safe", help="(default: safe)")
    parser.add_argument(
        "--kinds", default=KINDS, metavar="WORDS", help=f"what to look for (default: {KINDS})"
    )
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="S", help="seconds a launch (default: 60)"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings, too")
    parser.add_argument("--traffic", action="store_true", help="also show what each line loads and stores")
    parser.add_argument(
        "--picture",
        nargs=2,
        action="append",
        default=[],
        metavar=("ARGUMENT", "FILE"),
        help="draw which thread accesses which bytes of an argument, as SVG",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


@dataclass(frozen=True)
class Checked:
    """One launch that was checked."""

    case: Case
    inputs: list[str]
    report: CheckReport
    failure: str | None
    """Why the launch did not run to its end, where that is none of the findings."""


class Checking:
    """One source under the checker."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.text = read_source(options.file)
        self._headers = headers_of(options.file, self.text, options.include)
        # A name of the user's own, so that places in messages can be clicked on.
        self.name = printable(str(options.file)).replace("::", ": :")
        self._texts = {**self._headers, self.name: self.text}
        if not options.kinds.split():
            raise UsageError(f"--kinds: expected some of '{KINDS}', got none")
        kinds = options.kinds + (" traffic" if options.traffic or options.picture else "")
        self._device = _core.Device("cpu", check=kinds, reports="list")
        self._sources: dict[str, CompiledSource] = {}

    def cases(self) -> list[Case]:
        """What the options ask for, or the TOML file."""
        options = self._options
        if options.cases is not None:
            names = ("kernel", "threads", "group", "set", "constant", "memory", "seed")
            for name in names:
                if getattr(options, name):
                    raise UsageError(f"--{name}: expected in {options.cases}, got it beside --cases")
            return read_cases(options.cases)
        base = Case(
            "",
            sizes(options.threads, "--threads") if options.threads else Case.threads,
            sizes(options.group, "--group") if options.group else None,
            options.seed or 0,
            assignments(options.set, "--set"),
            assignments(options.constant, "--constant"),
            assignments(options.memory, "--memory"),
        )
        if base.seed < 0:
            raise UsageError(f"--seed: expected an integer from 0 on, got {base.seed}")
        return [replace(base, kernel=name) for name in options.kernel or self._source(base)]

    def _source(self, case: Case) -> CompiledSource:
        key = repr(sorted(case.constants.items()))
        if key not in self._sources:
            self._sources[key] = self._device.compile(
                self.text,
                name=self.name,
                math=self._options.math,
                constants=case.constants,
                headers=self._headers,
            )
        return self._sources[key]

    def check(self, case: Case) -> Checked:
        """Launches the case's kernel; raises Error where that cannot be done."""
        kernel = self._source(case)[case.kernel]
        inputs = Inputs(self._device, kernel, case)
        # Names that Python or the call itself uses take an underscore: positions do without.
        values = [
            inputs.values[argument.name] for argument in kernel.arguments if argument.name in inputs.values
        ]
        failure = None
        self._device.clear_check_report()
        try:
            kernel(
                *values,
                threads=list(case.threads),
                threads_per_threadgroup=list(group_of(case)),
                threadgroup_memory=inputs.memory or None,
                wait=True,
                timeout=self._options.timeout,
            )
        except CommandBufferError as error:
            failure = str(error)
        return Checked(case, inputs.described, self._device.check_report(), failure)

    def line(self, file: str, number: int) -> str | None:
        """The text of a source line."""
        lines = self._texts.get(file, "").splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else None


# Text -----------------------------------------------------------------------------------------------------------------


def _place(access: CheckAccess) -> str:
    return f"{access.file}:{access.line}" if access.line else access.file or "unknown place"


def finding_lines(finding: CheckFinding, line: Callable[[str, int], str | None]) -> list[str]:
    """A finding as compilers print theirs: place, severity, what it is, the source line; then the other access."""
    prefix = f"{finding.kind} in kernel '{finding.access.kernel}' at {_place(finding.access)}: "
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    text = [
        f"{_place(finding.access)}: {finding.severity}: {finding.kind}: {finding.message.removeprefix(prefix)}{times}"
    ]
    _add_source(text, line(finding.access.file, finding.access.line))
    if finding.other is not None:
        other = finding.other
        text.append(f"{_place(other)}: note: the other access is here, in kernel '{other.kernel}'")
        _add_source(text, line(other.file, other.line))
    return text


def _add_source(text: list[str], line: str | None) -> None:
    if line is not None:
        text.append(f"    {line.strip()}")


def table(rows: list[tuple[str, ...]], left: int) -> list[str]:
    """Rows in columns, the first `left` of them aligned to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _ratio(numerator: int, denominator: int) -> str:
    return f"{numerator / denominator:.2f}" if denominator else "-"


def traffic_lines(report: CheckReport) -> list[str]:
    """What each line of a kernel loaded and stored, what it did with each argument, and its barriers."""
    text = []
    if report.traffic:
        rows: list[tuple[str, ...]] = [
            (
                "place",
                "access",
                "argument",
                "count",
                "bytes",
                "per simdgroup",
                "per threadgroup",
                "lines",
                "banks",
            )
        ]
        for row in report.traffic:
            rows.append(
                (
                    f"{row.file}:{row.line}",
                    row.access,
                    f"{row.memory} {row.argument}",
                    str(row.count),
                    str(row.nbytes),
                    _ratio(row.sampled_nbytes, row.simdgroup_nbytes),
                    _ratio(row.sampled_nbytes, row.threadgroup_nbytes),
                    "-" if row.memory == "threadgroup" else _ratio(row.lines, row.requests),
                    _ratio(row.bank_cycles, row.requests) if row.memory == "threadgroup" else "-",
                )
            )
        text += table(rows, 3)
    if report.arguments:
        rows = [("argument", "loaded", "stored", "per thread", "per simdgroup", "per threadgroup")]
        for argument in report.arguments:
            rows.append(
                (
                    f"{argument.memory} {argument.argument}",
                    str(argument.loaded_nbytes),
                    str(argument.stored_nbytes),
                    _ratio(argument.sampled_nbytes, argument.thread_nbytes),
                    _ratio(argument.sampled_nbytes, argument.simdgroup_nbytes),
                    _ratio(argument.sampled_nbytes, argument.threadgroup_nbytes),
                )
            )
        text += ["", *table(rows, 1)]
    if report.waits:
        rows = [("place", "waits for", "times")]
        rows += [(f"{row.file}:{row.line}", row.operation, str(row.count)) for row in report.waits]
        text += ["", *table(rows, 2)]
    return text


def _as_text(checked: Checked, checking: Checking, traffic: bool, file: str) -> list[str]:
    case = checked.case
    grid, group = ["x".join(map(str, axes)) for axes in (case.threads, group_of(case))]
    given = f"; {', '.join(checked.inputs)}" if checked.inputs else ""
    text = [f"{file}: kernel '{case.kernel}': {grid} threads in threadgroups of {group}{given}"]
    for finding in checked.report.findings:
        text += finding_lines(finding, checking.line)
    if checked.failure is not None:
        text.append(f"{file}: error: {checked.failure}")
    if traffic:
        text += traffic_lines(checked.report)
    return text


def _as_json(checked: Checked) -> dict[str, Any]:
    case = checked.case
    return {
        "kernel": case.kernel,
        "threads": list(case.threads),
        "group": list(group_of(case)),
        "seed": case.seed,
        "inputs": checked.inputs,
        "failure": checked.failure,
        **asdict(checked.report),
    }


def _draw(pictures: list[tuple[str, str]], results: list[Checked]) -> None:
    """Writes the pictures, each of the first launch that has its argument."""
    for argument, file in pictures:
        reports = [checked.report for checked in results]
        known = [r for r in reports if any(r.traffic[s.traffic].argument == argument for s in r.samples)]
        text = access_picture((known or reports)[0], argument)
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--picture: {file}: {error.strerror}") from None


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def run(options: argparse.Namespace) -> int:
    """The command; gives the exit status."""
    try:
        checking = Checking(options)
        results = [checking.check(case) for case in checking.cases()]
        if not results:
            raise UsageError(f"{options.cases}: expected a case, got none")
        _draw(options.picture, results)
    except Error as error:
        # A compile error has lines of its own; of a wrong command one is enough.
        print(f"metalane check: {error}", file=sys.stderr)
        return 1 if isinstance(error, CompileError) else 2
    if options.json:
        print(json.dumps([_as_json(checked) for checked in results], indent=2))
    else:
        for checked in results:
            print("\n".join(_as_text(checked, checking, options.traffic, checking.name)))
    errors = sum(len(checked.report.errors) + (checked.failure is not None) for checked in results)
    warnings = sum(len(checked.report.warnings) for checked in results)
    if not options.json:
        launches = _counted(len(results), "launch") if len(results) == 1 else f"{len(results)} launches"
        print(f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')} in {launches}")
    return 1 if errors or (options.strict and warnings) else 0
