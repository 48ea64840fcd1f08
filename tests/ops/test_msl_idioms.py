"""Idioms of shipped kernel files, in kernels of our own: what a source writes against names of Apple's headers."""

from __future__ import annotations

import os
import time

import ml_dtypes
import numpy as np
import pytest
from host_memory import paged

import metalane
from devices import SANITIZED

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
def keyed(device):
    return device.compile(KEYED, name="keyed")


def test_special_members_for_every_address_space(keyed):
    out = paged(np.full(50, 0xA5A5A5A5, np.uint32))
    keyed.walks(out, threads=50)
    state = np.arange(50, dtype=np.uint64) | 1
    for _ in range(2):
        state = (state * 1664525 + 1013904223) % 2**32
    np.testing.assert_array_equal(out, state)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_limits_of_a_type_of_the_source(keyed, dtype):
    x = np.array([-5, -9, -2, -7, -2, -30], dtype)
    where, peak = paged(np.full(1, 77, np.uint32)), paged(np.full(1, 55, dtype))
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


MOST_MEMORY = pytest.mark.needs(max_threadgroup_memory=32768)


@pytest.mark.parametrize(
    ("name", "constants", "n", "nbytes"),
    [
        pytest.param("reversed_plain", {}, 8192, 32768, marks=MOST_MEMORY, id="plain"),
        pytest.param("reversed_order", {}, 4096, 32768, marks=MOST_MEMORY, id="order"),
        pytest.param("chosen", {"wide": True}, 8192, 32768, marks=MOST_MEMORY, id="wide"),
        pytest.param("chosen", {"wide": False}, 100, 400, id="narrow"),
    ],
)
def test_threadgroup_memory_of_code_that_runs(device, tiles, name, constants, n, nbytes):
    x = np.arange(n, dtype=np.int32) + 7
    out = paged(np.full(n + 4, -5, np.int32))
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
    out, same = paged(np.full((5, 10), -77, np.float32)), paged(np.full(5, -77, dtype))
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


# Function constants of vector types, matrices by columns in braces, and a byte order mark before the first line.
CONSTANTS = "\N{BYTE ORDER MARK}" + (
    HEAD
    + """
constant float4 scale [[function_constant(0)]];
constant uint2 tile [[function_constant(1)]];
constant bool3 mask [[function_constant(2)]];
constant half3 shift [[function_constant(3)]];
constant short2 offset [[function_constant(4)]];
constant ulong2 wide [[function_constant(5)]];
constant bfloat2 low [[function_constant(6)]];
constant float2 absent [[function_constant(7)]];
constant float2 chosen = is_function_constant_defined(absent) ? absent : float2(-1, -2);
constant int rows = tile.x * 3;
kernel void constants(device float* out [[buffer(0)]], device ulong* words [[buffer(1)]]) {
  float cells[rows];
  for (int i = 0; i < rows; ++i) cells[i] = i;
  out[0] = dot(scale, float4(1, 10, 100, 1000));
  out[1] = cells[rows - 1] + tile.y;
  out[2] = mask.x + 2 * mask.y + 4 * mask.z;
  out[3] = shift.z - shift.x;
  out[4] = offset.x * offset.y;
  out[5] = low.y;
  out[6] = chosen.x;
  words[0] = wide.x;
  words[1] = wide.y;
}
kernel void columns(device float* out [[buffer(0)]], constant float2& u [[buffer(1)]]) {
  float2x2 a = {{1, 2}, {3, 4}}, b{u, {5, 6}};
  constexpr float3x2 c = {{1, 2}, {3, 4}, {5, 6}};
  float2x2 d = {1, 2, 3, 4};
  const half4x4 e = {half4(1), half4(2), half4(3), {4, 5, 6, 7}};
  out[0] = a[1][0] * 100 + a[0][1];
  out[1] = (a * b)[0][1];
  out[2] = c[2][1] + c[1][0];
  out[3] = d[1][0];
  out[4] = e[3].w + e[2].x;
}
"""
)
VALUES = {
    "scale": [1, 2.5, -3, 0.5],
    "tile": (4, 7),
    "mask": (True, False, True),
    "shift": np.array([0.5, 1, 2.25], np.float16),
    "offset": np.array([-3, 5]),
    "wide": (2**64 - 1, 3),
    "low": (0.1, 1.00390625),
}


