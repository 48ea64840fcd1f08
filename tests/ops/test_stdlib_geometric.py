"""metal_geometric, metal_matrix and the tests of bool vectors on the CPU device, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ops.oracle.msl_real import DTYPES, PRECISION, REAL, float64
from ops.stdlib_case import run_kernel

import metalane

ROWS = 500
SCALARS = ("dot", "length", "length_squared", "distance", "distance_squared")
VECTORS = ("normalize", "faceforward", "reflect", "refract", "refract_out", "cross")

GEOMETRY = """
template <typename T, int N> vec<T, N> row(device const T* values, uint i) {
  vec<T, N> v;
  for (int k = 0; k < N; ++k) v[k] = values[4 * i + k];
  return v;
}
template <typename T> vec<T, 3> crossed(vec<T, 3> x, vec<T, 3> y) { return cross(x, y); }
template <typename T, int N> vec<T, N> crossed(vec<T, N> x, vec<T, N>) { return x; }

template <typename T, int N>
void geometry(device const T* xs, device const T* ys, device const T* us, device const T* vs, device T* scalars,
              device T* vectors, uint n, uint i) {
  vec<T, N> x = row<T, N>(xs, i), y = row<T, N>(ys, i), u = row<T, N>(us, i), v = row<T, N>(vs, i);
  scalars[0 * n + i] = dot(x, y);
  scalars[1 * n + i] = length(x);
  scalars[2 * n + i] = length_squared(x);
  scalars[3 * n + i] = distance(x, y);
  scalars[4 * n + i] = distance_squared(x, y);
  store(vectors + 0 * 4 * n, i, normalize(x));
  store(vectors + 1 * 4 * n, i, faceforward(x, y, u));
  store(vectors + 2 * 4 * n, i, reflect(x, u));
  store(vectors + 3 * 4 * n, i, refract(u, v, T(0.625)));
  store(vectors + 4 * 4 * n, i, refract(u, v, T(1.5)));
  store(vectors + 5 * 4 * n, i, crossed(x, y));
}
"""


@pytest.fixture(scope="module")
def geometry(device: metalane.Device) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """x and y of everyday size, and for each N unit vectors u and v."""
    generator = np.random.default_rng(11)
    base = generator.standard_normal((4, ROWS, 4)) * np.array([3, 3, 1, 1])[:, None, None]
    inputs, outputs, calls = {}, {}, []
    for t in REAL:
        for name, values in zip("xy", base[:2], strict=True):
            inputs[f"{name}_{t}"] = (t, values.astype(DTYPES[t]).ravel())
    for t in REAL:
        for size in (2, 3, 4):
            for name, values in zip("uv", base[2:], strict=True):
                unit = values / np.linalg.norm(values[:, :size], axis=1, keepdims=True)
                inputs[f"{name}{size}_{t}"] = (t, unit.astype(DTYPES[t]).ravel())
    for t in REAL:
        outputs[f"scalars_{t}"] = (3 * len(SCALARS) * ROWS, t)
        outputs[f"vectors_{t}"] = (3 * len(VECTORS) * 4 * ROWS, t)
        for slot, size in enumerate((2, 3, 4)):
            places = f"scalars_{t} + {slot * len(SCALARS)} * n, vectors_{t} + {slot * len(VECTORS) * 4} * n"
            calls.append(f"geometry<{t}, {size}>(x_{t}, y_{t}, u{size}_{t}, v{size}_{t}, {places}, n, i);")
    got = run_kernel(device, "geometry", GEOMETRY, inputs, outputs, calls, threads=ROWS)
    return {k: float64(v) for k, (_, v) in inputs.items()}, got


def refracted(u: np.ndarray, v: np.ndarray, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Snell's law, zero where nothing passes; and how near a row is to that limit."""
    cosine = (u * v).sum(1, keepdims=True)
    k = 1 - eta * eta * (1 - cosine * cosine)
    passed = eta * u - (eta * cosine + np.sqrt(np.maximum(k, 0))) * v
    return np.where(k < 0, 0.0, passed), np.abs(k[:, 0])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", REAL)
