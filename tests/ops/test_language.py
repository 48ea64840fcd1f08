"""The Metal Shading Language itself on the CPU device: each feature in a kernel that runs, its value from Python."""

from __future__ import annotations

import numpy as np
import pytest

import metalane

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

RECORDS = (
    HEAD
    + """
struct Base { float a; char tag; float twice() const constant { return 2 * a; } };
struct Derived : Base { char more; float b; };
struct Bits { uint low : 5; uint mid : 11; uint high : 16; int sign : 4; uint : 0; ushort after; };
union Word { uint u; float f; ushort2 h; uchar b[4]; };
kernel void records(device uint* out [[buffer(0)]], constant Bits& bits [[buffer(1)]],
                    constant Derived& d [[buffer(2)]], constant uint* by [[buffer(3)]]) {
  Bits c = bits;
  c.mid /= by[0];
  if (by[0]) c.high %= by[1];
  out[0] = c.low;
  out[1] = c.mid;
  out[2] = c.high;
  out[3] = uint(c.sign + 8);
  out[4] = c.after;
  out[5] = uint(d.twice() + d.b) + d.tag * d.more;
  Word w;
  w.f = 1.5f;
  out[6] = w.u;
  out[7] = w.h.y;
  out[8] = w.b[3];
  struct Local { float2 xy; uint rg; uint total() const { return uint(xy.x) + rg; } };
  Local l = {.xy = float2(3, 4), .rg = 7};
  l.xy.x += 2;
  l.rg++;
  Local m = {float2(1), 2};
  out[9] = uint(l.xy.x * 10 + l.xy.y) + 100 * l.rg + 1000 * m.total();
}
kernel void unnamed_types(device float* out [[buffer(0)]], ushort t [[thread_index_in_threadgroup]]) {
  threadgroup struct { float v[64]; int n; } s;
  threadgroup union { float f[64]; uint u[64]; } both, other[2];
  if (t == 0) s.n = 3;
  s.v[t] = t;
  both.f[t] = 1.0f;
  other[1].u[t] = 2 * t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s.v[63 - t] * s.n + (both.u[63 - t] >> 24) + other[1].u[t ^ 1];
}
kernel void braces(device float* out [[buffer(0)]], constant float& x [[buffer(1)]]) {
  float4 v[8] = {{x}, x, {x, 2}, float4(x), float4{x}, {float2(x), 3}, {}, {1, 2, 3, 4}};
  float4 a = {x}, b{x};
  const packed_float3 p = {x};
  a.xyz[1] = 5;
  b.wzyx[0] = 7;
  v[7].zw[1] += 2;
  ++v[7].xy[0];
  for (int i = 0; i < 8; ++i) *(device float4*)(out + 4 * i) = v[i];
  *(device float4*)(out + 32) = a;
  *(device float4*)(out + 36) = b;
  *(device packed_float3*)(out + 40) = p;
  out[43] = a.xyz[1];
}
"""
)

