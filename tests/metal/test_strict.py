"""Every built-in shader, as Metal's compiler would be given it, under the strict check; and that the check bites."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import metalane as ml
from metal.strict import strict_check

STRICT = Path(__file__).parent / "strict"
needs_clang = pytest.mark.skipif(strict_check.CLANG is None, reason="needs Clang 16 or newer")


def builtin_texts() -> dict[str, str]:
    """The texts handed to Metal by family; each has all instances of its kernels."""
    registry = ml.Device("cpu").registry
    texts = {registry.metal_source(name) for name in registry.names}
    return {next(iter(re.findall(r'#line 1 "(\w+)"', text))): text for text in texts}


@pytest.fixture(scope="module")
def builtins() -> dict[str, str]:
    return builtin_texts()


def test_every_family_is_checked(builtins: dict[str, str]) -> None:
    listed = (STRICT.parents[2] / "shaders/families.txt").read_text().splitlines()
    assert sorted(builtins) == sorted(line for line in listed if line and not line.startswith("#"))


@needs_clang
@pytest.mark.parametrize("family", sorted(builtin_texts()))
def test_builtin_shaders_are_strict(builtins: dict[str, str], family: str) -> None:
    assert strict_check.check(builtins[family]) == []


def expected_faults(text: str) -> dict[int, str]:
    marks = {i: re.search(r"// fault: (.*)", line) for i, line in enumerate(text.splitlines(), 1)}
    return {i: mark[1] for i, mark in marks.items() if mark}


@needs_clang
def test_planted_faults_are_found_and_nothing_else() -> None:
    text = (STRICT / "faults.metal").read_text()
    found: dict[int, str] = {}
    for fault in strict_check.check(f'#line 1 "faults"\n{text}'):
        line, what = re.fullmatch(r"faults:(\d+): (.*)", fault).groups()
        found[int(line)] = found.get(int(line), "") + what
    expected = expected_faults(text)
    assert len(expected) > 40
    assert {line: what for line, what in expected.items() if what not in found.get(line, "")} == {}
    assert {line: what for line, what in found.items() if line not in expected} == {}


@needs_clang
def test_the_right_twins_pass() -> None:
    assert strict_check.check((STRICT / "right.metal").read_text()) == []


# A fault in a built-in shader, by family: what is replaced, by what, and what the check says.
SPOILED = {
    "dflash2_selector": (
        "threadgroup const OrderedKey* lists,",
        "device const OrderedKey* lists,",
        "no matching function for call to",
    ),
    "quantized_matmul_ggml": (
        "threadgroup float4* to = (threadgroup float4*)(tile",
        "threadgroup float4* to = (device float4*)(tile",
        "converts between mismatching address spaces",
    ),
    "quantized_matmul_id_ggml": (
        "static inline float half_power(uint e) { return",
        "static inline float half_power(uint e) { return e > 9 ? half_power(e - 1) :",
        "half_power is recursive",
    ),
    "speculative_verify": (
        "threadgroup const uint* ids;",
        "device const uint* ids;",
        "assigning to 'const __global uint *'",
    ),
}


@needs_clang
@pytest.mark.parametrize("family", SPOILED)
def test_faults_in_builtin_shaders_are_found(builtins: dict[str, str], family: str) -> None:
    right, wrong, expected = SPOILED[family]
    assert builtins[family].count(right) == 1
    faults = strict_check.check(builtins[family].replace(right, wrong))
    assert faults and all(expected in fault for fault in faults)


@needs_clang
@pytest.mark.parametrize("header", ["math.h", "vector"])
def test_headers_that_metal_has_not(header: str) -> None:
    (fault,) = strict_check.check(f'#line 1 "includes"\n#include <{header}>\n')
    assert fault == f"includes:1: '{header}' file not found"


# What the reader says to every user, without Clang: a fault, its right twin, and part of the message.
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = "kernel void k(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ {} }}"
READER = [
    ("void f(float* p) {}", "void f(device float* p) {}", "a pointer to float must say where that is"),
    ("void f(const uint3& p) {}", "void f(thread const uint3& p) {}", "a reference to uint3 must say where that is"),
    ("float pi = 3.0f;", "constant float pi = 3.0f;", 'variable "pi" outside functions must be in constant memory'),
    ("constexpr uint n = 4;", "constexpr constant uint n = 4;", 'variable "n" outside functions'),
    (KERNEL.format("static int n = 0;"), KERNEL.format("int n = 0;"), "no static variables inside functions"),
    ("int f() { static const int n = 1; return n; }", "int f() { const int n = 1; return n; }", "no static variables"),
    ("void f() { threadgroup int t[2]; }", KERNEL.format("threadgroup int t;"), "must be declared in a kernel"),
    (
        "template <int N> void f() { threadgroup int t[N]; }",
        "template <int N> kernel void f() { threadgroup int t[N]; }",
        'threadgroup variable "t" must be declared in a kernel',
    ),
    (
        "void f(device float* d) { threadgroup float* t = d + 1; }",
        "void f(device float* d) { device float* t = d + 1; }",
        '"t" points into threadgroup memory, and this into device memory',
    ),
    (
        "void g(constant float* c) {} void f(device float* d) { g(d); }",
        "void g(constant float* c) {} void f(constant float* d) { g(d); }",
        "argument 1 of g points into constant memory, and this into device memory",
    ),
    (KERNEL.format("goto end; end:;"), KERNEL.format("return;"), "the Metal Shading Language has no goto"),
    (KERNEL.format("double x = 1;"), KERNEL.format("float x = 1;"), "double is no type of the Metal Shading Language"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "right", "expected"), READER)
def test_the_reader_refuses_what_metal_would(wrong: str, right: str, expected: str) -> None:
    device = ml.Device("cpu")
    other = "\nkernel void other(device float* out [[buffer(0)]]) { out[0] = 1; }\n"
    with pytest.raises(ml.CompileError, match=re.escape(expected)):
        device.compile(HEAD + wrong + other)
    device.compile(HEAD + right + other)
