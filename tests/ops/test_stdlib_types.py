"""Scalar, vector, packed and array types of MSL on the CPU device: conversions, constructors, swizzles, layout,
as_type, numeric_limits and type traits."""

from __future__ import annotations

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from ops.oracle.msl_integer import Integer
from ops.oracle.msl_real import DTYPES, REAL, bit_pattern, edges, float64
from ops.stdlib_case import run_kernel

import metalane

TYPES = tuple(DTYPES)
STORED = {t: "uchar" if t == "bool" else t for t in TYPES}

# ------------------------------------------------------------------------------------------- conversions

CONVERT = """
template <typename D, typename S, typename I, typename O>
void convert(device const I* in, device O* out, uint n, uint i) {
  out[i] = O(D(S(in[i])));
  vec<D, 3> v = vec<D, 3>(vec<S, 3>(S(in[i]), S(in[(i + 1) % n]), S(in[(i + 2) % n])));
  for (uint k = 0; k < 3; ++k) out[n + 3 * i + k] = O(v[k]);
}
"""


def convertible(source: str) -> np.ndarray:
    """Values of the type that every other type can hold a truncation of, and for integers all edges."""
    if source == "bool":
        return np.array([0, 1] * 6, np.uint8)
    if source in REAL:
        tiny = float(ml_dtypes.finfo(DTYPES[source]).smallest_subnormal)
        values = [0.0, 0.25, tiny, 0.5, 0.9375, 1.0, 1.5, 2.0, 2.5, 3.75, 17.0, 63.5, 100.0, 126.5, 127.0]
        return np.array(values).astype(DTYPES[source])
    kind = Integer(source)
    values = [0, 1, 2, 3, kind.high, kind.high - 1, kind.low, kind.low + 1, kind.high // 3]
    for power in range(7, kind.width - kind.signed):
        values += [(1 << power) - 1, 1 << power, (1 << power) + 1, (3 << power) // 2 + 1]
    return np.array([kind.wrap(v) for v in values], DTYPES[source])


def nearest(value: Fraction, dtype: str) -> float:
    """The number of the type nearest to `value`, ties to even; infinity past the largest."""
    info = ml_dtypes.finfo(DTYPES[dtype])
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    rounded = round(magnitude / step) * step  # Fraction rounds ties to even
    result = float(rounded) if rounded <= Fraction(float(info.max)) else float("inf")
    return result if value > 0 else -result


def converted(values: np.ndarray, source: str, target: str) -> np.ndarray:
    numbers = [Fraction(float(v)) if source in REAL else Fraction(int(v)) for v in values]
    if target == "bool":
        return np.array([v != 0 for v in numbers], np.uint8)
    if target in REAL:
        return np.array([nearest(v, target) for v in numbers]).astype(DTYPES[target])
    return np.array([Integer(target).wrap(int(v)) for v in numbers], DTYPES[target])


def test_conversions(device: metalane.Device) -> None:
    """Scalars and vectors of every type to every other: to reals the nearest, ties to even; to integers truncated."""
    inputs = {t: np.resize(convertible(t), 96 * 2) for t in TYPES}
    n = 96 * 2
    calls = [
        f"convert<{d}, {s}>(in_{s}, out_{d} + {slot} * 4 * n, n, i);"
        for slot, s in enumerate(TYPES)
        for d in TYPES
    ]
    outputs = {d: (4 * n * len(TYPES), STORED[d]) for d in TYPES}
    got = run_kernel(
        device,
        "conversions",
        CONVERT,
        {f"in_{t}": (STORED[t], inputs[t]) for t in TYPES},
        {f"out_{d}": outputs[d] for d in TYPES},
        calls,
        threads=n,
    )
    for d in TYPES:
        rows = got[f"out_{d}"].reshape(len(TYPES), 4 * n)
        for row, s in zip(rows, TYPES, strict=True):
            exact = converted(inputs[s], s, d)
            vectors = np.stack([np.roll(exact, -k) for k in range(3)], axis=1).ravel()
            assert np.array_equal(bytes_of(row), bytes_of(np.concatenate([exact, vectors]))), (s, d)


def bytes_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8)


def test_rounding_of_half_and_bfloat(device: metalane.Device) -> None:
    """float to half and bfloat: every tie, its neighbours, overflow, subnormals, infinities and NaN."""
    values = []
    for short in ("half", "bfloat"):
        numbers = float64(np.arange(65536, dtype=np.uint16).view(DTYPES[short]))
        finite = np.sort(np.unique(numbers[np.isfinite(numbers)]))[::7]
        ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
        values += [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))]
    values.append(edges("float"))
    x = np.concatenate(values).astype(np.float32)
    got = run_kernel(
        device,
        "rounding",
        "",
        {"x": ("float", x)},
        {"h": (x.size, "half"), "b": (x.size, "bfloat")},
        ["h[i] = half(x[i]); b[i] = bfloat(x[i]);"],
        threads=x.size,
    )
    with np.errstate(over="ignore"):
        assert np.array_equal(bit_pattern(got["h"]), bit_pattern(x.astype(np.float16)))
    assert np.array_equal(bit_pattern(got["b"]), bit_pattern(x.astype(ml_dtypes.bfloat16)))