DECLARATIONS = (
    HEAD
    + """
enum class Mode : ushort { add, mul = 4 };
enum Flags : uint { none = 0, one = 1, two = 2 };
template <typename T> T total(T v) { return v; }
template <typename T, typename... R> T total(T v, R... rest) { return v + total(rest...); }
template <int... N> constexpr int product() { int p = 1; ((p *= N), ...); return p; }
template <Mode m, typename T> T apply(T a, T b) {
  if constexpr (m == Mode::add) { return a + b; } else { return a * b; }
}
namespace a { namespace b { constant constexpr int deep = 11; typedef float real; using pair = float2; }
using namespace b; }
namespace c = a::b;
constant constexpr float table[4] = {1, 2, 4, 8};
constexpr constant uint primes[] = {2, 3, 5, 7};
struct Config { int n; float scale; };
constant Config configs[2] = {{3, 0.5f}, {4, 0.25f}};
constant float3 axis = float3(0, 1, 0);
static_assert(sizeof(Config) == 8 && sizeof(table) == 16, "as in Metal");
inline float use(constant Config& k) { return k.n * k.scale; }
inline float scaled(float x, float by = 2, int n = 1) { return x * by * n; }
struct Number {
  int v;
  Number operator+(Number o) const { return {v + o.v}; }
  friend Number operator*(Number a, Number b) { return {a.v * b.v}; }
  thread Number& operator+=(Number o) { v += o.v; return *this; }
  bool operator<(Number o) const { return v < o.v; }
  explicit operator int() const { return v; }
  int operator()(int x) const { return x + v; }
  int operator[](int i) const { return v * i; }
};
inline Number operator-(Number a, Number b) { return {a.v - b.v}; }
kernel void declarations(device float* out [[buffer(0)]], device const float* in [[buffer(1)]]) {
  auto twice = [](float x) { return x * 2; };
  float base = in[0];
  auto add = [&](float x) { base += x; return base; };
  auto plus = [=](float x) -> float { return base + x; };
  out[0] = twice(3);
  out[1] = add(1);
  out[2] = plus(1);
  out[3] = total(1, 2, 3, 4) + product<2, 3, 4>();
  out[4] = apply<Mode::add>(3, 4) + apply<Mode::mul>(3, 4);
  a::b::real r = c::deep;
  a::pair two(1, 2);
  out[5] = r + two.y + a::deep;
  out[6] = table[2] + primes[3] + use(configs[1]) + axis.y;
  Number n = {3}, m{4};
  n += m;
  out[7] = (n + m).v + (n * m).v + (n - m).v + (n < m) + int(n) + n(1) + n[2];
  out[8] = scaled(1) + scaled(1, 3) + scaled(1, 3, 4);
  thread auto& alias = out[9];
  alias = 5;
  const device auto* p = in;
  device auto* q = out + 10;
  *q = p[1];
  thread float local[3] = {1, 2, 3};
  thread float* lp = local;
  thread float* thread* lpp = &lp;
  (*lpp)[1] = 9;
  device const float* const ptrs[2] = {in, in + 1};
  device const float* const thread* pp = ptrs;
  out[11] = local[1] + pp[1][0];
  Mode mode = Mode::mul;
  Flags flags = Flags(one | Flags::two);
  out[12] = (mode == Mode::mul) + int(flags) + static_cast<int>(mode);
  out[13] = [](int x) { return x * x; }(7);
  __attribute__((aligned(16))) float al[4] = {1};
  alignas(16) float bl[4] = {2};
  out[14] = al[0] + bl[0] + (ulong(al) | ulong(bl)) % 16;
  array<float, 3> arr = {1, 2, 3};
  out[15] = arr.size();
  for (auto e : arr) out[15] += e;
}
kernel void statements(device float* out [[buffer(0)]], device const int* in [[buffer(1)]]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) out[k] = k;
#pragma clang loop unroll(full)
  for (int k = 0; k < 2; ++k) out[2 + k] = k;
  _Pragma("clang loop unroll(full)") for (int k = 0; k < 2; ++k) { out[4 + k] = k; }
  [[clang::loop_unroll(full)]] for (int k = 0; k < 2; ++k) out[6 + k] = k;
  [[unroll]] for (int k = 0; k < 2; ++k) out[8 + k] = k;
  switch (in[1]) {
    case 1: out[10] = 1; [[fallthrough]];
    case 2: out[10] += 20; break;
    default: out[10] = 3;
  }
  int k = 0;
  do { ++k; } while (k < 5);
  out[11] = k;
  out[12] = as_type<float>(as_type<uint>(1.5f)) + as_type<half2>(0x3c003c00u).x;
  if (int v = in[0]; v > 2) out[13] = v; else if (v > 1) out[13] = -v; else out[13] = 0;
  uniform<uint> bound = make_uniform(uint(in[0]));
  out[14] = 0;
  for (uint i = 0; i < bound; ++i) out[14] += i;
}
"""
)

ARGUMENTS = (
    HEAD
    + """
kernel void gather(device float* to[3] [[buffer(1)]], constant uint& n [[buffer(0)]],
                   device const float* const from[2] [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  to[i % 3][i] = from[i & 1][i] + n;
}
kernel void spread(array<device float*, 2> to, array<const device half*, 2> from, uint i [[thread_position_in_grid]]) {
  for (auto one : to) one[i] = from[0][i] - from[1][i];
  to[0] += 1;
}
kernel void shaped(constant const int64_t strides[3], device long* out, constant int (&both)[2]) {
  out[0] = strides[0] + strides[2] + both[1];
}
constant bool has_b [[function_constant(0)]];
constant int by [[function_constant(1)]];
constant int by_or = is_function_constant_defined(by) ? by : 7;
constant bool no_b = !has_b;
kernel void optional(device float* out [[buffer(0)]], device const float* b [[buffer(1), function_constant(has_b)]],
                     device float* last [[buffer(2), function_constant(no_b)]]) {
  if (has_b) out[0] = b[0];
  if (no_b) out[0] = last[0] = 5;
}
kernel void guarded(device float* out [[buffer(0)]], device const float* b [[buffer(1), function_constant(has_b)]],
                    constant float& c [[buffer(1), function_constant(no_b)]]) {
  if (has_b) { out[0] = b[1] + by_or; } else { out[0] = c + by_or; }
}
template <typename T, int N> kernel void last(device T* x [[buffer(0)]], constant array<T, N>& y [[buffer(1)]]) {
  x[0] = y[N - 1];
}
template [[host_name("last_f")]] kernel void last(device float* x [[buffer(0)]], constant array<float, 3>& y);
template [[host_name("last_u")]] kernel void last<ushort>(device ushort*, constant array<ushort, 2>&);
[[max_total_threads_per_threadgroup(64)]] kernel void positions(
    device uint* out [[buffer(0)]], ushort2 at [[thread_position_in_grid]], uint3 size [[threads_per_grid]],
    uint column [[thread_position_in_threadgroup]], ushort3 group [[threadgroup_position_in_grid]]) {
  out[at.x + size.x * at.y] = column + 100 * group.x + 10000 * group.y + 1000000 * size.y;
}
"""
)