def test_geometric(
    geometry: tuple[dict[str, np.ndarray], dict[str, np.ndarray]], dtype: str, size: int
) -> None:
    """Bounds in units of rounding of the type, relative to what is added up."""
    inputs, got = geometry
    x, y, u, v = (
        inputs[name].reshape(ROWS, 4)[:, :size]
        for name in (f"x_{dtype}", f"y_{dtype}", f"u{size}_{dtype}", f"v{size}_{dtype}")
    )
    unit = 2.0 ** -PRECISION[dtype][0]
    scalars = float64(got[f"scalars_{dtype}"]).reshape(3, len(SCALARS), ROWS)[size - 2]
    norm, difference = np.linalg.norm(x, axis=1), np.linalg.norm(x - y, axis=1)
    exact = [(x * y).sum(1), norm, norm**2, difference, difference**2]
    terms = [np.abs(x * y).sum(1), norm, norm**2, difference, difference**2]
    # dot of short types is summed in float: its error is one rounding of the result, and little of the terms.
    bounds = [
        unit * np.abs(exact[0]) + size * 2.0**-23 * terms[0],
        *(k * unit * t for k, t in zip((3, 5, 3, 6), terms[1:], strict=True)),
    ]
    for name, given, wanted, bound in zip(SCALARS, scalars, exact, bounds, strict=True):
        assert (np.abs(given - wanted) <= bound).all(), name

    blocks = float64(got[f"vectors_{dtype}"]).reshape(3, len(VECTORS), 4 * ROWS)[size - 2]
    vectors = {name: b[: size * ROWS].reshape(ROWS, size) for name, b in zip(VECTORS, blocks, strict=True)}
    assert (np.abs(vectors["normalize"] - x / norm[:, None]) <= 4 * unit).all()

    side = (u * y).sum(1)
    clear = np.abs(side) > 64 * unit
    assert np.array_equal(vectors["faceforward"][clear], np.where(side[:, None] < 0, x, -x)[clear])

    along = (x * u).sum(1, keepdims=True)
    size_of_terms = np.abs(x) + 2 * np.abs(x * u).sum(1, keepdims=True) * np.abs(u)
    assert (np.abs(vectors["reflect"] - (x - 2 * along * u)) <= 4 * unit * size_of_terms).all()

    for name, eta in (("refract", 0.625), ("refract_out", 1.5)):
        wanted, margin = refracted(u, v, eta)
        clear = margin > 0.1  # near the limit a root of almost nothing magnifies every rounding
        assert clear.sum() > ROWS // 2
        assert (np.abs(vectors[name] - wanted)[clear] <= 24 * unit).all(), name

    if size == 3:
        p, q = np.abs(np.roll(x, -1, 1) * np.roll(y, -2, 1)), np.abs(np.roll(x, -2, 1) * np.roll(y, -1, 1))
        assert (np.abs(vectors["cross"] - np.cross(x, y)) <= 3 * unit * (p + q)).all()


NAMESPACED = "cross(x, y);distance(x, y);distance_squared(x, y);dot(x, y);faceforward(x, y, z);length(x)"
NAMESPACED += ";length_squared(x);normalize(x);reflect(x, y);refract(normalize(x), normalize(y), 0.5f)"


def test_namespaces(device: metalane.Device) -> None:
    """precise:: and fast:: give what the plain functions give."""
    calls = ["float3 x = float3(1, 2, 3), y = float3(-4, 5, 0.5), z = float3(0.25, -1, 2); float3 v = 0;"]
    texts = [f"{space}::{text}" for space in ("precise", "fast") for text in NAMESPACED.split(";")]
    calls += [f"v = {t}; v -= {t.split('::')[1]}; out[{k}] = all(v == 0);" for k, t in enumerate(texts)]
    got = run_kernel(device, "geometric_names", "", {}, {"out": (len(texts), "uchar")}, calls, threads=1)[
        "out"
    ]
    assert [t for t, same in zip(texts, got, strict=True) if same != 1] == []


# ----------------------------------------------------------------------------------------------- matrices