# -------------------------------------------------------------------------------------------- swizzles


def swizzle_names(size: int) -> list[str]:
    names = []
    for letters in ("xyzw", "rgba"):
        for count in (2, 3, 4):
            names += ["".join(p) for p in itertools.product(letters[:size], repeat=count)]
    return names


def places(name: str) -> list[int]:
    return ["xyzwrgba".index(letter) % 4 for letter in name]


# Functions that are called, not unfolded, keep thousands of statements quick to compile.
TAKE = "".join(
    f"__attribute__((noinline)) void take(device uint* out, uint{n} v) {{ store(out, 0, v); }}\n"
    for n in (2, 3, 4)
)


@pytest.mark.parametrize("kind", ["vec", "packed"])
def test_swizzles(device: metalane.Device, kind: str) -> None:
    """All swizzles of vectors of 2, 3 and 4 as values (packed: a share), all without repetition as targets."""
    body, expected = [], []
    for size in (2, 3, 4):
        vector = f"uint{size}" if kind == "vec" else f"packed_uint{size}"
        names = swizzle_names(size) if kind == "vec" else swizzle_names(size)[::9]
        base = [11 * (k + 1) for k in range(size)]
        lines = [f"const {vector} v = {vector}({', '.join(f'in[{k}]' for k in range(size))});"]
        for name in names:
            lines.append(f"take(out + 4 * {len(expected)}, v.{name});")
            expected.append([base[k] for k in places(name)])
        for number, name in enumerate(n for n in swizzle_names(size) if len(set(n)) == len(n)):
            given = [101 + k for k in range(len(name))]
            value = f"uint{len(name)}({', '.join(map(str, given))})"
            for op in ("=", "+=") if number % 5 == 0 else ("=",):
                changed = list(base)
                for at, new in zip(places(name), given, strict=True):
                    changed[at] = new if op == "=" else changed[at] + new
                lines.append(
                    f"{{ {vector} t = v; t.{name} {op} {value}; take(out + 4 * {len(expected)}, t); }}"
                )
                expected.append(changed)
        body.append("\n  ".join(lines))
    functions = [
        f"__attribute__((noinline)) void size_{k + 2}(device const uint* in, device uint* out) {{\n  {text}\n}}\n"
        for k, text in enumerate(body)
    ]
    got = run_kernel(
        device,
        f"swizzles_{kind}",
        TAKE + "".join(functions),
        {"in": ("uint", np.array([11, 22, 33, 44], np.uint32))},
        {"out": (4 * len(expected), "uint")},
        ["size_2(in, out); size_3(in, out); size_4(in, out);"],
        threads=1,
    )["out"].reshape(-1, 4)
    wrong = [
        (i, e, list(g)) for i, (e, g) in enumerate(zip(expected, got, strict=True)) if list(g[: len(e)]) != e
    ]
    assert not wrong, wrong[:5]


# ---------------------------------------------------------------------------- constructors and operators

CONSTRUCTORS = {
    2: ["s0, s1", "v01"],
    3: ["s0, s1, s2", "v01, s2", "s0, v12", "v012"],
    4: [
        "s0, s1, s2, s3",
        "v01, s2, s3",
        "s0, v12, s3",
        "s0, s1, v23",
        "v01, v23",
        "v012, s3",
        "s0, v123",
        "v0123",
    ],
}


