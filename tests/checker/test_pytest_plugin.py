"""The pytest plugin, in suites of a user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

SUITE = '''
import unittest

import numpy as np
import pytest

import metalane

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }
kernel void beyond(device float* x, uint i [[thread_position_in_grid]]) { x[i + 1] = 2; }
kernel void flag(device uint* x, uint i [[thread_position_in_grid]]) { x[0] = 1; }
"""


def launch(device, kernel, dtype=np.float32):
    x = device.zeros(32, dtype)
    device.compile(SOURCE, name="user.metal")[kernel](x, threads=32, wait=True)
    return x.numpy()


def test_fixture_right(metalane_checked_device):
    assert metalane_checked_device.check
    assert (launch(metalane_checked_device, "twice") == 0).all()


def test_fixture_wrong(metalane_checked_device):
    launch(metalane_checked_device, "beyond")


def test_fixture_warns(metalane_checked_device):
    launch(metalane_checked_device, "flag", np.uint32)


def test_fixture_forgets(metalane_checked_device):
    launch(metalane_checked_device, "beyond")
    assert len(metalane_checked_device.check_report().errors) == 1
    metalane_checked_device.clear_check_report()


def test_fixture_wrong_and_failing(metalane_checked_device):
    launch(metalane_checked_device, "beyond")
    raise AssertionError("of its own")


def test_own_device_right():
    launch(metalane.Device("cpu"), "twice")


def test_own_device_wrong():
    launch(metalane.Device(), "beyond")


def test_own_device_swallows():
    try:
        launch(metalane.Device("cpu"), "beyond")
    except metalane.CommandBufferError:
        pass


def test_own_device_warns():
    launch(metalane.Device("cpu"), "flag", np.uint32)


@pytest.mark.metalane_check(False)
def test_unchecked():
    assert metalane.Device("cpu").check == ()
    launch(metalane.Device("cpu"), "flag", np.uint32)


@pytest.mark.metalane_check(allow="bounds same-value")
def test_allowed():
    launch(metalane.Device("cpu"), "beyond")
    launch(metalane.Device("cpu"), "flag", np.uint32)


@pytest.fixture(scope="module")
def shared():
    device = metalane.Device("cpu")
    launch(device, "flag", np.uint32)
    yield device
    device.compile(SOURCE, name="late.metal").beyond(device.zeros(32, np.float32), threads=32)
    del device


@pytest.fixture
def user_of_fixture(metalane_checked_device):
    yield metalane_checked_device
    launch(metalane_checked_device, "beyond")


def test_ends_fixture_late(user_of_fixture):
    launch(user_of_fixture, "twice")


@pytest.mark.xfail(strict=True, reason="is beyond")
def test_xfail_fixture(metalane_checked_device):
    launch(metalane_checked_device, "beyond")


@pytest.mark.xfail(strict=True, reason="is beyond")
def test_xfail_own_device():
    device = metalane.Device("cpu")
    device.compile(SOURCE, name="user.metal").beyond(device.zeros(32, np.float32), threads=32)


class TestCase(unittest.TestCase):
    def test_case_wrong(self):
        device = metalane.Device("cpu")
        device.compile(SOURCE, name="user.metal").beyond(device.zeros(32, np.float32), threads=32)


def test_others():
    assert metalane.Device("null").check == ()
    assert metalane.Device("cpu", kernels="native").check == ()
    assert metalane.Device("cpu", check=False).check == ()


def test_zz_shared(shared):
    launch(shared, "twice")