SHAPES = list(itertools.product((2, 3, 4), (2, 3, 4)))  # columns, rows
MATRICES = """
#define APART __attribute__((noinline))  // one large function is slow to compile
template <typename T, int C, int R> APART void put(device T* out, thread uint& at, matrix<T, C, R> m) {
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) out[at++] = m[c][r];
  }
}
template <typename T, int N> APART void put(device T* out, thread uint& at, vec<T, N> v) {
  for (int k = 0; k < N; ++k) out[at++] = v[k];
}
template <typename T, int C, int R> matrix<T, C, R> get(device const T* in, uint at) {
  matrix<T, C, R> m;
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) m[c][r] = in[at + R * c + r];
  }
  return m;
}
template <typename T, int N> vec<T, N> get_vector(device const T* in) {
  vec<T, N> v;
  for (int k = 0; k < N; ++k) v[k] = in[32 + k];
  return v;
}
template <typename T, int C, int R> APART void arithmetic(device const T* in, device T* out, thread uint& at) {
  matrix<T, C, R> a = get<T, C, R>(in, 0), b = get<T, C, R>(in, 16), c = a;
  put(out, at, a + b);
  put(out, at, a - b);
  put(out, at, -a);
  put(out, at, a * T(3));
  put(out, at, T(3) * a);
  c += b;
  c -= a;
  c *= T(2);
  put(out, at, c);
  put(out, at, transpose(a));
  put(out, at, a * get_vector<T, C>(in));
  put(out, at, get_vector<T, R>(in) * a);
  put(out, at, matrix<T, C, R>(T(5)));
  put(out, at, a * get<T, 2, C>(in, 16));
  put(out, at, a * get<T, 3, C>(in, 16));
  put(out, at, a * get<T, 4, C>(in, 16));
  out[at++] = T(a == a);
  out[at++] = T(a != b);
}
template <typename T, int N> APART void square(device const T* in, device T* out, thread uint& at) {
  matrix<T, N, N> a = get<T, N, N>(in, 0), b = a;
  out[at++] = determinant(a);
  b *= a;
  put(out, at, b);
}
"""
CONSTRUCTED = {
    "{t}2x2(v.xy, v.zw)": [0, 1, 2, 3],
    "{t}2x2(v.x, v.y, v.z, v.w)": [0, 1, 2, 3],
    "{t}2x3({t}3(v.xyz), {t}3(v.wxy))": [0, 1, 2, 3, 0, 1],
    "{t}3x2(v.xy, v.yz, v.zw)": [0, 1, 1, 2, 2, 3],
    "{t}4x4(v, v.yzwx, v.zwxy, v.wxyz)": [0, 1, 2, 3, 1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2],
}


