"""The metal_stdlib headers against float64 and integer oracles, on scalars and vectors, edge values included.

Every case is one expression. All are compiled in one batch with the flags of safe math; each then runs over
arrays, as a scalar function and as one of vectors of 2, 3 and 4.
"""

import ctypes
import itertools
import math
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
STDLIB = ROOT / "csrc" / "msl" / "stdlib"
PROGRAMS = sorted((ROOT / "tests/cpp/stdlib").glob("test_*.cpp"))
COMPILERS = [c for c in ("g++", "clang++", "clang++-16") if shutil.which(c)]
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
WIDTHS = (1, 2, 3, 4)

DTYPES = {
    "float": np.dtype(np.float32),
    "half": np.dtype(np.float16),
    "bfloat": np.dtype(ml_dtypes.bfloat16),
    "bool": np.dtype(np.bool_),
    "char": np.dtype(np.int8),
    "uchar": np.dtype(np.uint8),
    "short": np.dtype(np.int16),
    "ushort": np.dtype(np.uint16),
    "int": np.dtype(np.int32),
    "uint": np.dtype(np.uint32),
    "long": np.dtype(np.int64),
    "ulong": np.dtype(np.uint64),
}
REAL = ("float", "half", "bfloat")
INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}
# Significant bits, and the exponent of the smallest normal number.
PRECISION = {"float": (24, -126), "half": (11, -14), "bfloat": (8, -126)}


@dataclass(frozen=True)
class Case:
    """An expression in x, y, z; `oracle` takes as many arrays (float64, or Python integers) as `arity`."""

    name: str
    expression: str
    arity: int
    oracle: Callable
    ulps: float = 0.0  # allowed error beyond the rounding of the result, for float
    result: str = ""  # element type of the result where it is not the arguments'


def rounded_half_away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x) + np.where(np.abs(x - np.trunc(x)) >= 0.5, np.copysign(1.0, x), 0.0)


def sin_pi(x: np.ndarray) -> np.ndarray:
    r = x - 2.0 * np.rint(0.5 * x)
    r = np.where(np.abs(r) > 0.5, np.copysign(1.0, r) - r, r)
    return np.where(np.isinf(x), np.nan, np.sin(np.pi * r))


def cos_pi(x: np.ndarray) -> np.ndarray:
    return sin_pi(0.5 - np.abs(x - 2.0 * np.rint(0.5 * x)))


def minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.fmin(x, y)


def maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.fmax(x, y)


def median(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return maximum(minimum(x, y), minimum(maximum(x, y), z))


def fraction_exponent(part: int) -> Callable:
    def oracle(x: np.ndarray) -> np.ndarray:
        finite = np.where(np.isfinite(x), x, 0.0)
        return np.where(np.isfinite(x), np.frexp(finite)[part], x if part == 0 else 0)

    return oracle


def ilogb(x: np.ndarray) -> np.ndarray:
    exponent = np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1
    exponent = np.where(np.isinf(x), 2**31 - 1, exponent)
    return np.where(np.isnan(x) | (x == 0), -(2**31), exponent)


def modf_part(part: int) -> Callable:
    return lambda x: np.where(np.isinf(x), (np.copysign(0.0, x), x)[part], np.modf(x)[part])


def power_of_nonnegative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.nan, np.power(x, y))


