// Adapted modules, compiled with the host's compiler and run for single threads against a stand-in executor:
// what the emitted text does, not how it reads.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "msl/family.h"
#include "msl/msl.h"
#include "msl/stdlib/module_abi.h"

using namespace metalane;

namespace {

namespace fs = std::filesystem;

// A folder with the metal_stdlib headers as the library carries them; gone with the process.
class Workshop {
 public:
  Workshop() : folder_(fs::temp_directory_path() / ("metalane_adapt_" + std::to_string(getpid()))) {
    for (const msl::StdlibHeader& header : msl::stdlib_headers()) {
      const fs::path path = folder_ / "include" / header.path;
      fs::create_directories(path.parent_path());
      std::ofstream(path) << header.text;
    }
  }
  ~Workshop() { fs::remove_all(folder_); }

  // Compiles `text`; returns the shared object's path, and the compiler's words in `output`.
  std::string compile(const std::string& text, std::string& output, const std::string& flags = "") {
    const std::string stem = (folder_ / ("module_" + std::to_string(count_++))).string();
    std::ofstream(stem + ".cpp") << text;
    const char* given = std::getenv("CXX");
    const std::string command =
        std::string(given && *given ? given : "c++") +
        " -std=gnu++17 -O2 -fsigned-char -fwrapv -shared -fPIC -ffp-contract=off -fno-exceptions " + flags +
        " -I" + (folder_ / "include").string() + " " + stem + ".cpp -o " + stem + ".so 2> " + stem + ".txt";
    const bool ok = std::system(command.c_str()) == 0;
    std::ifstream words(stem + ".txt");
    output.assign(std::istreambuf_iterator<char>(words), {});
    return ok ? stem + ".so" : "";
  }

