"""The metal_stdlib headers by themselves, under every compiler of the machine: the tables of tests/ops/oracle again
with the compiler that the CPU device would not take, and the C++ tests of tests/cpp/stdlib."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from ops.oracle.msl_integer import INTEGERS, Integer
from ops.oracle.msl_real import (
    ARITY_1,
    ARITY_MORE,
    DTYPES,
    PRELUDE,
    REAL,
    Case,
    arguments,
    bit_pattern,
    bound,
    error_in_ulps,
    float64,
    typed_cases,
)

pytestmark = [pytest.mark.cpu, pytest.mark.linux]
ROOT = Path(__file__).resolve().parents[2]
STDLIB = ROOT / "csrc" / "msl" / "stdlib"
PROGRAMS = sorted((ROOT / "tests/cpp/stdlib").glob("test_*.cpp"))
COMPILERS = [c for c in ("g++", "clang++", "clang++-16") if shutil.which(c)]
# tests/ops/test_stdlib_*.py run the tables through the device's compiler, which is GCC wherever there is one.
BATCH_COMPILERS = [c for c in COMPILERS if "clang" in c][-1:] or COMPILERS[:1]
SAFE_FLAGS = [
    "-O1",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
]
SAFE_FLAGS += ["-fwrapv", "-fsigned-char", "-Wall", "-Wextra", "-Werror"]
# Clang keeps float precision between half operations of one expression unless told otherwise.
CLANG_FLAGS = ["-Xclang", "-ffloat16-excess-precision=none"]

REAL_CASES = [(c, t) for t in REAL for c in (*ARITY_1, *ARITY_MORE, *typed_cases(t))]
# Divisions of scalars are the adapter's: the headers alone do not have them.
INTEGER_CASES = [
    (c, t) for t in INTEGERS for c in Integer(t).cases() if c.name not in ("divide", "remainder")
]
ALL_CASES = [*REAL_CASES, *INTEGER_CASES]


def symbol(case: Case, dtype: str) -> str:
    return f"case_{case.name}_{dtype}"


@pytest.fixture(scope="module", params=BATCH_COMPILERS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("stdlib")
    halves = (ALL_CASES[::2], ALL_CASES[1::2])
    commands = []
    for number, cases in enumerate(halves):
        lines = ['#include "conformance.h"', "using namespace metal;", PRELUDE]
        lines += [f"CONFORMANCE_CASE({symbol(c, t)}, {t}, {c.result or t}, {c.expression})" for c, t in cases]
        source = folder / f"batch{number}.cpp"
        source.write_text("\n".join(lines) + "\n")
        command = [request.param, "-std=c++17", *SAFE_FLAGS, "-fPIC", "-c", str(source), "-o"]
        command += [str(source.with_suffix(".o")), f"-I{STDLIB}", f"-I{ROOT / 'tests/cpp/stdlib'}"]
        if "clang" in request.param:
            command += CLANG_FLAGS
        commands.append(command)
    with ThreadPoolExecutor(2) as pool:
        for compiled in pool.map(lambda c: subprocess.run(c, stderr=subprocess.PIPE, text=True), commands):
            assert compiled.returncode == 0, compiled.stderr[:4000]
    path = folder / "conformance.so"
    objects = [str(folder / f"batch{n}.o") for n in range(len(halves))]
    # g++ links in both cases: Clang's half conversions are in the same runtime library.
    subprocess.run(["g++", "-shared", "-o", str(path), *objects, "-lm"], check=True)
    return ctypes.CDLL(str(path))


def evaluate(
    library: ctypes.CDLL, case: Case, dtype: str, values: list[np.ndarray], width: int
) -> np.ndarray:
    count = values[0].size
    padded = [np.resize(a, -(-count // 12) * 12) for a in values]
    out = np.zeros(padded[0].size, DTYPES[case.result or dtype])
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*padded, *[padded[0]] * (3 - len(padded)))]
    function = getattr(library, symbol(case, dtype))
    function(*pointers, out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(out.size), ctypes.c_int(width))
    return out[:count]


@pytest.mark.parametrize(("case", "dtype"), REAL_CASES, ids=[f"{c.name}-{t}" for c, t in REAL_CASES])
def test_real(library: ctypes.CDLL, case: Case, dtype: str) -> None:
    values = arguments(dtype, case.arity)
    given = evaluate(library, case, dtype, values, 1)
    with np.errstate(all="ignore"):
        exact = case.oracle(*map(float64, values))
    if case.result:
        wrong = given != exact.astype(given.dtype)
        assert not wrong.any(), [(a[wrong][:5], given[wrong][:5], exact[wrong][:5]) for a in values]
    else:
        errors = error_in_ulps(given, exact, dtype)
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound(case, dtype), [a[worst] for a in values] + [given[worst], exact[worst]]
    for width in (2, 3, 4):
        vectors = evaluate(library, case, dtype, values, width)
        assert np.array_equal(bit_pattern(vectors), bit_pattern(given)), width


@pytest.mark.parametrize(("case", "dtype"), INTEGER_CASES, ids=[f"{c.name}-{t}" for c, t in INTEGER_CASES])
def test_integer(library: ctypes.CDLL, case: Case, dtype: str) -> None:
    kind = Integer(dtype)
    values = [np.array(column, DTYPES[dtype]) for column in zip(*kind.arguments(), strict=True)]
    exact = kind.exact(case)
    for width in (1, 2, 3, 4):
        given = evaluate(library, case, dtype, values, width)
        wrong = given != exact
        assert not wrong.any(), [a[wrong][:5] for a in values] + [given[wrong][:5], exact[wrong][:5]]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("source", PROGRAMS, ids=[p.stem for p in PROGRAMS])
def test_program(compiler: str, source: Path, tmp_path: Path) -> None:
    """The C++ tests of the headers; with GCC under the sanitizers for addresses and undefined behaviour."""
    program = tmp_path / source.stem
    command = [compiler, "-std=c++17", *(f for f in SAFE_FLAGS if f not in ("-fno-exceptions", "-fno-rtti"))]
    if "clang" in compiler:
        command += CLANG_FLAGS
    else:
        command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command += [str(source), "-o", str(program), f"-I{STDLIB}", f"-I{ROOT / 'tests/cpp'}", "-lm", "-pthread"]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr[:4000]
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
