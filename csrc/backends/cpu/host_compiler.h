// The host's C++ compiler, which turns adapted kernels into shared objects.
#pragma once

#include <metalane/kernel.h>

#include <cstdint>
#include <string>
#include <vector>

namespace metalane::cpu {

// What a module is built for: `checked` ones call back before each access to memory (stdlib/check_abi.h).
enum class ModuleUse : std::uint8_t { run, checked };

// The folder under which debug information of checked modules names the user's sources.
constexpr const char* debug_root = "/metalane-source";

class HostCompiler {
 public:
  // $CXX where it is set, else c++, g++ or clang++ on PATH. Throws CompileError for `kernel` where there is
  // none.
  static HostCompiler find(const std::string& kernel);

  // Files and flags: equal texts mean equal code.
  std::string identity(MathMode math, ModuleUse use = ModuleUse::run) const;
  // Compiles `source` into the shared object `output`; throws CompileError with the compiler's text. Puts
  // what it needs on its way into `temporary_directory`.
  void compile(const std::string& kernel, const std::string& source, const std::string& include_directory,
               const std::string& output, const std::string& temporary_directory, MathMode math,
               ModuleUse use = ModuleUse::run) const;

 private:
  void run(const std::string& kernel, const std::vector<std::string>& argv,
           const std::string& temporary_directory) const;
  explicit HostCompiler(std::vector<std::string> command) : command_(std::move(command)) {}
  bool is_clang(const std::string& kernel, const std::string& temporary_directory) const;

  std::vector<std::string> command_;  // $CXX may hold arguments, or a wrapper in front
};

}  // namespace metalane::cpu
