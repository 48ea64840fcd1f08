"""Shared fixtures, and the rule that nothing is skipped where everything must run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import metalane

ROOT = Path(__file__).resolve().parents[1]
REQUIRE_ALL = os.environ.get("METALANE_REQUIRE_ALL") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With METALANE_CHECK=1 every kernel of the suite runs under the checker, and warnings fail a test, too."""
    if os.environ.get("METALANE_CHECK") == "1":
        config.option.metalane_check = config.option.metalane_check_strict = True


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


@pytest.fixture
def null_device() -> metalane.Device:
    return metalane.Device("null")


@pytest.fixture
def cpu_device() -> metalane.Device:
    return metalane.Device("cpu")