@pytest.fixture(scope="module")
def constants(device):
    return device.compile(CONSTANTS, name="constants")


@pytest.mark.parametrize("when", ["compile", "call", "registry"])
def test_function_constants_of_vector_types(device, constants, when):
    out, words = paged(np.full(7, -77, np.float32)), paged(np.full(2, 77, np.uint64))
    if when == "compile":
        device.compile(CONSTANTS, constants=VALUES).constants(out, words, threads=1)
    elif when == "call":
        constants.constants(out, words, threads=1, constants=VALUES)
    else:
        device.registry.register_source("vectors", CONSTANTS)
        plain = {name: tuple(np.asarray(value).tolist()) for name, value in VALUES.items()}
        plain["wide"] = VALUES["wide"]
        buffers = [device.from_numpy(out), device.from_numpy(words)]
        encoder = device.command_encoder()
        encoder.dispatch("vectors::constants", buffers, constants=plain, threads=1, threads_per_threadgroup=1)
        encoder.commit_and_wait()
        out, words = (buffer.numpy() for buffer in buffers)
    low = float(np.float32(1.00390625).astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(out, [1 + 25 - 300 + 500, 11 + 7, 5, 1.75, -15, low, -1])
    np.testing.assert_array_equal(words, np.array([2**64 - 1, 3], np.uint64))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scale", 1.0, "constants['scale'] must be 4 numbers (float4), got 1.0"),
        ("scale", (1, 2, 3), "constants['scale'] must be 4 numbers (float4), got (1, 2, 3)"),
        ("scale", "abcd", "constants['scale'] must be 4 numbers (float4), got 'abcd'"),
        ("tile", (1, -1), "constants['tile']"),
        ("tile", (1, 2**32), "constants['tile']"),
        ("mask", (True, 2, False), "constants['mask']"),
        ("offset", (1.5, 1), "constants['offset']"),
    ],
    ids=["scalar", "short", "text", "negative", "large", "no_bool", "fraction"],
)
def test_vector_constants_that_do_not_fit(device, constants, name, value, message):
    with pytest.raises(metalane.ArgumentError) as caught:
        constants.constants(
            paged(np.zeros(7, np.float32)),
            paged(np.zeros(2, np.uint64)),
            threads=1,
            constants={**VALUES, name: value},
        )
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [1.0, (1, 2, 3), [1, 2, 3, "4"], [1, 2, 3, [4]]])
def test_vector_constants_of_the_registry_that_do_not_fit(device, value):
    device.registry.register_source("vectors_refused", CONSTANTS)
    plain = {n: tuple(np.asarray(v).tolist()) if n != "wide" else v for n, v in VALUES.items()}
    with pytest.raises(metalane.ArgumentError, match=r"scale|constants"):
        device.registry.pipeline("vectors_refused::constants", {**plain, "scale": value})


def test_matrices_by_columns_in_braces(constants):
    out = paged(np.full(6, -77, np.float32))
    constants.columns(out, (7, 8), threads=1)
    np.testing.assert_array_equal(out, [302, 2 * 7 + 4 * 8, 9, 3, 10, -77])


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("float2 v = {1, 2, x[0]}; x[1] = v.y", "more values in the braces than the vector has components"),
        ("packed_half3 v = {1, 2, 3, 4}; x[1] = v.y", "more values in the braces"),
        ("float4 v = float4(x[0]); x[1] = (v < 1 ? v : -v).x", "a vector is no condition"),
        ("if (float2(x[0])) x[1] = 2", "a vector is no condition: use all(), any() or select()"),
    ],
    ids=["braces", "packed", "conditional", "if"],
)
def test_what_vectors_are_not(device, statement, words):
    source = device.compile(f"{HEAD}kernel void f(device float* x) {{\n  {statement};\n}}\n", name="mistake")
    with pytest.raises(metalane.CompileError) as caught:
        _ = source.f.pipeline
    assert words in str(caught.value)
    # Clang tells the function, not the line, of calls that must not be compiled.
    if "condition" in words or "clang" not in os.environ.get("CXX", ""):
        assert "mistake:4:" in str(caught.value)


