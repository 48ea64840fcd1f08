// The host's C++ compiler, which turns adapted kernels into shared objects.
#pragma once

#include <metalane/kernel.h>

#include <string>
#include <vector>

namespace metalane::cpu {

class HostCompiler {
 public:
  // $CXX where it is set, else c++, g++ or clang++ on PATH. Throws CompileError for `kernel` where there is
  // none.
  static HostCompiler find(const std::string& kernel);

  // Files and flags: equal texts mean equal code.
  std::string identity(MathMode math) const;
  // Compiles `source` into the shared object `output`; throws CompileError with the compiler's text. Puts
  // what it needs on its way into `temporary_directory`.
  void compile(const std::string& kernel, const std::string& source, const std::string& include_directory,
               const std::string& output, const std::string& temporary_directory, MathMode math) const;

 private:
  explicit HostCompiler(std::vector<std::string> command) : command_(std::move(command)) {}
  bool is_clang(const std::string& kernel, const std::string& temporary_directory) const;

  std::vector<std::string> command_;  // $CXX may hold arguments, or a wrapper in front
};

}  // namespace metalane::cpu