SPACES = (
    HEAD
    + """
inline int where(device const int* p) { return 1; }
inline int where(constant int* q) { return 2; }
inline int where(threadgroup int* p) { return 3; }
inline int where(thread const int* p) { return 4; }
inline int where(float x) { return 9; }
template <typename T> struct space_of { static constant constexpr int value = 0; };
template <typename T> struct space_of<device T*> { static constant constexpr int value = 1; using element = T; };
template <typename U> struct space_of<constant U*> { static constant constexpr int value = 2; using element = U; };
template <typename T> struct space_of<threadgroup T*> { static constant constexpr int value = 3; using element = T; };
template <typename T> struct space_of<thread T*> { static constant constexpr int value = 4; using element = T; };
template <typename T> inline T load(device const T* p, int i) { return p[i]; }
template <typename T> inline T load(threadgroup const T* p, int i) { return p[i] * T(2); }
inline int refers(device int& r) { return 1; }
inline int refers(constant int& r) { return 2; }
inline int refers(threadgroup int& r) { return 3; }
inline int refers(thread int& r) { return 4; }
template <typename P> inline int both(P p) { return 10 * where(p) + space_of<P>::value; }
template <typename P> inline int both_behind(P p, int k) { return 100 * k + both(p + 1); }
template <typename P> typename space_of<P>::element first(P p) { return p[0]; }
struct Cell {
  int v;
  int get() const thread { return 4 + v; }
  int get() const device { return 1 + v; }
  int get() const threadgroup { return 3 + v; }
  int get() const constant { return 2 + v; }
};
struct Pair {
  device int* out;
  threadgroup int* shared;
  int places() { return where(out) * 10 + where(shared); }
};
template <typename T> constant int rank_of = 0;
template <typename T> constant int rank_of<device T*> = 1;
template <typename T> constant int rank_of<threadgroup T*> = 3;
template <typename T> inline int named() { return 0; }
template <> inline int named<device float*>() { return 1; }
template <> inline int named<threadgroup float*>() { return 3; }
namespace deep { inline int inner(device int* p) { return 1; } }
namespace deep { inline int inner(threadgroup int* p) { return 3; } }
using device_ints = device int*;
constant int fixed[3] = {5, 6, 7};

kernel void spaces(device int* out [[buffer(0)]], constant int* c [[buffer(1)]], constant Cell& cc [[buffer(2)]],
                   device Cell* dc [[buffer(3)]], threadgroup int* dyn [[threadgroup(0)]]) {
  threadgroup int shared[4][4];
  threadgroup Cell tc;
  int local[3] = {1, 2, 3};
  int one = 1;
  shared[0][0] = 8; shared[1][1] = 9; dyn[0] = 1; tc.v = 70;
  out[0] = where(out) * 1000 + where(c) * 100 + where(shared[0]) * 10 + where(local);
  out[1] = where(&one) * 1000 + where(&out[2]) * 100 + where(out + 3) * 10 + where(dyn + one);
  out[2] = where(fixed) * 1000 + where((device int*)c) * 100 + where(1.5f) * 10 + where(one ? shared[0] : dyn);
  out[3] = space_of<device float*>::value * 1000 + space_of<constant int*>::value * 100 +
           space_of<threadgroup float*>::value * 10 + space_of<thread half*>::value;
  out[4] = load(c == nullptr ? out : out, 3) + load(shared[1], 1);
  out[5] = refers(out[0]) * 1000 + refers(c[1]) * 100 + refers(shared[1][2]) * 10 + refers(local[1]);
  out[6] = both(out); out[7] = both(shared[0]); out[8] = both(&local[1]); out[9] = both_behind(dyn, 5);
  Cell cell = {1};
  device Cell& dr = *dc;
  out[10] = cell.get() + 100 * tc.get();
  out[11] = dc->get() + 100 * dr.get() + 10000 * cc.get();
  Pair pair = {out, dyn};
  out[12] = pair.places();
  out[13] = rank_of<device int*> + 10 * rank_of<threadgroup int*> + 100 * rank_of<int>;
  out[14] = named<device float*>() + 10 * named<threadgroup float*>() + 100 * named<int>();
  device_ints alias = out;
  auto also = shared[0];
  auto* q = out;
  device auto* r = out;
  auto& lref = local[0];
  out[15] = where(alias) + 10 * where(also) + 100 * where(q) + 1000 * where(r) + 10000 * refers(lref);
  out[16] = space_of<decltype(q)>::value + 10 * space_of<device_ints>::value + 100 * deep::inner(out) +
            1000 * deep::inner(dyn) + 10000 * space_of<space_of<device int*>::element>::value;
  for (device int* p = out; p < out + 1; ++p) out[17] = where(p);
  auto f = [&](threadgroup int* p) { return where(p); };
  out[18] = f(dyn) + 10 * first(local) + 100 * first(shared[1] + 1);
  if (one) out[19] = where(pair.out); else out[19] = where(pair.shared);
}
kernel void untold(device int* out [[buffer(0)]]) {
  out[0] = where([&] { return out; }());
}
"""
)