def by_columns(values: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """The matrix as mathematics has it: rows first."""
    return values[: columns * rows].reshape(columns, rows).T


def matrix_results(values: np.ndarray) -> list[float]:
    """What MATRICES writes for one input, in its order."""
    out: list[float] = []

    def put(m: np.ndarray) -> None:
        out.extend(np.asarray(m).T.ravel().tolist())

    for columns, rows in SHAPES:
        a, b = by_columns(values, columns, rows), by_columns(values[16:], columns, rows)
        for m in (a + b, a - b, -a, 3 * a, 3 * a, 2 * (a + b - a), a.T):
            put(m)
        put(a @ values[32 : 32 + columns])
        put(values[32 : 32 + rows] @ a)
        put(5 * np.eye(rows, columns))
        for k in (2, 3, 4):
            put(a @ by_columns(values[16:], k, columns))
        out += [1, float((a != b).any())]
    for size in (2, 3, 4):
        a = by_columns(values, size, size)
        out.append(round(np.linalg.det(a)))
        put(a @ a)
    for order in CONSTRUCTED.values():
        out += [values[32 + k] for k in order]
    return out


@pytest.mark.parametrize("dtype", ["float", "half"])
def test_matrices(device: metalane.Device, dtype: str) -> None:
    """All shapes, on integers small enough for every result to be exact in half."""
    values = np.random.default_rng(3).integers(-3, 4, 36).astype(np.float64)
    expected = matrix_results(values)
    calls = ["uint at = 0;"]
    calls += [f"arithmetic<{dtype}, {c}, {r}>(in, out, at);" for c, r in SHAPES]
    calls += [f"square<{dtype}, {size}>(in, out, at);" for size in (2, 3, 4)]
    calls.append(f"{dtype}4 v = get_vector<{dtype}, 4>(in);")
    calls += [f"put(out, at, {text.format(t=dtype)});" for text in CONSTRUCTED]
    got = run_kernel(
        device,
        f"matrices_{dtype}",
        MATRICES,
        {"in": (dtype, values.astype(DTYPES[dtype]))},
        {"out": (len(expected), dtype)},
        calls,
        threads=1,
    )["out"]
    np.testing.assert_array_equal(float64(got), expected)


def test_matrices_round_little(device: metalane.Device) -> None:
    """Products and determinants of random reals, relative to the sum of the terms' sizes."""
    x = np.random.default_rng(9).standard_normal(36).astype(np.float32)
    calls = [
        "uint at = 0; square<float, 4>(in, out, at); put(out, at, float2x4(half2x4(get<float, 2, 4>(in, 0))));"
    ]
    got = run_kernel(
        device, "matrices_real", MATRICES, {"in": ("float", x)}, {"out": (25, "float")}, calls, threads=1
    )["out"]
    a = by_columns(float64(x), 4, 4)
    terms = [np.prod([abs(a[r, c]) for c, r in enumerate(p)]) for p in itertools.permutations(range(4))]
    assert abs(got[0] - np.linalg.det(a)) <= 8 * 2.0**-24 * sum(terms)
    product = float64(got[1:17]).reshape(4, 4).T
    assert (np.abs(product - a @ a) <= 4 * 2.0**-24 * (np.abs(a) @ np.abs(a))).all()
    assert got[17:].tolist() == x[:8].astype(np.float16).astype(np.float32).tolist()


# -------------------------------------------------------------------------------------------- bool vectors


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bool_vectors(device: metalane.Device, size: int) -> None:
    """any, all, !, &&, ||, ==, != and select over every pair of bool vectors."""
    patterns = list(itertools.product([False, True], repeat=size))
    pairs = list(itertools.product(patterns, repeat=2))
    flat = [np.array([p[k] for p in pairs], np.uint8).ravel() for k in (0, 1)]
    load = [
        f"bool{size} {v} = bool{size}({', '.join(f'{v}s[{size} * i + {k}]' for k in range(size))});"
        for v in "xy"
    ]
    calls = [
        *load,
        "any_out[i] = any(x); all_out[i] = all(x); store(not_out, i, !x); store(and_out, i, x && y);",
        "store(or_out, i, x || y); store(equal, i, x == y); store(unequal, i, x != y);",
        f"store(chosen, i, select(int{size}(-7), int{size}(9), x)); scalar[i] = select(3, 4, x[0]);",
        f"whole[i] = all(select(int{size}(1), int{size}(2), x[0]) == int{size}(x[0] ? 2 : 1));",
    ]
    n = len(pairs)
    vectors = ("not_out", "and_out", "or_out", "equal", "unequal")
    outputs = {"any_out": (n, "uchar"), "all_out": (n, "uchar"), "whole": (n, "uchar"), "scalar": (n, "int")}
    outputs |= dict.fromkeys(vectors, (n * size, "uchar")) | {"chosen": (n * size, "int")}
    got = run_kernel(
        device,
        f"bools_{size}",
        "",
        {"xs": ("uchar", flat[0]), "ys": ("uchar", flat[1])},
        outputs,
        calls,
        threads=n,
    )
    x, y = (f.reshape(n, size).astype(bool) for f in flat)
    assert np.array_equal(got["any_out"], x.any(1)) and np.array_equal(got["all_out"], x.all(1))
    for name, exact in zip(vectors, (~x, x & y, x | y, x == y, x != y), strict=True):
        assert np.array_equal(got[name].reshape(n, size), exact), name
    assert np.array_equal(got["chosen"].reshape(n, size), np.where(x, 9, -7))
    assert np.array_equal(got["scalar"], np.where(x[:, 0], 4, 3)) and got["whole"].all()