# Bounds are Metal's for precise math (MSL 2.0, table of accuracies) or tighter.
UNARY = [
    Case("acos", "acos(x)", 1, np.arccos, 4),
    Case("acosh", "acosh(x)", 1, np.arccosh, 4),
    Case("asin", "asin(x)", 1, np.arcsin, 4),
    Case("asinh", "asinh(x)", 1, np.arcsinh, 4),
    Case("atan", "atan(x)", 1, np.arctan, 4),
    Case("atanh", "atanh(x)", 1, np.arctanh, 4),
    Case("ceil", "ceil(x)", 1, np.ceil),
    Case("cos", "cos(x)", 1, np.cos, 4),
    Case("cosh", "cosh(x)", 1, np.cosh, 4),
    Case("cospi", "cospi(x)", 1, cos_pi, 4),
    Case("exp", "exp(x)", 1, np.exp, 2),
    Case("exp2", "exp2(x)", 1, np.exp2, 2),
    Case("exp10", "exp10(x)", 1, lambda x: np.power(10.0, x), 2),
    Case("fabs", "fabs(x)", 1, np.abs),
    Case("abs", "abs(x)", 1, np.abs),
    Case("floor", "floor(x)", 1, np.floor),
    Case("log", "log(x)", 1, np.log, 2),
    Case("log2", "log2(x)", 1, np.log2, 2),
    Case("log10", "log10(x)", 1, np.log10, 2),
    Case("rint", "rint(x)", 1, np.rint),
    Case("round", "round(x)", 1, rounded_half_away),
    Case("rsqrt", "rsqrt(x)", 1, lambda x: 1.0 / np.sqrt(x), 1),
    Case("saturate", "saturate(x)", 1, lambda x: minimum(maximum(x, 0.0), 1.0)),
    Case("sign", "sign(x)", 1, lambda x: np.where(np.isnan(x), 0.0, np.sign(x))),
    Case("sin", "sin(x)", 1, np.sin, 4),
    Case("sinh", "sinh(x)", 1, np.sinh, 4),
    Case("sinpi", "sinpi(x)", 1, sin_pi, 4),
    Case("sqrt", "sqrt(x)", 1, np.sqrt),
    Case("tan", "tan(x)", 1, np.tan, 6),
    Case("tanh", "tanh(x)", 1, np.tanh, 5),
    Case("trunc", "trunc(x)", 1, np.trunc),
    Case("precise_exp", "precise::exp(x)", 1, np.exp, 2),
    Case("fast_exp", "fast::exp(x)", 1, np.exp, 2),
    Case("negate", "-x", 1, np.negative),
    Case("sincos_sin", "[&] { auto c = x; return sincos(x, c); }()", 1, np.sin, 4),
    Case("sincos_cos", "[&] { auto c = x; sincos(x, c); return c; }()", 1, np.cos, 4),
    Case("modf_fraction", "[&] { auto w = x; return modf(x, w); }()", 1, modf_part(0)),
    Case("modf_whole", "[&] { auto w = x; modf(x, w); return w; }()", 1, modf_part(1)),
    Case("frexp_fraction", "[&] { decltype(ilogb(x)) e; return frexp(x, e); }()", 1, fraction_exponent(0)),
    Case("ldexp", "ldexp(x, decltype(ilogb(x))(-3))", 1, lambda x: x / 8),
]
UNARY_OTHER = [
    Case(
        "frexp_exponent",
        "[&] { decltype(ilogb(x)) e; frexp(x, e); return e; }()",
        1,
        fraction_exponent(1),
        result="int",
    ),
    Case("ilogb", "ilogb(x)", 1, ilogb, result="int"),
    Case("isnan", "isnan(x)", 1, np.isnan, result="bool"),
    Case("isinf", "isinf(x)", 1, np.isinf, result="bool"),
    Case("isfinite", "isfinite(x)", 1, np.isfinite, result="bool"),
    Case("signbit", "signbit(x)", 1, np.signbit, result="bool"),
    Case(
        "to_int",
        "detail::with_element_t<decltype(x), int>(clamp(x, -1000.0f, 1000.0f))",
        1,
        lambda x: np.trunc(minimum(maximum(x, -1000.0), 1000.0)),
        result="int",
    ),
]
BINARY = [
    Case("add", "x + y", 2, np.add),
    Case("subtract", "x - y", 2, np.subtract),
    Case("multiply", "x * y", 2, np.multiply),
    Case("divide_operator", "x / y", 2, np.divide),
    Case("divide", "divide(x, y)", 2, np.divide),
    Case("atan2", "atan2(x, y)", 2, np.arctan2, 6),
    Case("copysign", "copysign(x, y)", 2, np.copysign),
    Case("fdim", "fdim(x, y)", 2, lambda x, y: np.where(x > y, x - y, np.where(x <= y, 0.0, np.nan))),
    Case("fmax", "fmax(x, y)", 2, maximum),
    Case("fmin", "fmin(x, y)", 2, minimum),
    Case("max", "max(x, y)", 2, maximum),
    Case("min", "min(x, y)", 2, minimum),
    Case("fmod", "fmod(x, y)", 2, np.fmod),
    Case("pow", "pow(x, y)", 2, np.power, 16),
    Case("powr", "powr(x, y)", 2, power_of_nonnegative, 16),
    Case("step", "step(x, y)", 2, lambda x, y: np.where(y < x, 0.0, 1.0)),
]
COMPARE = [
    Case("less", "x < y", 2, np.less, result="bool"),
    Case("less_equal", "x <= y", 2, np.less_equal, result="bool"),
    Case("greater", "x > y", 2, np.greater, result="bool"),
    Case("greater_equal", "x >= y", 2, np.greater_equal, result="bool"),
    Case("equal", "x == y", 2, np.equal, result="bool"),
    Case("not_equal", "x != y", 2, np.not_equal, result="bool"),
]
RELATIONAL = [
    Case("isordered", "isordered(x, y)", 2, lambda x, y: ~(np.isnan(x) | np.isnan(y)), result="bool"),
    Case("isunordered", "isunordered(x, y)", 2, lambda x, y: np.isnan(x) | np.isnan(y), result="bool"),
]
TERNARY = [
    Case(
        "clamp",
        "clamp(x, min(y, z), max(y, z))",
        3,
        lambda x, y, z: minimum(maximum(x, minimum(y, z)), maximum(y, z)),
    ),
    Case("fmax3", "max3(x, y, z)", 3, lambda x, y, z: maximum(maximum(x, y), z)),
    Case("fmin3", "min3(x, y, z)", 3, lambda x, y, z: minimum(minimum(x, y), z)),
    Case("median3", "median3(x, y, z)", 3, median),
    Case("select", "select(x, y, z > decltype(z)(0))", 3, lambda x, y, z: np.where(z > 0, y, x)),
]


