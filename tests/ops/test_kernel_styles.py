"""Kernels in the manners of several code bases, run as they stand on the CPU device, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import metalane

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

# Block formats read through functions given as template arguments; instances of a typedef'd kernel.
BLOCKS = (
    HEAD
    + """
#define UNROLL(head) _Pragma("clang loop unroll(full)") for (head)
struct block_n4 { half scale; uint8_t packed[16]; };
struct block_i8 { half scale; int8_t values[32]; };
static_assert(sizeof(block_n4) == 18 && sizeof(block_i8) == 34, "blocks have no padding");
typedef struct { int32_t columns; uint64_t row_bytes; } row_args;

template <typename tile>
void unpack_n4(device const block_n4* b, short part, thread tile& out) {
  device const uint16_t* pairs = (device const uint16_t*)b + 1;
  const ushort mask = part ? 0x00F0 : 0x000F;
  const float low = part ? b->scale / 16.h : b->scale, base = -8.h * b->scale;
  UNROLL(short i = 0; i < 8; ++i) {
    out[i / 2][2 * (i % 2)] = low * (pairs[i] & mask) + base;
    out[i / 2][2 * (i % 2) + 1] = low / 256.f * (pairs[i] & (mask << 8)) + base;
  }
}
template <typename tile>
void unpack_i8(device const block_i8* b, short part, thread tile& out) {
  for (int i = 0; i < 16; ++i) out[i / 4][i % 4] = b->values[i + 16 * part] * (float)b->scale;
}

template <typename block, short parts, void (*unpack)(device const block*, short, thread float4x4&)>
kernel void look_up(constant row_args& args, device const void* table, device const int* ids, device float4x4* out,
                    uint row [[threadgroup_position_in_grid]], ushort t [[thread_index_in_threadgroup]],
                    ushort threads [[threads_per_threadgroup]]) {
  device const block* blocks = (device const block*)((device const char*)table + ids[row] * args.row_bytes);
  for (int i = t; i < args.columns / 16; i += threads) {
    float4x4 tile;
    unpack(blocks + i / parts, i % parts, tile);
    out[row * (args.columns / 16) + i] = tile;
  }
}
typedef decltype(look_up<block_n4, 2, unpack_n4>) look_up_t;
template [[host_name("look_up_n4")]] kernel look_up_t look_up<block_n4, 2, unpack_n4>;
template [[host_name("look_up_i8")]] kernel look_up_t look_up<block_i8, 2, unpack_i8>;

constant short simdgroups [[function_constant(0)]];
template <int rows, typename args_t>
void product_rows(args_t args, device const char* w, device const float* x, device float* y, threadgroup char* scratch,
                  uint group, ushort lane, ushort sg) {
  float sums[rows] = {[0 ... rows - 1] = 0.f};
  for (int b = sg * 32 + lane; b < args.columns / 32; b += 32 * simdgroups) {
    UNROLL(short r = 0; r < rows; ++r) {
      device const block_i8* blk = (device const block_i8*)(w + (group * rows + r) * args.row_bytes) + b;
      float4 part = 0;
      for (short i = 0; i < 32; i += 4) {
        part += float4(*(device const packed_char4*)(blk->values + i)) * *(device const float4*)(x + 32 * b + i);
      }
      sums[r] += (part[0] + part[1] + part[2] + part[3]) * blk->scale;
    }
  }
  threadgroup float* shared = (threadgroup float*)scratch;
  for (short r = 0; r < rows; ++r) {
    const float sum = simd_sum(sums[r]);
    if (lane == 0) shared[r * 32 + sg] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg == 0) {
    for (short r = 0; r < rows; ++r) {
      const float sum = simd_sum(lane < simdgroups ? shared[r * 32 + lane] : 0);
      if (lane == 0) y[group * rows + r] = sum;
    }
  }
}
[[host_name("product_i8")]] kernel void product_kernel(
    constant row_args& args, device const char* w, device const float* x, device float* y,
    threadgroup char* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]], ushort sg [[simdgroup_index_in_threadgroup]]) {
  product_rows<3, constant row_args&>(args, w, x, y, scratch, group.x, lane, sg);
}
"""
)

# Operators as structs, limits as specialised templates, instances made by a variadic macro.
FUNCTORS = (
    HEAD
    + """