'''


class Outcome:
    """A run of pytest: what its report says of each test."""

    def __init__(self, folder: Path, *options: str) -> None:
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("METALANE_")}
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        self.status, self.text, self.errors = ran.returncode, ran.stdout, ran.stderr
        self.failures: dict[str, str] = {}
        self.errors_outside: dict[str, str] = {}  # of what was set up and torn down
        self.passed: set[str] = set()
        self.expected_to_fail: set[str] = set()
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                name = case.get("name", "").removeprefix("test_")
                failure, error, skipped = (case.find(tag) for tag in ("failure", "error", "skipped"))
                if failure is not None:
                    self.failures[name] = f"{failure.get('message')}\n{failure.text}"
                elif error is not None:
                    self.errors_outside[name] = f"{error.get('message')}\n{error.text}"
                elif skipped is not None:
                    self.expected_to_fail.add(name)
                else:
                    self.passed.add(name)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "test_user.py").write_text(SUITE)
    return tmp_path


def test_fixture_alone(suite: Path) -> None:
    outcome = Outcome(suite, "-k", "fixture")
    assert set(outcome.failures) == {"fixture_wrong", "fixture_wrong_and_failing"}, outcome.text
    assert outcome.passed == {"fixture_right", "fixture_warns", "fixture_forgets"}
    assert outcome.expected_to_fail == {"xfail_fixture"}
    # A fixture that uses the device when the test is over.
    assert set(outcome.errors_outside) == {"ends_fixture_late"}
    assert "bounds in kernel 'beyond'" in outcome.errors_outside["ends_fixture_late"]
    assert "warning: same-value in kernel 'flag' at user.metal:6" in outcome.text
    wrong = outcome.failures["fixture_wrong"]
    assert "metalane's checker found:" in wrong
    assert (
        "error: bounds in kernel 'beyond' at user.metal:5: device memory 'x'[32]: thread [31, 0, 0]" in wrong
    )
    assert "of its own" in outcome.failures["fixture_wrong_and_failing"]
    assert "bounds in kernel 'beyond'" in outcome.text.split("fixture_wrong_and_failing")[-2]


def test_whole_suite(suite: Path) -> None:
    outcome = Outcome(suite, "--metalane-check", "-k", "not fixture")
    assert set(outcome.failures) == {"own_device_wrong", "own_device_swallows", "case_wrong"}, outcome.text
    assert outcome.passed == {"own_device_right", "own_device_warns", "unchecked", "allowed", "others"}
    assert outcome.expected_to_fail == {"xfail_own_device"}
    # What a device of the module did last, when its fixture had let go of it.
    assert set(outcome.errors_outside) == {"zz_shared"}
    assert "bounds in kernel 'beyond' at late.metal:5" in outcome.errors_outside["zz_shared"]
    assert "CheckError" in outcome.failures["own_device_wrong"]
    assert "metalane's checker found:" in outcome.failures["own_device_swallows"]
    # The warnings of a test that passed and of a fixture stand at the end.
    (line,) = [line for line in outcome.text.splitlines() if line.startswith("warning: same-value")]
    assert "in kernel 'flag' at user.metal:6" in line and line.endswith("(2 tests)")


def test_strict_and_ini(suite: Path) -> None:
    (suite / "pytest.ini").write_text("[pytest]\nmetalane_check = true\nmetalane_check_strict = true\n")
    outcome = Outcome(suite, "-k", "warns or unchecked or allowed or right")
    assert set(outcome.failures) == {"own_device_warns", "fixture_warns"}, outcome.text
    assert outcome.passed == {"own_device_right", "fixture_right", "unchecked", "allowed"}


def test_kinds(suite: Path) -> None:
    outcome = Outcome(suite, "--metalane-check", "--metalane-check-kinds=races", "-k", "own_device_warns")
    assert outcome.passed == {"own_device_warns"}
    outcome = Outcome(suite, "--metalane-check", "--metalane-check-kinds=racing")
    assert outcome.status == pytest.ExitCode.USAGE_ERROR
    assert "--metalane-check-kinds: expected" in outcome.errors
    assert "'racing'" in outcome.errors


WRONG_MARKS = {
    "'no'": "expected @pytest.mark.metalane_check(watch=True",
    "True, False": "expected @pytest.mark.metalane_check(watch=True",
    "allow=3": "expected @pytest.mark.metalane_check(watch=True",
    "kinds='races'": "expected @pytest.mark.metalane_check(watch=True",
    "allow='bounds races'": "metalane_check: allow: expected words of race bounds uninitialised",
}


def test_wrong_marks(tmp_path: Path) -> None:
    (tmp_path / "test_marks.py").write_text(
        "import pytest\n\n\n"
        + "\n\n".join(
            f"@pytest.mark.metalane_check({arguments})\ndef test_{number}():\n    pass"
            for number, arguments in enumerate(WRONG_MARKS)
        )
    )
    for number, says in enumerate(WRONG_MARKS.values()):
        outcome = Outcome(tmp_path, "--metalane-check", "-k", f"test_{number}")
        assert outcome.status == pytest.ExitCode.USAGE_ERROR, outcome.text
        assert f"test_{number}: {says}" in outcome.text + outcome.errors


def test_pytest_imports_neither_metalane_nor_numpy(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\n\n"
        "def test_modules():\n"
        "    assert 'pytest_metalane' in sys.modules\n"
        "    assert not {'metalane', 'numpy', 'ml_dtypes'} & set(sys.modules)\n"
    )
    outcome = Outcome(tmp_path)
    assert outcome.passed == {"modules"}, outcome.text