FORMS = (
    HEAD
    + """
template <typename T> inline T same(device const T* src) { T a = src[0]; return a; }
template <typename U> inline U same(threadgroup const U* s) { U a = s[0]; return a; }
inline int w(device const float* p) { return 1; }
inline int w(constant float* p) { return 2; }
inline int w(threadgroup const float* p) { return 3; }
inline int w(thread const float* p) { return 4; }
template <typename T> struct Tile {
  T v[4];
  const device T* src;
  threadgroup T* dst;
  Tile(const device T* s, threadgroup T* d) : src(s), dst(d) {}
  int load(const device T* p, int k = 1) { v[0] = p[0]; return 10 + k; }
  int load(const threadgroup T* p, int k = 2) { v[0] = p[1]; return 30 + k; }
  int loads() { return load(src) * 100 + load(dst, 5); }
  int self() thread { return w(v) * 100 + w(src) * 10 + w(dst); }
  static int of(device const T* p) { return 1; }
  static int of(threadgroup const T* p) { return 3; }
};
struct Params { float arr[4]; float one; };
inline int through(thread Tile<float>& t) { return w(t.v) * 100 + w(t.src) * 10 + w(t.dst); }
inline int arrays(threadgroup float (&tile)[4][4], thread float (&mine)[2]) { return w(tile[1]) * 10 + w(mine); }
template <typename T, int N> inline int counted(threadgroup T* p) { return N + w(p); }
template <typename T, int N> inline int counted(device T* p) { return 2 * N + w(p); }
template <typename A, typename B> inline int two(A a, B b) { return w(a) * 10 + w(b); }
template <typename A> inline int referred(const thread A& a) { return w(a); }
kernel void forms(device float* out [[buffer(0)]], constant Params& p [[buffer(1)]], device Params* dp [[buffer(2)]]) {
  threadgroup float tg[4][4]; threadgroup float line[4];
  float mine[2] = {1, 2};
  line[0] = 5; line[1] = 6; out[0] = 8;
  out[0] = same(line) + same(out + 0);
  Tile<float> t(out, line);
  out[1] = t.load(out) * 100 + t.load(line);
  out[2] = t.loads();
  out[3] = t.self();
  out[4] = through(t);
  out[5] = Tile<float>::of(out) * 10 + Tile<float>::of(line);
  out[6] = arrays(tg, mine);
  out[7] = counted<float, 7>(line) * 100 + counted<float, 7>(out);
  out[8] = w(p.arr) * 100 + w(&p.one) * 10 + w(dp->arr);
  out[9] = w(&dp[1].one) * 10 + w(&(*dp).arr[2]);
  out[10] = two(out, line) * 100 + two(mine, p.arr);
  out[11] = [&]() { return w(out) * 10 + w(line); }();
  const device float* cp = out + 1;
  auto cq = cp + 2;
  threadgroup float* sp[2] = {line, tg[0]};
  out[12] = w(cq) * 100 + w(sp[1]) * 10 + w(sp[0] + 1);
  thread float* tp = mine;
  out[13] = w(tp) * 10 + w(&tp[1]);
  out[14] = w(tp ? cp : cq) * 10 + w((const threadgroup float*)line);
  device float4* o4 = (device float4*)out;
  out[15] = w((device float*)o4) * 10 + w(reinterpret_cast<device float*>(&o4[1]));
  for (threadgroup float* q = line; q < line + 1; q++) out[16] = w(q);
  if (w(line) == 3 && w(cp) == 1) out[16] += w(cp) * 7;
  uint i = 3;
  out[17] = w(out + i * 2 - 1) * 100 + w(&line[i + 1 - 1]) * 10 + w(cp++);
  switch (w(line)) { case 3: out[17] += 1000; }
  out[18] = referred(cp);
}
"""
)