def test_constructors(device: metalane.Device) -> None:
    """Every grouping of scalars and vectors, in every real and integer type; one scalar fills all components."""
    types = [t for t in TYPES if t != "bool"]
    body = ["template <typename T> void build(device T* out, T s0, T s1, T s2, T s3) {"]
    body.append("  typedef vec<T, 2> V2; typedef vec<T, 3> V3; typedef vec<T, 4> V4;")
    body.append("  V2 v01 = V2(s0, s1), v12 = V2(s1, s2), v23 = V2(s2, s3);")
    body.append("  V3 v012 = V3(s0, s1, s2), v123 = V3(s1, s2, s3); V4 v0123 = V4(s0, s1, s2, s3);")
    count = 0
    for size, lists in CONSTRUCTORS.items():
        for arguments in lists:
            body.append(f"  store(out + 4 * {count}, 0, V{size}({arguments}));")
            count += 1
        body.append(f"  store(out + 4 * {count}, 0, V{size}(s3));")
        count += 1
    body.append("}")
    got = run_kernel(
        device,
        "constructors",
        "\n".join(body),
        {},
        {f"out_{t}": (4 * count, t) for t in types},
        [f"build<{t}>(out_{t}, {t}(3), {t}(5), {t}(7), {t}(9));" for t in types],
        threads=1,
    )
    expected = []
    for size, lists in CONSTRUCTORS.items():
        expected += [[3, 5, 7, 9][:size]] * len(lists)
        expected.append([9] * size)
    for t in types:
        rows = float64(got[f"out_{t}"]).reshape(-1, 4)
        assert [list(r[: len(e)]) for r, e in zip(rows, expected, strict=True)] == expected, t


# ---------------------------------------------------------------------------------------- layout, as_type


def test_sizes_and_alignments(device: metalane.Device) -> None:
    rows, expected = [], []
    for t in TYPES:
        nbytes = DTYPES[t].itemsize
        rows.append(t)
        expected.append((nbytes, nbytes))
        for size in (2, 3, 4):
            whole = nbytes * (4 if size == 3 else size)
            rows.append(f"{t}{size}")
            expected.append((whole, whole))
            if t != "bool":
                rows.append(f"packed_{t}{size}")
                expected.append((nbytes * size, nbytes))
    for t, c, r in itertools.product(("float", "half"), (2, 3, 4), (2, 3, 4)):
        column = DTYPES[t].itemsize * (4 if r == 3 else r)
        rows.append(f"{t}{c}x{r}")
        expected.append((column * c, column))
    rows += ["array<float, 5>", "array<uchar3, 3>", "simdgroup_float8x8"]
    expected += [(20, 4), (12, 4), (8, 8)]
    calls = [f"out[{2 * k}] = sizeof({t}); out[{2 * k + 1}] = alignof({t});" for k, t in enumerate(rows)]
    got = run_kernel(device, "layouts", "", {}, {"out": (2 * len(rows), "uint")}, calls, threads=1)["out"]
    measured = list(zip(got[::2].tolist(), got[1::2].tolist(), strict=True))
    assert [(r, m) for r, m, e in zip(rows, measured, expected, strict=True) if m != e] == []


def test_packed_vectors_lie_side_by_side(device: metalane.Device) -> None:
    """Arrays of packed vectors in device memory are the components one after another, loaded and stored."""
    types = [t for t in TYPES if t != "bool"]
    generator = np.random.default_rng(0)
    inputs = {t: generator.integers(0, 100, 24).astype(DTYPES[t]) for t in types}
    calls = []
    for t in types:
        for slot, size in enumerate((2, 3, 4)):
            calls.append(
                f"for (uint k = 0; k < 24 / {size}; ++k) {{"
                f" {t}{size} v = ((device const packed_{t}{size}*)in_{t})[k];"
                f" ((device packed_{t}{size}*)(out_{t} + 24 * {slot}))[k] = v + {t}{size}({t}(1)); }}"
            )
    got = run_kernel(
        device,
        "packed",
        "",
        {f"in_{t}": (t, inputs[t]) for t in types},
        {f"out_{t}": (72, t) for t in types},
        calls,
        threads=1,
    )
    for t in types:
        np.testing.assert_array_equal(float64(got[f"out_{t}"]), np.tile(float64(inputs[t]) + 1, 3))


AS_TYPES = {
    1: ["char", "uchar"],
    2: ["short", "ushort", "half", "bfloat", "char2", "uchar2"],
    4: ["int", "uint", "float", "short2", "ushort2", "half2", "bfloat2", "char4", "uchar4"],
    8: ["long", "ulong", "int2", "uint2", "float2", "short4", "ushort4", "half4", "bfloat4"],
    16: ["int4", "uint4", "float4", "long2", "ulong2"],
    32: ["long4", "ulong4"],
}


