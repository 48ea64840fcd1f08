"""`python -m metalane doctor`: what it tests and shows, and what it makes of a machine where something is broken."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import metalane
from devices import FOUND
from metalane import doctor_kernels, doctor_machine, testing
from metalane.__main__ import main

BY_NAME = {(case.family, case.type): case for case in doctor_kernels.CASES}
FEW = [
    BY_NAME[name]
    for name in (("metalane_copy", "bytes"), ("embedding_gather", "Q2_K"), ("from source", "f32"))
]


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_kernels, "CASES", FEW)
    monkeypatch.setattr(doctor_kernels, "DFLASH2", ())


@pytest.mark.parametrize(
    "case", doctor_kernels.CASES, ids=[f"{c.family}-{c.type}" for c in doctor_kernels.CASES]
)
def test_every_case_passes(device: metalane.Device, case: doctor_kernels.Case) -> None:
    result = doctor_kernels.run(device, case)
    assert result.passed, result
    assert result.seconds > 0


def test_cases_launch_every_built_in_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = set()

    class Recorder(doctor_kernels.Launcher):
        def launch(self, *arguments: object) -> None:
            super().launch(*arguments)
            launched.update(launch.kernel for launch in testing.last_record(self.device))

    device = metalane.Device("null")
    monkeypatch.setattr(doctor_kernels, "Launcher", Recorder)
    for case in doctor_kernels.CASES:
        assert not doctor_kernels.run(device, case).passed, f"{case} passes although nothing ran"
    assert set(device.registry.names) <= launched


def doubled(values: np.ndarray) -> np.ndarray:
    """The values, of which the largest is twice as large."""
    wrong = np.array(values)
    wrong.reshape(-1)[np.abs(wrong).argmax()] *= 2
    return wrong


ORACLES = {
    "dflash2_select_top16": ("candidates", lambda given: (given[0][..., ::-1], given[1])),
    "dflash2_select_edges": ("edges", lambda given: (doubled(given[0]), given[1])),
    "dflash2_select_path": ("path", lambda given: (*given[:2], doubled(given[2]))),
    "dflash2_select_verify_rows": ("best_ratio", lambda given: 1.001 * given),
}


@pytest.mark.parametrize("family", ORACLES)
def test_a_wrong_selection_shows(
    device: metalane.Device, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    name, spoil = ORACLES[family]
    right = getattr(doctor_kernels.dflash2_oracle, name)
    monkeypatch.setattr(doctor_kernels.dflash2_oracle, name, lambda *given: spoil(right(*given)))
    for case in doctor_kernels.DFLASH2:
        if case.family == family:
            assert not doctor_kernels.run(device, case).passed


def test_a_wrong_verification_shows(device: metalane.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the device draws where another one is right."""
    right = doctor_kernels.speculative_oracle.draw
    monkeypatch.setattr(
        doctor_kernels.speculative_oracle, "draw", lambda weights, given: right(weights, 1 - given)
    )
    for case in doctor_kernels.SPECULATIVE:
        assert not doctor_kernels.run(device, case).passed


@pytest.mark.parametrize(
    "case", [c for c in doctor_kernels.CASES if c.type == "Q2_K"], ids=lambda case: case.family
)
def test_a_wrong_product_shows(
    device: metalane.Device, monkeypatch: pytest.MonkeyPatch, case: doctor_kernels.Case
) -> None:
    """One weight of them all is another one."""
    monkeypatch.setattr(doctor_kernels, "dequantize", lambda *given: doubled(metalane.dequantize(*given)))
    result = doctor_kernels.run(device, case)
    assert not result.passed
    assert result.error > 10 * result.bound


def test_the_table_shows_it(
    few_cases: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"{len(FEW) * len(FOUND)} of {len(FEW) * len(FOUND)} tests passed; 0 problems" in shown
    monkeypatch.setattr(doctor_kernels, "dequantize", lambda *given: doubled(metalane.dequantize(*given)))
    for device in FOUND:
        assert main(["doctor", "--device", device]) == 1
        shown = capsys.readouterr().out
        assert re.search(rf"^! {device} +embedding_gather +Q2_K +FAILED", shown, re.MULTILINE)
        assert re.search(rf"^  {device} +metalane_copy +bytes +ok +0 ", shown, re.MULTILINE)
        assert f"{len(FEW) - 1} of {len(FEW)} tests passed" in shown


def test_json_has_everything(few_cases: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {fact["section"] for fact in said["facts"]} == {
        "versions",
        "system",
        "compilers",
        "caches",
        "devices",
    }
    assert [row["device"] for row in said["tests"]] == [kind for kind in FOUND for _ in FEW]
    for row in said["tests"]:
        assert (
            row["passed"]
            and 0 <= row["error"] <= row["bound"]
            and row["seconds"] > 0
            and row["problem"] == ""
        )


def test_unknown_devices_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "abacus"]) == 2
    assert f"this machine has {', '.join(FOUND)}, no 'abacus'" in capsys.readouterr().err


SCRIPT = """
import sys
from metalane import doctor_kernels
from metalane.__main__ import main
names = ("metalane_copy", "from source")
doctor_kernels.CASES = [case for case in doctor_kernels.CASES if case.family in names]
doctor_kernels.DFLASH2 = ()
sys.exit(main(["doctor", "--device", "cpu", "--json"]))
"""


@pytest.mark.cpu
@pytest.mark.linux
@pytest.mark.parametrize(
    ("changes", "section", "words"),
    [
        ({"CXX": "/nowhere/c++"}, "compilers", "CXX names '/nowhere/c++', which is no program"),
        ({"PATH": "/nowhere", "CXX": None}, "compilers", "none on PATH"),
        ({"METALANE_CACHE_DIR": "/proc/self/cache"}, "caches", "/proc/self cannot be written"),
        ({"METALANE_CACHE_DIR": "/dev/null"}, "caches", "/dev/null cannot be written"),
    ],
    ids=["CXX", "no compiler", "cache", "cache is a file"],
)
def test_what_is_broken_is_a_line(
    changes: dict[str, str | None], section: str, words: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "METALANE_CACHE_DIR": str(tmp_path), **changes}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={name: value for name, value in environment.items() if value is not None},
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    (broken,) = [fact for fact in said["facts"] if fact["problem"]]
    assert broken["section"] == section
    assert words in broken["value"]
    results = {row["family"]: row for row in said["tests"]}
    assert results["metalane_copy"]["passed"]
    assert not results["from source"]["passed"]
    assert results["from source"]["problem"].startswith("CompileError:")


def test_a_machine_without_devices(
    few_cases: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metalane._core, "devices", list)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert re.search("^! devices +none +there is no device", shown, re.MULTILINE)
    assert "0 of 0 tests passed; 1 problems" in shown


def test_programs_that_do_not_answer() -> None:
    assert doctor_machine.answer_of(sys.executable, "-c", "print('one\\ntwo')") == "one"
    assert doctor_machine.answer_of(sys.executable, "-c", "raise SystemExit(3)") is None
    assert doctor_machine.answer_of("/nowhere/compiler", "--version") is None