 private:
  fs::path folder_;
  int count_ = 0;
};

Workshop& workshop() {
  static Workshop shop;
  return shop;
}

int barriers = 0;

// Threadgroups of one thread meet nobody: a barrier returns, a collective has one lane.
void pass_barrier(metalane_group*, uint32_t) { ++barriers; }
void combine_one(metalane_group*, uint32_t, metalane_combine combine, void* operand) {
  const metalane_lanes lanes{1, 1, &operand};
  combine(&lanes);
}
const metalane_runtime one_lane_runtime{pass_barrier, combine_one};

class Module {
 public:
  Module(const msl::Program& program, const std::string& kernel,
         const std::vector<ConstantValue>& constants = {}) {
    std::string output;
    const std::string path =
        workshop().compile(program.adapt(kernel, {constants, "module_under_test"}), output);
    check::report(!path.empty(), kernel.c_str(), 0, "does not compile:\n" + output);
    if (path.empty()) return;
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    check::report(handle_ != nullptr, kernel.c_str(), 0, "does not load");
    if (!handle_) return;
    table_ = static_cast<const metalane_module*>(dlsym(handle_, "module_under_test"));
    if (table_) table_->attach(&one_lane_runtime);
  }
  ~Module() {
    if (handle_) dlclose(handle_);
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  explicit operator bool() const { return table_ != nullptr; }
  const metalane_module& table() const { return *table_; }

  // Runs a grid of `threads` in threadgroups of `nominal`, the last of each axis cut off where it must be.
  void run(const std::vector<void*>& buffers, std::array<uint32_t, 3> threads,
           std::array<uint32_t, 3> nominal, uint32_t bound_threadgroup_bytes = 0) const {
    metalane_launch launch{};
    std::copy(buffers.begin(), buffers.end(), launch.buffers);
    for (int a = 0; a < 3; ++a) {
      launch.grid_threads[a] = threads[a];
      launch.nominal_threads[a] = nominal[a];
      launch.grid_groups[a] = (threads[a] + nominal[a] - 1) / nominal[a];
    }
    launch.threadgroup_offsets[0] = (table_->threadgroup_bytes() + 15) / 16 * 16;
    std::vector<uint8_t> memory(launch.threadgroup_offsets[0] + bound_threadgroup_bytes + 16);
    for (uint32_t z = 0; z < launch.grid_groups[2]; ++z) {
      for (uint32_t y = 0; y < launch.grid_groups[1]; ++y) {
        for (uint32_t x = 0; x < launch.grid_groups[0]; ++x) run_group(launch, {x, y, z}, memory.data());
      }
    }
  }

 private:
  void run_group(const metalane_launch& launch, std::array<uint32_t, 3> position, uint8_t* memory) const {
    metalane_group group{};
    group.launch = &launch;
    group.threadgroup_memory = memory;
    group.thread_count = 1;
    for (int a = 0; a < 3; ++a) {
      group.position[a] = position[a];
      group.threads[a] = std::min(launch.nominal_threads[a],
                                  launch.grid_threads[a] - position[a] * launch.nominal_threads[a]);
      group.thread_count *= group.threads[a];
    }
    for (uint32_t end = METALANE_SIMD_WIDTH; group.next_thread < group.thread_count;
         end += METALANE_SIMD_WIDTH) {
      group.end_thread = std::min(end, group.thread_count);
      table_->entry(&group);
      CHECK_EQ(group.next_thread, group.end_thread);
      CHECK_EQ(group.finished_threads, group.end_thread);
    }
  }

  void* handle_ = nullptr;
  const metalane_module* table_ = nullptr;
};

std::shared_ptr<const msl::Program> read(const std::string& text) {
  return msl::Program::read("user.metal", "#include <metal_stdlib>\nusing namespace metal;\n" + text, {});
}

}  // namespace

TEST_CASE(position_attributes_cover_a_ragged_grid) {
  const auto program = read(R"(
    kernel void places(device uint* out [[buffer(0)]], uint3 g [[thread_position_in_grid]],
                       ushort3 t [[thread_position_in_threadgroup]], uint3 size [[threads_per_grid]],
                       uint2 tg [[threadgroup_position_in_grid]], ushort2 own [[threads_per_threadgroup]],
                       uint3 nominal [[dispatch_threads_per_threadgroup]], uint index [[thread_index_in_threadgroup]],
                       ushort lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                       uint simds [[simdgroups_per_threadgroup]], uint width [[threads_per_simdgroup]],
                       uint quad [[thread_index_in_quadgroup]], uint3 groups [[threadgroups_per_grid]]) {
      device uint* o = out + 16 * (g.x + size.x * (g.y + size.y * g.z));
      o[0] = t.x; o[1] = t.y; o[2] = t.z; o[3] = tg.x; o[4] = tg.y; o[5] = own.x; o[6] = own.y;
      o[7] = nominal.x * 100 + nominal.y * 10 + nominal.z; o[8] = index; o[9] = lane; o[10] = simd; o[11] = simds;
      o[12] = width; o[13] = quad; o[14] = groups.x * 100 + groups.y * 10 + groups.z; o[15] += 1;
    }
  )");
  const Module module(*program, "places");
  if (!module) return;
  constexpr uint32_t sx = 11, sy = 5, sz = 3, nx = 4, ny = 3, nz = 2;
  std::vector<uint32_t> out(16 * sx * sy * sz);
  module.run({out.data()}, {sx, sy, sz}, {nx, ny, nz});
  int wrong = 0;
  for (uint32_t z = 0; z < sz; ++z) {
    for (uint32_t y = 0; y < sy; ++y) {
      for (uint32_t x = 0; x < sx; ++x) {
        const uint32_t own_x = std::min(nx, sx - x / nx * nx), own_y = std::min(ny, sy - y / ny * ny);
        const uint32_t own_z = std::min(nz, sz - z / nz * nz);
        const uint32_t index = x % nx + own_x * (y % ny + own_y * (z % nz));
        const uint32_t expected[16] = {x % nx, y % ny,     z % nz,     x / nx,
                                       y / ny, own_x,      own_y,      432,
                                       index,  index % 32, index / 32, (own_x * own_y * own_z + 31) / 32,
                                       32,     index % 4,  322,        1};
        wrong += std::memcmp(expected, &out[16 * (x + sx * (y + sy * z))], sizeof expected) != 0;
      }
    }
  }
  CHECK_EQ(wrong, 0);
}

TEST_CASE(expressions_mean_what_they_mean_in_msl) {
  const auto program = read(R"(
    constant float table[3] = {0.5, 1e-3, 0x1p4};
    struct Named { float2 xy; uint rg; float sum() const { return xy.x + xy.y + rg; } };
    inline float pick(device const float* p) { return p[0] * 2; }
    inline float pick(threadgroup const float* p) { return p[0] * 2; }
    inline float pick(constant float* p) { return p[0] * 2; }
    template <typename P> struct pointee;
    template <typename T> struct pointee<device T*> { using type = T; };
    template <typename T> struct pointee<threadgroup T*> { using type = T; };
    namespace outer { namespace inner { constant int seven = 7; } inline int eight() { return inner::seven + 1; } }
    kernel void run(device float* out [[buffer(0)]], constant float4& v [[buffer(1)]], constant uint* words [[buffer(2)]]) {
      out[0] = sizeof(1.0);                       // a float, not a double
      out[1] = table[0] + table[1] + table[2];
      out[2] = float(1.0h / 3.0h);                // rounded to half
      float4 a = v;
      a.xy = v.wz; a.zw *= 2.0;
      out[3] = a.x; out[4] = a.y; out[5] = a.z; out[6] = a.w;
      out[7] = v.bgr.x + v.xxyy.w;
      Named n = {.xy = float2(3, 4), .rg = 5};
      device Named* where = nullptr;
      Named copy = n;
      copy.xy.y += 1;
      copy.rg += 1;
      out[8] = copy.sum() + (where == nullptr ? 0 : where->xy.x);
      out[9] = pick(out) + pick(table);
      typename pointee<device int*>::type three = 3;
      out[10] = three + outer::eight();
      out[11] = as_type<float>(words[0]);
      out[12] = float(1.0bf + 0.00390625bf);      // bfloat has eight bits: the sum ties to even
      thread float& alias = out[13];
      alias = select(1.0, 2.0, words[1] == 0u);
      const constant uint* w = words;
      out[14] = w[1] & 0xFu;
      float filled[6] = { [ 0 ... 3 ] = 2.5, [5] = 1 };   // the rest is zero
      out[15] = filled[0] + filled[3] + filled[4] + filled[5];
    }
  )");
  const Module module(*program, "run");
  if (!module) return;
  std::vector<float> out(16);
  std::array<float, 4> v = {1, 2, 3, 4};
  std::array<uint32_t, 2> words = {0x40490fdb, 0};
  module.run({out.data(), v.data(), words.data()}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(module.table().site_count, 0u);
  const float expected[] = {
      4, 0.5f + 1e-3f + 16.0f, 0.333251953125f, 4, 3, 6, 8, 5, 14, 9, 11, 3.14159274f, 1, 2, 0, 6};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    check::report(out[i] == expected[i], __FILE__, __LINE__,
                  "out[" + std::to_string(i) + "] is " + std::to_string(out[i]) + ", expected " +
                      std::to_string(expected[i]));
  }
}

TEST_CASE(threadgroup_variables_and_sites) {
  const auto program = read(R"(
    #define COUNT(n) ((n) > 4 ? (n) : 4)
    inline float total(float x) { return simd_sum(x); }
    template <typename T, int N> [[kernel]] void share(device T* out [[buffer(0)]], threadgroup T* bound [[threadgroup(0)]]) {
      threadgroup T a[N], b[2][COUNT(N)];
      threadgroup atomic_uint counter;
      threadgroup T* p = a;
      atomic_store_explicit(&counter, 3u, memory_order_relaxed);
      p[N - 1] = 5; b[1][3] = 6; bound[0] = 7;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      out[0] = a[N - 1] + b[1][3] + bound[0] + T(atomic_load_explicit(&counter, memory_order_relaxed));
      out[1] = T(total(2.0)) + T(simd_is_first() ? 1 : 0);
      simdgroup_barrier(mem_flags::mem_none);
    }
    template [[host_name("share_f")]] [[kernel]] decltype(share<float, 3>) share<float, 3>;
    template [[host_name("share_h")]] [[kernel]] decltype(share<half, 8>) share<half, 8>;
  )");
  const Module module(*program, "share_f");
  if (!module) return;
  barriers = 0;
  std::vector<float> out(2);
  module.run({out.data()}, {1, 1, 1}, {1, 1, 1}, 64);
  CHECK_EQ(out[0], 21.0f);
  CHECK_EQ(out[1], 3.0f);
  CHECK_EQ(barriers, 1);
  CHECK_EQ(std::string(module.table().kernel), "share_f");
  CHECK_EQ(module.table().abi_version, METALANE_MODULE_ABI_VERSION);
  // float[3] at 0, float[2][4] at 16, the counter at 48.
  CHECK_EQ(module.table().threadgroup_bytes(), 52u);
  struct Expected {
    const char* operation;
    uint32_t line, column;
  };
  // In the order in which a thread comes by them.
  const Expected expected[] = {{"threadgroup_barrier", 12, 7},
                               {"simd_sum", 5, 42},
                               {"simd_is_first", 14, 34},
                               {"simdgroup_barrier", 15, 7}};
  CHECK_EQ(module.table().site_count, std::size(expected));
  for (uint32_t i = 0; i < module.table().site_count && i < std::size(expected); ++i) {
    const metalane_site& site = module.table().sites[i];
    CHECK_EQ(std::string(site.operation), expected[i].operation);
    CHECK_EQ(std::string(site.file), "user.metal");
    CHECK_EQ(site.line, expected[i].line);
    CHECK_EQ(site.column, expected[i].column);
  }
}

TEST_CASE(function_constants_are_compile_time_constants) {
  const auto program = read(R"(
    constant bool negate [[function_constant(0)]];
    constant int count [[function_constant(1)]];
    constant half scale [[function_constant(2)]];
    constant ulong big [[function_constant(3)]];
    constant uint extra [[function_constant(4)]];
    constant uint extra_or = is_function_constant_defined(extra) ? extra : 40;
    kernel void k(device float* out [[buffer(0)]]) {
      float values[count];
      for (int i = 0; i < count; ++i) values[i] = i;
      out[0] = (negate ? -1 : 1) * values[count - 1] * float(scale);
      out[1] = big == 18446744073709551615ul;
      out[2] = extra_or;
    }
  )");
  const std::vector<ConstantValue> values = {{std::string("negate"), true},
                                             {std::uint32_t(1), std::int64_t(5)},
                                             {std::string("scale"), 0.1},
                                             {std::string("big"), std::uint64_t(18446744073709551615u)}};
  const Module module(*program, "k", values);
  if (!module) return;
  std::vector<float> out(3);
  module.run({out.data()}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(out[0], -4.0f * 0.0999755859375f);
  CHECK_EQ(out[1], 1.0f);
  CHECK_EQ(out[2], 40.0f);
}

TEST_CASE(user_overloads_join_those_of_the_library) {
  const auto program = read(R"(
    struct Pair { float a, b; };
    Pair max(Pair x, Pair y) { return Pair{max(x.a, y.a), max(x.b, y.b)}; }
    Pair simd_sum(Pair x) { return Pair{simd_sum(x.a), simd_sum(x.b)}; }
    Pair operator+(Pair x, Pair y) { return Pair{x.a + y.a, x.b + y.b}; }
    kernel void k(device float* out [[buffer(0)]]) {
      Pair p = simd_sum(max(Pair{1, 5}, Pair{3, 2})) + Pair{10, 10};
      out[0] = p.a; out[1] = p.b; out[2] = max(7.0, 6.0);
    }
  )");
  const Module module(*program, "k");
  if (!module) return;
  std::vector<float> out(3);
  module.run({out.data()}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(out[0], 13.0f);
  CHECK_EQ(out[1], 15.0f);
  CHECK_EQ(out[2], 7.0f);
}

TEST_CASE(members_are_qualified_and_specialised) {
  const auto program = read(R"(
    template <typename T> constant bool is_number = false;
    template <> constant bool is_number<float> = true;
    struct Cell {
      float v;
      Cell(float x) thread : v(x) {}
      Cell(float x) device : v(x) {}
      Cell(float x) constant : v(x) {}
      float get() const device { return v; }
      float get() const threadgroup { return v; }
      float get() const constant { return v; }
      template <typename T> float of(T x) { return 1; }
      template <> float of(float x) { return 2 + x; }
    };
    struct Plain { float v; };
    namespace metal { inline Plain max(Plain a, Plain b) { return a.v > b.v ? a : b; } }
    kernel void k(device float* out [[buffer(0)]]) {
      Cell c(4);
      out[0] = c.get() + c.of(3) * 10 + c.of(3.0f) * 100;
      out[1] = is_number<float> + 2 * is_number<int>;
      out[2] = metal::max(Plain{1}, Plain{8}).v + metal::max(1.0, 2.0);
    }
  )");
  const Module module(*program, "k");
  if (!module) return;
  std::vector<float> out(3);
  module.run({out.data()}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(out[0], 514.0f);
  CHECK_EQ(out[1], 1.0f);
  CHECK_EQ(out[2], 10.0f);
}

TEST_CASE(compiler_errors_point_into_the_users_text) {
  const auto program = read(
      "#define STEP(x) x += missing_name;\n\nkernel void k(device float* out [[buffer(0)]]) {\n"
      "  float4 v = float4(1.0);\n  out[0] = v.x + undeclared;\n  STEP(out[1])\n}\n");
  std::string output;
  CHECK_EQ(workshop().compile(program->adapt("k", {}), output), "");
  CHECK(output.find("user.metal:7:18: error: ") != std::string::npos);
  CHECK(output.find("user.metal:8:") != std::string::npos);
}

// GCC 12 at -O2 makes the second of these a trap, and may take the first as proof that the divisor is not 0.
TEST_CASE(integer_division_by_zero_gives_a_value) {
  const auto program = read(R"(
    enum Kind { none, some };
    struct Ratio { int top; Ratio operator/(int by) const { return {top * 100 + by}; } };
    constant int never = 1 / 0;
    template <int N> int blocks(int x) { return (x + N - 1) / N; }
    kernel void k(device int* out [[buffer(0)]], device const int* in [[buffer(1)]],
                  device const bool* flag [[buffer(2)]]) {
      uint d = in[1];
      uint q = uint(in[0]) / d;
      if (d == 0) q = 7;
      out[0] = q;
      int e = flag[0] ? in[0] : 0;
      out[1] = in[0] % e + 1;
      int low = in[2], minus = in[3];
      out[2] = low / minus;
      out[3] = low % minus;
      out[4] = in[0] / 2 / in[4] * 5 % in[0] - -in[0] / in[4];
      int f = 1000;
      f /= in[4] + 1;
      f %= in[0] - in[4];
      out[5] = f;
      uchar small = 200;
      small /= flag[0] ? 1 : in[4];
      out[6] = small;
      out[7] = never + 5 % 0 + int(some) / int(none);
      out[8] = blocks<4>(10) + (Ratio{3} / in[4]).top + (f ? 1 : 4 / f);
      out[9] = int(1.0f / in[4] * 8) + int(7 / 2.0f) + int(float(in[0]) / in[4]);
      int4 v = int4(9, 8, 7, 6);
      v.xy /= in[4];
      v.z %= in[4];
      v /= int4(1, 1, 1, 0);
      out[10] = v.x * 1000 + v.y * 100 + v.z * 10 + v.w;
      bfloat b = 3.0bf;
      b /= 2;
      half h = 9.0h / half(in[4]);
      out[11] = int(b * 10) + int(h * 10);
    }
  )");
  const Module module(*program, "k");
  if (!module) return;
  std::vector<int> out(12);
  std::vector<int> in = {10, 0, std::numeric_limits<int>::min(), -1, 3};
  bool flag = false;
  module.run({out.data(), in.data(), &flag}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(out[0], 7);
  CHECK_EQ(out[1], 11);
  CHECK_EQ(out[2], std::numeric_limits<int>::min());
  CHECK_EQ(out[3], 0);
  CHECK_EQ(out[4], 10 / 2 / 3 * 5 % 10 + 10 / 3);
  CHECK_EQ(out[5], 1000 / 4 % 7);
  CHECK_EQ(out[6], 200 / 3);
  CHECK_EQ(out[7], 5);
  CHECK_EQ(out[8], 3 + 303 + 1);
  CHECK_EQ(out[9], 2 + 3 + 3);
  CHECK_EQ(out[10], 3000 + 200 + 10 + 0);
  CHECK_EQ(out[11], 15 + 30);
}

TEST_CASE(swizzles_are_values_where_nothing_is_assigned) {
  const auto program = read(R"(
    struct Pixel { float3 rgb; };
    template <typename T> T twice(T a, T b) { return a + b; }
    template <typename T> struct Size { static constexpr constant int value = sizeof(T); };
    float total(float2 v) { return v.x + v.y; }
    kernel void k(device float* out [[buffer(0)]]) {
      float4 v = float4(1, 2, 3, 4);
      out[0] = total(twice(v.xy, float2(10, 20)));
      auto copy = v.wz;
      copy.x = 100;
      out[1] = Size<decltype(copy)>::value + v.w;
      v.xyz.zy = float2(30, 20);
      v.xyz.x *= 5;
      (v.zw) += 1;
      ++v.xy;
      v.wx++;
      out[2] = v.x + v.y * 100 + v.z * 10000 + v.w * 1000000;
      Pixel p = {float3(1, 2, 3)};
      p.rgb.xy = p.rgb.yx;
      p.rgb.z = 9;
      out[3] = p.rgb.x * 100 + p.rgb.y * 10 + p.rgb.z;
      packed_float3 packed = packed_float3(1, 2, 3);
      packed.xz = packed.zx + v.xy.yx;
      out[4] = total(packed.xz) + total(metal::max(packed.xy, v.xy));
      thread float4* at = &v;
      at->zw = v.xy;
      out[5] = at[0].z - (*at).w;
    }
  )");
  const Module module(*program, "k");
  if (!module) return;
  std::vector<float> out(6);
  module.run({out.data()}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(out[0], 33.0f);
  CHECK_EQ(out[1], 12.0f);
  // x: 1 * 5, then two increments; y: 20 + 1; z: 30 + 1; w: 4 + 1 + 1.
  CHECK_EQ(out[2], 7.0f + 2100.0f + 310000.0f + 6000000.0f);
  CHECK_EQ(out[3], 219.0f);
  CHECK_EQ(out[4], (3.0f + 21.0f) + (1.0f + 7.0f) + 24.0f + 21.0f);
  CHECK_EQ(out[5], 7.0f - 21.0f);
}

TEST_CASE(lane_counts_are_ushort_to_overloads) {
  const auto program = read(R"(
    struct Wide { uint low, high; };
    inline Wide simd_shuffle_down(Wide x, ushort delta) {
      return {simd_shuffle_down(x.low, delta), simd_shuffle_down(x.high, delta)};
    }
    inline bool simd_shuffle_up(bool x, ushort delta) { return simd_shuffle_up(uint(x), delta) + 1; }
    inline int simd_shuffle_and_fill_up(Wide x, Wide y, ushort delta) { return x.low + y.low + delta; }
    inline Wide min(Wide a, Wide b) { return a.low < b.low ? a : b; }
    inline Wide clamp(Wide x, Wide a, Wide b) { return min(x, min(a, b)); }
    template <typename T, typename = metal::enable_if_t<metal::_disjunction<metal::is_same<T, int>,
                                                                            metal::is_same<T, uint>>::value>>
    metal::remove_addrspace_t<T> only_integers(T x) { return x; }
    kernel void k(device int* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
      ushort one = 1;
      out[0] = simd_shuffle_down(Wide{3, 4}, 0).high + simd_shuffle_down(Wide{3, 4}, one - 1).low;
      out[1] = simd_shuffle_up(false, 1) + simd_shuffle_up(false, one) + simd_shuffle_up(false, lane);
      out[2] = clamp(Wide{5, 0}, Wide{2, 1}, Wide{4, 2}).low + simd_shuffle_and_fill_up(Wide{1, 1}, Wide{2, 2}, 1);
      out[3] = only_integers(7u) + min(3, 4);
    }
  )");
  const Module module(*program, "k");
  if (!module) return;
  std::vector<int> out(4);
  module.run({out.data()}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(out[0], 7);
  CHECK_EQ(out[1], 3);
  CHECK_EQ(out[2], 6);
  CHECK_EQ(out[3], 10);
}

TEST_CASE(instances_close_nested_argument_lists_at_once) {
  const auto program = read(R"(
    template <typename T> struct Twice { T operator()(T x) { return 2 * x; } };
    template <typename T, typename F> kernel void apply(device T* x [[buffer(0)]]) { x[0] = F()(x[0]); }
    template [[host_name("apply_f")]] kernel void apply<float, Twice<float>>(device float* x [[buffer(0)]]);
    template [[host_name("apply_i")]] [[kernel]] decltype(apply<int, Twice<int>>) apply<int, Twice<int>>;
  )");
  float real = 1.5;
  int whole = 4;
  const Module module(*program, "apply_f"), other(*program, "apply_i");
  if (module) module.run({&real}, {1, 1, 1}, {1, 1, 1});
  if (other) other.run({&whole}, {1, 1, 1}, {1, 1, 1});
  CHECK_EQ(real, 3.0f);
  CHECK_EQ(whole, 8);
}

TEST_CASE(assembly_is_refused) {
  const auto program = read("kernel void k(device int* x [[buffer(0)]]) { asm(\"hlt\"); }");
  CHECK_THROWS(program->adapt("k", {}), CompileError, "user.metal:3:46: assembly is not supported");
  const auto global = read("__asm__(\".globl x\");\nkernel void k(device int* x [[buffer(0)]]) {}");
  CHECK(global->adapt("k", {}).find(".globl") == std::string::npos);  // no kernel reaches it
}

TEST_CASE(operators_and_constructors_that_differ_by_address_space_are_refused) {
  const auto program = read(R"(
    struct A {
      int v;
      A(int x) thread : v(x) {}
      A(int x) device : v(x + 1) {}
    };
    struct B { int v; };
    inline int operator+(device B& b, int x) { return x; }
    inline int operator+(thread B& b, int x) { return -x; }
    kernel void constructs(device int* out [[buffer(0)]]) { out[0] = A(1).v; }
    kernel void adds(device int* out [[buffer(0)]]) { B b; out[0] = b + 1; }
    kernel void neither(device int* out [[buffer(0)]]) { out[0] = 1; }
  )");
  CHECK_THROWS(program->adapt("constructs", {}), CompileError,
               "user.metal:7:7: \"A\" differs from its declaration in user.metal:6");
  CHECK_THROWS(program->adapt("adds", {}), CompileError,
               "user.metal:11:16: \"operator\" differs from its declaration in user.metal:10");
  CHECK(!program->adapt("neither", {}).empty());
}

TEST_CASE(messages_of_the_compiler_show_the_users_lines) {
  const auto program = msl::Program::read("user.metal",
                                          "#include \"lib.h\"\n"
                                          "#define SET(x) \\\n  x = missing; \\\n  x = 2\n"
                                          "kernel void k(device int* out [[buffer(0)]]) {\n"
                                          "  SET(out[0]);\n"
                                          "  out[1] = twice<int>(out);\n"
                                          "}\n",
                                          {{"lib.h",
                                            "template <typename T>\ninline T twice(device T* p) {\n"
                                            "  return p->none;\n}\n"}});
  std::string output;
  CHECK_EQ(workshop().compile(program->adapt("k", {}), output), "");
  const std::string shown = program->explain(output);
  for (const char* wanted : {"error: ", "user.metal:6:", "\n    SET(out[0]);\n",
                             "lib.h:3:13: ", "\n    return p->none;\n              ^"}) {
    check::report(shown.find(wanted) != std::string::npos, __FILE__, __LINE__,
                  std::string("no \"") + wanted + "\" in\n" + shown);
  }
}

TEST_CASE(a_family_holds_every_kernel) {
  const auto program = read(R"(
    inline float half_of(float x) { return x * 0.5; }
    kernel void one(device float* x [[buffer(0)]]) { threadgroup float s[8]; s[0] = 3; x[0] = half_of(s[0]); }
    kernel void two(device float* x [[buffer(0)]]) { threadgroup float s[64]; s[1] = 4; x[0] = half_of(s[1]); }
  )");
  std::string output;
  const std::string path =
      workshop().compile(msl::adapt_family(*program, "pair"), output,
                         "-DMETALANE_FAMILY_TABLE_SYMBOL=pair_table -DMETALANE_ISA_NS=isa_test");
  check::report(!path.empty(), __FILE__, __LINE__, output);
  if (path.empty()) return;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != nullptr);
  if (!handle) return;
  const auto* modules = static_cast<const metalane_module* const*>(dlsym(handle, "pair_table"));
  CHECK(modules != nullptr);
  if (modules) {
    CHECK_EQ(std::string(modules[0]->kernel), "one");
    CHECK_EQ(std::string(modules[1]->kernel), "two");
    CHECK(modules[2] == nullptr);
    CHECK_EQ(modules[0]->threadgroup_bytes(), 32u);
    CHECK_EQ(modules[1]->threadgroup_bytes(), 256u);
  }
  dlclose(handle);
}

CHECK_MAIN()