def test_as_type(device: metalane.Device) -> None:
    """Between all types of one size the bytes stay, those of NaNs too."""
    pairs = [(n, a, b) for n, names in AS_TYPES.items() for a in names for b in names]
    given = np.random.default_rng(5).integers(0, 256, 32, np.uint8)
    given[:8] = 0xFF
    prelude = """
template <typename To, typename From> void pass(device const uchar* in, device uchar* out) {
  *(device To*)out = as_type<To>(*(device const From*)in);
}
"""
    calls = [f"pass<{b}, {a}>(in, out + 32 * {k});" for k, (_, a, b) in enumerate(pairs)]
    got = run_kernel(
        device,
        "as_type",
        prelude,
        {"in": ("uchar", given)},
        {"out": (32 * len(pairs), "uchar")},
        calls,
        threads=1,
    )
    rows = got["out"].reshape(-1, 32)
    wrong = [
        (a, b) for row, (n, a, b) in zip(rows, pairs, strict=True) if not np.array_equal(row[:n], given[:n])
    ]
    assert wrong == []


# ------------------------------------------------------------------------------------------------ limits

FLAGS = (
    "is_specialized is_signed is_integer is_exact has_infinity has_quiet_NaN has_signaling_NaN is_iec559 is_bounded "
    "is_modulo digits digits10 max_digits10 radix min_exponent min_exponent10 max_exponent max_exponent10"
)
VALUES = "max min lowest epsilon round_error infinity quiet_NaN signaling_NaN denorm_min"


def limits_of(t: str) -> tuple[list[int], list[float]]:
    if t in REAL:
        info = ml_dtypes.finfo(DTYPES[t])
        digits = info.nmant + 1
        lowest10 = {"float": -37, "half": -4, "bfloat": -37}[t]
        largest10 = {"float": 38, "half": 4, "bfloat": 38}[t]
        flags = [1, 1, 0, 0, 1, 1, 1, 1, 1, 0, digits, int((digits - 1) * np.log10(2))]
        flags += [
            int(np.ceil(1 + digits * np.log10(2))),
            2,
            info.minexp + 1,
            lowest10,
            info.maxexp,
            largest10,
        ]
        values = [info.max, info.smallest_normal, -info.max, info.eps, 0.5, np.inf, np.nan, np.nan]
        return flags, [float(v) for v in [*values, info.smallest_subnormal]]
    kind = Integer("uchar" if t == "bool" else t)
    digits = 1 if t == "bool" else kind.width - kind.signed
    flags = [
        1,
        kind.signed,
        1,
        1,
        0,
        0,
        0,
        0,
        1,
        not kind.signed,
        digits,
        int(digits * np.log10(2)),
        0,
        2,
        0,
        0,
        0,
        0,
    ]
    high = 1 if t == "bool" else kind.high
    return [int(f) for f in flags], [high, kind.low, kind.low, 0, 0, 0, 0, 0, 0]


def test_numeric_limits(device: metalane.Device) -> None:
    """Every member for every type; the values of reals by their bits, so that subnormals and NaN are seen."""
    flags, values = FLAGS.split(), VALUES.split()
    prelude = ["template <typename T, typename O> void limits(device int* flags, device O* values) {"]
    prelude += [f"  flags[{k}] = int(numeric_limits<T>::{name});" for k, name in enumerate(flags)]
    prelude += [f"  values[{k}] = O(numeric_limits<T>::{name}());" for k, name in enumerate(values)]
    calls = [f"limits<{t}>(flags + {len(flags) * k}, values_{t});" for k, t in enumerate(TYPES)]
    outputs = {"flags": (len(flags) * len(TYPES), "int")}
    outputs.update({f"values_{t}": (len(values), STORED[t]) for t in TYPES})
    got = run_kernel(device, "limits", "\n".join([*prelude, "}"]), {}, outputs, calls, threads=1)
    for row, t in zip(got["flags"].reshape(len(TYPES), -1), TYPES, strict=True):
        expected_flags, expected = limits_of(t)
        assert dict(zip(flags, row.tolist(), strict=True)) == dict(zip(flags, expected_flags, strict=True)), t
        if t in REAL:
            np.testing.assert_array_equal(float64(got[f"values_{t}"]), np.array(expected), err_msg=t)
            quiet, signaling = got[f"values_{t}"].view(f"u{DTYPES[t].itemsize}")[6:8]
            leading = 1 << (ml_dtypes.finfo(DTYPES[t]).nmant - 1)
            assert quiet & leading and not signaling & leading, t
        else:
            assert got[f"values_{t}"].tolist() == expected, t


