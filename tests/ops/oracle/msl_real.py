"""Functions of real numbers in metal_stdlib: what each gives, in float64 or exact integers, and how far off it may be.

Bounds for float are this library's own (docs/stdlib.md has what was measured). Those for half are tighter than the
1 ulp of the accuracy table in Apple's MSL 2.0 specification: a float result, rounded once. bfloat is held to the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

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
# Significant bits, and the exponent of the smallest normal number.
PRECISION = {"float": (24, -126), "half": (11, -14), "bfloat": (8, -126)}

# How MSL writes what has two results, or what needs a name: in front of every generated source.
PRELUDE = """
template <typename V> V sincos_sine(V x) { V c; return sincos(x, c); }
template <typename V> V sincos_cosine(V x) { V c; sincos(x, c); return c; }
template <typename V> V modf_fraction(V x) { V whole; return modf(x, whole); }
template <typename V> V modf_whole(V x) { V whole; modf(x, whole); return whole; }
template <typename V> V frexp_fraction(V x) { decltype(ilogb(x)) e; return frexp(x, e); }
template <typename V> decltype(ilogb(V())) frexp_exponent(V x) { decltype(ilogb(x)) e; frexp(x, e); return e; }
template <typename V> V scaled(V x, V y) { return ldexp(x, decltype(ilogb(x))(clamp(y, V(-40), V(40)))); }
"""


@dataclass(frozen=True)
class Case:
    """An expression in x, y, z; `oracle` takes as many arrays (float64, or Python integers) as `arity`."""

    name: str
    expression: str
    arity: int
    oracle: Callable
    ulps: float = 0.0  # allowed error beyond the rounding of the result, for float
    result: str = ""  # element type of the result where it is not the arguments'

    @property
    def function(self) -> str:
        """What the expression calls; empty for operators and for what PRELUDE makes of a function."""
        name = self.expression.split("(")[0]
        return name if name.isidentifier() and f" {name}(" not in PRELUDE else ""


def rounded_half_away(x: np.ndarray) -> np.ndarray:
    away = np.trunc(x) + np.where(np.abs(x - np.trunc(x)) >= 0.5, np.copysign(1.0, x), 0.0)
    return np.copysign(away, x)


def sin_pi(x: np.ndarray) -> np.ndarray:
    r = x - 2.0 * np.rint(0.5 * x)
    r = np.where(np.abs(r) > 0.5, np.copysign(1.0, r) - r, r)
    return np.where(np.isinf(x), np.nan, np.sin(np.pi * r))


def cos_pi(x: np.ndarray) -> np.ndarray:
    return sin_pi(0.5 - np.abs(x - 2.0 * np.rint(0.5 * x)))


def tan_pi(x: np.ndarray) -> np.ndarray:
    return sin_pi(x) / cos_pi(x)


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


def positive_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x > y, x - y, np.where(x <= y, 0.0, np.nan))


def scaled(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.ldexp(x, np.trunc(minimum(maximum(y, -40.0), 40.0)).astype(np.int32))


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
    Case("rsqrt", "rsqrt(x)", 1, lambda x: 1.0 / np.sqrt(x)),
    Case("saturate", "saturate(x)", 1, lambda x: minimum(maximum(x, 0.0), 1.0)),
    Case("sign", "sign(x)", 1, lambda x: np.where(np.isnan(x), 0.0, np.copysign(np.sign(x), x))),
    Case("sin", "sin(x)", 1, np.sin, 4),
    Case("sinh", "sinh(x)", 1, np.sinh, 4),
    Case("sinpi", "sinpi(x)", 1, sin_pi, 4),
    Case("sqrt", "sqrt(x)", 1, np.sqrt),
    Case("tan", "tan(x)", 1, np.tan, 4),
    Case("tanh", "tanh(x)", 1, np.tanh, 4),
    Case("tanpi", "tanpi(x)", 1, tan_pi, 4),
    Case("trunc", "trunc(x)", 1, np.trunc),
    Case("negate", "-x", 1, np.negative),
    Case("sincos_sine", "sincos_sine(x)", 1, np.sin, 4),
    Case("sincos_cosine", "sincos_cosine(x)", 1, np.cos, 4),
    Case("modf_fraction", "modf_fraction(x)", 1, modf_part(0)),
    Case("modf_whole", "modf_whole(x)", 1, modf_part(1)),
    Case("frexp_fraction", "frexp_fraction(x)", 1, fraction_exponent(0)),
    Case("frexp_exponent", "frexp_exponent(x)", 1, fraction_exponent(1), result="int"),
    Case("ilogb", "ilogb(x)", 1, ilogb, result="int"),
    Case("isnan", "isnan(x)", 1, np.isnan, result="bool"),
    Case("isinf", "isinf(x)", 1, np.isinf, result="bool"),
    Case("isfinite", "isfinite(x)", 1, np.isfinite, result="bool"),
    Case("signbit", "signbit(x)", 1, np.signbit, result="bool"),
]
BINARY = [
    Case("add", "x + y", 2, np.add),
    Case("subtract", "x - y", 2, np.subtract),
    Case("multiply", "x * y", 2, np.multiply),
    Case("divide_operator", "x / y", 2, np.divide),
    Case("divide", "divide(x, y)", 2, np.divide),
    Case("atan2", "atan2(x, y)", 2, np.arctan2, 4),
    Case("copysign", "copysign(x, y)", 2, np.copysign),
    Case("fdim", "fdim(x, y)", 2, positive_difference),
    Case("fmax", "fmax(x, y)", 2, maximum),
    Case("fmin", "fmin(x, y)", 2, minimum),
    Case("max", "max(x, y)", 2, maximum),
    Case("min", "min(x, y)", 2, minimum),
    Case("fmod", "fmod(x, y)", 2, np.fmod),
    Case("ldexp", "scaled(x, y)", 2, scaled),
    Case("pow", "pow(x, y)", 2, np.power, 4),
    Case("powr", "powr(x, y)", 2, power_of_nonnegative, 4),
    Case("step", "step(x, y)", 2, lambda x, y: np.where(y < x, 0.0, 1.0)),
    Case("less", "x < y", 2, np.less, result="bool"),
    Case("less_equal", "x <= y", 2, np.less_equal, result="bool"),
    Case("greater", "x > y", 2, np.greater, result="bool"),
    Case("greater_equal", "x >= y", 2, np.greater_equal, result="bool"),
    Case("equal", "x == y", 2, np.equal, result="bool"),
    Case("not_equal", "x != y", 2, np.not_equal, result="bool"),
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
    Case("max3", "max3(x, y, z)", 3, lambda x, y, z: maximum(maximum(x, y), z)),
    Case("min3", "min3(x, y, z)", 3, lambda x, y, z: minimum(minimum(x, y), z)),
    Case("median3", "median3(x, y, z)", 3, median),
    Case("fmax3", "fmax3(x, y, z)", 3, lambda x, y, z: maximum(maximum(x, y), z)),
    Case("fmin3", "fmin3(x, y, z)", 3, lambda x, y, z: minimum(minimum(x, y), z)),
    Case("fmedian3", "fmedian3(x, y, z)", 3, median),
    Case("select", "select(x, y, z > decltype(z)(0))", 3, lambda x, y, z: np.where(z > 0, y, x)),
]
ARITY_1, ARITY_MORE = UNARY, BINARY + TERNARY


def typed_cases(dtype: str) -> list[Case]:
    """What depends on the type's own precision."""
    element = DTYPES[dtype]
    digits, smallest = PRECISION[dtype]
    below_one = 1.0 - 2.0**-digits

    def is_normal(x: np.ndarray) -> np.ndarray:
        return np.isfinite(x) & (np.abs(x) >= 2.0**smallest)

    return [
        Case("isnormal", "isnormal(x)", 1, is_normal, result="bool"),
        # x - floor(x), at most the largest number of the type below 1.
        Case(
            "fract",
            "fract(x)",
            1,
            lambda x: np.where(np.isinf(x), 0.0, np.minimum(x - np.floor(x), below_one)),
        ),
        Case("mix", "mix(x, y, z)", 3, lambda x, y, z: mix(*(v.astype(element) for v in (x, y, z)))),
        Case("smoothstep", "smoothstep(x, y, z)", 3, lambda *v: smoothstep(*(a.astype(element) for a in v))),
        Case("nextafter", "nextafter(x, y)", 2, lambda x, y: neighbour(x, y, dtype)),
    ]


