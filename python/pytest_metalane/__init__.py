"""pytest's plugin for metalane: a device with the checker as a fixture, and whole suites under the checker.

A package beside metalane, so that pytest imports neither it nor NumPy where no test asks for them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, NamedTuple, get_args

import pytest

if TYPE_CHECKING:
    import metalane
    from metalane.check import CheckFinding
    from metalane.check_session import CheckSession

KINDS = "races bounds uninitialised divergence"
PROPERTY = "metalane_warning"


class Settings(NamedTuple):
    """What the command line and the ini file ask for."""

    suite: bool
    kinds: str
    strict: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("metalane")
    group.addoption(
        "--metalane-check",
        action="store_true",
        default=None,
        help="run the kernels of every CPU device under the checker; a test fails where it finds an error",
    )
    group.addoption(
        "--metalane-check-kinds", metavar="WORDS", help=f"what the checker watches (default: {KINDS})"
    )
    group.addoption(
        "--metalane-check-strict",
        action="store_true",
        default=None,
        help="a test fails where the checker warns (same-value, lockstep), too",
    )
    parser.addini("metalane_check", "as --metalane-check", type="bool", default=False)
    parser.addini("metalane_check_kinds", "as --metalane-check-kinds", default=KINDS)
    parser.addini("metalane_check_strict", "as --metalane-check-strict", type="bool", default=False)


def settings(config: pytest.Config) -> Settings:
    def chosen(name: str) -> bool:
        return bool(config.getoption(name) or config.getini(name))

    kinds = config.getoption("metalane_check_kinds") or config.getini("metalane_check_kinds")
    return Settings(chosen("metalane_check"), str(kinds), chosen("metalane_check_strict"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "metalane_check(watch=True, *, allow=''): with --metalane-check, watch=False runs the test unchecked; "
        "allow names kinds of findings that do not fail it, such as 'lockstep same-value'",
    )
    chosen = settings(config)
    if not chosen.suite:
        return
    import metalane
    from metalane.check_session import CheckSession

    try:
        metalane.Device("cpu", check=chosen.kinds)
    except metalane.ArgumentError as error:
        raise pytest.UsageError(
            f"--metalane-check-kinds: expected {error.expected}, got {error.given}"
        ) from None
    config.stash[SESSION] = CheckSession(chosen.kinds)


DEVICES: pytest.StashKey[list[metalane.Device]] = pytest.StashKey()
SESSION: pytest.StashKey[CheckSession] = pytest.StashKey()


@pytest.fixture
def metalane_checked_device(request: pytest.FixtureRequest) -> metalane.Device:
    """A CPU device whose kernels run under the checker; the test fails where it finds an error.

    What the test itself forgets with ``clear_check_report()`` does not count.
    """
    import metalane

    device = metalane.Device("cpu", check=settings(request.config).kinds, reports="list")
    request.node.stash.setdefault(DEVICES, []).append(device)
    return device


class Marked(NamedTuple):
    """What a test's marker says."""

    watch: bool
    allow: frozenset[str]


def marked(item: pytest.Item) -> Marked:
    marker = item.get_closest_marker("metalane_check")
    if marker is None:
        return Marked(True, frozenset())
    from metalane.check import Kind

    given = dict(zip(("watch",), marker.args, strict=False)) | dict(marker.kwargs)
    watch, allow = given.pop("watch", True), given.pop("allow", "")
    if given or len(marker.args) > 1 or not isinstance(watch, bool) or not isinstance(allow, str):
        raise pytest.UsageError(
            f"{item.nodeid}: expected @pytest.mark.metalane_check(watch=True, *, allow='...')"
        )
    kinds = frozenset(allow.split())
    if unknown := kinds.difference(get_args(Kind)):
        raise pytest.UsageError(
            f"{item.nodeid}: metalane_check: allow: expected words of {' '.join(get_args(Kind))}, got {min(unknown)!r}"
        )
    return Marked(watch, kinds)


def as_text(findings: Iterable[CheckFinding]) -> str:
    lines = []
    for finding in findings:
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        lines.append(f"{finding.severity}: {finding.message}{times}")
    return "\n".join(lines)


class Found(NamedTuple):
    """What the checker found in one phase of a test, without what its marker allows."""

    faults: list[CheckFinding]
    """These fail the test."""
    warnings: list[CheckFinding]


FOUND: pytest.StashKey[Found] = pytest.StashKey()


def take(item: pytest.Item) -> Found:
    """What was found since this was called last."""
    findings: list[CheckFinding] = []
    for device in item.stash.get(DEVICES, []):
        findings += device.check_report().findings
        device.clear_check_report()
    session = item.config.stash.get(SESSION, None)
    if session is not None:
        findings += session.take()
    strict, allowed = settings(item.config).strict, marked(item).allow
    counted = [finding for finding in findings if finding.kind not in allowed]
    faults = [finding for finding in counted if strict or finding.severity == "error"]
    return Found(faults, [finding for finding in counted if finding not in faults])


def watched(item: pytest.Item) -> Generator[None, object, object]:
    """One phase of a test: it fails for faults as for an exception of its own, so that marks such as xfail hold."""
    item.stash[FOUND] = Found([], [])
    try:
        result = yield
    except BaseException:
        item.stash[FOUND] = take(item)
        raise
    found = take(item)
    item.stash[FOUND] = Found([], found.warnings)
    if found.faults:
        pytest.fail(f"metalane's checker found:\n{as_text(found.faults)}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from watched(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from watched(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield from watched(item))
    finally:
        item.stash[DEVICES] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps warnings; shows faults beside what a test failed for by itself."""
    report = yield
    found = item.stash.get(FOUND, Found([], []))
    report.user_properties += [(PROPERTY, warning.message) for warning in found.warnings]
    if report.failed and (found.faults or found.warnings):
        report.sections.append(("metalane's checker", as_text([*found.faults, *found.warnings])))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    session = item.config.stash.get(SESSION, None)
    mark = marked(item)
    if session is None or not mark.watch:
        return (yield)
    # What is allowed must not end the test.
    session.reports = "list" if mark.allow else "raise"
    with session:
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Warnings, each once."""
    warnings: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, message in getattr(report, "user_properties", ()):
                if name == PROPERTY:
                    warnings[message] = warnings.get(message, 0) + 1
    if warnings:
        terminalreporter.section("metalane's checker")
        for message, count in warnings.items():
            terminalreporter.line(f"warning: {message}" + (f" ({count} tests)" if count > 1 else ""))
