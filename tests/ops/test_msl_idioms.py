"""Idioms of shipped kernel files, in kernels of our own: what a source writes against names of Apple's headers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import metalane

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

# Special members repeated for each address space; a key with its value, whose limits the library hands out.
KEYED = (
    HEAD
    + """
struct Walk {
  uint state;
  Walk() thread = default;
  Walk() threadgroup = default;
  Walk() device = default;
  Walk() constant = default;
  Walk(thread const Walk&) thread = default;
  static Walk from(uint seed) { Walk w; w.state = seed | 1; return w; }
  uint step() thread { return state = state * 1664525u + 1013904223u; }
};
kernel void walks(device uint* out, uint i [[thread_position_in_grid]]) {
  Walk w = Walk::from(i);
  w.step();
  out[i] = w.step();
}

template <typename T>
struct keyed {
  uint key;
  T value;
  constexpr keyed<T>() threadgroup = default;
  constexpr keyed<T>(uint k, T v) : key(k), value(v) {}
};
template <typename T>
struct _numeric_limits_impl<keyed<T>> {
  static constexpr keyed<T> lowest() { return keyed<T>(0, numeric_limits<T>::lowest()); }
};
template <typename T>
constexpr bool operator<(keyed<T> a, keyed<T> b) {
  return a.value < b.value || (a.value == b.value && a.key > b.key);
}
template <typename T>
struct Larger {
  static constexpr T start() { return numeric_limits<T>::lowest(); }
  T operator()(T a, T b) { return a < b ? b : a; }
};
template <typename T>
kernel void last_peak(device const T* x, constant uint& n, device uint* where, device T* peak) {
  Larger<keyed<T>> larger;
  keyed<T> best = Larger<keyed<T>>::start();
  for (uint i = 0; i < n; ++i) best = larger(best, keyed<T>(i, x[i]));
  where[0] = best.key;
  peak[0] = best.value;
}
template [[host_name("last_peak_float")]] kernel void last_peak<float>(
    device const float*, constant uint&, device uint*, device float*);
template [[host_name("last_peak_short")]] kernel void last_peak<short>(
    device const short*, constant uint&, device uint*, device short*);

template <typename T>
constexpr constant bool over_lanes = __is_valid_simdgroup_type<T>::value;
kernel void lanes_take(device bool* out) {
  out[0] = over_lanes<float>;
  out[1] = over_lanes<half>;
  out[2] = over_lanes<uchar>;
  out[3] = over_lanes<float4>;
  out[4] = over_lanes<ulong>;
  out[5] = over_lanes<keyed<float>>;
  out[6] = over_lanes<bfloat>;
}
"""
)


@pytest.fixture(scope="module")
def device():
    return metalane.Device("cpu")


@pytest.fixture(scope="module")
def keyed(device):
    return device.compile(KEYED, name="keyed")


def test_special_members_for_every_address_space(keyed):
    out = np.full(50, 0xA5A5A5A5, np.uint32)
    keyed.walks(out, threads=50)
    state = np.arange(50, dtype=np.uint64) | 1
    for _ in range(2):
        state = (state * 1664525 + 1013904223) % 2**32
    np.testing.assert_array_equal(out, state)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_limits_of_a_type_of_the_source(keyed, dtype):
    x = np.array([-5, -9, -2, -7, -2, -30], dtype)
    where, peak = np.full(1, 77, np.uint32), np.full(1, 55, dtype)
    kernel = keyed["last_peak_float" if dtype == np.float32 else "last_peak_short"]
    kernel(x, x.size, where, peak, threads=1)
    assert (where[0], peak[0]) == (2, -2)
    # Nothing to look at: what the type's own limits say.
    kernel(x, 0, where, peak, threads=1)
    lowest = np.finfo(dtype).min if dtype == np.float32 else np.iinfo(dtype).min
    assert (where[0], peak[0]) == (0, lowest)


def test_types_that_apples_collectives_take(keyed):
    out = np.array([False, False, False, False, True, True, True])
    keyed.lanes_take(out, threads=1)
    assert out.tolist() == [True, True, True, True, False, False, False]


# Both branches of `order` have tiles that alone fill the threadgroup memory; one of them is code.
TILES = (
    HEAD
    + """
