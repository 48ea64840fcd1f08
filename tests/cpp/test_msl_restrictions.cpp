// What Metal's compiler refuses is refused here too, beside a twin that it takes.
#include <ctime>
#include <string>

#include "backends/cpu/fiber.h"
#include "check.h"
#include "msl/msl.h"

using namespace metalane;

namespace {

// Reads `text` behind the usual head; the error that it gives, "" where it gives none.
std::string read_error(const std::string& text) {
  try {
    msl::Program::read("test.metal", "#include <metal_stdlib>\nusing namespace metal;\n" + text, {});
    return "";
  } catch (const CompileError& error) {
    return error.what();
  }
}

std::string in_kernel(const std::string& body) {
  return "kernel void k(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { " + body +
         " }";
}

struct Refused {
  std::string text;
  std::string expected;  // part of the message
};

void check_refused(const Refused& refused, int line) {
  const std::string error = read_error(refused.text);
  check::report(error.find(refused.expected) != std::string::npos, __FILE__, line,
                "expected \"" + refused.expected + "\" for " + refused.text + "\ngot \"" + error + "\"");
}

void check_taken(const std::string& text, int line) {
  const std::string error = read_error(text);
  check::report(error.empty(), __FILE__, line, text + "\ngave " + error);
}

}  // namespace

TEST_CASE(pointers_and_references_say_where_they_point) {
  const std::string where = " must say where that is: device, constant, threadgroup or thread";
  const Refused refused[] = {
      {"void f(float* p) {}", "test.metal:3:13: a pointer to float" + where},
      {"void f(thread float& a, const float4& b) {}", "test.metal:3:37: a reference to float4" + where},
      {"void f(unsigned long const& x) {}", "a reference to unsigned" + where},
      {"template <typename T> void f(T x, unsigned int* n) {}", "a pointer to unsigned" + where},
      {"void f(metal::float4* p) {}", "a pointer to float4" + where},
      {"void f(vec<float, 4>& p) {}", "a reference to a vector, matrix or atomic" + where},
      {"void f(float&& p) {}", "a reference to float" + where},
      {"struct S { int a; }; void f(S& s) {}", "a reference to S" + where},
      {"struct S { int a; thread S& operator=(const S& o) { return *this; } };", "a reference to S" + where},
      {"struct S { float a[3]; float& operator[](int i) { return a[i]; } };", "a reference to float" + where},
      {"struct S { float* p; };", "a pointer to float" + where},
      {"enum E { a }; void f(E* e) {}", "a pointer to E" + where},
      {"typedef float Real; using Number = Real; void f(Number const* p) {}", "a pointer to Number" + where},
      {"typedef struct { int a; } S; void f(const S* s) {}", "a pointer to S" + where},
      {"kernel void nobody_asks_for_it(float* a) {}", "a pointer to float" + where},
      {in_kernel("float* p = out; p[i] = 1;"), "a pointer to float" + where},
      {in_kernel("out[i] = *(float*)(out + 1);"), "a pointer to float" + where},
      {in_kernel("out[i] = *reinterpret_cast<const uint*>(out);"), "a pointer to uint" + where},
  };
  for (const Refused& one : refused) check_refused(one, __LINE__);
  const std::string taken[] = {
      "void f(device float* a, const thread float4& b, float device* c, unsigned threadgroup int* d) {}",
      "void f(const device float* const a, constant float const* const restrict b, thread void* c) {}",
      "void f(device float*& a, const device float* thread& b, thread float (&c)[2][3]) {}",
      "typedef device float Real; typedef device float* Pointer; void f(Real* a, Pointer b) {}",
      "template <typename T> void f(T* p, typename T::type* q, thread T& r, T&& s) {}",
      "template <typename T> T product(T a, T b) { return a * b & T(3); }",
      "struct S { int a; S operator*(S o) const { return o; } S operator&(S o) const { return o; } };",
      "struct block { int a; }; float f(float block, float x) { return block * x; }",
      in_kernel("auto* p = out; auto& r = out[i]; r = float(i & 1) * *p * sizeof(float) * -1;"),
  };
  for (const std::string& one : taken) check_taken(one, __LINE__);
}

