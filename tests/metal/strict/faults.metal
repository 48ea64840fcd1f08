// Faults that Clang or its syntax tree shows, each with the message on its line; right.metal has their twins.
#include <metal_stdlib>
using namespace metal;

struct Pair {
  uint a, b;
  uint first() const { return a; }
  uint second() const device { return b; }
};

// ---- device, constant, threadgroup and thread memory
void device_to_threadgroup(device float* p, threadgroup float* q) {
  q = p;                    // fault: changes address space of pointer
}
void constant_to_device(constant float* p) {
  device const float* q = p;  // fault: cannot initialize a variable of type
  (void)q;
}
void takes_threadgroup(threadgroup const float* p) { (void)p; }
void passes_device(device const float* p) {
  takes_threadgroup(p);     // fault: no matching function for call to 'takes_threadgroup'
}
void takes_device(device Pair& pair) { pair.a = 1; }
void passes_threadgroup(threadgroup Pair& pair) {
  takes_device(pair);       // fault: no matching function for call to 'takes_device'
}
device float* cast_of_threadgroup(threadgroup float* p) {
  return (device float*)p;  // fault: converts between mismatching address spaces
}
constant uint* reinterpreted(device float* p) {
  return reinterpret_cast<constant uint*>(p);  // fault: reinterpret_cast from '__global float *' to '__constant uint *'
}
float device_to_thread(device float* p) {
  thread float* q = p;      // fault: cannot initialize a variable of type
  return *q;
}
void takes_thread(thread float& x) { x = 1; }
void passes_element(threadgroup float* p) {
  takes_thread(p[1]);       // fault: no matching function for call to 'takes_thread'
}
float cast_to_thread(device float* p) {
  return *(thread float*)p;  // fault: converts between mismatching address spaces
}
thread float& returns_device(device float* p) {
  return p[0];              // fault: changes address space
}
template <typename T>
T first_of(threadgroup const T* p) { return p[0]; }
float deduces_threadgroup(device const float* p) {
  return first_of(p);       // fault: no matching function for call to 'first_of'
}

// ---- member functions
uint calls_on_device(device Pair* p) {
  return p->first();        // fault: what is in device memory becomes a thread object
}
uint calls_on_constant(constant Pair& p) {
  return p.first();         // fault: no matching member function for call to 'first'
}
uint calls_on_thread(Pair p) {
  return p.second();        // fault: cannot initialize object parameter
}

// ---- constant memory is read only
constant float levels[2] = {1.0f, 2.0f};
void writes_table() {
  levels[1] = 3.0f;         // fault: read-only variable is not assignable
}
void writes_argument(constant Pair& p) {
  p.a++;                    // fault: read-only variable is not assignable
}
void writes_vector(constant float4* p) {
  p[0].x = 1.0f;            // fault: read-only variable is not assignable
}

// ---- what C++ for OpenCL has not either
float doubles(float x) {
  double y = x;             // fault: use of type 'double' requires
  return vec<double, 2>(y).x;  // fault: use of type 'double' requires
}
int calls(int x) { return x + 1; }
int calls_pointer(int x) {
  int (*f)(int) = calls;    // fault: pointers to functions are not allowed
  return f(x);
}
void takes_function(void (*f)(int)) {  // fault: pointers to functions are not allowed
  f(1);
}
void allocates() {
  auto p = new int;         // fault: 'default new' is not supported
  delete p;
}
void throws(int x) {
  if (x) throw x;           // fault: cannot use 'throw' with exceptions disabled
}
struct Virtual {
  virtual void f();         // fault: virtual functions are not supported
};
void variable_length(uint n) {
  float x[n];               // fault: array size is not a constant expression
  x[0] = 1.0f;
}
void inspects_type() {
  (void)typeid(int);        // fault: 'typeid' is not supported
}

// ---- recursion
uint factorial(uint n) { return n < 2 ? 1 : n * factorial(n - 1); }  // fault: factorial is recursive
uint odd(uint n);
uint even(uint n) { return n == 0 ? 1 : odd(n - 1); }  // fault: even is recursive
uint odd(uint n) { return n == 0 ? 0 : even(n - 1); }  // fault: odd is recursive
template <typename T>
T halved(T x) { return x < 2 ? x : halved(x / 2); }  // fault: halved is recursive
float uses_halved(float x) { return halved(x); }
struct Walker {
  uint walk(uint n) { return n == 0 ? 0 : walk(n - 1); }  // fault: walk is recursive
};

// ---- lambdas
float calls_lambda(float x) {
  auto f = [](float y) { return y + 1.0f; };  // fault: a lambda needs Metal 3.2
  return f(x);
}
float captures(float x) {
  return [&] { return x; }();  // fault: a lambda needs Metal 3.2
}

// ---- the library
float ambiguous(float x) {
  return max(x, 0);         // fault: call to 'max' is ambiguous
}
float4 converts(half4 x) {
  float4 y = x;             // fault: no viable conversion
  return y;
}
void waits() {
  threadgroup_barrier(2);   // fault: no matching function for call to 'threadgroup_barrier'
}
uint swizzled_twice(uint4 x) {
  x.xx = uint2(1);          // fault: no viable overloaded '='
  return x.x;
}

// ---- arguments of kernels
struct Settings {
  uint n;
  float3 direction;         // fault: field direction of a parameter struct
  bool flag;                // fault: field flag of a parameter struct
};
struct Outer {
  Settings inner[2];
  size_t bytes;             // fault: field bytes of a parameter struct
};
kernel void indices(
    device float* out,      // fault: argument out of indices has no index
    constant Outer& outer [[buffer(1)]],
    device float* again [[buffer(1)]],  // fault: argument again of indices: buffer index 1 is used twice
    threadgroup float* scratch,  // fault: argument scratch of indices has no index
    threadgroup float* first [[threadgroup(0)]],
    threadgroup float* second [[threadgroup(0)]],  // fault: threadgroup index 0 is used twice
    uint i [[thread_position_in_grid]]) {
  threadgroup float staged[32];
  out[i] = staged[i] + again[i] + scratch[i] + first[i] + second[i] + float(outer.inner[0].n);
  device float* wrong = staged;  // fault: cannot initialize a variable of type
  (void)wrong;
}
template <typename T>
void dependent(T& x, device T* p) {  // fault: a pointer or reference to T has no address space
  *p = x;
}
template <typename Block>
kernel void instantiated(device float* out [[buffer(0)]]) {
  threadgroup float tile[Block::size];
  out = tile;               // fault: from incompatible type
}
struct Four {
  enum : uint { size = 4 };
};
template [[host_name("instantiated_four")]] kernel decltype(instantiated<Four>) instantiated<Four>;
