"""Shared fixtures, and the rule that nothing is skipped where everything must run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import metalane

ROOT = Path(__file__).resolve().parents[1]
REQUIRE_ALL = os.environ.get("METALANE_REQUIRE_ALL") == "1"


class CheckedDevices(type):
    """What METALANE_CHECK=1 puts in place of `metalane.Device`: CPU devices come with the checker.

    Tests of what goes wrong on purpose open theirs with `check=False`.
    """

    def __call__(cls, kind=None, kernels="auto", **options):
        if kind in ("cpu", None) and kernels != "native":
            options.setdefault("check", True)
        return OPEN_DEVICE(kind, kernels, **options)

    def __getattr__(cls, name: str) -> object:
        return getattr(OPEN_DEVICE, name)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, OPEN_DEVICE)


OPEN_DEVICE = metalane.Device
if os.environ.get("METALANE_CHECK") == "1":
    metalane.Device = CheckedDevices("Device", (), {})


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