#define FORCED inline __attribute__((__always_inline__))
#define instance(name, func, ...) \\
  template [[host_name(name)]] [[kernel]] decltype(func<__VA_ARGS__>) func<__VA_ARGS__>;
template <typename U> struct Bounds { static const constant U low = metal::numeric_limits<U>::min(); };
#define real_bounds(T) \\
  template <> struct Bounds<T> { static constexpr constant T low = -metal::numeric_limits<T>::infinity(); };
real_bounds(half);
real_bounds(float);
real_bounds(bfloat);

inline int64_t simd_shuffle_down(int64_t v, uint16_t by) {
  return as_type<int64_t>(metal::simd_shuffle_down(as_type<uint2>(v), by));
}
template <typename U>
struct Largest {
  static constexpr constant U start = Bounds<U>::low;
  template <typename T, metal::enable_if_t<sizeof(T) < 8, bool> = true> T over_lanes(T v) { return simd_max(v); }
  template <typename T, metal::enable_if_t<sizeof(T) == 8, bool> = true> T over_lanes(T v) {
    for (short by = 16; by > 0; by /= 2) v = operator()(v, simd_shuffle_down(v, by));
    return v;
  }
  U operator()(U a, U b) { return a > b ? a : b; }
};
struct FloorMod {
  template <typename T> metal::enable_if_t<metal::is_integral_v<T>, T> operator()(T x, T y) {
    T r = x % y;
    if (r != 0 && (r < 0 != y < 0)) r += y;
    return r;
  }
  template <typename T> metal::enable_if_t<!metal::is_integral_v<T>, T> operator()(T x, T y) {
    T r = fmod(x, y);
    return r != 0 && (r < 0 != y < 0) ? T(r + y) : r;
  }
};
template <typename IdxT>
FORCED vec<IdxT, 2> places(uint3 at, constant const int* shape, constant const int64_t* sa, constant const int64_t* sb,
                           int ndim) {
  vec<IdxT, 2> p = {IdxT(at.x * sa[ndim - 1] + at.y * sa[ndim - 2]), IdxT(at.x * sb[ndim - 1] + at.y * sb[ndim - 2])};
  for (int d = ndim - 3; d >= 0; --d) {
    p += vec<IdxT, 2>(IdxT(at.z % shape[d] * sa[d]), IdxT(at.z % shape[d] * sb[d]));
    at.z /= shape[d];
  }
  return p;
}
template <typename T, typename Op, typename IdxT = int64_t>
[[kernel]] void strided_binary(device const T* a, device const T* b, device T* c, constant const int* shape,
                               constant const int64_t* sa, constant const int64_t* sb, constant const int& ndim,
                               uint3 at [[thread_position_in_grid]], uint3 size [[threads_per_grid]]) {
  auto p = places<IdxT>(at, shape, sa, sb, ndim);
  c[at.x + size.x * (at.y + size.y * at.z)] = Op()(a[p.x], b[p.y]);
}
template <typename T, typename Op, int per_thread = 4>
[[kernel, max_total_threads_per_threadgroup(256)]] void reduce_row(
    device const T* in, device T* out, constant const size_t& n, uint t [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint sgs [[simdgroups_per_threadgroup]]) {
  threadgroup T shared[32];
  Op op;
  T best = Op::start;
  for (size_t i = t * per_thread; i < n; i += threads * per_thread) {
    for (int j = 0; j < per_thread && i + j < n; ++j) best = op(in[i + j], best);
  }
  best = op.over_lanes(best);
  if (lane == 0) shared[sg] = best;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg == 0) {
    best = op.over_lanes(lane < sgs ? shared[lane] : T(Op::start));
    if (lane == 0) out[0] = best;
  }
}
instance("mod_i32", strided_binary, int, FloorMod, int)
instance("mod_f32", strided_binary, float, FloorMod)
instance("largest_f32", reduce_row, float, Largest<float>)
instance("largest_f16", reduce_row, half, Largest<half>)
instance("largest_bf16", reduce_row, bfloat, Largest<bfloat>)
instance("largest_i64", reduce_row, int64_t, Largest<int64_t>)
"""
)

# A namespace of helpers, accumulation types chosen by traits, names pasted from types by the preprocessor.
TRAITS = (
    HEAD
    + """
