// What faults.metal does wrong, done right.
#include <metal_stdlib>
using namespace metal;

struct Pair {
  uint a, b;
  uint first() const { return a; }
  uint first() const device { return a; }
  uint first() const constant { return a; }
  uint second() const thread { return b; }
  thread Pair& add(Pair other) {
    grow(a, other.a);
    return *this;
  }
  static void grow(thread uint& x, uint by) { x += by; }
};

// ---- device, constant, threadgroup and thread memory
void device_to_threadgroup(device float* p, threadgroup float* q) { *q = *p; }
void constant_to_device(constant float* p, device float* q) {
  constant const float* r = p;
  *q = r[1];
}
void takes_threadgroup(threadgroup const float* p) { (void)p; }
void passes_threadgroup(threadgroup float* p) { takes_threadgroup(p + 1); }
void takes_device(device Pair& pair) { pair.a = 1; }
void passes_device(device Pair* pair) { takes_device(pair[2]); }
device uint* cast_of_device(device float* p) { return (device uint*)p; }
constant uint* reinterpreted(constant float* p) { return reinterpret_cast<constant uint*>(p); }
float device_to_thread(device float* p) {
  float x = *p;
  thread float* q = &x;
  return *q;
}
void takes_thread(thread float& x) { x = 1; }
void passes_element(threadgroup float* p) {
  float x[2] = {p[0], p[1]};
  takes_thread(x[1]);
}
thread float& returns_thread(thread float* p) { return p[0]; }
template <typename T>
T first_of(threadgroup const T* p) { return p[0]; }
template <typename T>
T first_of(device const T* p) { return p[0]; }
float deduces(device const float* p, threadgroup const float* q) { return first_of(p) + first_of(q); }
void advances(device const float*& p, device float* thread& q) {
  ++p;
  q += 2;
}

// ---- records copied between address spaces
void copies(device Pair* p, threadgroup Pair* q, threadgroup float4* v) {
  Pair pair = p[0];
  q[1] = p[2];
  q[1] = {1, 2};
  p[0] = q[1];
  q[0] = pair.add(q[0]).add(Pair{1, 2});
  v[0].xy = v[1].zw + float2(1.0f);
}

// ---- member functions
Pair make() { return {1, 2}; }
uint calls_on_device(device Pair* p) { return p->first(); }
uint calls_on_constant(constant Pair& p) { return p.first(); }
uint calls_on_thread(Pair p) { return p.second() + make().first() + make().second(); }

// ---- constant memory is read only
constant float levels[2] = {1.0f, 2.0f};
constant float4 corners[2] = {float4(1.0f), {1, 2, 3, 4}};
float reads_table(constant Pair& p, constant float4* q) {
  float4 corner = corners[p.a];
  corner += q[0];
  return levels[1] + corner.x + q[1].y;
}

// ---- what C++ for OpenCL has not either
float floats(float x) {
  float y = x + 1.0;
  return vec<float, 2>(y).x;
}
int calls(int x) { return x + 1; }
void constant_length() {
  constexpr uint n = 4;
  float x[n];
  x[0] = 1.0f;
}

// ---- recursion that ends while templates are instantiated
template <uint n>
uint factorial() { return n * factorial<n - 1>(); }
template <>
uint factorial<0>() { return 1; }
uint uses_factorial() { return factorial<5>(); }
float area(float x) { return x * x; }
float2 area(float2 x) { return float2(area(x.x), area(x.y)); }

// ---- the library
constant float smallest = numeric_limits<float>::lowest();
float unambiguous(float x) { return max(x, 0.0f) + fast::max(x, precise::exp(x)) + smallest; }
float4 converts(half4 x, device const packed_float3* p) { return float4(x) + float4(p[1], 1.0f); }
void waits() { threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); }
uint swizzled(uint4 x) {
  x.yx = uint2(1);
  return x.x + simd_sum(x.y);
}
void counts(device atomic_uint* total, threadgroup atomic_int* local) {
  atomic_fetch_add_explicit(total, 1u, memory_order_relaxed);
  atomic_store_explicit(local, 0, memory_order_relaxed);
}
void multiplies(threadgroup const float* a, device float* c) {
  simdgroup_float8x8 x, sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_load(x, a, 8);
  simdgroup_multiply_accumulate(sum, x, x, sum);
  simdgroup_store(sum, c, 8, ulong2(0, 8), true);
}

// ---- arguments of kernels
struct Settings {
  uint n;
  packed_float3 direction;
  uint flag;
};
struct Outer {
  Settings inner[2];
  ulong bytes;
};
constant bool wide [[function_constant(0)]];
kernel void indices(device float* out [[buffer(0)]], constant Outer& outer [[buffer(1)]],
                    device float* narrow [[buffer(2), function_constant(wide)]],
                    device float4* vectors [[buffer(2), function_constant(wide)]],
                    threadgroup float* first [[threadgroup(0)]], threadgroup float* second [[threadgroup(1)]],
                    uint i [[thread_position_in_grid]]) {
  threadgroup float staged[32], more[2];
  threadgroup Pair pairs[2];
  pairs[0].a = i;
  threadgroup float* part = staged + 4;
  out[i] = part[i] + more[1] + first[i] + second[i] + float(outer.inner[0].n);
  if (wide) narrow[i] = vectors[i].x;
}
template <typename T>
void dependent(thread T& x, device T* p) { *p = x; }
template <typename Block>
kernel void instantiated(device float* out [[buffer(0)]]) {
  threadgroup float tile[Block::size];
  tile[0] = 1.0f;
  float x = tile[1];
  dependent(x, out);
}
struct Four {
  enum : uint { size = 4 };
};
template [[host_name("instantiated_four")]] kernel decltype(instantiated<Four>) instantiated<Four>;