def bits(value: int, width: int) -> int:
    return value & ((1 << width) - 1)


def field(value: int, width: int, signed: bool) -> int:
    value = bits(value, width)
    return value - (1 << width) if signed and value >> (width - 1) else value


class Integer:
    """Oracles of one integer type, on Python's integers."""

    def __init__(self, name: str) -> None:
        self.signed = name in UNSIGNED
        self.width = DTYPES[name].itemsize * 8
        self.low = -(1 << (self.width - 1)) if self.signed else 0
        self.high = (1 << (self.width - self.signed)) - 1

    def wrap(self, value: int) -> int:
        return field(value, self.width, self.signed)

    def saturate(self, value: int) -> int:
        return min(max(value, self.low), self.high)

    def mul24(self, x: int, y: int) -> int:
        return field(x, min(24, self.width), self.signed) * field(y, min(24, self.width), self.signed)

    def rotate(self, x: int, y: int) -> int:
        n = y % self.width
        x = bits(x, self.width)
        return (x << n) | (x >> (self.width - n))

    def divide(self, x: int, y: int) -> int:
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    def remainder(self, x: int, y: int) -> int:
        return x if y == 0 else x - y * self.divide(x, y)

    def insert(self, x: int, y: int) -> int:
        offset, count = min(3, self.width), min(7, self.width - 3)
        mask = ((1 << count) - 1) << offset
        return (bits(x, self.width) & ~mask) | ((y << offset) & mask)

    def cases(self) -> list[Case]:
        w = self.width
        return [
            Case("add", "decltype(x)(x + y)", 2, lambda x, y: x + y),
            Case("subtract", "decltype(x)(x - y)", 2, lambda x, y: x - y),
            Case(
                "divide",
                "detail::map<decltype(x)>([](auto a, auto b) { return detail::divide(a, b); }, x, y)",
                2,
                self.divide,
            ),
            Case(
                "remainder",
                "detail::map<decltype(x)>([](auto a, auto b) { return detail::remainder(a, b); }, x, y)",
                2,
                self.remainder,
            ),
            Case("and", "decltype(x)(x & y)", 2, lambda x, y: x & y),
            Case("or", "decltype(x)(x | y)", 2, lambda x, y: x | y),
            Case("xor", "decltype(x)(x ^ y)", 2, lambda x, y: x ^ y),
            Case("complement", "decltype(x)(~x)", 1, lambda x: ~x),
            Case("shift_left", "decltype(x)(x << decltype(x)(3))", 1, lambda x: x << 3),
            Case("shift_right", "decltype(x)(x >> decltype(x)(3))", 1, lambda x: x >> 3),
            Case("min", "min(x, y)", 2, min),
            Case("max", "max(x, y)", 2, max),
            Case("abs", "abs(x)", 1, abs),
            Case(
                "clamp",
                "clamp(x, min(y, z), max(y, z))",
                3,
                lambda x, y, z: min(max(x, min(y, z)), max(y, z)),
            ),
            Case("median3", "median3(x, y, z)", 3, lambda x, y, z: sorted((x, y, z))[1]),
            Case("popcount", "popcount(x)", 1, lambda x: bits(x, w).bit_count()),
            Case("clz", "clz(x)", 1, lambda x: w - bits(x, w).bit_length()),
            Case("ctz", "ctz(x)", 1, lambda x: w if x == 0 else (x & -x).bit_length() - 1),
            Case("reverse_bits", "reverse_bits(x)", 1, lambda x: int(f"{bits(x, w):0{w}b}"[::-1], 2)),
            Case("mulhi", "mulhi(x, y)", 2, lambda x, y: (x * y) >> w),
            Case("madhi", "madhi(x, y, z)", 3, lambda x, y, z: ((x * y) >> w) + z),
            Case("mul24", "mul24(x, y)", 2, self.mul24),
            Case("mad24", "mad24(x, y, z)", 3, lambda x, y, z: self.mul24(x, y) + z),
            Case("addsat", "addsat(x, y)", 2, lambda x, y: self.saturate(x + y)),
            Case("subsat", "subsat(x, y)", 2, lambda x, y: self.saturate(x - y)),
            Case("hadd", "hadd(x, y)", 2, lambda x, y: (x + y) >> 1),
            Case("rhadd", "rhadd(x, y)", 2, lambda x, y: (x + y + 1) >> 1),
            Case("madsat", "madsat(x, y, z)", 3, lambda x, y, z: self.saturate(x * y + z)),
            Case("rotate", "rotate(x, y)", 2, self.rotate),
            Case("absdiff", "absdiff(x, y)", 2, lambda x, y: abs(x - y), result="unsigned"),
            Case("extract_bits", "extract_bits(x, 2, 5)", 1, lambda x: field(x >> 2, 5, self.signed)),
            Case("extract_none", "extract_bits(x, 0, 0)", 1, lambda x: 0),
            Case("extract_all", "extract_bits(x, 0, 64)", 1, lambda x: x),
            Case("insert_bits", "insert_bits(x, y, 3, 7)", 2, self.insert),
        ]


