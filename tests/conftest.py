"""Shared fixtures, what runs on which devices, and the rule that nothing is skipped where everything must run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import metalane
from devices import KINDS, SANITIZED, allowed
from metal_double import DOUBLE

ROOT = Path(__file__).resolve().parents[1]
REQUIRE_ALL = os.environ.get("METALANE_REQUIRE_ALL") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With METALANE_CHECK=1 every kernel of the suite runs under the checker, and warnings fail a test, too."""
    if os.environ.get("METALANE_CHECK") == "1":
        config.option.metalane_check = config.option.metalane_check_strict = True
    config.addinivalue_line("markers", "linux: needs Linux or its compilers; deselected elsewhere")
    config.addinivalue_line(
        "markers",
        "memory: measures the process's memory; deselected under AddressSanitizer, which keeps what is freed",
    )
    config.addinivalue_line(
        "markers",
        "statistics: counts thousands of draws; deselected under the checker and sanitizers, which are slow at that",
    )
    config.addinivalue_line(
        "markers", "cpu: about the CPU device; deselected where the suite runs on others only"
    )
    config.addinivalue_line(
        "markers",
        "needs(max_buffer_bytes=..., max_threadgroup_memory=...): more of a limit of the device than every device "
        "has; deselected where it has less",
    )


def pytest_report_header() -> str | None:
    """The order of launches that no barrier orders, to run the same again."""
    return f"test double of Metal: METAL_DOUBLE_SEED={DOUBLE.shuffle_seed()}" if DOUBLE else None


SLOW = SANITIZED or os.environ.get("METALANE_CHECK") == "1"


def runs_here(item: pytest.Item) -> bool:
    """Whether this machine, and the devices that were asked for, have what the test is about."""
    about_cpu = item.get_closest_marker("cpu") or "cpu_device" in getattr(item, "fixturenames", ())
    return (
        ("cpu" in KINDS or not about_cpu)
        and (sys.platform == "linux" or not item.get_closest_marker("linux"))
        and not (SANITIZED and item.get_closest_marker("memory"))
        and allowed(item)
        and not (SLOW and item.get_closest_marker("statistics"))
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if others := [item for item in items if not runs_here(item)]:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if runs_here(item)]


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although METALANE_REQUIRE_ALL=1: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """With METALANE_REQUIRE_ALL=1 a skipped test is a failed one."""
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """The same for a file that skips itself while it is imported."""
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
    """On the test double of Metal, what it found wrong fails the test; its objects are gone when the last test is."""
    yield
    if DOUBLE:
        getattr(item, "funcargs", {}).clear()  # the fixtures' values, which pytest lets go after this
        DOUBLE.check(last=nextitem is None and not item.session.testsfailed)


@pytest.fixture(scope="module", params=KINDS)
def device_kind(request: pytest.FixtureRequest) -> str:
    """The kind of the device that a test runs on: for tests that open their own."""
    return request.param


@pytest.fixture(scope="module")
def device(device_kind: str) -> metalane.Device:
    """One device a file, on each kind of device."""
    return metalane.Device(device_kind)


@pytest.fixture
def null_device() -> metalane.Device:
    return metalane.Device("null")


@pytest.fixture
def cpu_device() -> metalane.Device:
    return metalane.Device("cpu")