CONSTANTS = {
    "E": np.e,
    "LOG2E": np.log2(np.e),
    "LOG10E": np.log10(np.e),
    "LN2": np.log(2),
    "LN10": np.log(10),
    "PI": np.pi,
    "PI_2": np.pi / 2,
    "PI_4": np.pi / 4,
    "1_PI": 1 / np.pi,
    "2_PI": 2 / np.pi,
    "2_SQRTPI": 2 / np.sqrt(np.pi),
    "SQRT2": np.sqrt(2),
    "SQRT1_2": np.sqrt(0.5),
}
LIMIT_MACROS = {
    "MAXFLOAT": np.finfo(np.float32).max,
    "FLT_MAX": np.finfo(np.float32).max,
    "FLT_MIN": 2.0**-126,
    "FLT_EPSILON": 2.0**-23,
    "HUGE_VALF": np.inf,
    "INFINITY": np.inf,
    "NAN": np.nan,
    "HALF_MAX": 65504.0,
    "HALF_MIN": 2.0**-14,
    "HALF_EPSILON": 2.0**-10,
    "MAXHALF": 65504.0,
    "HUGE_VALH": np.inf,
    "INT_MAX": 2.0**31,  # as float
    "UINT_MAX": 2.0**32,
    "SHRT_MAX": 32767.0,
    "CHAR_BIT": 8.0,
}


def test_constants(device: metalane.Device) -> None:
    """M_..._F, M_..._H, M_..._BF rounded to their types, and the limits of the C headers."""
    names = list(CONSTANTS)
    calls = [f"f[{k}] = M_{n}_F; h[{k}] = M_{n}_H; b[{k}] = M_{n}_BF;" for k, n in enumerate(names)]
    calls += [f"l[{k}] = float({n});" for k, n in enumerate(LIMIT_MACROS)]
    outputs = {t[0]: (len(names), t) for t in REAL} | {"l": (len(LIMIT_MACROS), "float")}
    got = run_kernel(device, "constants", "", {}, outputs, calls, threads=1)
    for t in REAL:
        exact = [nearest(Fraction(float(v)), t) for v in CONSTANTS.values()]
        assert float64(got[t[0]]).tolist() == exact, t
    np.testing.assert_array_equal(float64(got["l"]), np.array(list(LIMIT_MACROS.values())))


# ------------------------------------------------------------------------------------------ traits, array