TEST_CASE(variables_outside_functions_are_constant) {
  const std::string rest = "outside functions must be in constant memory";
  const Refused refused[] = {
      {"float table[2] = {1, 2};", "test.metal:3:7: variable \"table\" " + rest},
      {"const float pi = 3;", "variable \"pi\" " + rest},
      {"constexpr uint n = 4;", "variable \"n\" " + rest},
      {"unsigned int n = 4;", "variable \"n\" " + rest},
      {"namespace a { static int n; }", "variable \"n\" " + rest},
      {"struct S { int a; }; static const S s = {1};", "variable \"s\" " + rest},
  };
  for (const Refused& one : refused) check_refused(one, __LINE__);
  const std::string taken[] = {
      "constant float pi = 3; constexpr constant uint n = 4; static constant int t[] = {1}; enum { a, b };",
      "constant bool flag [[function_constant(0)]]; constant bool has = is_function_constant_defined(flag);",
      "struct S { int a; static constexpr constant int b = 3; }; constant S s = {1}; struct T;",
      "typedef constant float Number; Number n = 3; template <typename T> constexpr constant T zero = T(0);",
  };
  for (const std::string& one : taken) check_taken(one, __LINE__);
}

TEST_CASE(variables_inside_functions) {
  const Refused refused[] = {
      {in_kernel("static int n = 0; n++;"), "has no static variables inside functions"},
      {"int f(int x) { if (x) { static const int t[2] = {1, 2}; return t[x]; } return 0; }",
       "has no static variables inside functions"},
      {"float f(float x) { threadgroup float s[4]; s[0] = x; return s[0]; }",
       "threadgroup variable \"s\" must be declared in a kernel"},
      {"template <int N> void f() { if (N) { threadgroup float s[N * 2], t; } }",
       "threadgroup variable \"s\" must be declared in a kernel"},
      {"void f(uint n) { float x[n]; x[0] = 1; }", "the length of array \"x\" must be a constant"},
      {"void f(constant uint& n) { unsigned int x[4 * n + 1] = {}; }",
       "the length of array \"x\" must be a constant"},
  };
  for (const Refused& one : refused) check_refused(one, __LINE__);
  const std::string taken[] = {
      in_kernel("threadgroup float s[4]; s[0] = 1; if (i) { threadgroup int q; q = 1; }"),
      "void f(threadgroup float* s) { threadgroup float* t = s + 1; threadgroup float& r = t[1]; r = 2; }",
      "int h(int x) { struct Local { static int q(int y) { return y; } }; return Local::q(x); }",
      "struct S { static int f(int x) { return x; } static constexpr int g(int x) { return x; } };",
      "template <int N> void f(uint n) { float x[N]; const int m = 2; int y[m]; y[n] = x[n]; }",
      "void f(uint n) { uchar x[sizeof(n)]; x[n] = 1; }",
  };
  for (const std::string& one : taken) check_taken(one, __LINE__);
}