# Asynchronous copies through the compiler's own functions, as sources declare them for themselves.
COPIES = (
    HEAD
    + """
struct copy_event;
thread copy_event* __metal_simdgroup_async_copy_1d(ulong, ulong, threadgroup void*, const device void*, ulong)
    __asm("air.simdgroup_async_copy_1d.p3i8.p1i8");
thread copy_event* __metal_simdgroup_async_copy_2d(ulong, ulong, threadgroup void*, ulong, ulong, ulong2,
                                                   const device void*, ulong, ulong, ulong2, long2, int)
    __asm("air.simdgroup_async_copy_2d.p3i8.p1i8");
void __metal_wait_simdgroup_events(int, thread copy_event**) __asm("air.wait_simdgroup_events");
kernel void copies(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                   constant int& clamp [[buffer(2)]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[8 * 8], line[8];
  thread copy_event* events[2];
  events[0] = __metal_simdgroup_async_copy_2d(sizeof(float), alignof(float), tile, 8, 1, ulong2(8, 8), in, 10, 1,
                                              ulong2(5, 6), long2(0), clamp);
  events[1] = __metal_simdgroup_async_copy_1d(sizeof(float), alignof(float), line, in + 3, 8);
  __metal_wait_simdgroup_events(2, events);
  for (uint i = lane; i < 64; i += 32) out[i] = tile[63 - i];
  if (lane < 8) out[64 + lane] = line[7 - lane];
}
"""
)

# What the CPU device does not have, each in a kernel of its own beside one that runs.
OUTSIDE = (
    HEAD
    + """
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace raytracing;
using namespace mpp::tensor_ops;
using picture = texture2d<float>;
struct Mixed { texture2d<float> t; device float* p; };
struct Linked { int n; device float* p; };
struct Nested { Linked inner[2]; };
constant texture2d<float> global [[texture(3)]];
kernel void texture(texture2d<float> t [[texture(0)]]) {}
kernel void alias(device float* o, picture t [[texture(0)]]) {}
kernel void inside(constant Mixed& m [[buffer(0)]]) {}
kernel void textures(array<texture2d<float>, 4> t [[texture(0)]]) {}
kernel void cube(texturecube<half, access::sample> t [[texture(0)]]) {}
kernel void depth(depth2d<float> t [[texture(0)]]) {}
kernel void texels(texture_buffer<float> t [[texture(0)]]) {}
kernel void used(device float* o) { o[0] = global.get_width(); }
kernel void sampler_argument(sampler s [[sampler(0)]]) {}
kernel void sampler_inside(device float* o) { constexpr sampler s(address::clamp_to_edge); }
kernel void traces(device float* o) { ray r; }
kernel void intersects(device float* o) { intersector<triangle_data> i; }
kernel void accelerates(device float* o, acceleration_structure<instancing> a [[buffer(1)]]) {}
kernel void instances(device float* o, raytracing::instance_acceleration_structure a [[buffer(1)]]) {}
kernel void table(device float* o, visible_function_table<float(float)> t [[buffer(1)]]) {}
kernel void function(device float* o, float (*f)(float) [[buffer(1)]]) {}
kernel void tensors(device float* o, tensor<device half, dextents<int, 2>> t [[buffer(1)]]) {}
kernel void products(device float* o) { constexpr auto d = matmul2d_descriptor(16, 16, 16); }
kernel void commands(device float* o, command_buffer c [[buffer(1)]]) {}
kernel void blocks(device float* o, imageblock<Linked> b) {}
kernel void meshes(device float* o) { mesh<float4, float4, 3, 1, topology::triangle> m; }
kernel void stages(device float* o, float x [[stage_in]]) {}
kernel void holds(constant Linked& l [[buffer(0)]]) {}
kernel void holds_inside(constant Nested* l [[buffer(0)]]) {}
kernel void twice(device float* device* p [[buffer(0)]]) {}
kernel void assembles(device float* o) { asm("nop"); }
[[mesh]] void mesh_stage(mesh<float4, float4, 3, 1, topology::triangle> m) {}
[[intersection(triangle)]] bool hit(float d [[distance]]) { return true; }
vertex float4 vertex_stage(uint i [[vertex_id]]) { return float4(i); }
fragment float4 fragment_stage(float4 p [[position]], texture2d<float> t [[texture(0)]]) { return p; }
[[visible]] float callable(float x) { return x + 1; }
kernel void runs(device float* o) {
  float mesh = 2, ray = 3;
  o[0] = (mesh < ray) + callable(mesh);
  os_log_default.log("%f", o[0]);
}
"""
)
OUTSIDE_KERNELS = {
    line.split("(")[0].split()[-1]: number
    for number, line in enumerate(OUTSIDE.split("\n"), 1)
    if line.startswith("kernel void ") and not line.startswith("kernel void runs")
}


