// The MSL reader: preprocessing, layouts, signatures, error positions, and bounds on hostile input.
#include <ctime>
#include <random>
#include <string>

#include "backends/cpu/fiber.h"
#include "check.h"
#include "core/hash.h"
#include "msl/msl.h"

using namespace metalane;
using msl::Program;

// What "quickly" means for hostile input; sanitizers slow everything down about tenfold.
#if defined(METALANE_ASAN) || defined(METALANE_TSAN)
constexpr double quick_seconds = 20;
#else
constexpr double quick_seconds = 2;
#endif

namespace {

using Headers = std::map<std::string, std::string>;

std::shared_ptr<const Program> read(const std::string& text, const Headers& headers = {}) {
  return Program::read("test.metal", text, headers);
}

// The error that reading gives, "" where it gives none.
std::string read_error(const std::string& text, const Headers& headers = {}) {
  try {
    read(text, headers);
    return "";
  } catch (const CompileError& error) {
    return error.what();
  }
}

// Reading `text` must fail with a message that begins with `expected`.
void check_error(const std::string& text, const std::string& expected, int line,
                 const Headers& headers = {}) {
  const std::string error = read_error(text, headers);
  check::report(error.starts_with(expected), __FILE__, line,
                "expected \"" + expected + "\", got \"" + error + "\"");
}

// What `expression` expands to: the initialiser of a constant, tokens separated by spaces.
std::string expanded(const std::string& defines, const std::string& expression, const Headers& headers = {}) {
  const std::string text =
      read(defines + "\nconstant int value = [" + expression + "];", headers)->expanded_text();
  std::string flat;
  bool place = false;
  const std::size_t begin = text.find('[');
  for (std::size_t i = begin + 1; i < text.rfind(']'); ++i) {
    if (text[i] == '\n') place = true;
    if (!place) flat += text[i];
    if (text[i] == '\t') place = false;
  }
  const std::size_t first = flat.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return flat.substr(first, flat.find_last_not_of(' ') - first + 1);
}

const KernelArgument& argument(const KernelSignature& kernel, const std::string& name) {
  for (const KernelArgument& candidate : kernel.arguments) {
    if (candidate.name == name) return candidate;
  }
  throw std::runtime_error("no argument " + name);
}

const StructField& field(const StructLayout& layout, const std::string& name) {
  for (const StructField& candidate : layout.fields) {
    if (candidate.name == name) return candidate;
  }
  throw std::runtime_error("no field " + name);
}

// Processor time, so that a busy machine fails no test.
double seconds_since(std::clock_t begin) { return double(std::clock() - begin) / CLOCKS_PER_SEC; }

double seconds_to_read(const std::string& text) {
  const std::clock_t begin = std::clock();
  read_error(text);
  return seconds_since(begin);
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

}  // namespace

// FIPS 180-4's examples, and lengths at which the padding takes one block or two.
TEST_CASE(sha256_matches_published_digests) {
  CHECK_EQ(core::sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(core::sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(core::sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(core::sha256_hex(std::string(1000000, 'a')),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE(macros_expand_as_in_c) {
  CHECK_EQ(expanded("#define A B\n#define B 7", "A"), "7");
  CHECK_EQ(expanded("#define A A + 1", "A"), "A + 1");
  CHECK_EQ(expanded("#define F(x, y) y x", "F((1, 2), 3)"), "3 ( 1 , 2 )");
  CHECK_EQ(expanded("#define F(x) x", "F"), "F");
  CHECK_EQ(expanded("#define CAT(a, b) a##b\n#define X 1", "CAT(X, X) CAT(4, 2) CAT(, z)"), "XX 42 z");
  CHECK_EQ(expanded("#define S(x) #x", "S( a \"q\\n\"  b )"), "\"a \\\"q\\\\n\\\" b\"");
  CHECK_EQ(expanded("#define G(f, ...) f(__VA_ARGS__)", "G(h, 1, 2) G(h)"), "h ( 1 , 2 ) h ( )");
  CHECK_EQ(expanded("#define G(f, ...) f(0, ## __VA_ARGS__)", "G(h, 1) G(h)"), "h ( 0 , 1 ) h ( 0 )");
  CHECK_EQ(expanded("#define O(a, ...) a __VA_OPT__(: __VA_ARGS__)", "O(1) O(1, 2)"), "1 1 : 2");
  CHECK_EQ(expanded("#define F(x) G(x)\n#define G(x) F(x) x", "F(1)"), "F ( 1 ) 1");
  CHECK_EQ(expanded("#define LONG 1 + \\\n 2", "LONG"), "1 + 2");
  CHECK_EQ(expanded("#define F() 5\n#undef F", "F()"), "F ( )");
  // C++17 [cpp.rescan]'s hard case: the parenthesis comes from behind the expansion.
  CHECK_EQ(expanded("#define f(a) a*g\n#define g(a) f(a)", "f(2)(9)"), "2 * 9 * g");
}

TEST_CASE(conditions_choose_one_group) {
  const auto chosen = [](const std::string& condition) {
    return expanded("#define TWO 2\n#if " + condition + "\n#define R yes\n#else\n#define R no\n#endif", "R");
  };
  CHECK_EQ(chosen("defined(TWO) && TWO == 2"), "yes");
  CHECK_EQ(chosen("defined NOPE || !defined(TWO)"), "no");
  CHECK_EQ(chosen("NOPE"), "no");
  CHECK_EQ(chosen("1 + 2 * 3 == 7 && (1 + 2) * 3 == 9 && 7 / 2 == 3 && -7 % 4 == -3"), "yes");
  CHECK_EQ(chosen("1 ? 0 : 1"), "no");
  CHECK_EQ(chosen("(1 << 4 | 1) == 0x11 && ~0 == -1 && 'a' == 97 && 010 == 8 && 0b11 == 3"), "yes");
  CHECK_EQ(chosen("0 && 1 / 0"), "no");
  CHECK_EQ(chosen("__METAL_VERSION__ == 320 && defined(__METAL__) && __METAL_MACOS__"), "yes");
  CHECK_EQ(chosen("__has_include(<metal_stdlib>) && !__has_include(\"nope.h\")"), "yes");
  CHECK_EQ(
      expanded(
          "#if 0\n#if 1\n' unbalanced \" text\n#endif\n#elif 1\n#define R second\n#else\n#error no\n#endif",
          "R"),
      "second");
}

TEST_CASE(includes_come_from_the_given_headers) {
  const Headers headers = {{"lib/a.h", "#pragma once\n#include \"b.h\"\n"},
                           {"lib/b.h", "#ifndef B\n#define B 3\n#endif\n"},
                           {"loop.h", "#include \"loop.h\"\n"}};
  CHECK_EQ(
      expanded(
          "#include \"lib/a.h\"\n#include <lib/a.h>\n#include <metal_stdlib>\n#include <metal_simdgroup>",
          "B", headers),
      "3");
  check_error("\n#include \"nope.h\"\n", "test.metal:2:2: header \"nope.h\" is not registered", __LINE__);
  CHECK(read_error("#include \"loop.h\"\n", headers).find("include itself") != std::string::npos);
}

TEST_CASE(errors_stand_where_the_user_wrote) {
  check_error("int f() {\n  return (1;\n}\n", "test.metal:3:1: \"}\" closes nothing\n", __LINE__);
  check_error("kernel void k() {", "test.metal:1:17: \"{\" is never closed\n", __LINE__);
  check_error("int a;\n\t/* open", "test.metal:2:2: unterminated /* comment\n", __LINE__);
  check_error("#define M \\\n 1\nint \x01;", "test.metal:3:5: byte 0x01 is no part of the language",
              __LINE__);
  check_error("\n#error stop  here\n", "test.metal:2:2: #error stop here", __LINE__);
  check_error("#line 40 \"other.metal\"\n)", "other.metal:40:1: \")\" closes nothing", __LINE__);
  check_error("#if 1\n", "test.metal:1:2: #if without #endif", __LINE__);
  check_error("kernel void a() {}\nkernel void a() {}\n",
              "test.metal:2:13: kernel \"a\" is declared a second time; first in test.metal:1\n", __LINE__);
  // The offending line with a caret below the column.
  CHECK(read_error("int x = 1;\nint y = 2);\n").find("\n  int y = 2);\n           ^") != std::string::npos);
}

// Sizes and offsets as the Metal specification's tables 2.2 and 2.3 and C's rules give them.
TEST_CASE(layouts_match_metal) {
  const auto program = read(R"(
    #include <metal_stdlib>
    using namespace metal;
    enum Op { add, mul = 5, last = mul + 2 };
    enum class Small : uchar { a };
    typedef float4 row;
    using index_t = uint;
    constant constexpr int kCount = 3;
    template <typename T, int N> struct Tile { T cells[N]; uchar tag; };
    struct Inner { char c; half h[last]; };
    struct Outer {
      uint n;
      float3 v;
      packed_float3 p;
      half3 h;
      float3x3 m;
      half4x2 hm;
      bool flag;
      Small small;
      Op op;
      row r[2][kCount];
      Inner inner[kCount - 1];
      index_t index;
      bfloat b;
      ulong big;
      Tile<short, 5> tile;
      atomic_uint counter;
      array<float, 4> four;
      vec<uchar, 3> bytes;
      static constant int ignored = 1;
      uint twice() const { return n * 2; }
      union { float f; uint bits; };
      struct { uchar lo, hi; } pair;
    };
    union Word { float f; uchar bytes[6]; };
    struct alignas(32) Aligned { uint x; };
    struct __attribute__((packed)) Packed { uchar a; uint b; };
    typedef struct { half d; uint8_t qs[sizeof(uint) * 4]; } block_q;
    struct Unknown { sampler_like s; };
    struct Empty {};
  )");
  const auto outer = program->layout("Outer");
  CHECK(outer != nullptr);
  if (!outer) return;
  struct Expected {
    const char* name;
    std::uint64_t offset, size, count;
  };
  const Expected expected[] = {{"n", 0, 4, 0},         {"v", 16, 16, 0},      {"p", 32, 12, 0},
                               {"h", 48, 8, 0},        {"m", 64, 48, 0},      {"hm", 112, 16, 0},
                               {"flag", 128, 1, 0},    {"small", 129, 1, 0},  {"op", 132, 4, 0},
                               {"r", 144, 96, 6},      {"inner", 240, 32, 2}, {"index", 272, 4, 0},
                               {"b", 276, 2, 0},       {"big", 280, 8, 0},    {"tile", 288, 12, 0},
                               {"counter", 300, 4, 0}, {"four", 304, 16, 4},  {"bytes", 320, 4, 0},
                               {"f", 324, 4, 0},       {"bits", 324, 4, 0},   {"pair", 328, 2, 0}};
  CHECK_EQ(outer->fields.size(), std::size(expected));
  for (const Expected& e : expected) {
    const StructField& given = field(*outer, e.name);
    CHECK_EQ(std::string(e.name) + "@" + std::to_string(given.offset),
             std::string(e.name) + "@" + std::to_string(e.offset));
    CHECK_EQ(std::string(e.name) + "#" + std::to_string(given.size),
             std::string(e.name) + "#" + std::to_string(e.size));
    CHECK_EQ(given.count, e.count);
  }
  CHECK_EQ(outer->size, 336u);
  CHECK_EQ(outer->alignment, 16u);
  CHECK_EQ(field(*outer, "m").type.columns, 3u);
  CHECK_EQ(field(*outer, "hm").type.components, 2u);
  CHECK(field(*outer, "inner").type.layout != nullptr);
  CHECK_EQ(program->layout("Word")->size, 8u);
  CHECK(program->layout("Word")->is_union);
  CHECK_EQ(program->layout("Aligned")->size, 32u);
  CHECK_EQ(program->layout("Packed")->size, 5u);
  CHECK_EQ(field(*program->layout("Packed"), "b").offset, 1u);
  CHECK_EQ(program->layout("block_q")->size, 18u);
  CHECK_EQ(program->layout("Empty")->size, 1u);
  CHECK(program->layout("Unknown") == nullptr);
  CHECK(program->layout("Tile") == nullptr);
  CHECK(program->layout("nothing") == nullptr);
}

TEST_CASE(signatures_read_access_space_and_index) {
  const auto program = read(R"(
    #include <metal_stdlib>
    using namespace metal;
    struct Params { uint n; float scale; };
    constant bool fast_path [[function_constant(3)]];
    constant uint width [[ function_constant(7) ]];
    [[max_total_threads_per_threadgroup(4 * 64)]]
    kernel void all(device float* out [[buffer(2)]], const device half *in, device const uchar* bytes [[buffer(0)]],
                    constant Params& params, threadgroup float4* shared [[threadgroup(1)]],
                    threadgroup int* other, volatile device atomic_uint* counter,
                    constant ulong* table [[buffer(5)]], device Params* list,
                    uint2 gid [[thread_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {}
    [[kernel, host_name("renamed")]] void original(device int* x) {}
    void helper(device int* x) {}
  )");
  CHECK_EQ(program->kernels().size(), 2u);
  const KernelSignature& all = program->kernels()[0];
  CHECK_EQ(all.name, "all");
  CHECK_EQ(all.max_total_threads_per_threadgroup, 256u);
  CHECK_EQ(all.arguments.size(), 9u);
  struct Expected {
    const char* name;
    AddressSpace space;
    Access access;
    std::uint32_t index;
    bool reference;
    const char* type;
    std::uint64_t size;
  };
  const Expected expected[] = {
      {"bytes", AddressSpace::device, Access::read, 0, false, "uchar", 1},
      {"in", AddressSpace::device, Access::read, 1, false, "half", 2},
      {"out", AddressSpace::device, Access::read_write, 2, false, "float", 4},
      {"params", AddressSpace::constant, Access::read, 3, true, "Params", 8},
      {"counter", AddressSpace::device, Access::read_write, 4, false, "atomic_uint", 4},
      {"table", AddressSpace::constant, Access::read, 5, false, "ulong", 8},
      {"list", AddressSpace::device, Access::read_write, 6, false, "Params", 8},
      {"other", AddressSpace::threadgroup, Access::read_write, 0, false, "int", 4},
      {"shared", AddressSpace::threadgroup, Access::read_write, 1, false, "float4", 16}};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const KernelArgument& given = all.arguments[i];
    CHECK_EQ(given.name, expected[i].name);
    CHECK(given.space == expected[i].space);
    CHECK(given.access == expected[i].access);
    CHECK_EQ(given.index, expected[i].index);
    CHECK_EQ(given.is_reference, expected[i].reference);
    CHECK_EQ(given.type.name, expected[i].type);
    CHECK_EQ(given.type.size, expected[i].size);
  }
  CHECK_EQ(all.constants.size(), 2u);
  CHECK_EQ(all.constants[1].name, "width");
  CHECK_EQ(all.constants[1].index, 7u);
  CHECK(all.constants[1].type.scalar == ScalarType::uint32);
  CHECK_EQ(program->kernels()[1].name, "renamed");
  CHECK_EQ(program->kernels()[1].function, "original");
}

TEST_CASE(template_kernels_appear_by_their_instances) {
  const auto program = read(R"(
    #include <metal_stdlib>
    using namespace metal;
    template <typename T> struct Block { T d; uchar q[16]; };
    template <typename T, typename U = T, int N = 4>
    [[kernel]] void go(device const Block<T>* in, device vec<U, N>* out, constant T& one) {}
    #define instance(name, ...) template [[host_name("go_" #name)]] [[kernel]] decltype(go<__VA_ARGS__>) go<__VA_ARGS__>;
    instance(half, half)
    instance(mixed, float, half, 2)
    typedef decltype(go<float>) go_t;
    template [[host_name("go_typedef")]] kernel go_t go<float>;
    template [[host_name("go" "_long")]] kernel void go<short>(device const Block<short>*, device vec<short, 4>*, constant short&);
    template <typename T> kernel void never(device T* x) {}
  )");
  CHECK_EQ(program->kernels().size(), 4u);
  const KernelSignature& half = program->kernels()[0];
  CHECK_EQ(half.name, "go_half");
  CHECK_EQ(half.function, "go<half>");
  CHECK_EQ(argument(half, "in").type.size, 18u);
  CHECK_EQ(argument(half, "in").type.alignment, 2u);
  CHECK_EQ(argument(half, "out").type.name, "half4");
  CHECK_EQ(argument(half, "one").type.size, 2u);
  const KernelSignature& mixed = program->kernels()[1];
  CHECK_EQ(argument(mixed, "in").type.size, 20u);
  CHECK_EQ(argument(mixed, "out").type.name, "half2");
  CHECK_EQ(program->kernels()[2].name, "go_typedef");
  CHECK_EQ(argument(program->kernels()[2], "out").type.name, "float4");
  CHECK_EQ(program->kernels()[3].name, "go_long");
  CHECK_EQ(argument(program->kernels()[3], "out").type.name, "short4");
}

TEST_CASE(unsupported_kernels_leave_the_others_alone) {
  const auto program = read(R"(
    #include <metal_stdlib>
    using namespace metal;
    kernel void image(texture2d<float> t [[texture(0)]], device float* out) {}
    float sample_it(sampler s) { return 0; }
    kernel void inner(device float* out) { sampler s; out[0] = sample_it(s); }
    kernel void good(device float* out) { out[0] = 1; }
    kernel void no_space(thread float* out) { out[0] = 1; }
    kernel void twice(device float* a [[buffer(1)]], device float* b [[buffer(1)]]) {}
    kernel void value(device float* a, uint n) {}
    kernel void far(device float* a [[buffer(31)]]) {}
  )");
  CHECK(program->adapt("good", {}).find("sample_it") == std::string::npos);
  CHECK_THROWS(program->adapt("image", {}), CompileError,
               "test.metal:4:23: argument \"t\": texture2d is not supported on the CPU device");
  CHECK_THROWS(program->adapt("inner", {}), CompileError, "sampler is not supported on the CPU device");
  CHECK_THROWS(program->adapt("no_space", {}), CompileError,
               "argument \"out\" must point into device, constant or threadgroup memory");
  CHECK_THROWS(program->adapt("twice", {}), CompileError, "buffer index 1 is used twice");
  CHECK_THROWS(program->adapt("value", {}), CompileError, "argument \"n\" is neither a pointer");
  CHECK_THROWS(program->adapt("far", {}), CompileError, "buffer index must be a constant from 0 to 30");
  CHECK_THROWS(program->adapt("absent", {}), KernelNotFoundError, "it has image, inner, good");
}

TEST_CASE(function_constants_are_checked) {
  const auto program = read(R"(
    constant bool flag [[function_constant(0)]];
    constant uchar small [[function_constant(1)]];
    constant float real [[function_constant(2)]];
    constant int optional [[function_constant(3)]];
    constant int value = is_function_constant_defined(optional) ? optional : 5;
    kernel void k(device float* out) { out[0] = flag ? float(small) : real + value; }
    kernel void unused(device float* out) { out[0] = value; }
  )");
  using Values = std::vector<ConstantValue>;
  const auto adapt = [&](const Values& values) { return program->adapt("k", {values, "m"}); };
  const ConstantValue flag{std::string("flag"), true}, small{std::uint32_t(1), std::int64_t(255)};
  const ConstantValue real{std::string("real"), 0.1};
  const std::string text = adapt({flag, small, real});
  CHECK(text.find("constexpr bool flag = true;") != std::string::npos);
  CHECK(text.find("constexpr uchar small = 255L;") != std::string::npos);
  CHECK(text.find("constexpr float real = float(0x1.999999999999ap-4);") != std::string::npos);
  CHECK_THROWS(adapt({flag, small}), ArgumentError, "function constant \"real\" must be given");
  CHECK_THROWS(adapt({flag, small, real, {std::string("nope"), true}}), ArgumentError,
               "one of flag (0), small (1)");
  CHECK_THROWS(adapt({flag, real, {std::uint32_t(1), std::int64_t(256)}}), ArgumentError,
               "a uchar from 0 to 255, got 256");
  CHECK_THROWS(adapt({small, real, {std::uint32_t(0), std::int64_t(1)}}), ArgumentError, "a bool, got 1");
  CHECK_THROWS(adapt({flag, small, real, flag}), ArgumentError, "given once");
  CHECK(program->adapt("unused", {}).find("flag") == std::string::npos);
}

TEST_CASE(expanded_text_is_canonical) {
  const std::string a = read("#define N 4\nkernel void k(device int* x) { x[N] = 1; }")->expanded_text();
  CHECK_EQ(a, read("#define M 4\nkernel  void k( device int*x ){ x [M] = 1 ; } // same")->expanded_text());
  CHECK(a != read("#define N 5\nkernel void k(device int* x) { x[N] = 1; }")->expanded_text());
  CHECK(a != read("\n#define N 4\nkernel void k(device int* x) { x[N] = 1; }")->expanded_text());
}

TEST_CASE(hostile_sources_end_quickly) {
  std::string doubling, structs = "struct A0 { int x; };", constants = "constant int a0 = 1;";
  std::string templates = "template <typename T> struct T0 { T t; };";
  for (int i = 0; i < 60; ++i) {
    const std::string here = std::to_string(i), next = std::to_string(i + 1);
    doubling += "#define A" + here + " A" + next + " A" + next + "\n";
    structs += "struct A" + next + " { A" + here + " a, b; };";
    constants += "constant int a" + next + " = a" + here + " + a" + here + ";";
    templates += "template <typename T> struct T" + next + " { T" + here + "<T> a, b; };";
  }
  const std::string hostile[] = {
      std::string(10 << 20, ' '),
      repeated("float x;\n", 900000),
      doubling + "A0",
      doubling + "#define A60\nA0",
      "#define F(x) x x\n" + repeated("F(", 150) + "y" + repeated(")", 150),
      "#define F(x) x\n" + repeated("F(", 100000) + repeated(")", 100000),
      "#define C(a) a##a\n#define D(x) C(x)\n" + repeated("D(", 100) + "long_name" + repeated(")", 100),
      "int x = " + repeated("(", 500000) + repeated(")", 500000) + ";",
      "int x = " + repeated("a<", 900000) + ";",
      "#if " + repeated("(", 300000) + "1" + repeated(")", 300000) + "\n#endif",
      "#if " + repeated("1 ? 1 : ", 200000) + "1\n#endif",
      "constant int n = " + repeated("-", 500000) + "1; struct S { int a[n]; };",
      constants + "struct S { int x[a60]; };",
      "constant int a = a; struct S { int x[a]; }; using U = U; struct V { U u; V v; };",
      structs,
      templates + "kernel void k(device T60<int>* x) {}",
      "struct S { int x[4294967295][4294967295][4294967295]; };",
  };
  for (std::size_t i = 0; i < std::size(hostile); ++i) {
    const double seconds = seconds_to_read(hostile[i]);
    check::report(seconds < quick_seconds, __FILE__, __LINE__,
                  "case " + std::to_string(i) + " took " + std::to_string(seconds) + " s");
  }
  CHECK(read_error(hostile[0]).find("at most 8388608") != std::string::npos);
  CHECK(read_error(hostile[2]).find("without bound") != std::string::npos);
  CHECK(read_error(hostile[7]).find("nest deeper") != std::string::npos);
}

// Random damage to a real source either reads or is a CompileError: nothing else, and never slowly.
TEST_CASE(damaged_sources_are_compile_errors) {
  const std::string source =
      "#include <metal_stdlib>\n#define T float\n#define K(n) kernel void n##_k(device T* x [[buffer(0)]], "
      "uint i "
      "[[thread_position_in_grid]]) { threadgroup T s[4]; s[i & 3] = x[i]; x[i] = simd_sum(s[0]); "
      "}\nK(a)\nK(b)\n"
      "template <typename U, int N> struct B { U d[N]; union { half2 a; uint b; }; float2 xy; };\n"
      "template <typename U> [[kernel]] void t(device B<U, 4>* b, constant U& u) { b[0].xy = b[1].xy; }\n"
      "template [[host_name(\"t_f\")]] [[kernel]] decltype(t<float>) t<float>;\n"
      "constant int n = 1 << 2; enum E { e = n };\n";
  const std::string pieces[] = {"(", ")", "{",        "}",        "[[", "]]",   "<",  ">>",
                                ";", ",", "template", "operator", "#",  "\\\n", "\"", "::"};
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = source;
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) text.erase(at, random() % 12);
      if (random() % 3 == 0) text[std::min(at, text.size() - 1)] = static_cast<char>(random());
      if (random() % 2 == 0) text.insert(std::min(at, text.size()), pieces[random() % std::size(pieces)]);
    }
    try {
      const auto program = read(text);
      program->layout("B");
      for (const KernelSignature& kernel : program->kernels()) program->adapt(kernel.name, {});
      ++accepted;
    } catch (const CompileError&) {
      ++refused;
    }
  }
  CHECK(accepted > 100);
  CHECK(refused > 100);
}

TEST_CASE(ten_thousand_lines_read_well_under_a_second) {
  std::string source =
      "#include <metal_stdlib>\nusing namespace metal;\n#define OP(n, e) float n(float x) { return e; }\n";
  for (int i = 0; i < 2000; ++i) {
    const std::string n = std::to_string(i);
    source += "OP(op_" + n + ", x * " + n + ".0 + 1.0)\nkernel void k_" + n +
              "(device const float4* a [[buffer(0)]],\n    device float4* b [[buffer(1)]],\n"
              "    uint i [[thread_position_in_grid]]) {\n  b[i].xy = a[i].zw * op_" +
              n + "(a[i].x);\n}\n";
  }
  const std::clock_t begin = std::clock();
  const auto program = read(source);
  const std::string text = program->adapt("k_1999", {});
  const double seconds = seconds_since(begin);
  CHECK_EQ(program->kernels().size(), 2000u);
  CHECK(text.find("op_1999") != std::string::npos);
  CHECK(text.find("op_1998") == std::string::npos);
  check::report(seconds < quick_seconds / 2, __FILE__, __LINE__, "took " + std::to_string(seconds) + " s");
}

TEST_CASE(chains_without_brackets_are_bounded) {
  const auto body = [](const std::string& text) { return "kernel void k(device float* o) { " + text + " }"; };
  const auto repeated = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  const std::map<std::string, std::string> none;
  CHECK_THROWS(msl::Program::read("t", body("o[0] = " + repeated("o[1] ? 1 : ", 20000) + "2;"), none),
               CompileError, "an expression has more than 4000 tokens");
  CHECK_THROWS(msl::Program::read("t", body("o[0] = " + repeated("1 + ", 200000) + "1;"), none), CompileError,
               "an expression has more than 4000 tokens");
  CHECK_THROWS(msl::Program::read("t", body(repeated("if (o[0]) ", 20000) + ";"), none), CompileError,
               "statements nest deeper than 200");
  CHECK_THROWS(msl::Program::read("t", body(repeated("if (o[0]) { o[0] = 1; } else ", 20000) + ";"), none),
               CompileError, "an if has more than 2000 branches");
  CHECK_THROWS(msl::Program::read("t", body(repeated("if (o[0]) o[0] = 1; else ", 20000) + ";"), none),
               CompileError, "an if has more than 2000 branches");
  // Long lists and bodies are no chains.
  const std::string table = "constant int table[] = {" + repeated("1 + 1, ", 20000) + "1};";
  CHECK_EQ(
      msl::Program::read("t", table + body(repeated("if (o[0]) o[0] = 1;", 5000)), none)->kernels().size(),
      1u);
  const std::string two = "if (o[0]) { if (o[1]) o[1] = 2; else o[2] = 3; } else { o[3] = 4; } ";
  CHECK_EQ(msl::Program::read("t", body(repeated(two, 3000)), none)->kernels().size(), 1u);
}

TEST_CASE(errors_show_the_line_as_it_was_given) {
  const std::string text =
      "#define LONG(x) \\\n  x + \\\r\n  1\nconstant int a = 3;\n#define B \\\n ( \nint broken = B;\n";
  CHECK_THROWS(msl::Program::read("t", text, {}), CompileError,
               "t:7:14: \"(\" is never closed\n  int broken = B;");
  const std::string spliced = "#define LONG(x) \\\n  x ## \\\n  ## 1\n#if LONG(\n#endif\n";
  CHECK(read_error(spliced).find("\n  #if LONG(") != std::string::npos);
}

TEST_CASE(errors_are_utf8) {
  CHECK(read_error("\"na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80\" }")
            .find("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80") != std::string::npos);
  CHECK(read_error("\"\xff \xc3( \xe2\x82 \xed\xa0\x80 \xc0\x80\" }").find("\"? ?( ?? ??? ??\"") !=
        std::string::npos);
  // Cut off in the middle of a letter.
  CHECK(read_error("} // " + std::string(294, 'x') + "\xc3\xa9").ends_with("x?\n  ^"));
}

CHECK_MAIN()