TEST_CASE(pointers_stay_in_their_address_space) {
  const std::string function = "void takes(uint n, threadgroup float* p) {}\n";
  const std::string head = "void f(device float* d, constant float* c, threadgroup float* t, uint n) { ";
  const Refused refused[] = {
      {head + "threadgroup float* p = d; }",
       "test.metal:3:99: \"p\" points into threadgroup memory, and this into device memory"},
      {head + "device const float* p = c + n * (n - 1); }",
       "\"p\" points into device memory, and this into constant memory"},
      {head + "device float* const p = &t[n]; }",
       "\"p\" points into device memory, and this into threadgroup memory"},
      {head + "t = d + 1; }", "\"t\" points into threadgroup memory, and this into device memory"},
      {head + "if (n) t = d; }", "\"t\" points into threadgroup memory, and this into device memory"},
      {head + "float x; thread float* p = &x; p = d; }",
       "\"p\" points into thread memory, and this into device memory"},
      {function + head + "takes(n, d); }",
       "argument 2 of takes points into threadgroup memory, and this into device memory"},
      {function + head + "takes(n, &d[2 * n]); }", "argument 2 of takes points into threadgroup memory"},
      {"template <typename T> T first(constant T* p) { return *p; }\n" + head + "first(d + n); }",
       "argument 1 of first points into constant memory"},
  };
  for (const Refused& one : refused) check_refused(one, __LINE__);
  const std::string taken[] = {
      function + head + "takes(n, t); takes(n, t + n); takes(n, &t[n]); }",
      head +
          "threadgroup float* p = t + n; p = t; p = &t[n]; device const float* q = d; q = d + n; *p = *q; }",
      head + "device float* p = n ? d : nullptr; float x = d[n] + *c; t[0] = d[0]; *t = *d; p[n] = t[n]; }",
      head + "{ threadgroup float* p = t; } { device float* p = d; p[n] = 1; } device float* q = nullptr; }",
      "void g(device float* p) {} void g(threadgroup float* p) {}\n" + head + "g(d); g(t); }",
      "struct S { device float* p; threadgroup float* t; };\n" + head + "S s; s.p = d; s.t = t; }",
      head + "auto f = [&](device float* t) { return t[0]; }; f(d); uint k = d - d; bool b = d == d + 1; }",
      "template <typename T> void h(T a, T b) { a = b; }\n" + head + "h(n, n); h(d, d); }",
  };
  for (const std::string& one : taken) check_taken(one, __LINE__);
}

TEST_CASE(words_that_metal_lacks) {
  const Refused refused[] = {
      {in_kernel("auto p = new int;"), "test.metal:3:95: the Metal Shading Language has no new"},
      {in_kernel("delete out;"), "has no delete"},
      {in_kernel("throw 1;"), "has no throw"},
      {in_kernel("try { } catch (...) { }"), "has no try"},
      {in_kernel("goto end; end:;"), "has no goto"},
      {in_kernel("typeid(int);"), "has no typeid"},
      {in_kernel("thread_local int a;"), "has no thread_local"},
      {"struct S { virtual void f() {} };", "has no virtual"},
      {"float f(double x) { return 1; }", "double is no type of the Metal Shading Language"},
  };
  for (const Refused& one : refused) check_refused(one, __LINE__);
  check_taken("struct S { S(int x) : a(x) {} S() = delete; int a; };", __LINE__);
}

TEST_CASE(long_sources_are_checked_quickly) {
  std::string aliases = "typedef int A0;\n", stars, locals = "void f(int n) { ", declarations;
  for (int i = 1; i < 20000; ++i) {
    const std::string n = std::to_string(i);
    aliases += "typedef A" + std::to_string(i - 1) + " A" + n + ";\n";
    stars += "void f" + n + "(device int* const* const* p, thread A" + n + "& a) {}\n";
    locals += "struct L" + n + " { int a; }; int x" + n + "[4];\n";
    locals += "thread int* p" + n + " = x" + n + "; p" + n + " = x1 + p" + n + "[0];\n";
    declarations += "typedef int Same; void g(thread Same* p);\n";
  }
  const std::clock_t begin = std::clock();
  CHECK_EQ(read_error(aliases + stars + locals + "}\n" + declarations), "");
  const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(read_error(aliases + "void f(A19999* p) {}").find("a pointer to A19999") != std::string::npos);
#if !defined(METALANE_ASAN) && !defined(METALANE_TSAN)
  check::report(seconds < 2, __FILE__, __LINE__, "took " + std::to_string(seconds) + " s");
#endif
}

CHECK_MAIN()
