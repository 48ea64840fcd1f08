"""The worked example of docs/checker.md does what the document says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from metalane.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "checker"


def line_of(text: str) -> int:
    source = (EXAMPLE / "softmax.metal").read_text()
    assert source.count(text) == 1
    return source[: source.index(text)].count("\n") + 1


def test_the_race_is_found_and_mended() -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLE / "find_a_race.py"], capture_output=True, text=True, check=True, timeout=300
    )
    broken, *findings, repaired = ran.stdout.splitlines()
    assert re.fullmatch(r"As written: relative error \S+, 2 findings", broken)
    assert len(findings) == 2
    first_load, loop = line_of("  float all = partial[0];"), line_of("all = max(all, partial[i])")
    store = line_of("value = simd_sum(value);") + 1
    assert (
        f"race in kernel 'softmax' at softmax.metal:{first_load}: threadgroup memory 'partial'[0]"
        in findings[0]
    )
    assert f"stores 4 bytes at softmax.metal:{store}" in findings[0]
    assert f"race in kernel 'softmax' at softmax.metal:{store}: threadgroup memory 'partial'" in findings[1]
    assert f"loads 4 bytes at softmax.metal:{loop}" in findings[1]
    error = re.fullmatch(r"Repaired: relative error (\S+), 0 findings", repaired)
    assert error is not None
    assert float(error[1]) < 1e-6


def test_the_cases_of_the_example(capsys) -> None:
    status = main(["check", str(EXAMPLE / "softmax.metal"), "--cases", str(EXAMPLE / "softmax.toml")])
    printed = capsys.readouterr().out
    assert status == 1
    assert printed.splitlines()[-1] == "2 errors, 0 warnings in 1 launch"


def test_the_repaired_softmax_by_the_command(tmp_path: Path, capsys) -> None:
    text = (EXAMPLE / "softmax.metal").read_text()
    store = "  value = simd_sum(value);\n"
    repaired = tmp_path / "softmax.metal"
    repaired.write_text(text.replace(store, "  threadgroup_barrier(mem_flags::mem_threadgroup);\n" + store))
    assert main(["check", str(repaired), "--cases", str(EXAMPLE / "softmax.toml"), "--strict"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 errors, 0 warnings in 1 launch"


def test_the_program_of_the_document_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "checker.md").read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    (finding,) = ran.stdout.splitlines()
    assert finding.startswith(
        "bounds in kernel 'shift' at shift.metal:2: device memory 'x'[32]: thread [31, 0, 0]"
    )