def symbol(case: Case, dtype: str) -> str:
    return f"case_{case.name}_{dtype}"


def result_type(case: Case, dtype: str) -> str:
    if case.result == "unsigned":
        return UNSIGNED.get(dtype, dtype)
    return case.result or dtype


def fract(dtype: str) -> Case:
    """x - floor(x), at most the largest number of the type below 1."""
    below_one = 1.0 - 2.0 ** -PRECISION[dtype][0]
    return Case(
        "fract", "fract(x)", 1, lambda x: np.where(np.isinf(x), 0.0, np.minimum(x - np.floor(x), below_one))
    )


REAL_CASES = [(c, t) for c in UNARY + UNARY_OTHER + BINARY + COMPARE + RELATIONAL + TERNARY for t in REAL]
REAL_CASES += [(fract(t), t) for t in REAL]
INTEGER_CASES = [(c, t) for t in INTEGERS for c in Integer(t).cases()]
# float64 rounds twice here: fma has an oracle of its own, in exact integers.
FMA = Case("fma", "fma(x, y, z)", 3, lambda x, y, z, dtype: fused(x, y, z, dtype))
ALL_CASES = [*REAL_CASES, *INTEGER_CASES, (FMA, "float"), (FMA, "half")]


@pytest.fixture(scope="module", params=COMPILERS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("stdlib")
    halves = (ALL_CASES[::2], ALL_CASES[1::2])
    commands = []
    for number, cases in enumerate(halves):
        lines = ['#include "conformance.h"']
        lines += [
            f"CONFORMANCE_CASE({symbol(c, t)}, {t}, {result_type(c, t)}, {c.expression})" for c, t in cases
        ]
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
    library: ctypes.CDLL, case: Case, dtype: str, arguments: list[np.ndarray], width: int
) -> np.ndarray:
    count = arguments[0].size
    padded = [np.resize(a, -(-count // 12) * 12) for a in arguments]
    out = np.zeros(padded[0].size, DTYPES[result_type(case, dtype)])
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*padded, *[padded[0]] * (3 - len(padded)))]
    function = getattr(library, symbol(case, dtype))
    function(*pointers, out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(out.size), ctypes.c_int(width))
    return out[:count]


def float64(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float64)


def bit_pattern(values: np.ndarray) -> np.ndarray:
    """The values as unsigned integers, all NaNs alike."""
    pattern = values.view(f"u{values.dtype.itemsize}").copy()
    if values.dtype.kind in "fV":
        pattern[np.isnan(float64(values))] = ~np.array(0, pattern.dtype)
    return pattern


def edges(dtype: str) -> np.ndarray:
    info = ml_dtypes.finfo(DTYPES[dtype])
    positive = [0.0, float(info.smallest_subnormal), float(info.smallest_normal)]
    positive += [
        0.25,
        0.5,
        0.75,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        math.pi,
        10.0,
        88.0,
        1e4,
        float(info.max) / 2,
        float(info.max),
        math.inf,
    ]
    positive.append(float(info.smallest_normal) - float(info.smallest_subnormal))
    return np.array([s * v for v in positive for s in (1.0, -1.0)] + [math.nan]).astype(DTYPES[dtype])


def real_arguments(dtype: str, arity: int) -> list[np.ndarray]:
    generator = np.random.default_rng(arity)
    element = DTYPES[dtype]
    if arity == 1 and element.itemsize == 2:
        return [np.arange(65536, dtype=np.uint16).view(element)]
    grid = list(itertools.product(edges(dtype), repeat=min(arity, 2)))
    columns = [np.array(column, element) for column in zip(*grid, strict=True)]
    if arity == 3:
        columns.append(generator.permutation(columns[0]))
    wild = []
    for _ in range(arity):
        wild.append(
            generator.integers(0, 1 << (8 * element.itemsize), 6000, f"u{element.itemsize}").view(element)
        )
    tame = [(generator.standard_normal(6000) * 4).astype(element) for _ in range(arity)]
    return [np.concatenate(parts) for parts in zip(columns, wild, tame, strict=True)]


def error_in_ulps(given: np.ndarray, exact: np.ndarray, dtype: str) -> np.ndarray:
    """Distance in units of the last place of `exact`; 0 where both are NaN or equal, inf past the range."""
    digits, smallest = PRECISION[dtype]
    given = float64(given)
    exponent = np.maximum(np.frexp(np.where(np.isfinite(exact), exact, 0.0))[1] - 1, smallest)
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    unit = np.ldexp(1.0, exponent - (digits - 1))
    # What overflows may be the largest number or infinity, within the bound.
    with np.errstate(invalid="ignore"):
        clipped = np.where(np.isinf(given) & (np.abs(exact) >= largest), np.sign(given) * largest, given)
        distance = np.abs(clipped - np.clip(exact, -largest, largest)) / unit
    distance = np.where(given == exact, 0.0, distance)
    distance = np.where(np.isnan(given) & np.isnan(exact), 0.0, distance)
    return np.where(np.isnan(given) != np.isnan(exact), np.inf, distance)


@pytest.mark.parametrize(("case", "dtype"), REAL_CASES, ids=[f"{c.name}-{t}" for c, t in REAL_CASES])
def test_real(library: ctypes.CDLL, case: Case, dtype: str) -> None:
    arguments = real_arguments(dtype, case.arity)
    given = evaluate(library, case, dtype, arguments, 1)
    with np.errstate(all="ignore"):
        exact = case.oracle(*map(float64, arguments))
    if case.result:
        wrong = given != exact.astype(given.dtype)
        assert not wrong.any(), [(a[wrong][:5], given[wrong][:5], exact[wrong][:5]) for a in arguments]
    else:
        # Rounding to the type costs half a unit; short types add the float error behind it, which is small.
        bound = 0.5 + (case.ulps if dtype == "float" else min(case.ulps, 1) * 0.05)
        errors = error_in_ulps(given, exact, dtype)
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound, [a[worst] for a in arguments] + [given[worst], exact[worst]]
    for width in WIDTHS[1:]:
        vectors = evaluate(library, case, dtype, arguments, width)
        assert np.array_equal(bit_pattern(vectors), bit_pattern(given)), width


@pytest.mark.parametrize(("case", "dtype"), INTEGER_CASES, ids=[f"{c.name}-{t}" for c, t in INTEGER_CASES])
def test_integer(library: ctypes.CDLL, case: Case, dtype: str) -> None:
    kind = Integer(dtype)
    values = [
        kind.low,
        kind.low + 1,
        kind.high,
        kind.high - 1,
        0,
        1,
        2,
        3,
        kind.wrap(-1),
        1 << 3,
        kind.high // 3,
    ]
    generator = np.random.default_rng(0)
    grid = list(itertools.product(values, repeat=case.arity))
    wild = generator.integers(kind.low, kind.high, (200, case.arity), DTYPES[dtype], endpoint=True)
    grid += [tuple(int(v) for v in row) for row in wild]
    arguments = [np.array(column, DTYPES[dtype]) for column in zip(*grid, strict=True)]
    target = Integer(result_type(case, dtype))
    exact = np.array([target.wrap(case.oracle(*row)) for row in grid], DTYPES[result_type(case, dtype)])
    for width in WIDTHS:
        given = evaluate(library, case, dtype, arguments, width)
        wrong = given != exact
        assert not wrong.any(), [a[wrong][:5] for a in arguments] + [given[wrong][:5], exact[wrong][:5]]


def fused(x: float, y: float, z: float, dtype: str) -> float:
    """x * y + z of finite numbers, rounded once: exact in integers, scaled by a power of two."""
    ratios = [v.as_integer_ratio() for v in (x, y, z)]
    (xn, xd), (yn, yd), (zn, zd) = ratios
    numerator, denominator = xn * yn * zd + zn * xd * yd, xd * yd * zd
    digits, smallest = PRECISION[dtype]
    if numerator == 0:
        return x * y + z
    exponent = max(abs(numerator).bit_length() - denominator.bit_length() - digits - 1, smallest - digits + 1)
    while True:
        divisor = denominator << max(exponent, 0)
        quotient, rest = divmod(abs(numerator) << max(-exponent, 0), divisor)
        if quotient.bit_length() <= digits:
            break
        exponent += 1
    quotient += 2 * rest > divisor or (2 * rest == divisor and quotient % 2)
    magnitude = quotient * 2.0**exponent if exponent + quotient.bit_length() <= 1024 else math.inf
    if magnitude > float(ml_dtypes.finfo(DTYPES[dtype]).max):
        magnitude = math.inf
    return math.copysign(magnitude, numerator)


@pytest.mark.parametrize("dtype", ["float", "half"])
def test_fma(library: ctypes.CDLL, dtype: str) -> None:
    arguments = real_arguments(dtype, 3)
    generator = np.random.default_rng(3)
    # Sums that nearly cancel, where a product rounded on its own would show.
    x, y = ((1 + generator.random(2000)).astype(DTYPES[dtype]) for _ in range(2))
    close = (-(x.astype(np.float64) * y.astype(np.float64))).astype(DTYPES[dtype])
    arguments = [np.concatenate(parts) for parts in zip(arguments, (x, y, close), strict=True)]
    finite = np.all([np.isfinite(a) for a in arguments], axis=0)
    arguments = [a[finite] for a in arguments]
    given = evaluate(library, FMA, dtype, arguments, 1)
    exact = np.array([FMA.oracle(*map(float, row), dtype) for row in zip(*arguments, strict=True)])
    wrong = float64(given) != exact
    assert not wrong.any(), [a[wrong][:5] for a in arguments] + [given[wrong][:5], exact[wrong][:5]]
    for width in WIDTHS[1:]:
        assert np.array_equal(
            bit_pattern(evaluate(library, FMA, dtype, arguments, width)), bit_pattern(given)
        )


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