def mix(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """In the arguments' own arithmetic: each operation of the definition rounds."""
    return float64(x + (y - x) * z)


def smoothstep(edge0: np.ndarray, edge1: np.ndarray, x: np.ndarray) -> np.ndarray:
    one = x.dtype.type(1)
    t = np.fmin(np.fmax((x - edge0) / (edge1 - edge0), one - one), one)
    return float64(t * t * (one + one + one - (one + one) * t))


def neighbour(x: np.ndarray, y: np.ndarray, dtype: str) -> np.ndarray:
    """The number of the type next to x on the way to y, by counting in the type's ordered encodings."""
    element = DTYPES[dtype]
    word = np.dtype(f"i{element.itemsize}")
    lowest = np.iinfo(word).min
    bits = x.astype(element).view(word).astype(np.int64)
    order = np.where(bits < 0, lowest - bits, bits)
    order = order + np.where(y > x, 1, np.where(y < x, -1, 0))
    moved = np.where(order < 0, lowest - order, order).astype(word).view(element).astype(np.float64)
    moved = np.where(x == y, y, np.where(moved == 0, np.copysign(0.0, x), moved))
    return np.where(np.isnan(x) | np.isnan(y), np.nan, moved)


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
    tiny, normal, largest = float(info.smallest_subnormal), float(info.smallest_normal), float(info.max)
    positive = [
        0.0,
        tiny,
        normal - tiny,
        normal,
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
    ]
    positive += [1e4, largest / 2, largest, math.inf]
    return np.array([s * v for v in positive for s in (1.0, -1.0)] + [math.nan]).astype(DTYPES[dtype])


def arguments(dtype: str, arity: int) -> list[np.ndarray]:
    """Edge values against each other, random bits, and numbers of everyday size; all numbers of a short type."""
    generator = np.random.default_rng(arity)
    element = DTYPES[dtype]
    if arity == 1 and element.itemsize == 2:
        return [np.arange(65536, dtype=np.uint16).view(element)]
    edge = edges(dtype)
    columns = [edge] if arity == 1 else [np.repeat(edge, edge.size), np.tile(edge, edge.size)]
    if arity == 3:
        columns.append(generator.permutation(columns[0]))
    word = f"u{element.itemsize}"
    wild = [
        generator.integers(0, 1 << (8 * element.itemsize), 6000, word).view(element) for _ in range(arity)
    ]
    tame = [(generator.standard_normal(6000) * 4).astype(element) for _ in range(arity)]
    return [np.concatenate(parts) for parts in zip(columns, wild, tame, strict=True)]


def nearly_cancelling(dtype: str) -> list[np.ndarray]:
    """Arguments of fma for which a product rounded on its own would show."""
    generator = np.random.default_rng(3)
    x, y = ((1 + generator.random(2000)).astype(DTYPES[dtype]) for _ in range(2))
    return [x, y, (-(float64(x) * float64(y))).astype(DTYPES[dtype])]


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


def bound(case: Case, dtype: str) -> float:
    """Rounding to the type costs half a unit; short types add the float error behind it, which is small."""
    return 0.5 + (case.ulps if dtype == "float" else min(case.ulps, 1) * 0.05)