TRAITS = {
    "is_same<float, float>::value": True,
    "is_same<float, half>::value": False,
    "is_same_v<uint, unsigned int>": True,
    "is_integral<int>::value": True,
    "is_integral_v<bool>": True,
    "is_integral_v<half>": False,
    "is_integral_v<float2>": False,
    "is_floating_point<half>::value": True,
    "is_floating_point_v<bfloat>": True,
    "is_floating_point_v<int>": False,
    "is_arithmetic_v<uchar>": True,
    "is_arithmetic_v<float4>": False,
    "is_signed_v<short>": True,
    "is_signed_v<char>": True,
    "is_signed_v<half>": True,
    "is_signed_v<uint>": False,
    "is_unsigned_v<ulong>": True,
    "is_unsigned_v<float>": False,
    "is_scalar_v<half>": True,
    "is_void_v<void>": True,
    "is_pointer_v<thread int*>": True,
    "is_pointer_v<int>": False,
    "is_array_v<int[3]>": True,
    "is_const_v<const int>": True,
    "is_const_v<int>": False,
    "is_reference_v<thread int&>": True,
    "is_enum_v<Colour>": True,
    "is_class_v<Empty>": True,
    "is_empty_v<Empty>": True,
    "is_union_v<Either>": True,
    "(is_base_of<Empty, Derived>::value)": True,
    "(is_convertible<int, float>::value)": True,
    "(is_convertible_v<Empty, float>)": False,
    "(is_same_v<conditional_t<true, int, half>, int>)": True,
    "(is_same_v<conditional<false, int, half>::type, half>)": True,
    "(is_same_v<enable_if_t<true, short>, short>)": True,
    "(is_same_v<make_unsigned_t<int>, uint>)": True,
    "(is_same_v<make_signed<ulong>::type, long>)": True,
    "(is_same_v<remove_const_t<const float>, float>)": True,
    "(is_same_v<remove_reference_t<thread half&>, half>)": True,
    "(is_same_v<remove_cv_t<const volatile int>, int>)": True,
    "(is_same_v<remove_pointer_t<thread int*>, int>)": True,
    "(is_same_v<remove_extent_t<int[4]>, int>)": True,
    "(is_same_v<decay_t<const int>, int>)": True,
    "(is_same_v<add_const_t<int>, const int>)": True,
    "(is_same_v<underlying_type_t<Colour>, ushort>)": True,
    "(integral_constant<int, 7>::value == 7)": True,
    "(integral_constant<int, 7>{} == 7)": True,
    "bool_constant<true>::value": True,
    "true_type::value": True,
    "false_type::value": False,
    "(conjunction_v<is_integral<int>, is_signed<int>>)": True,
    "(conjunction<is_integral<int>, is_signed<uint>>::value)": False,
    "(disjunction_v<is_integral<float>, is_signed<float>>)": True,
    "negation_v<is_integral<float>>": True,
    "(sizeof(picked(1)) == 1 && sizeof(picked(1.0f)) == 4)": True,
    "(is_same_v<add_const<int>::type, const int>)": True,
    "(is_same_v<add_cv_t<int>, const volatile int>)": True,
    "(is_same_v<remove_all_extents_t<int[4][2]>, int>)": True,
    "(is_same_v<common_type_t<int, float>, float>)": True,
    "(is_same_v<common_type_t<char, short, int>, int>)": True,
    "(is_constructible_v<float, int>)": True,
    "(is_constructible_v<float3, float2>)": False,
    "(is_constructible<Empty, int>::value)": False,
    "(is_assignable_v<thread int&, float>)": True,
    "is_default_constructible_v<Derived>": True,
    "is_trivially_default_constructible_v<float4>": True,
    "is_trivially_copyable_v<bfloat>": True,
    "is_trivially_copy_constructible_v<packed_half3>": True,
    "is_copy_assignable_v<const int>": False,
    "is_null_pointer_v<decltype(nullptr)>": True,
    "is_function_v<int(float)>": True,
    "is_function_v<int>": False,
    "is_object_v<Derived>": True,
    "is_compound_v<int>": False,
    "(alignment_of_v<float3> == 16)": True,
    "(is_same_v<make_integer_sequence<int, 3>, integer_sequence<int, 0, 1, 2>>)": True,
    "(is_same_v<make_index_sequence<0>, index_sequence<>>)": True,
    "(index_sequence_for<int, half>::size() == 2)": True,
    "(is_same_v<vec<float, 3>, float3>)": True,
    "(is_same_v<packed_vec<half, 4>, packed_half4>)": True,
    "(is_same_v<matrix<float, 2, 3>, float2x3>)": True,
    "(is_same_v<decltype(float3() < float3()), bool3>)": True,
    "(is_same_v<decltype(half() + half()), half>)": True,
    "(is_same_v<decltype(half2() * half()), half2>)": True,
    "(is_same_v<decltype(half() + 1.0f), float>)": True,
    "(is_same_v<decltype(bfloat() * bfloat()), bfloat>)": True,
}


def test_type_traits(device: metalane.Device) -> None:
    prelude = """
enum class Colour : ushort { red, green };
struct Empty {};
struct Derived : Empty { int x; };
union Either { int i; float f; };
template <typename T, typename = enable_if_t<is_integral<T>::value>> uchar picked(T) { return 0; }
template <typename T, typename = void, typename = enable_if_t<is_floating_point_v<T>>> uint picked(T) { return 0; }
"""
    calls = [f"out[{k}] = uchar({text});" for k, text in enumerate(TRAITS)]
    got = run_kernel(device, "traits", prelude, {}, {"out": (len(TRAITS), "uchar")}, calls, threads=1)["out"]
    wrong = [text for value, (text, expected) in zip(got, TRAITS.items(), strict=True) if value != expected]
    assert wrong == []


def test_utilities(device: metalane.Device) -> None:
    """swap and move beside a kernel's own swap; unrolling by an integer_sequence; a list in braces."""
    prelude = """
struct Pair { uint a; half b; };
template <typename T> void swap(thread T& a, thread T& b) { T old = a; a = b; b = old + 100; }
template <int... Is> uint unrolled(uint x, integer_sequence<int, Is...>) { return (0 + ... + (x << Is)); }
"""
    calls = [
        "uint a = 1, b = 2; metal::swap(a, b); out[0] = a; out[1] = b; swap(a, b); out[2] = a; out[3] = b;",
        "Pair p = {5, 6.0h}, q = {7, 8.0h}; metal::swap(p, q);",
        "out[4] = p.a * 10 + uint(q.b); out[5] = metal::move(q).a;",
        "out[6] = unrolled(1, make_integer_sequence<int, 4>{}); uint sum = 0; for (uint k : {3u, 5u, 7u}) sum += k;",
        "initializer_list<uint> list = {4, 9}; for (uint k : list) sum += 100 * k; out[7] = sum; out[8] = list.size();",
    ]
    got = run_kernel(device, "utilities", prelude, {}, {"out": (9, "uint")}, calls, threads=1)["out"]
    assert got.tolist() == [2, 1, 1, 102, 76, 5, 15, 1315, 2]