namespace kit { namespace impl {
template <typename T> struct Acc { using type = float; };
template <> struct Acc<int> { using type = long; };
template <> struct Acc<uchar> { using type = long; };
} // namespace impl
template <typename T> using acc_t = typename impl::Acc<T>::type;
template <typename T, ::metal::enable_if_t<::metal::is_floating_point_v<T>, bool> = true>
inline T top(T a, T b) { return ::metal::isunordered(a, b) ? NAN : ::metal::max(a, b); }
template <typename T, ::metal::enable_if_t<::metal::is_integral_v<T>, bool> = true>
inline T top(T a, T b) { return ::metal::max(a, b); }
// mean, summed squares, count
inline float3 merged(float3 a, float3 b) {
  const float delta = b.x - a.x, n = a.z + b.z;
  const auto f = n == 0 ? 0.0f : b.z / n;
  return float3(a.x + delta * f, a.y + b.y + delta * delta * a.z * f, n);
}
} // namespace kit
using namespace kit;

template <typename T> struct clip_op {
  inline T operator()(const T x, const T y) { return ::metal::clamp(top(x, y), T(-1), T(2)); }
};
template <typename T, typename F>
kernel void binary_dense(device T* out [[buffer(0)]], constant T* a [[buffer(1)]], constant T* b [[buffer(2)]],
                         uint i [[thread_position_in_grid]]) {
  F f;
  out[i] = f(a[i], b[i]);
}
template <typename T>
kernel void total(device acc_t<T>* out [[buffer(0)]], device const T* in [[buffer(1)]],
                  constant uint2& shape [[buffer(2)]],
                  uint row [[thread_position_in_grid]]) {
  acc_t<T> sum = 0;
  for (uint i = 0; i < shape.y; ++i) sum += static_cast<acc_t<T>>(in[row * shape.y + i]);
  out[row] = sum;
}
#define REGISTER(T)                                                                                  \\
  template [[host_name("clip_" #T)]] kernel void binary_dense<T, clip_op<T>>(                        \\
      device T * out [[buffer(0)]], constant T * a [[buffer(1)]], constant T * b [[buffer(2)]],      \\
      uint i [[thread_position_in_grid]]);                                                           \\
  template [[host_name("total_" #T)]] kernel void total<T>(                                          \\
      device acc_t<T> * out [[buffer(0)]], device const T * in [[buffer(1)]],                        \\
      constant uint2 & shape [[buffer(2)]], uint row [[thread_position_in_grid]]);
REGISTER(float)
REGISTER(half)
REGISTER(int)
REGISTER(uchar)

kernel void moments(device const float* x, device float2* out, constant int& n,
                    uint row [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]]) {
  threadgroup float3 shared[256];
  float3 own = 0;
  for (int i = t; i < n; i += threads) own = merged(own, float3(x[row * n + i], 0, 1));
  shared[t] = own;
  for (uint half_size = threads / 2; half_size >= 1; half_size /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < half_size) shared[t] = merged(shared[t], shared[t + half_size]);
  }
  if (t == 0) out[row] = shared[0].xy / float2(1, n);
}
"""
)

# Plain kernels of the sort found in applications.
PLAIN = (
    HEAD
    + """
enum Order { ascending, descending };
#define EXCHANGE(a, b) { auto keep = (a); (a) = (b); (b) = keep; }
template <Order order>
kernel void bitonic(device const float* x, device int* places, constant int& n, constant int& padded,
                    threadgroup int* at [[threadgroup(0)]], uint t [[thread_position_in_threadgroup]]) {
  at[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int k = 2; k <= padded; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      int other = t ^ j;
      if (other > int(t)) {
        const bool up = (t & k) == 0;
        threadgroup int &a = at[up ? t : other], &b = at[up ? other : t];
        if (a >= n || (b < n && (order == ascending ? x[a] > x[b] : x[a] < x[b]))) EXCHANGE(a, b)
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  if (int(t) < n) places[t] = at[t];
}
typedef decltype(bitonic<ascending>) bitonic_t;
template [[host_name("argsort_ascending")]] kernel bitonic_t bitonic<ascending>;
template [[host_name("argsort_descending")]] kernel bitonic_t bitonic<descending>;

struct RopeArgs { int heads; int width; int start; float base; };
static void turn(float theta, thread float* c, thread float* s) { *s = sincos(theta, *c); }
kernel void rope(device const float2* x, device float2* y, constant RopeArgs& args,
                 uint3 at [[thread_position_in_grid]]) {
  float c, s;
  turn((args.start + int(at.z)) * pow(args.base, -2.f * at.x / args.width), &c, &s);
  const uint i = (at.z * args.heads + at.y) * (args.width / 2) + at.x;
  const float2x2 m = float2x2(float2(c, s), float2(-s, c));
  y[i] = m * x[i];
}

struct Image { int channels, height, width, kernel_height, kernel_width, stride, pad, out_width; };
template <typename T>
kernel void unfold(device const float* x [[buffer(0)]], device T* y [[buffer(1)]], constant Image& im [[buffer(2)]],
                   uint2 at [[thread_position_in_grid]]) {
  const int taps = im.kernel_height * im.kernel_width;
  const int c = at.x / taps, tap = at.x % taps;
  const int2 pos = int2(at.y % im.out_width, at.y / im.out_width) * im.stride +
                   int2(tap % im.kernel_width, tap / im.kernel_width) - im.pad;
  const bool inside = all(pos >= 0) && all(pos < int2(im.width, im.height));
  y[at.y * (im.channels * taps) + at.x] = inside ? T(x[(c * im.height + pos.y) * im.width + pos.x]) : T(0);
}
template [[host_name("unfold_f16")]] kernel void unfold<half>(
    device const float*, device half*, constant Image&, uint2);

kernel void state_scan(device float* state, device const float* x, device const float* dt, device const float* decay,
                       device const float4* B, device const float4* C, device float* y, constant uint& steps,
                       uint channel [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                       uint channels [[threadgroups_per_grid]]) {
  device float4* own = reinterpret_cast<device float4*>(state) + channel * 32 + lane;
  float4 h = *own;
  for (uint step = 0; step < steps; ++step) {
    const float d = dt[step * channels + channel];
    const float soft = d <= 20.0f ? log(1.0f + exp(d)) : d;
    h = h * exp(soft * decay[channel]) + B[step * 32 + lane] * (x[step * channels + channel] * soft);
    const float sum = simd_sum(dot(h, C[step * 32 + lane]));
    if (simd_is_first()) y[step * channels + channel] = sum;
  }
  *own = h;
}

// Attention of one query over a cache, 8 keys of 8 values at a time through simdgroup matrices.
kernel void tile_product(device const half* a, device const half* b, device float* c, constant uint& k,
                         uint2 tile [[threadgroup_position_in_grid]], uint2 tiles [[threadgroups_per_grid]]) {
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(0.f);
  for (uint i = 0; i < k; i += 8) {
    simdgroup_half8x8 left, right;
    simdgroup_load(left, a + tile.y * 8 * k + i, k);
    simdgroup_load(right, b + tile.x * 8 * k + i, k, 0, true);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, c + tile.y * 8 * tiles.x * 8 + tile.x * 8, tiles.x * 8);
}

static inline uint next_random(thread uint& s) { s ^= s << 13; s ^= s >> 17; s ^= s << 5; return s; }
kernel void sample(device const float* logits, device int* token, constant uint& n, constant float& temperature,
                   constant uint& seed, uint lane [[thread_index_in_simdgroup]]) {
  float most = -INFINITY;
  for (uint i = lane; i < n; i += 32) most = max(most, logits[i]);
  most = simd_max(most);
  uint state = seed;
  const float u = (next_random(state) >> 8) * 0x1p-24f;
  float sum = 0;
  for (uint i = lane; i < n; i += 32) sum += exp((logits[i] - most) / temperature);
  const float goal = u * simd_sum(sum);
  float before = 0;
  int chosen = n - 1;
  for (uint base = 0; base < n; base += 32) {
    const uint i = base + lane;
    const float p = i < n ? exp((logits[i] - most) / temperature) : 0;
    const float upto = before + simd_prefix_inclusive_sum(p);
    const auto votes = static_cast<ulong>(simd_ballot(upto > goal));
    if (votes != 0) { chosen = base + ctz(votes); break; }
    before = simd_broadcast(upto, 31);
  }
  if (lane == 0) *token = chosen;
}

kernel void float_peak(device const float* x, device atomic_uint* peak, uint i [[thread_position_in_grid]]) {
  uint old = atomic_load_explicit(peak, memory_order_relaxed);
  while (x[i] > as_type<float>(old) &&
         !atomic_compare_exchange_weak_explicit(peak, &old, as_type<uint>(x[i]), memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
}
"""
)

KERNELS = {
    BLOCKS: ["look_up_n4", "look_up_i8", "product_i8"],
    FUNCTORS: ["mod_i32", "mod_f32", "largest_f32", "largest_f16", "largest_bf16", "largest_i64"],
    TRAITS: ["clip_float", "clip_half", "clip_int", "total_int", "total_uchar", "total_half", "moments"],
    PLAIN: ["argsort_ascending", "argsort_descending", "rope", "unfold_f16", "state_scan", "tile_product", "sample",
            "float_peak"],
}  # fmt: skip


# Instances whose host names the preprocessor pastes are found by the name of their source.
FULL_NAMES = {
    name: f"style{number}::{name}" for number, names in enumerate(KERNELS.values()) for name in names
}


def with_sources(device: metalane.Device) -> metalane.Device:
    for number, source in enumerate(KERNELS):
        device.registry.register_source(f"style{number}", source)
    return device


@pytest.fixture(scope="module")
def device(device_kind) -> metalane.Device:
    return with_sources(metalane.Device(device_kind))


@pytest.fixture(scope="module")
def plain_device(device_kind) -> metalane.Device:
    return with_sources(metalane.Device(device_kind, check=False))


def run(device, kernel, args, outputs, **launch):
    """Dispatches with arrays as buffers; the arrays at positions `outputs`, poisoned or not, are returned."""
    bound = [device.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
    encoder = device.command_encoder()
    encoder.dispatch(FULL_NAMES[kernel], bound, **launch)
    encoder.commit_and_wait()
    results = [bound[i].numpy().copy() for i in outputs]
    return results[0] if len(results) == 1 else results


def struct_bytes(*fields):
    return b"".join(np.asarray(value, dtype).tobytes() for dtype, value in fields)


def row_args(columns, row_bytes):
    return struct_bytes((np.int32, columns), (np.int32, 0), (np.uint64, row_bytes))


def poisoned(shape, dtype):
    return np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xAB, np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("style", ["n4", "i8"])
def test_block_look_up(device, style):
    rng = np.random.default_rng(3)
    rows, blocks = 7, 5
    payload = 16 if style == "n4" else 32
    table = np.zeros((rows, blocks, 2 + payload), np.uint8)
    scale = rng.uniform(0.01, 1, (rows, blocks, 1)).astype(np.float16)
    packed = rng.integers(0, 256, (rows, blocks, payload), np.uint8)
    table[..., :2], table[..., 2:] = scale.view(np.uint8).reshape(rows, blocks, 2), packed
    if style == "n4":
        values = np.concatenate([packed & 15, packed >> 4], -1).astype(np.float64) - 8
    else:
        values = packed.view(np.int8).astype(np.float64)
    ids = np.array([6, 0, 3, 3], np.int32)
    args = [row_args(blocks * 32, table[0].nbytes), table, ids, poisoned((4, blocks * 32), np.float32)]
    got = run(device, f"look_up_{style}", args, [3], threadgroups=4, threads_per_threadgroup=3)
    want = (values * scale)[ids].reshape(4, -1)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("simdgroups", [1, 2, 4])
def test_block_product(device, simdgroups):
    rng = np.random.default_rng(simdgroups)
    rows, blocks = 6, 70
    table = np.zeros((rows, blocks, 34), np.uint8)
    scale = rng.uniform(0.01, 1, (rows, blocks, 1)).astype(np.float16)
    values = rng.integers(-128, 128, (rows, blocks, 32)).astype(np.int8)
    table[..., :2], table[..., 2:] = scale.view(np.uint8).reshape(rows, blocks, 2), values.view(np.uint8)
    x = rng.standard_normal(blocks * 32).astype(np.float32)
    args = [row_args(blocks * 32, table[0].nbytes), table, x, poisoned(rows, np.float32)]
    got = run(
        device,
        "product_i8",
        args,
        [3],
        threadgroups=2,
        threads_per_threadgroup=32 * simdgroups,
        threadgroup_memory={0: 3 * 32 * 4},
        constants={"simdgroups": simdgroups},
    )
    terms = (values * scale.astype(np.float64)).reshape(rows, -1) * x
    assert (np.abs(got - terms.sum(1)) <= 1e-6 * np.abs(terms).sum(1)).all()


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_strided_floor_modulo(device, dtype):
    rng = np.random.default_rng(5)
    shape = (3, 4, 5)
    a = rng.integers(-40, 40, shape).astype(dtype)
    b = rng.integers(1, 9, shape[::-1]).astype(dtype) * np.where(rng.random(shape[::-1]) < 0.5, -1, 1).astype(
        dtype
    )
    strides = [np.array(v.strides, np.int64) // v.itemsize for v in (a, b.T)]
    args = [a, b, poisoned(shape, dtype), np.array(shape, np.int32), *strides, 3]
    name = "mod_i32" if dtype == np.int32 else "mod_f32"
    got = run(device, name, args, [2], threads=(5, 4, 3), threads_per_threadgroup=(4, 4, 1))
    np.testing.assert_array_equal(got, np.mod(a, b.T))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64], ids=str)
@pytest.mark.parametrize("threads", [1, 32, 100, 256])
def test_largest(device, plain_device, dtype, threads):
    if dtype == np.int64 and threads % 32:  # shuffles ask for lanes that a short simdgroup has not
        device = plain_device
    rng = np.random.default_rng(threads)
    x = (rng.standard_normal(1003) * 1e4).astype(dtype)
    if dtype == np.int64:
        x *= 2**40 + 1
    name = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64"}[np.dtype(dtype).name]
    got = run(
        device,
        f"largest_{name}",
        [x, poisoned(1, dtype), x.size],
        [1],
        threadgroups=1,
        threads_per_threadgroup=threads,
    )
    assert got[0] == x.max()


@pytest.mark.parametrize(("name", "dtype"), [("float", np.float32), ("half", np.float16), ("int", np.int32)])
def test_clip_of_larger(device, name, dtype):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-5, 6, 200).astype(dtype) for _ in range(2))
    if dtype != np.int32:
        a[::7] = np.nan
    got = run(
        device, f"clip_{name}", [poisoned(200, dtype), a, b], [0], threads=200, threads_per_threadgroup=64
    )
    known = np.arange(200) % 7 != 0 if dtype != np.int32 else np.ones(200, bool)
    np.testing.assert_array_equal(got[known], np.clip(np.maximum(a, b), -1, 2)[known])


@pytest.mark.parametrize(("name", "dtype", "wide"), [("int", np.int32, np.int64), ("uchar", np.uint8, np.int64),
                                             ("half", np.float16, np.float32)])  # fmt: skip
def test_totals_in_a_wider_type(device, name, dtype, wide):
    x = np.random.default_rng(4).integers(0, 120, (9, 300)).astype(dtype)
    if name == "int":
        x += 2**31 - 200
    got = run(
        device,
        f"total_{name}",
        [poisoned(9, wide), x, np.array([9, 300], np.uint32)],
        [0],
        threads=9,
        threads_per_threadgroup=4,
    )
    np.testing.assert_array_equal(got, x.astype(wide).sum(1))


def test_moments_by_merging(device):
    x = (np.random.default_rng(8).standard_normal((3, 1000)) + 1000).astype(np.float32)
    got = run(
        device,
        "moments",
        [x, poisoned((3, 2), np.float32), 1000],
        [1],
        threadgroups=3,
        threads_per_threadgroup=256,
    )
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got[:, 0], wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(got[:, 1], wide.var(1), rtol=1e-3)


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("n", [1, 2, 77, 256])
def test_argsort(device, order, n):
    x = np.random.default_rng(n).permutation(n).astype(np.float32)
    padded = 1 << (n - 1).bit_length()
    got = run(
        device,
        f"argsort_{order}",
        [x, poisoned(n, np.int32), n, padded],
        [1],
        threadgroups=1,
        threads_per_threadgroup=padded,
        threadgroup_memory={0: max(4 * padded, 16)},
    )
    np.testing.assert_array_equal(got, np.argsort(x if order == "ascending" else -x))


def test_rope(device):
    steps, heads, width = 5, 3, 16
    x = np.random.default_rng(1).standard_normal((steps, heads, width)).astype(np.float32)
    args = struct_bytes((np.int32, heads), (np.int32, width), (np.int32, 11), (np.float32, 10000))
    got = run(
        device,
        "rope",
        [x, poisoned(x.shape, np.float32), args],
        [1],
        threads=(width // 2, heads, steps),
        threads_per_threadgroup=(8, 3, 2),
    )
    theta = (11 + np.arange(steps))[:, None] * 10000.0 ** (-2 * np.arange(width // 2) / width)
    turned = x.astype(np.float64).view(np.complex128) * np.exp(1j * theta)[:, None]
    np.testing.assert_allclose(got, turned.view(np.float64), rtol=0, atol=1e-5)


def test_unfold(device):
    channels, height, width, kh, kw, stride, pad = 2, 7, 9, 3, 2, 2, 1
    oh, ow = (height + 2 * pad - kh) // stride + 1, (width + 2 * pad - kw) // stride + 1
    x = np.random.default_rng(6).standard_normal((channels, height, width)).astype(np.float32)
    args = np.array([channels, height, width, kh, kw, stride, pad, ow], np.int32).tobytes()
    got = run(
        device,
        "unfold_f16",
        [x, poisoned((oh * ow, channels * kh * kw), np.float16), args],
        [1],
        threads=(channels * kh * kw, oh * ow),
        threads_per_threadgroup=(8, 8),
    )
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (pad, pad), (pad, pad))), (kh, kw), (1, 2)
    )
    want = windows[:, ::stride, ::stride].transpose(1, 2, 0, 3, 4).reshape(oh * ow, -1)
    np.testing.assert_array_equal(got, want.astype(np.float16))


def test_state_scan(device):
    rng = np.random.default_rng(9)
    channels, steps = 3, 6
    state, B, C = (rng.standard_normal((n, 128)).astype(np.float32) for n in (channels, steps, steps))
    x, dt = (rng.standard_normal((steps, channels)).astype(np.float32) for _ in range(2))
    decay = -rng.random(channels).astype(np.float32)
    args = [state, x, dt, decay, B, C, poisoned((steps, channels), np.float32), steps]
    last, got = run(device, "state_scan", args, [0, 6], threadgroups=channels, threads_per_threadgroup=32)
    h, want = state.astype(np.float64), []
    for step in range(steps):
        soft = np.log1p(np.exp(dt[step].astype(np.float64)))
        h = h * np.exp(soft * decay)[:, None] + B[step] * (x[step] * soft)[:, None]
        want.append(h @ C[step])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(last, h, rtol=1e-5, atol=1e-5)


def test_simdgroup_matrix_product(device):
    rng = np.random.default_rng(10)
    a, b = rng.standard_normal((16, 40)).astype(np.float16), rng.standard_normal((24, 40)).astype(np.float16)
    got = run(
        device,
        "tile_product",
        [a, b, poisoned((16, 24), np.float32), 40],
        [2],
        threadgroups=(3, 2),
        threads_per_threadgroup=32,
    )
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.T.astype(np.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(1, 9))
def test_sampler(device, seed):
    logits = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
    got = run(
        device,
        "sample",
        [logits, poisoned(1, np.int32), 1000, 0.7, seed],
        [1],
        threadgroups=1,
        threads_per_threadgroup=32,
    )
    s = np.uint32(seed)
    s ^= s << np.uint32(13)
    s ^= s >> np.uint32(17)
    s ^= s << np.uint32(5)
    p = np.exp((logits.astype(np.float64) - logits.max()) / 0.7)
    sums = np.cumsum(p / p.sum())
    u = int(s >> np.uint32(8)) / 2**24
    below = sums[got[0] - 1] if got[0] > 0 else 0.0
    assert below - 1e-5 <= u <= sums[got[0]] + 1e-5


def test_peak_by_compare_exchange(device):
    x = np.random.default_rng(11).random(5000).astype(np.float32)
    got = run(
        device, "float_peak", [x, np.zeros(1, np.uint32)], [1], threads=5000, threads_per_threadgroup=128
    )
    assert got.view(np.float32)[0] == x.max()