# One of 250 formats: a block, its decoder, a product in two sizes; each format's decoder calls the one before.
FORMAT = """\
#define WIDTH_{i} {width}
struct block_{i} {{
  half scale;
  half low;
  uchar packed[WIDTH_{i} / 2];
}};
static_assert(sizeof(block_{i}) == 4 + WIDTH_{i} / 2, "no padding");

template <typename tile>
void decode_{i}(device const block_{i}* b, short part, thread tile& out) {{
  const float scale = b->scale, low = b->low + {i}.0h / 1024.0h;
  for (short k = 0; k < 4; ++k) {{
    const uchar pair = b->packed[2 * part + k / 2];
    out[k] = scale * ((k & 1) ? pair >> 4 : pair & 15) + low;
  }}
}}

float biased_{i}(float x) {{
  return {before}(x) + {i}.5f;
}}

template <typename block, int width, void (*decode)(device const block*, short, thread float4&)>
kernel void product_{i}(
    device const block* w [[buffer(0)]],
    device const float4* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    constant uint& blocks [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]]) {{
  float sum = 0;
  for (uint b = lane; b < blocks; b += 32) {{
    for (short part = 0; part < width / 4; ++part) {{
      float4 tile;
      decode(w + row * blocks + b, part, tile);
      sum += dot(tile, x[b * (width / 4) + part]);
    }}
  }}
  sum = simd_sum(sum);
  if (lane == 0) y[row] = biased_{i}(sum);
}}
typedef decltype(product_{i}<block_{i}, WIDTH_{i}, decode_{i}<float4>>) product_{i}_t;
template [[host_name("product_{i}")]] kernel product_{i}_t product_{i}<block_{i}, WIDTH_{i}, decode_{i}<float4>>;

"""


def test_the_first_pipeline_of_ten_thousand_lines(device):
    formats = 250
    own = f"biased_{os.urandom(8).hex()}"  # in no cache
    parts = [HEAD, f"float {own}(float x) {{ return x; }}\n"]
    for i in range(formats):
        before = f"biased_{i - 1}" if i % 10 else own
        parts.append(FORMAT.format(i=i, width=16 + 16 * (i % 3), before=before))
    source = "".join(parts)
    assert source.count("\n") > 10_000
    begin = time.perf_counter()
    kernel = device.compile(source)[f"product_{formats - 1}"]
    _ = kernel.pipeline
    assert time.perf_counter() - begin < (50 if SANITIZED else 5)
    rng = np.random.default_rng(3)
    width = 16 + 16 * ((formats - 1) % 3)
    rows, blocks = 3, 37
    w = np.zeros((rows, blocks), [("scale", "<f2"), ("low", "<f2"), ("packed", "u1", width // 2)])
    w["scale"], w["low"] = rng.uniform(0.1, 1, (2, rows, blocks))
    w["packed"] = rng.integers(0, 256, w["packed"].shape)
    x = rng.standard_normal(blocks * width).astype(np.float32)
    y = paged(np.full(rows + 1, -77, np.float32))
    kernel(w, x, y, blocks, threadgroups=rows, threads_per_threadgroup=32)
    low = (w["low"] + np.float16(formats - 1) / np.float16(1024)).astype(np.float64)
    digits = np.stack([w["packed"] & 15, w["packed"] >> 4], -1).reshape(rows, blocks, width)
    values = w["scale"].astype(np.float64)[..., None] * digits + low[..., None]
    bias = sum(i + 0.5 for i in range(formats - 10, formats))
    np.testing.assert_allclose(y[:rows], values.reshape(rows, -1) @ x + bias, rtol=2e-6)
    assert y[rows] == -77


# A header that an application in Objective-C shares with its kernels.
SHARED = """
#ifndef Shared_h
#define Shared_h
#ifdef __METAL_VERSION__
#define NS_ENUM(type, name) enum name : type name; enum name : type
typedef int NSInteger;
#else
#import <Foundation/Foundation.h>
#endif
#include <simd/simd.h>
typedef NS_ENUM(NSInteger, Place) { PlaceFirst = 1, PlaceOther = 7 };
typedef struct Shared Shared;
struct Shared {
  matrix_float3x3 turn;
  vector_float3 at;
  simd_uint2 counts;
  simd::half4 tint;
  Place place;
};
#endif
"""
SHARING = (
    HEAD
    + """
#include "Shared.h"
kernel void shared(constant Shared& s [[buffer(0)]], device simd_float4* out [[buffer(1)]]) {
  const vector_float3 p = s.turn * s.at;
  out[0] = simd::float4(p, s.tint.w);
  out[1] = simd_float4(s.counts.x, s.counts.y, s.place == PlaceOther, sizeof(Shared));
}
"""
)


def test_headers_shared_with_an_application(device):
    kernel = device.compile(SHARING, headers={"Shared.h": SHARED}).shared
    turn = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 10]], np.float32)  # columns
    out = paged(np.full((2, 4), -77, np.float32))
    fields = {"turn": turn, "at": (1, -2, 3), "counts": (9, 8), "tint": (0, 0, 0, 0.5), "place": 7}
    kernel(fields, out, threads=1)
    np.testing.assert_array_equal(out, [[*(turn.T @ [1, -2, 3]), 0.5], [9, 8, 1, 96]])


