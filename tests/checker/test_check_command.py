"""`python -m metalane check`: what it launches, prints and exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metalane.__main__ import main
from metalane.check_command import finding_lines

SOURCE = """\
#include <metal_stdlib>
#include "tile.h"
using namespace metal;
struct Shape { uint rows; float scale[2]; };
constant bool SQUARE [[function_constant(0)]];

kernel void good(device const float4* x, device float* out, constant Shape& shape, constant uint& n,
                 device atomic_uint* count, device const bool* flags, device bfloat* b, device void* any,
                 threadgroup float* s [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                 uint t [[thread_position_in_threadgroup]]) {
  s[t] = x[i].x * shape.scale[1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = s[t ^ 1] + float(flags[i]) + float(b[i]) + float(((device uchar*)any)[i]);
  if (i < n) atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
}

kernel void tail(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = x[i + TILE - 8];
}

kernel void warns(device uint* flag, device const float* lambda, uint i [[thread_position_in_grid]]) {
  if (lambda[0] == lambda[0]) flag[0] = 1;
}

kernel void adds(device float* sums, constant float2& v, uint2 p [[thread_position_in_grid]],
                 uint2 n [[threads_per_grid]]) {
  sums[p.y * n.x + p.x] += SQUARE ? v.x * v.x : v.y;
}

kernel void asks(device const float* fresh, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = fresh[i];
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "tile.h").write_text("#define TILE 8u\n")
    path = tmp_path / "kernels.metal"
    path.write_text(SOURCE)
    return path


class Result:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def check(source: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, file: Path = source) -> Result:
        status = main(["check", str(file), *arguments])
        return Result(status, *capsys.readouterr())

    return run


def line_of(text: str) -> int:
    return SOURCE[: SOURCE.index(text)].count("\n") + 1


def test_a_right_kernel_is_silent(check: Any, source: Path) -> None:
    result = check("--kernel", "good", "--constant", "SQUARE=true")
    assert result.status == 0, result.out + result.err
    first, last = result.out.splitlines()
    assert first.startswith(
        f"{source}: kernel 'good': 256 threads in threadgroups of 64; x: 256 f32x4, random, "
    )
    # Small numbers, counters from nothing, an element of threadgroup memory a thread.
    assert re.search(r", n = [1-8] \(random\), ", first)
    assert "count: 256 u32, zeros" in first
    assert "s: 256 bytes" in first
    assert last == "0 errors, 0 warnings in 1 launch"


def test_an_error_is_printed_as_compilers_do(check: Any, source: Path) -> None:
    result = check(
        "--kernel", "tail", "--set", "x={count = 100}", "--threads", "120", "--constant", "SQUARE=true"
    )
    assert result.status == 1
    where = f"{source}:{line_of('  out[i] = x[i + TILE')}"
    lines = result.out.splitlines()
    (error,) = [number for number, line in enumerate(lines) if line.startswith(where)]
    assert lines[error].startswith(f"{where}: error: bounds: device memory 'x'[100]: thread [100, 0, 0] ")
    assert "400 bytes" in lines[error]
    assert lines[error + 1] == "    out[i] = x[i + TILE - 8];"
    assert lines[-1] == "1 error, 0 warnings in 1 launch"


def test_made_up_structs_are_shown_by_field(check: Any, tmp_path: Path) -> None:
    file = tmp_path / "struct.metal"
    file.write_text(
        "struct Inner { ushort a[2]; };\nstruct Outer { uint n; Inner inner; };\n"
        "kernel void k(constant Outer& outer, device uint* y) { if (outer.n > 9) y[0] = 1; }\n"
    )
    result = check(file=file)
    assert result.status == 0
    assert re.search(
        r"; outer = \{'n': [0-7], 'inner': \{'a': \[[0-7], [0-7]\]\}\} \(random\), y: 256 u32", result.out
    )


def test_a_reader_that_has_seen_enough(source: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "metalane",
        "check",
        str(source),
        "--kernel",
        "good",
        "--constant",
        "SQUARE=true",
    ]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ran.stdout is not None and ran.stderr is not None
    ran.stdout.close()
    assert (ran.stderr.read(), ran.wait(timeout=60)) == (b"", 1)
    ran.stderr.close()


def test_warnings_fail_only_where_strict(check: Any, source: Path) -> None:
    result = check("--kernel", "warns", "--constant", "SQUARE=true")
    assert result.status == 0
    where = f"{source}:{line_of('  if (lambda[0]')}"
    lines = result.out.splitlines()
    assert lines[1].startswith(f"{where}: warning: same-value: device memory 'flag'[0]: ")
    assert lines[2] == "    if (lambda[0] == lambda[0]) flag[0] = 1;"
    assert lines[3] == f"{where}: note: the other access is here, in kernel 'warns'"
    assert lines[-1] == "0 errors, 1 warning in 1 launch"
    assert check("--kernel", "warns", "--constant", "SQUARE=true", "--strict").status == 1
    assert check("--kernel", "warns", "--constant", "SQUARE=true", "--kinds", "bounds").out.count("\n") == 2


def test_every_kernel_without_a_name(check: Any) -> None:
    result = check("--constant", "SQUARE=false", "--threads", "16,4", "--group", "8,2")
    kernels = re.findall(r"kernel '(\w+)': 16x4 threads in threadgroups of 8x2", result.out)
    assert kernels == ["good", "tail", "warns", "adds", "asks"]


def test_json_holds_the_report(check: Any, source: Path) -> None:
    result = check(
        "--kernel", "asks", "--constant", "SQUARE=true", "--set", "fresh={fill = 'empty', count = 40}",
        "--threads", "40", "--group", "32", "--json",
    )  # fmt: skip
    assert result.status == 1
    (launch,) = json.loads(result.out)
    assert (launch["kernel"], launch["threads"], launch["group"], launch["seed"]) == ("asks", [40], [32], 0)
    (finding,) = launch["findings"]
    assert (finding["kind"], finding["severity"], finding["argument"]) == ("uninitialised", "error", "fresh")
    assert (finding["count"], finding["bound_nbytes"]) == (40, 160)
    assert finding["access"]["line"] == line_of("  out[i] = fresh[i]")
    assert finding["access"]["file"] == str(source)


CASES = """
[[case]]
kernel = "adds"
threads = [6, 4]
group = [2, 2]
seed = 7
[case.arguments]
v = [2.0, 0.5]
sums = {count = 24, fill = "arange"}
[case.constants]
SQUARE = true

[[case]]
kernel = "good"
threads = 32
arguments = {n = 3, shape = {rows = 1, scale = [1.0, 2.0]}, flags = [true, false, true], x = {count = 8}}
constants = {SQUARE = false}
memory = {s = 256}
"""


def test_cases_of_a_file(check: Any, tmp_path: Path) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text(CASES)
    result = check("--cases", str(cases))
    first, second = [line for line in result.out.splitlines() if ": kernel '" in line]
    assert "kernel 'adds': 6x4 threads in threadgroups of 2x2; sums: 24 f32, arange, v = [2.0, 0.5]" in first
    assert "n = 3, " in second
    assert "s: 256 bytes" in second
    assert "flags: 3 numbers given" in second
    # Eight elements are bound for 32 threads, of which any may be the first beyond.
    assert result.status == 1
    outside = re.search(r"bounds: device memory 'x'\[(\d+)\]: thread \[(\d+), 0, 0\]", result.out)
    assert outside is not None
    assert outside[1] == outside[2]
    assert 8 <= int(outside[1]) < 32
    assert result.out.splitlines()[-1] == "1 error, 0 warnings in 2 launches"


def test_a_launch_that_fails_otherwise(check: Any, tmp_path: Path) -> None:
    file = tmp_path / "endless.metal"
    file.write_text("kernel void spin(device volatile uint* x) { while (x[0] < 9) { } }\n")
    result = check("--timeout", "0.3", "--set", "x=[1]", "--threads", "1", file=file)
    assert result.status == 1
    assert f"{file}: error: " in result.out
    assert result.out.splitlines()[-1] == "1 error, 0 warnings in 1 launch"


def test_seeds_repeat(check: Any) -> None:
    arguments = ("--kernel", "good", "--constant", "SQUARE=true", "--seed")
    assert check(*arguments, "5").out == check(*arguments, "5").out
    assert len({check(*arguments, str(seed)).out for seed in range(6)}) > 1


WRONG = {
    "no such kernel": (("--kernel", "god"), "god"),
    "no such argument": (("--kernel", "tail", "--set", "y=1"), "argument 'y': expected one of x, out"),
    "no such memory": (("--kernel", "tail", "--memory", "s=16"), "memory 's': expected one of none"),
    "threads": (("--threads", "0"), "--threads: expected 1 to 3 positive integers"),
    "threads as words": (("--threads", "a,b"), "--threads: expected 1 to 3 positive integers"),
    "four axes": (("--group", "1,1,1,1"), "--group: expected 1 to 3 positive integers"),
    "no value": (("--set", "x"), "--set: expected NAME=VALUE, got 'x'"),
    "a value that is none": (("--set", "x=?"), "--set x: expected a value as TOML has it"),
    "two values": (("--set", "x=1\ny=2"), "--set x: expected a value as TOML has it"),
    "twice": (("--set", "n=1", "--set", "n=2"), "--set n: expected once, got twice"),
    "a number for an array": (
        ("--kernel", "tail", "--set", "x=1"),
        "argument 'x': expected a list or {count",
    ),
    "no such fill": (("--kernel", "tail", "--set", "x={fill='ones'}"), "fill: expected one of random, zeros"),
    "no such field": (("--kernel", "tail", "--set", "x={size=1}"), "expected count and fill, got 'size'"),
    "a count": (("--kernel", "tail", "--set", "x={count=-1}"), "count: expected a positive integer, got -1"),
    "too large": (("--kernel", "tail", "--set", "x={count=300000000000}"), "expected at most"),
    "unequal lists": (("--kernel", "tail", "--set", "x=[[1],[2,3]]"), "expected a list of numbers of f32"),
    "words for numbers": (("--kernel", "tail", "--set", "x=['a']"), "expected a list of numbers of f32"),
    "out of range": (("--kernel", "warns", "--set", "flag=[-1]"), "expected a list of numbers of u32"),
    "out of a scalar's range": (("--kernel", "good", "--set", "n=-1"), "(n) must be"),
    "kinds": (("--kinds", "racing"), "'racing'"),
    "no kinds": (("--kinds", " "), "--kinds: expected some of 'races bounds"),
    "2^64 threads": (("--kernel", "tail", "--threads", "1073741824,1073741824,16"), "expected at most"),
    "thousands of brackets": (
        ("--kernel", "tail", "--set", "x=" + "[" * 5000 + "]" * 5000),
        "as TOML has it",
    ),
    "seed": (("--seed", "-1"), "--seed: expected an integer from 0 on"),
    "constant": (("--constant", "ROUND=1"), "ROUND"),
    "bytes": (("--kernel", "good", "--memory", "s='x'"), "memory 's': expected a number of bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_commands_are_told_in_a_line(check: Any, name: str) -> None:
    arguments, expected = WRONG[name]
    given = arguments if "--constant" in arguments else (*arguments, "--constant", "SQUARE=true")
    result = check(*given)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("metalane check: ")
    assert result.err.count("\n") == 1
    assert expected in result.err


WRONG_CASES = {
    "kernel = 'a'": "expected tables [[case]] and nothing else",
    "case = 1": "expected tables [[case]]",
    "[[case]]": "case 1: kernel: expected a name, got None",
    "[[case]]\nkernel = 'tail'\ncount = 1": "case 1: expected kernel, threads, group, seed, arguments",
    "[[case]]\nkernel = 'tail'\nthreads = []": "case 1: threads: expected 1 to 3 positive integers",
    "[[case]]\nkernel = 'tail'\narguments = 1": "case 1: arguments: expected a table, got 1",
    "[[case]]\nkernel = 'tail'\nseed = -1": "case 1: seed: expected an integer from 0 on, got -1",
    "[[case": "cases.toml",
    "a = " + "[" * 5000 + "]" * 5000: "expected values in a few brackets, got too many",
    "\0": "cases.toml",
}


@pytest.mark.parametrize("text", WRONG_CASES, ids=lambda text: text[:40])
def test_wrong_case_files_are_told_in_a_line(check: Any, tmp_path: Path, text: str) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text(text)
    result = check("--cases", str(cases))
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert WRONG_CASES[text] in result.err


def test_files_that_are_not_there(check: Any, tmp_path: Path) -> None:
    missing = tmp_path / "none.metal"
    assert f"{missing}: No such file" in check(file=missing).err
    assert "none.toml: No such file" in check("--cases", str(tmp_path / "none.toml")).err
    binary = tmp_path / "binary.metal"
    binary.write_bytes(b"\xff\xfe")
    result = check(file=binary)
    assert (result.status, result.err) == (2, f"metalane check: {binary}: expected text in UTF-8\n")
    including = tmp_path / "including.metal"
    including.write_text('#include "binary.metal"\nkernel void k(device float* x) {}\n')
    result = check(file=including)
    assert (result.status, result.err) == (2, f"metalane check: {binary}: expected text in UTF-8\n")
    result = check("--cases", str(tmp_path / "none.toml"), "--seed", "3")
    assert "--seed: expected in" in result.err


def test_a_source_that_does_not_compile(check: Any, tmp_path: Path) -> None:
    file = tmp_path / "wrong.metal"
    file.write_text("kernel void k(device float* x) { x[0] = nothing; }\n")
    result = check(file=file)
    assert result.status == 1
    assert f"{file}:1" in result.err


def test_lines_of_files_that_are_not_known() -> None:
    from metalane.check import CheckAccess, CheckFinding

    access = CheckAccess("k", "gone.h", 3, "store", 4, (1, 0, 0), (0, 0, 0), 1, 0, 1)
    message = "race in kernel 'k' at gone.h:3: what"
    finding = CheckFinding("race", "error", "x", "device", 4, 1, 8, access, access, 2, message)
    assert finding_lines(finding, lambda file, line: None) == [
        "gone.h:3: error: race: what (2 times)",
        "gone.h:3: note: the other access is here, in kernel 'k'",
    ]


TRAFFIC = """\
#include <metal_stdlib>
using namespace metal;
kernel void moves(device const float* x, device const float* one, device float* y,
                  uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[128];
  s[2 * t] = x[16 * i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = s[2 * (63 - t)] * one[0];
}
"""


def test_traffic_is_a_table(check: Any, tmp_path: Path) -> None:
    file = tmp_path / "moves.metal"
    file.write_text(TRAFFIC)
    result = check(
        "--threads", "128", "--group", "64", "--set", "x={count=2048}", "--set", "one=[3.0]", "--traffic", file=file
    )  # fmt: skip
    assert result.status == 0, result.out
    rows = [re.split(r"  +", line) for line in result.out.splitlines()]
    traffic = {tuple(row[1:3]): row for row in rows if len(row) == 9}
    # 128 threads, four bytes each. A stride of 16 floats: 32 lanes touch 16 lines of 128 bytes; one of two floats in
    # threadgroup memory: half of the banks, each twice. All 32 lanes, and all 64 threads, load the same one.
    expected = {
        ("load", "device x"): ("6", "1.00", "1.00", "16.00", "-"),
        ("store", "threadgroup s"): ("6", "1.00", "1.00", "-", "2.00"),
        ("load", "threadgroup s"): ("8", "1.00", "1.00", "-", "2.00"),
        ("load", "device one"): ("8", "32.00", "64.00", "1.00", "-"),
        ("store", "device y"): ("8", "1.00", "1.00", "1.00", "-"),
    }
    assert set(traffic) == {("access", "argument"), *expected}
    for key, (line, *ratios) in expected.items():
        assert traffic[key] == [f"{file}:{line}", *key, "128", "512", *ratios]
    assert [f"{file}:7", "threadgroup_barrier", "2"] in rows
    # Each element of s is stored by one thread and loaded by another, of the other simdgroup.
    assert ["device x", "512", "0", "1.00", "1.00", "1.00"] in rows
    assert ["threadgroup s", "512", "512", "1.00", "1.00", "2.00"] in rows
    assert ["device one", "512", "0", "1.00", "32.00", "64.00"] in rows