def test_array(device: metalane.Device) -> None:
    """metal::array as a value: copies, iterates, fills, nests, and sits in constant memory."""
    prelude = """
constant array<uint, 3> table = {2, 3, 5};
array<uint, 3> doubled(array<uint, 3> a) {
  for (thread uint& v : a) v *= 2;
  return a;
}
"""
    calls = [
        "array<uint, 3> a = table; array<uint, 3> b = doubled(a); array<array<ushort, 2>, 2> nested; array<int, 4> c;",
        "c.fill(9); nested[1] = array<ushort, 2>{{7, 8}};",
        "out[0] = a[0] + a[1] + a[2]; out[1] = b[2]; out[2] = b.size(); out[3] = b.front(); out[4] = b.back();",
        "out[5] = nested[1][0] * 10 + nested[1][1]; out[6] = c[0] + c[3]; out[7] = *b.begin() + b.data()[1];",
        "uint sum = 0; for (uint v : b) sum += v; out[8] = sum; out[9] = b.empty();",
    ]
    got = run_kernel(device, "arrays", prelude, {}, {"out": (10, "uint")}, calls, threads=1)["out"]
    assert got.tolist() == [10, 10, 3, 4, 10, 78, 18, 10, 20, 0]


# ---------------------------------------------------------------------- scalars and vectors in one expression

# In x, y, z (vectors of three) and s, t (scalars): a scalar stands for all components.
MIXED = {
    "x + s": lambda x, y, z, s, t: x + s,
    "s - x": lambda x, y, z, s, t: s - x,
    "x * s + y": lambda x, y, z, s, t: x * s + y,
    "s * (x - y)": lambda x, y, z, s, t: s * (x - y),
    "min(x, s)": lambda x, y, z, s, t: np.minimum(x, s),
    "max(x, s)": lambda x, y, z, s, t: np.maximum(x, s),
    "clamp(x, s, t)": lambda x, y, z, s, t: np.minimum(np.maximum(x, s), t),
    "select(x, y, x < y)": lambda x, y, z, s, t: np.where(x < y, y, x),
    "select(x, y, s < t)": lambda x, y, z, s, t: np.where(s < t, y, x),
    "V(x < y)": lambda x, y, z, s, t: x < y,
    "V(x <= s)": lambda x, y, z, s, t: x <= s,
    "V(!(x < y) && (y != z))": lambda x, y, z, s, t: ~(x < y) & (y != z),
    "V(not(x == y))": lambda x, y, z, s, t: x != y,
    "x.zyx + y.xxz * s": lambda x, y, z, s, t: x[:, ::-1] + y[:, [0, 0, 2]] * s,
    "V(x.xy, s)": lambda x, y, z, s, t: np.concatenate([x[:, :2], s], axis=1),
    "V(s) - t": lambda x, y, z, s, t: np.repeat(s - t, 3, axis=1),
    "assigned(x, y, z, s)": lambda x, y, z, s, t: (x + y) * s - z + 1,
    "placed(x, y, s)": lambda x, y, z, s, t: np.stack([s[:, 0], x[:, 1] + y[:, 2], x[:, 2] * 2], axis=1),
    "counted(x)": lambda x, y, z, s, t: x,
}
REAL_MIXED = {
    "mix(x, y, T(0.5))": lambda x, y, z, s, t: x + (y - x) / 2,
    "step(s, x)": lambda x, y, z, s, t: np.where(x < s, 0, 1),
    "fmax(x, s)": lambda x, y, z, s, t: np.maximum(x, s),
    "x / T(2)": lambda x, y, z, s, t: x / 2,
    "fma(x, s, y)": lambda x, y, z, s, t: x * s + y,
    "pow(x, T(2))": lambda x, y, z, s, t: x * x,
}
INTEGER_MIXED = {
    "x & s": lambda x, y, z, s, t: x & s,
    "(x | y) ^ s": lambda x, y, z, s, t: (x | y) ^ s,
    "x << 2": lambda x, y, z, s, t: x << 2,
    "abs(x) >> T(1)": lambda x, y, z, s, t: np.abs(x) >> 1,
    "x / T(2) + x % T(3)": lambda x, y, z, s, t: np.trunc(x / 2).astype(int) + np.fmod(x, 3),
}
MIXED_TYPES = ("float", "half", "bfloat", "int", "uchar")
MIXED_PRELUDE = """
template <typename V, typename S> V assigned(V x, V y, V z, S s) {
  x += y;
  x *= s;
  x -= z;
  return ++x;
}
template <typename V, typename S> V placed(V x, V y, S s) {
  x[0] = s;
  x.y += y.z;
  thread auto* last = &x.z;
  *last = x.b * 2;
  return x;
}
template <typename V> V counted(V x) {
  V before = x++;
  --x;
  x = -(-x);
  return select(V(99), before, x == before);
}
"""


