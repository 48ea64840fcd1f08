// Reads Metal Shading Language: what kernels a source has and what they take, and the same source as C++.
//
// The road: text -> tokens (lexer) -> one token stream with includes and macros expanded (preprocessor) ->
// declarations (parser) -> signatures (signature) or C++ text (adapter). Tokens keep file, line and column
// from end to end, so that every error points into the user's text.
#pragma once

#include <metalane/error.h>
#include <metalane/kernel.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace metalane::msl {

// A function constant with its value as the device lays it out.
struct BoundConstant {
  FunctionConstant constant;
  std::vector<std::uint8_t> bytes;
};

// A source with its #include lines and macros expanded and its declarations read. Immutable, thread-safe.
class Program {
 public:
  // Throws CompileError "<file>:<line>:<column>: <what>" with the offending line. `headers`: what
  // `#include "name"` gives; <metal_stdlib> and its kin are built in. Bounded time and memory for any bytes.
  static std::shared_ptr<const Program> read(const std::string& name, const std::string& text,
                                             const std::map<std::string, std::string>& headers);
  virtual ~Program() = default;

  // Every kernel: non-template ones, and explicit instantiations with [[host_name("...")]].
  virtual const std::vector<KernelSignature>& kernels() const = 0;
  // The kernel's signature once `constants` are given: arguments whose [[function_constant(c)]] is false have
  // no access, and are left out where another has their index. Throws KernelNotFoundError.
  virtual KernelSignature signature(const std::string& kernel,
                                    const std::vector<ConstantValue>& constants) const = 0;
  // The constants of a kernel as bytes of their declared types. Throws KernelNotFoundError, ArgumentError
  // (unknown, missing or ill-typed constants).
  virtual std::vector<BoundConstant> bind_constants(const std::string& kernel,
                                                    const std::vector<ConstantValue>& constants) const = 0;
  // The messages of the compiler that took an adapted text, with the lines of the source that they name.
  virtual std::string explain(const std::string& messages) const = 0;
  // The layout of a struct or union of the source, by name; null where there is none or it is a template.
  virtual std::shared_ptr<const StructLayout> layout(const std::string& struct_name) const = 0;
  // The expanded token stream, one canonical text: equal texts mean equal programs.
  virtual const std::string& expanded_text() const = 0;

  struct AdaptOptions {
    std::vector<ConstantValue> constants;  // function constants, by name or index
    // The entry symbol of the emitted module (see backends/cpu/module_abi.h): `extern "C" const
    // metalane_module <symbol>`. Everything else in the emitted text has internal linkage.
    std::string module_symbol = "metalane_module_v1";
  };
  // C++17 text of one module that holds the kernel `name`: compiles with GCC 12+ (x86-64), GCC 13+ (arm64)
  // or Clang 15+ when the folder of the metal_stdlib headers is on the include path. Throws
  // KernelNotFoundError, ArgumentError (unknown, missing or ill-typed constants), CompileError.
  virtual std::string adapt(const std::string& kernel, const AdaptOptions& options) const = 0;
};

// One of the headers that adapted text includes (metal_stdlib and its parts), embedded in the library.
struct StdlibHeader {
  const char* path;  // "metal_stdlib", "metalane/vec.h", ...
  const char* text;
};
const std::vector<StdlibHeader>& stdlib_headers();
// Hash over all of them: part of every cache key.
const std::string& stdlib_version();

}  // namespace metalane::msl
