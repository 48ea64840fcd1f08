"""pytest's plugin for metalane: a device with the checker as a fixture, and whole suites under the checker.

A package beside metalane, so that pytest imports neither it nor NumPy where no test asks for them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

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
    config.pluginmanager.register(Suite(CheckSession(chosen.kinds)), "metalane-suite")


DEVICES = pytest.StashKey[list["metalane.Device"]]()


@pytest.fixture
def metalane_checked_device(request: pytest.FixtureRequest) -> Iterator[metalane.Device]:
    """A CPU device whose kernels run under the checker; the test fails where it finds an error.

    What the test itself forgets with ``clear_check_report()`` does not count.
    """
    import metalane

    device = metalane.Device("cpu", check=settings(request.config).kinds, reports="list")
    request.node.stash.setdefault(DEVICES, []).append(device)
    yield device
    request.node.stash[DEVICES].remove(device)


class Marked(NamedTuple):
    """What a test's marker says."""

    watch: bool
    allow: frozenset[str]


def marked(item: pytest.Item) -> Marked:
    marker = item.get_closest_marker("metalane_check")
    if marker is None:
        return Marked(True, frozenset())
    given = dict(zip(("watch",), marker.args, strict=False)) | dict(marker.kwargs)
    watch, allow = given.pop("watch", True), given.pop("allow", "")
    if given or len(marker.args) > 1 or not isinstance(watch, bool) or not isinstance(allow, str):
        raise pytest.UsageError(
            f"{item.nodeid}: expected @pytest.mark.metalane_check(watch=True, *, allow='...')"
        )
    return Marked(watch, frozenset(allow.split()))


def as_text(findings: Iterable[CheckFinding]) -> str:
    lines = []
    for finding in findings:
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        lines.append(f"{finding.severity}: {finding.message}{times}")
    return "\n".join(lines)


def judge(item: pytest.Item, report: pytest.TestReport, findings: tuple[CheckFinding, ...]) -> None:
    """Fails the report for what was found and is not allowed; shows it where the test has failed by itself."""
    strict = settings(item.config).strict
    counted = [finding for finding in findings if finding.kind not in marked(item).allow]
    faults = [finding for finding in counted if strict or finding.severity == "error"]
    report.user_properties += [(PROPERTY, finding.message) for finding in counted if finding not in faults]
    if report.failed and counted:
        report.sections.append(("metalane's checker", as_text(counted)))
    elif report.passed and faults:
        report.outcome = "failed"
        report.longrepr = f"metalane's checker found:\n{as_text(faults)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    for device in item.stash.get(DEVICES, []):
        judge(item, report, device.check_report().findings)
        device.clear_check_report()
    return report


class Suite:
    """Hooks of a run with --metalane-check."""

    def __init__(self, session: CheckSession) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = marked(item)
        if not mark.watch:
            return (yield)
        # What is allowed must not end the test.
        self._session.reports = "list" if mark.allow else "raise"
        with self._session:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        judge(item, report, self._session.take())
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Warnings of tests that have passed."""
        warnings: dict[str, int] = {}
        for reports in terminalreporter.stats.values():
            for report in reports:
                for name, message in getattr(report, "user_properties", ()):
                    if name == PROPERTY and report.when == "call":
                        warnings[message] = warnings.get(message, 0) + 1
        if warnings:
            terminalreporter.section("metalane's checker")
            for message, count in warnings.items():
                terminalreporter.line(f"warning: {message}" + (f" ({count} tests)" if count > 1 else ""))