def test_scalars_among_vectors(device: metalane.Device) -> None:
    rows = 40
    calls, inputs, outputs = [], {}, {}
    tables = {t: MIXED | (REAL_MIXED if t in REAL else INTEGER_MIXED) for t in MIXED_TYPES}
    for t in MIXED_TYPES:
        # Small enough for every result to be exact in bfloat; unsigned results wrap as Python's do below.
        inputs[f"in_{t}"] = (t, np.random.default_rng(4).integers(0, 7, rows * 11).astype(DTYPES[t]))
        outputs[f"out_{t}"] = (len(tables[t]) * rows * 3, t)
        calls.append(f"{{ typedef {t} T; typedef {t}3 V; device const T* in = in_{t} + 11 * i;")
        calls.append("V x = V(in[0], in[1], in[2]), y = V(in[3], in[4], in[5]), z = V(in[6], in[7], in[8]);")
        calls.append("T s = in[9], t = in[10];")
        for k, text in enumerate(tables[t]):
            calls.append(f"store(out_{t} + {k * rows * 3}, i, V({text}));")
        calls.append("}")
    got = run_kernel(device, "mixed", MIXED_PRELUDE, inputs, outputs, calls, threads=rows)
    for t in MIXED_TYPES:
        values = inputs[f"in_{t}"][1].astype(np.float64 if t in REAL else np.int64).reshape(rows, 11)
        arguments = (values[:, 0:3], values[:, 3:6], values[:, 6:9], values[:, 9:10], values[:, 10:11])
        for row, (text, oracle) in zip(got[f"out_{t}"].reshape(-1, rows, 3), tables[t].items(), strict=True):
            exact = np.broadcast_to(oracle(*arguments), (rows, 3)).astype(DTYPES[t])
            assert np.array_equal(bit_pattern(np.ascontiguousarray(row)), bit_pattern(exact)), (t, text)


NAMES = {
    "int8_t": 1,
    "uint8_t": 1,
    "int16_t": 2,
    "uint16_t": 2,
    "int32_t": 4,
    "uint32_t": 4,
    "int64_t": 8,
    "uint64_t": 8,
    "size_t": 8,
    "ptrdiff_t": 8,
    "uintptr_t": 8,
    "metal::uint": 4,
    "unsigned char": 1,
    "unsigned long": 8,
    "metal::half4": 8,
    "vec<bfloat, 4>": 8,
    "simdgroup_half8x8": 4,
    "atomic_uint": 4,
    "atomic<float>": 4,
    "atomic_ulong": 8,
}


def test_names_of_types(device: metalane.Device) -> None:
    calls = [f"out[{k}] = sizeof({name});" for k, name in enumerate(NAMES)]
    got = run_kernel(device, "names", "", {}, {"out": (len(NAMES), "uint")}, calls, threads=1)["out"]
    assert dict(zip(NAMES, got.tolist(), strict=True)) == NAMES


def test_half_chosen_against_zero(device: metalane.Device) -> None:
    """For this store GCC 12 writes an instruction that no processor has, unless it is kept from AVX512-FP16."""
    x = np.linspace(-3, 3, 101).astype(np.float16)
    lines = ["out[i] = x[i] > 0.0h ? x[i] : 0.0h; scaled[i] = y[i] > 0.0f ? x[i] : half(0);"]
    inputs = {"x": ("half", x), "y": ("float", x[::-1].astype(np.float32))}
    got = run_kernel(
        device, "relu", "", inputs, {"out": (101, "half"), "scaled": (101, "half")}, lines, threads=101
    )
    assert np.array_equal(got["out"], np.maximum(x, 0))
    assert np.array_equal(got["scaled"], np.where(x[::-1] > 0, x, 0))