@pytest.fixture(scope="module")
def device(device_kind: str) -> metalane.Device:
    device = metalane.Device(device_kind)
    for name, source in {
        "records": RECORDS,
        "declarations": DECLARATIONS,
        "arguments": ARGUMENTS,
        "spaces": SPACES,
        "forms": FORMS,
        "outside": OUTSIDE,
        "copies": COPIES,
    }.items():
        device.registry.register_source(name, source)
    return device


def run(device, kernel, args, outputs, **launch):
    bound = [device.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
    encoder = device.command_encoder()
    encoder.dispatch(kernel, bound, **({"threads": 1, "threads_per_threadgroup": 1} | launch))
    encoder.commit_and_wait()
    return [bound[i].numpy().copy() for i in outputs]


def poisoned(count, dtype):
    return np.full(count * np.dtype(dtype).itemsize, 0xAB, np.uint8).view(dtype)


def test_records_and_bit_fields(device):
    low, mid, high, sign, after = 19, 1234, 54321, -3, 777
    word = low | mid << 5 | high << 16
    bits = np.array([word, sign & 15], np.uint32).tobytes() + np.array([after, 0], np.uint16).tobytes()
    # Derived reuses none of Base's padding: a, tag, 3 bytes, more, 3 bytes, b.
    derived = (
        np.array([2.5], np.float32).tobytes() + bytes([3, 0, 0, 0, 7, 0, 0, 0]) + np.float32(4).tobytes()
    )
    out = poisoned(10, np.uint32)
    (got,) = run(device, "records::records", [out, bits, derived, np.array([7, 1000], np.uint32)], [0])
    one_and_a_half = int(np.float32(1.5).view(np.uint32))
    want = [
        low,
        mid // 7,
        high % 1000,
        sign + 8,
        after,
        9 + 21,
        one_and_a_half,
        one_and_a_half >> 16,
        one_and_a_half >> 24,
    ]
    want.append(54 + 100 * 8 + 1000 * 3)
    np.testing.assert_array_equal(got, want)


def test_layouts_of_records(device):
    by_name = {k.name: k for k in device.registry.kernels("records")}
    bits, derived = (by_name["records"].arguments[i].layout for i in (1, 2))
    assert (bits.size, derived.size) == (12, 16)
    assert [(f.name, f.offset) for f in derived.fields] == [("a", 0), ("tag", 4), ("more", 8), ("b", 12)]
    assert [(f.name, f.offset) for f in bits.fields] == [
        ("low", 0),
        ("mid", 0),
        ("high", 0),
        ("sign", 4),
        ("after", 8),
    ]


def test_threadgroup_variables_of_unnamed_types(device):
    (got,) = run(
        device,
        "records::unnamed_types",
        [poisoned(64, np.float32)],
        [0],
        threads=64,
        threads_per_threadgroup=64,
    )
    t = np.arange(64)
    np.testing.assert_array_equal(got, (63 - t) * 3 + 0x3F + 2 * (t ^ 1))


def test_braces_and_elements_of_swizzles(device):
    x = 0.75
    (got,) = run(device, "records::braces", [poisoned(44, np.float32), x], [0])
    want = [[x, 0, 0, 0], [x] * 4, [x, 2, 0, 0], [x] * 4, [x, 0, 0, 0], [x, x, 3, 0], [0] * 4, [2, 2, 3, 6]]
    want += [[x, 5, 0, 0], [x, 0, 0, 7], [x, 0, 0, 5]]
    np.testing.assert_array_equal(got, np.ravel(want))


def test_declarations(device):
    (got,) = run(
        device, "declarations::declarations", [poisoned(16, np.float32), np.array([10, 1], np.float32)], [0]
    )
    want = [
        6,
        11,
        11,
        10 + 24,
        7 + 12,
        11 + 2 + 11,
        4 + 7 + 1 + 1,
        11 + 28 + 3 + 0 + 7 + 8 + 14,
        2 + 3 + 12,
        5,
        1,
        9 + 1,
    ]
    want += [1 + 3 + 4, 49, 3, 3 + 6]
    np.testing.assert_array_equal(got, want)


def test_statements(device):
    (got,) = run(
        device, "declarations::statements", [poisoned(15, np.float32), np.array([3, 1], np.int32)], [0]
    )
    np.testing.assert_array_equal(got, [0, 1] * 5 + [21, 5, 2.5, 3, 3])


def test_arrays_of_buffers(device):
    n = 9
    to = [poisoned(n, np.float32) for _ in range(3)]
    before = to[0].copy()
    x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
    got = run(device, "arguments::gather", [3, *to, *x], [1, 2, 3], threads=n)
    for k in range(3):
        want = np.where(np.arange(n) % 3 == k, x[np.arange(n) % 2, np.arange(n)] + 3, before)
        np.testing.assert_array_equal(got[k], want)
    h = x.astype(np.float16)
    got = run(device, "arguments::spread", [*to[:2], *h], [0, 1], threads=n)
    np.testing.assert_array_equal(got, [h[0] - h[1]] * 2)


def test_signature_of_arrays_of_buffers(device):
    by_name = {k.name: k for k in device.registry.kernels("arguments")}
    assert [(a.name, a.index, a.access) for a in by_name["gather"].arguments] == [
        ("n", 0, "read"),
        ("to[0]", 1, "read_write"),
        ("to[1]", 2, "read_write"),
        ("to[2]", 3, "read_write"),
        ("from[0]", 4, "read"),
        ("from[1]", 5, "read"),
    ]
    assert [(a.name, a.index) for a in by_name["spread"].arguments] == [
        ("to[0]", 0),
        ("to[1]", 1),
        ("from[0]", 2),
        ("from[1]", 3),
    ]
    assert device.registry.pipeline("arguments::positions").max_total_threads_per_threadgroup == 64


def test_array_parameters(device):
    strides, both = np.array([2**40, 5, 3], np.int64), np.array([8, 9], np.int32)
    (got,) = run(device, "arguments::shaped", [strides, poisoned(1, np.int64), both], [1])
    assert got[0] == 2**40 + 3 + 9


@pytest.mark.parametrize(
    ("constants", "want"), [({"has_b": True}, 2 + 7), ({"has_b": False, "by": 100}, 4 + 100)]
)
def test_guarded_arguments(device, constants, want):
    bound = np.array([1, 2], np.float32) if constants["has_b"] else 4.0
    out = poisoned(1, np.float32)
    (got,) = run(device, "arguments::guarded", [out, bound], [0], constants=constants)
    assert got[0] == want


def test_arguments_that_constants_leave_out_may_be_bound_or_not(device):
    b, last = np.array([3], np.float32), poisoned(1, np.float32)
    (got,) = run(device, "arguments::optional", [poisoned(1, np.float32), b], [0], constants={"has_b": True})
    assert got[0] == 3
    for indices in ([0, 2], [0, 1, 2]):
        arrays = [poisoned(1, np.float32), b, last]
        bound = {i: device.from_numpy(arrays[i].copy()) for i in indices}
        encoder = device.command_encoder()
        encoder.dispatch(
            "arguments::optional", bound, threads=1, threads_per_threadgroup=1, constants={"has_b": False}
        )
        encoder.commit_and_wait()
        assert bound[0].numpy()[0] == bound[2].numpy()[0] == 5
    with pytest.raises(metalane.ArgumentError, match=r"argument 2 \(last\) must be bound"):
        run(device, "arguments::optional", [poisoned(1, np.float32), b], [0], constants={"has_b": False})


@pytest.mark.parametrize(("name", "dtype", "n"), [("last_f", np.float32, 3), ("last_u", np.uint16, 2)])
def test_deduced_instances(device, name, dtype, n):
    y = np.arange(5, 5 + n).astype(dtype)
    (got,) = run(device, f"arguments::{name}", [poisoned(2, dtype), y.tobytes()], [0])
    assert got[0] == y[-1]


def test_positions(device):
    (got,) = run(
        device,
        "arguments::positions",
        [poisoned(30, np.uint32)],
        [0],
        threads=(6, 5),
        threads_per_threadgroup=(4, 2),
    )
    y, x = np.mgrid[:5, :6]
    np.testing.assert_array_equal(got.reshape(5, 6), x % 4 + 100 * (x // 4) + 10000 * (y // 2) + 5000000)


def test_address_spaces_choose(device):
    args = [
        poisoned(20, np.int32),
        np.arange(4, dtype=np.int32),
        np.array([5], np.int32).tobytes(),
        np.array([6], np.int32),
    ]
    (got,) = run(device, "spaces::spaces", args, [0], threadgroup_memory={0: 256})
    want = [1234, 4113, 2193, 1234, 1234 + 18, 1234, 11, 33, 44, 533, 5 + 7300, 7 + 700 + 70000, 13, 31, 31]
    want += [40000 + 1131, 3111, 1, 3 + 10 + 900, 1]
    np.testing.assert_array_equal(got, want)


def test_address_spaces_in_every_form(device):
    args = [poisoned(19, np.float32), bytes(20), np.zeros(10, np.float32)]
    (got,) = run(device, "forms::forms", args, [0])
    want = [13, 1132, 1135, 413, 413, 13, 34, 1015, 221, 11, 1342, 13, 133, 44, 13, 11, 3 + 7, 1131, 1]
    np.testing.assert_array_equal(got, want)


def test_address_spaces_that_cannot_be_told(device):
    with pytest.raises(
        metalane.CompileError,
        match=r"spaces:83:12: which \"where\" is meant depends on the address space of its argument 1",
    ):
        device.registry.pipeline("spaces::untold")


@pytest.mark.parametrize("clamp", [0, 1], ids=["zero", "edge"])
def test_asynchronous_copies(device, clamp):
    x = np.random.default_rng(1).standard_normal((8, 10)).astype(np.float32)
    (got,) = run(
        device,
        "copies::copies",
        [x, poisoned(72, np.float32), clamp],
        [1],
        threads=32,
        threads_per_threadgroup=32,
    )
    tile = np.pad(x[:6, :5], ((0, 2), (0, 3)), mode="edge" if clamp else "constant")
    np.testing.assert_array_equal(got[:64], tile.ravel()[::-1])
    np.testing.assert_array_equal(got[64:], x.ravel()[3:11][::-1])


@pytest.mark.parametrize("kernel", OUTSIDE_KERNELS)
def test_outside_is_refused_with_its_place(device, kernel):
    # The program-scope texture is where it is declared.
    line = OUTSIDE_KERNELS[kernel] if kernel != "used" else OUTSIDE_KERNELS["texture"] - 1
    with pytest.raises(metalane.CompileError, match="not supported on the CPU device") as caught:
        device.registry.pipeline(f"outside::{kernel}")
    assert f"outside:{line}:" in str(caught.value)
    assert caught.value.kernel == kernel


def test_others_beside_what_is_outside_run(device):
    (got,) = run(device, "outside::runs", [poisoned(1, np.float32)], [0])
    assert got[0] == 1 + 3


@pytest.mark.parametrize(
    ("text", "place", "shown"),
    [
        (
            "kernel void k(device int* out) {\n  out[0] = undeclared;\n}\n",
            "k:4:12: ",
            "\n    out[0] = undeclared;\n             ^",
        ),
        (
            "#define SET(x) \\\n  x = missing\nkernel void k(device int* out) {\n  SET(out[0]);\n}\n",
            "k:6:",
            "\n    SET(out[0]);",
        ),
        (
            '#include "part.h"\nkernel void k(device int* out) { part(out); }\n',
            "part.h:3:13: ",
            "\n    return p->none;\n              ^",
        ),
    ],
    ids=["kernel", "macro", "template in a header"],
)
def test_errors_of_the_compiler_point_into_the_source(device_kind, text, place, shown):
    device = metalane.Device(device_kind)
    device.registry.register_header(
        "part.h", "template <typename T>\ninline T part(device T* p) {\n  return p->none;\n}\n"
    )
    device.registry.register_source("k", HEAD + text)
    with pytest.raises(metalane.CompileError) as caught:
        device.registry.pipeline("k")
    assert place in str(caught.value)
    if device_kind == "cpu":  # Metal's compiler shows what it likes
        assert shown in str(caught.value)


VECTORS_AT_ELEMENTS = (
    HEAD
    + """
kernel void shifted(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                    device half* h [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  *((device float4*)(y + 1) + i) = *(device const float4*)(x + 4 * i + 3) * 2.0f;
  *(device half4*)(h + 4 * i + 1) += half4(*(device const float4*)(x + 4 * i + 1));
}
kernel void copied(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  device const float4x4* from = (device const float4x4*)(x + 1);
  for (uint k = i; k < 8; k += 4) *((device float4x4*)(y + 3) + k) = from[k];
}
"""
)


def test_vectors_at_addresses_of_their_elements(device):
    device.registry.register_source("shifted", VECTORS_AT_ELEMENTS)
    x = np.arange(140, dtype=np.float32)
    h = np.arange(33, dtype=np.float16)
    y, z = run(device, "shifted::shifted", [poisoned(33, np.float32), x, h], [0, 2], threads=8)
    np.testing.assert_array_equal(y[1:], 2 * x[3:35])
    np.testing.assert_array_equal(z[1:], h[1:] + x[1:33].astype(np.float16))
    (y,) = run(device, "shifted::copied", [poisoned(131, np.float32), x], [0], threads=4)
    np.testing.assert_array_equal(y[3:], x[1:129])