constant bool wide [[function_constant(0)]];
template <typename T, int n>
void spread(device const T* x, device T* out, threadgroup T* tile, ushort t) {
  for (int i = t; i < n; i += 32) tile[n - 1 - i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = t; i < n; i += 32) out[i] = tile[i];
}
template <typename T, bool order, int n>
kernel void reversed(device const T* x, device T* out, ushort t [[thread_index_in_threadgroup]]) {
  if (order) {
    threadgroup T values[n];
    threadgroup uint indices[n];
    indices[t] = t;
    spread<T, n>(x, out, values, t);
    if (t == 0) out[0] = indices[31];
  } else {
    threadgroup T values[n];
    spread<T, n>(x, out, values, t);
  }
}
template [[host_name("reversed_plain")]] kernel void reversed<int, false, 8192>(device const int*, device int*, ushort);
template [[host_name("reversed_order")]] kernel void reversed<int, true, 4096>(device const int*, device int*, ushort);
template [[host_name("reversed_both")]] kernel void reversed<int, true, 8192>(device const int*, device int*, ushort);
kernel void chosen(device const int* x, device int* out, ushort t [[thread_index_in_threadgroup]]) {
  if (wide) {
    threadgroup int tile[8192];
    spread<int, 8192>(x, out, tile, t);
  } else {
    threadgroup int tile[100], unused[8192];
    spread<int, 100>(x, out, tile, t);
  }
}
"""
)


@pytest.fixture(scope="module")
def tiles(device):
    return device.compile(TILES, name="tiles")


@pytest.mark.parametrize(
    ("name", "constants", "n", "nbytes"),
    [
        ("reversed_plain", {}, 8192, 32768),
        ("reversed_order", {}, 4096, 32768),
        ("chosen", {"wide": True}, 8192, 32768),
        ("chosen", {"wide": False}, 100, 400),
    ],
    ids=["plain", "order", "wide", "narrow"],
)
def test_threadgroup_memory_of_code_that_runs(device, tiles, name, constants, n, nbytes):
    x = np.arange(n, dtype=np.int32) + 7
    out = np.full(n + 4, -5, np.int32)
    tiles[name](x, out, threadgroups=1, threads_per_threadgroup=32, constants=constants)
    want = x[::-1].copy()
    if name == "reversed_order":
        want[0] = 31
    np.testing.assert_array_equal(out, [*want, -5, -5, -5, -5])
    device.registry.register_source("tiles", TILES)
    pipeline = device.registry.pipeline(f"tiles::{name}", constants)
    assert pipeline.static_threadgroup_memory == nbytes


def test_threadgroup_memory_past_the_limit(device, tiles):
    with pytest.raises(metalane.CompileError, match=r"threadgroup variables take 65536 bytes"):
        _ = tiles.reversed_both.pipeline


# Conditionals whose operands are a bfloat and another number, also nested, as targets and without a value.
CONDITIONALS = (
    HEAD
    + """
struct Bits { uint low : 4; uint high : 12; };
void add(device float* to, float v) { *to += v; }
void drop(device float*) {}
template <typename T>
kernel void conditionals(device const T* x, constant float& slope, device float* out, device T* same,
                         uint i [[thread_position_in_grid]]) {
  T v = x[i];
  device float* o = out + 10 * i;
  o[0] = float(v < 0 ? 0 : v);
  o[1] = v > 0 ? v : slope * (exp(v) - 1);
  o[2] = v > 1 ? v : v < -1 ? -1 : 0.0f;
  o[3] = is_same_v<decltype(v < 0 ? 0 : v), T>;
  o[4] = is_same_v<decltype(v < 0 ? v : 1.5f), float>;
  o[5] = is_same_v<decltype(v < 0 ? v : v), thread T&>;
  o[6] = 0;
  v > 0 ? add(o + 6, 2) : drop(o + 6);
  T a = 1, b = 2;
  (v > 0 ? a : b) = v;
  o[7] = a + 10 * b;
  Bits bits = {5, 77};
  o[8] = (v > 0 ? bits.low : bits.high) + select(1, 2, v > 0 ? true : false);
  device const T* p = i > 0 ? x + i - 1 : nullptr;
  o[9] = p ? float(*p) : -9;
  same[i] = v > 0 ? as_type<T>(ushort(i)) : T(1) / (v < 0 ? 3 : v);
}
template [[host_name("conditionals_bfloat")]] kernel void conditionals<bfloat>(
    device const bfloat*, constant float&, device float*, device bfloat*, uint);
template [[host_name("conditionals_half")]] kernel void conditionals<half>(
    device const half*, constant float&, device float*, device half*, uint);
"""
)


@pytest.mark.parametrize("name", ["bfloat", "half"])
def test_conditionals_of_bfloats_and_numbers(device, name):
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat" else np.dtype(np.float16)
    x = np.array([-3.5, -0.75, 0.5, 2.25, -1.0], dtype)
    out, same = np.full((5, 10), -77, np.float32), np.full(5, -77, dtype)
    device.compile(CONDITIONALS)[f"conditionals_{name}"](x, 0.5, out, same, threads=5)
    v = x.astype(np.float64)
    positive = v > 0
    grown = np.exp(v).astype(dtype) - np.ones(5, dtype)  # each operation rounds
    want = np.stack(
        [
            np.maximum(v, 0),
            np.where(positive, v, 0.5 * grown.astype(np.float64)),
            np.where(v > 1, v, np.where(v < -1, -1, 0)),
            np.ones(5),
            np.ones(5),
            np.ones(5),
            np.where(positive, 2, 0),
            np.where(positive, v + 20, 1 + 10 * v),
            np.where(positive, 5 + 2, 77 + 1),
            [-9, *v[:-1]],
        ],
        axis=1,
    )
    np.testing.assert_allclose(out, want, rtol=2e-3 if name == "half" else 1e-2, atol=0)
    third = (np.ones(5) / 3).astype(dtype)
    bits = np.where(positive, np.arange(5, dtype=np.uint16), third.view(np.uint16))
    np.testing.assert_array_equal(same.view(np.uint16), bits)
