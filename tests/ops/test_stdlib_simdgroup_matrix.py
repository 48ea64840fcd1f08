"""simdgroup_matrix on the CPU device: layout over lanes, loads and stores in every memory, products of every type."""

from __future__ import annotations

import numpy as np
import pytest
from ops.oracle.msl_real import DTYPES, REAL, float64
from ops.stdlib_case import POISON, run_kernel

import metalane

SIMDGROUPS = 3
THREADS = 32 * SIMDGROUPS
STRIDE = 13  # elements a row of memory, more than a matrix has
ATTRIBUTES = (
    "uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], "
    "uint s [[simdgroup_index_in_threadgroup]]"
)


def element_at(lane: int) -> tuple[int, int]:
    """Row and first column of a lane's two elements, as kernels for Apple's GPUs compute them."""
    quad = lane // 4
    return (quad & 4) + (lane // 2) % 4, (quad & 2) * 2 + (lane % 2) * 2


def spread(matrix: np.ndarray) -> np.ndarray:
    """The matrix as thread_elements() of 32 lanes."""
    return np.array([[matrix[r, c], matrix[r, c + 1]] for r, c in map(element_at, range(32))])


def test_layout_is_a_permutation() -> None:
    assert sorted(element_at(k) for k in range(32)) == [(r, c) for r in range(8) for c in (0, 2, 4, 6)]


@pytest.mark.parametrize("dtype", REAL)
def test_memory(device: metalane.Device, dtype: str) -> None:
    """Loads and stores with stride, origin and transposition, from device and threadgroup memory."""
    rows = 12
    memory = np.random.default_rng(4).integers(-99, 100, (SIMDGROUPS, rows, STRIDE)).astype(DTYPES[dtype])
    size = rows * STRIDE
    matrix = f"simdgroup_matrix<{dtype}, 8, 8>"
    loads = {
        f"simdgroup_load(m, in, {STRIDE})": lambda a: a[:8, :8],
        f"simdgroup_load(m, in, {STRIDE}, ulong2(2, 3))": lambda a: a[3:11, 2:10],
        f"simdgroup_load(m, in, {STRIDE}, ulong2(5, 4), true)": lambda a: a[4:12, 5:13].T,
        "simdgroup_load(m, in)": lambda a: a.ravel()[:64].reshape(8, 8),
        f"simdgroup_load(m, shared, {STRIDE}, ulong2(1, 2))": lambda a: a[2:10, 1:9],
        f"simdgroup_load(m, shared, {STRIDE}, 0, true)": lambda a: a[:8, :8].T,
    }
    stores = {
        f"simdgroup_store(m, to, {STRIDE})": (slice(0, 8), slice(0, 8), False),
        f"simdgroup_store(m, to, {STRIDE}, ulong2(4, 1))": (slice(1, 9), slice(4, 12), False),
        f"simdgroup_store(m, to, {STRIDE}, ulong2(3, 2), true)": (slice(2, 10), slice(3, 11), True),
    }
    lines = [
        f"threadgroup {dtype} memory[{SIMDGROUPS * size}];",
        f"device const {dtype}* in = ins + s * {size};",
    ]
    lines += [f"threadgroup {dtype}* shared = memory + s * {size};", f"{matrix} m;"]
    lines += [f"for (uint k = lane; k < {size}; k += 32) shared[k] = in[k];"]
    lines += ["threadgroup_barrier(mem_flags::mem_threadgroup);"]
    for k, load in enumerate(loads):
        lines.append(f"{load};")
        lines += [f"elements[{2 * k * THREADS} + 2 * t + {e}] = m.thread_elements()[{e}];" for e in (0, 1)]
    lines.append(f"simdgroup_load(m, in, {STRIDE});")
    for k, store in enumerate(stores):
        lines.append(f"{{ device {dtype}* to = stored + {k * SIMDGROUPS * size} + s * {size}; {store}; }}")
    # Loads and stores do not wait for other lanes: a store over what was just loaded needs the barrier.
    barrier = "simdgroup_barrier(mem_flags::mem_threadgroup);"
    lines += [barrier, f"simdgroup_store(m, shared, {STRIDE}, ulong2(5, 4));", barrier]
    lines.append(f"for (uint k = lane; k < {size}; k += 32) copied[s * {size} + k] = shared[k];")
    got = run_kernel(
        device,
        f"matrix_memory_{dtype}",
        "",
        {"ins": (dtype, memory.ravel())},
        {
            "elements": (2 * THREADS * len(loads), dtype),
            "stored": (len(stores) * SIMDGROUPS * size, dtype),
            "copied": (SIMDGROUPS * size, dtype),
        },
        lines,
        threads=THREADS,
        threads_per_threadgroup=THREADS,
        attributes=ATTRIBUTES,
    )
    elements = float64(got["elements"]).reshape(len(loads), SIMDGROUPS, 32, 2)
    for k, (load, window) in enumerate(loads.items()):
        for s in range(SIMDGROUPS):
            assert np.array_equal(elements[k, s], spread(float64(window(memory[s])))), (load, s)
    untouched = float64(np.full(4, POISON, np.uint8).view(DTYPES[dtype]))[0]
    stored = float64(got["stored"]).reshape(len(stores), SIMDGROUPS, rows, STRIDE)
    for k, (store, (r, c, transposed)) in enumerate(stores.items()):
        for s in range(SIMDGROUPS):
            exact = np.full((rows, STRIDE), untouched)
            window = float64(memory[s][:8, :8])
            exact[r, c] = window.T if transposed else window
            assert np.array_equal(stored[k, s], exact), (store, s)
    copied = float64(got["copied"]).reshape(SIMDGROUPS, rows, STRIDE)
    for s in range(SIMDGROUPS):
        exact = float64(memory[s])
        exact[4:12, 5:13] = float64(memory[s][:8, :8])
        assert np.array_equal(copied[s], exact)


@pytest.mark.parametrize("dtype", REAL)
def test_making(device: metalane.Device, dtype: str) -> None:
    """Filled and diagonal matrices, elements written by their lanes, copies."""
    matrix = f"simdgroup_matrix<{dtype}, 8, 8>"
    lines = [
        f"{matrix} f = make_filled_simdgroup_matrix<{dtype}, 8>({dtype}(3)), d = {matrix}({dtype}(5)), e, c;",
        f"{matrix} g = make_filled_simdgroup_matrix<{dtype}, 8, 8>({dtype}(7));",
        f"e.thread_elements()[0] = {dtype}(2 * lane); e.thread_elements()[1] = {dtype}(2 * lane + 1);",
        "c = e; c.thread_elements() += 1;",
        "simdgroup_store(f, out); simdgroup_store(d, out + 64); simdgroup_store(e, out + 128);",
        "simdgroup_store(c, out + 192); simdgroup_store(g, out + 256);",
    ]
    got = run_kernel(
        device,
        f"matrix_making_{dtype}",
        "",
        {},
        {"out": (320, dtype)},
        lines,
        threads=32,
        threads_per_threadgroup=32,
        attributes=ATTRIBUTES,
    )["out"]
    numbered = np.zeros((8, 8))
    for lane in range(32):
        row, column = element_at(lane)
        numbered[row, column : column + 2] = 2 * lane, 2 * lane + 1
    exact = [np.full((8, 8), 3.0), 5 * np.eye(8), numbered, numbered + 1, np.full((8, 8), 7.0)]
    np.testing.assert_array_equal(float64(got).reshape(5, 8, 8), exact)


# Types of d, a, b and c in d = a * b + c.
MIXES = [
    ("float", "float", "float", "float"),
    ("half", "half", "half", "half"),
    ("bfloat", "bfloat", "bfloat", "bfloat"),
    ("float", "half", "half", "float"),
    ("float", "bfloat", "bfloat", "float"),
    ("float", "half", "float", "float"),
    ("float", "float", "bfloat", "half"),
    ("half", "half", "half", "float"),
]


def test_products(device: metalane.Device) -> None:
    """multiply and multiply_accumulate, also into an operand; whole numbers exactly, reals within their roundings."""
    generator = np.random.default_rng(6)
    whole = generator.integers(-4, 5, (3, 8, 8)).astype(np.float64)
    real = generator.standard_normal((3, 8, 8))
    inputs, outputs, lines = {}, {}, []
    for t in REAL:
        inputs[f"in_{t}"] = (t, np.stack([whole, real]).astype(DTYPES[t]).ravel())
    for k, (d, a, b, c) in enumerate(MIXES):
        outputs[f"out_{k}"] = (2 * 4 * 64, d)
        for set_ in (0, 1):
            at = 192 * set_
            lines += [
                f"{{ simdgroup_matrix<{d}, 8, 8> d; simdgroup_matrix<{a}, 8, 8> a; simdgroup_matrix<{b}, 8, 8> b;",
                f"simdgroup_matrix<{c}, 8, 8> c; device {d}* out = out_{k} + {256 * set_};",
                f"simdgroup_load(a, in_{a} + {at}); simdgroup_load(b, in_{b} + {at + 64});",
                f"simdgroup_load(c, in_{c} + {at + 128});",
                "simdgroup_multiply(d, a, b); simdgroup_store(d, out);",
                "simdgroup_multiply_accumulate(d, a, b, c); simdgroup_store(d, out + 64);",
                "simdgroup_multiply_accumulate(d, a, b, d); simdgroup_store(d, out + 128);",
                f"simdgroup_matrix<{d}, 8, 8> q; simdgroup_load(q, in_{d} + {at});",
                "simdgroup_multiply(q, q, q); simdgroup_store(q, out + 192); }",
            ]
    got = run_kernel(
        device,
        "matrix_products",
        "",
        inputs,
        outputs,
        lines,
        threads=32,
        threads_per_threadgroup=32,
        attributes=ATTRIBUTES,
    )
    for k, mix in enumerate(MIXES):
        d, *operands = mix
        results = float64(got[f"out_{k}"]).reshape(2, 4, 8, 8)
        unit = {"float": 2.0**-24, "half": 2.0**-11, "bfloat": 2.0**-8}[d]
        for set_, values in enumerate((whole, real)):
            a, b, c = (float64(v.astype(DTYPES[t])) for v, t in zip(values, operands, strict=True))
            q = float64(values[0].astype(DTYPES[d]))
            product = a @ b
            exact = [product, product + c, 2 * product + c, q @ q]
            terms = [np.abs(a) @ np.abs(b)] * 3 + [np.abs(q) @ np.abs(q)]
            # Sums of eight products in float, rounded once to d; the third starts from a rounded sum.
            bounds = [
                unit * (np.abs(e) + 1e-30) + 10 * 2.0**-24 * (t + np.abs(c))
                for e, t in zip(exact, terms, strict=True)
            ]
            bounds[2] = bounds[2] + bounds[1]
            for given, e, bound in zip(results[set_], exact, bounds, strict=True):
                if set_ == 0:
                    assert np.array_equal(given, float64(e.astype(DTYPES[d]))), mix
                else:
                    assert (np.abs(given - e) <= bound).all(), mix