SPECIALISED = (
    HEAD
    + """
template <typename T, int n>
kernel void fill(device T* out, uint i [[thread_position_in_grid]]) {
  out[i] = T(n);
}
template <>
[[host_name("fill_bits")]] [[kernel]] void fill<uint, 1>(device uint* out, uint i [[thread_position_in_grid]]) {
  out[i] = 1u << i;
}
template <>
kernel void fill<int, 2>(device int* out, uint i [[thread_position_in_grid]]) {
  out[i] = -2 * int(i);
}
template [[host_name("fill_plain")]] kernel void fill<uint, 3>(device uint*, uint);
template [[host_name("fill_even")]] kernel void fill<int, 2>(device int*, uint);
"""
)


@pytest.mark.parametrize(
    ("name", "want"),
    [("fill_plain", [3, 3, 3, 3]), ("fill_bits", [1, 2, 4, 8]), ("fill_even", [0, -2, -4, -6])],
)
def test_specialised_kernels(device, name, want):
    kernel = device.compile(SPECIALISED)[name]
    out = paged(np.full(5, 77, np.int32 if name == "fill_even" else np.uint32))
    kernel(out, threads=4)
    assert out.tolist() == [*want, 77]


# A stamp that the host and other launches see at once, where the scope's name is missing from older headers.
STAMPS = (
    HEAD
    + """
#ifndef __METAL_MEMORY_SCOPE_SYSTEM__
#define __METAL_MEMORY_SCOPE_SYSTEM__ 3
namespace metal {
constexpr constant thread_scope thread_scope_system = static_cast<thread_scope>(__METAL_MEMORY_SCOPE_SYSTEM__);
}
#endif
[[kernel]] void stamp(volatile coherent(system) device uint* at [[buffer(0)]], constant uint& value [[buffer(1)]]) {
  at[0] = value;
  metal::atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_system);
}
[[kernel]] void after(coherent(device) device const uint* at, constant uint& value, device uint* out) {
  while (at[0] < value) atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  coherent device uint* to = out;
  to[0] = at[0] + 1;
}
"""
)


def test_coherent_memory(device):
    stamps = device.compile(STAMPS)
    at, out = device.from_numpy(np.zeros(1, np.uint32)), paged(np.full(2, 77, np.uint32))
    assert stamps.stamp.arguments["at"].access == "read_write"
    assert stamps.after.arguments["at"].access == "read"
    stamps.stamp(at, 41, threads=1)
    stamps.after(at, 41, out, threads=1)
    assert out.tolist() == [42, 77]
