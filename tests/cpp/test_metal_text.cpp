// The text handed to Metal: the reader takes it for the same program, places of every token included.
#include <metalane/device.h>
#include <metalane/error.h>

#include <map>
#include <string>

#include "check.h"
#include "core/builtin.h"
#include "core/registry.h"
#include "msl/metal_text.h"
#include "msl/msl.h"

using namespace metalane;

namespace {

using Headers = std::map<std::string, std::string>;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// Needs no header any more, and reads like the source with its headers.
void check_same_program(const std::string& name, const std::string& text, const Headers& headers, int line) {
  const std::string handed = msl::metal_text(name, text, headers, MathMode::safe);
  const std::string expected = msl::Program::read(name, text, headers)->expanded_text();
  check::equal(msl::Program::read(name, handed, {})->expanded_text(), expected, __FILE__, line, name.c_str());
}

std::string error_of(const std::string& text, const Headers& headers) {
  try {
    msl::metal_text("test.metal", text, headers, MathMode::safe);
    return "";
  } catch (const CompileError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE(built_in_sources_need_no_header) {
  KernelRegistry registry = Device("null").registry();
  std::string family;
  for (const core::BuiltinKernel& kernel : core::builtin_kernels()) {
    if (family == kernel.family) continue;
    family = kernel.family;
    const auto source = registry.state()->source_text(kernel.name);
    check_same_program(source->name, source->text, source->headers, __LINE__);
    CHECK_EQ(registry.metal_source(kernel.name),
             msl::metal_text(source->name, source->text, source->headers, MathMode::safe));
  }
  CHECK(!family.empty());
}

TEST_CASE(headers_stand_in_place_of_their_lines) {
  const Headers headers = {
      {"lib/a.h", "// a\n#pragma once\n#include \"b.h\"\n#include <metal_stdlib>\nstruct A { B b; };"},
      {"lib/b.h", "#ifndef B_H\n#define B_H\nstruct B {\n  int x; };\n#endif // B_H"},
      {"plain.h", "#define TWICE(x) ((x) + (x))\n"},
  };
  const std::string text =
      "#include <lib/a.h>  // the first\n"
      "#include \"lib/b.h\" /* over\n"
      "two lines */ constant int before = 1;\n"
      "#include \\\n  \"plain.h\"\n"
      "#include \"lib/a.h\"\n"
      "#ifndef __METAL_VERSION__\n"
      "#include <stdint.h>\n"
      "#endif\n"
      "#undef TWICE\n"
      "#include \"plain.h\"\n"
      "constant int spliced = \\\n  TWICE(__LINE__);\n"
      "#line 100 \"other.metal\"\n"
      "#include \"lib/a.h\"\n"
      "kernel void k(device A* a [[buffer(0)]]) { a->b.x = TWICE(__LINE__); }\n";
  check_same_program("test.metal", text, headers, __LINE__);
  const std::string handed = msl::metal_text("test.metal", text, headers, MathMode::safe);
  CHECK_EQ(count(handed, "struct A {"), 1u);  // a certain #pragma once needs no repetition
  CHECK_EQ(count(handed, "struct B {"), 2u);  // behind its own guard, which only a compiler evaluates
  CHECK_EQ(count(handed, "#include <metal_stdlib>"), 1u);
  CHECK_EQ(count(handed, "#include <stdint.h>"), 1u);
  CHECK_EQ(count(handed, "#pragma once"), 0u);
}

TEST_CASE(a_conditional_header_may_come_again) {
  const Headers headers = {{"a.h", "#pragma once\nstruct A { int x; };\n"}, {"b.h", "#pragma once\n"}};
  const std::string text =
      "#if 0\n#include \"a.h\"\n#endif\n"
      "#if __has_include(\"a.h\") && !__has_include(<none.h>)\n#import \"a.h\"\n#endif\n"
      "#include \"a.h\"\n"
      "kernel void k(device A* a [[buffer(0)]]) { a->x = __LINE__; }\n";
  check_same_program("test.metal", text, headers, __LINE__);
  CHECK_EQ(count(msl::metal_text("test.metal", text, headers, MathMode::safe), "__has_include"), 1u);
}

TEST_CASE(headers_that_name_themselves_end) {
  const Headers headers = {{"a.h", "#ifndef A\n#define A\n#include \"b.h\"\nstruct A_ { int x; };\n#endif\n"},
                           {"b.h", "#pragma once\n#include \"a.h\"\n#include \"b.h\"\n"}};
  check_same_program("test.metal",
                     "#include \"a.h\"\nkernel void k(device A_* a [[buffer(0)]]) { a->x = 1; }\n", headers,
                     __LINE__);
}

TEST_CASE(names_are_quoted_and_marks_of_order_dropped) {
  check_same_program("a \"b\"\\c.metal", "\xEF\xBB\xBF#pragma once\nconstant int x = __LINE__;\n", {},
                     __LINE__);
}

TEST_CASE(math_decides_the_pragmas) {
  const std::string text = "kernel void k() {}\n";
  const std::string safe = msl::metal_text("k.metal", text, {}, MathMode::safe);
  const std::string fast = msl::metal_text("k.metal", text, {}, MathMode::fast);
  CHECK(safe.find("#pragma METAL fp contract(off)") < safe.find("kernel"));
  CHECK(safe.find("#pragma clang fp contract(off)") < safe.find("kernel"));
  CHECK_EQ(count(fast, "#pragma"), 0u);
  CHECK(fast.ends_with(text));
}

TEST_CASE(hostile_headers_end_quickly) {
  Headers doubling = {{"0.h", "struct S;\n"}};
  for (int i = 1; i < 40; ++i) {
    const std::string line = "#include \"" + std::to_string(i - 1) + ".h\"\n";
    doubling[std::to_string(i) + ".h"] = line + line;
  }
  CHECK(error_of("#include \"39.h\"\n", doubling).find("test.metal:1:1: ") == 0);
  Headers deep;
  for (int i = 0; i < 5000; ++i)
    deep[std::to_string(i) + ".h"] = "#include \"" + std::to_string(i + 1) + ".h\"\n";
  CHECK(error_of("#include \"0.h\"\n", deep).find("includes nest deeper than 64") != std::string::npos);
}

CHECK_MAIN()
