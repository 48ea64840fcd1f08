// Finds the compiler, asks for its version once, and runs it.
#include "backends/cpu/host_compiler.h"

#include <metalane/error.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include "backends/cpu/process.h"

namespace metalane::cpu {
namespace {

constexpr double version_seconds = 20;
constexpr double compile_seconds = 120;

// `safe`: no contraction, no reassociation, NaN and infinities kept. `fast` gives these up, except that NaN
// and infinities stay, and flushes nothing: -ffast-math itself would change the loading thread's FPU mode.
// -fwrapv, -fno-strict-aliasing, -fsigned-char: what kernels may rely on in MSL.
std::vector<std::string> flags_for(MathMode math, bool is_clang) {
  std::vector<std::string> flags = {"-std=gnu++17",
                                    "-O2",
                                    "-fPIC",
                                    "-shared",
                                    "-w",
                                    "-fvisibility=hidden",
                                    "-fno-math-errno",
                                    "-fno-trapping-math",
                                    "-fno-strict-aliasing",
                                    "-fwrapv",
                                    "-fsigned-char",
                                    "-fstack-clash-protection",
                                    "-fdiagnostics-color=never"};
#if defined(__x86_64__)
  flags.push_back("-march=native");
  constexpr bool is_x86 = true;
#else
  flags.push_back("-mcpu=native");
  constexpr bool is_x86 = false;
#endif
  // half rounds after each operation. Clang knows the flag on x86 alone, and needs it nowhere else.
  if (is_x86 || !is_clang) flags.push_back("-fexcess-precision=16");
  if (math == MathMode::safe) {
    flags.push_back("-ffp-contract=off");
  } else {
    for (const char* flag :
         {"-ffp-contract=fast", "-fassociative-math", "-fno-signed-zeros", "-freciprocal-math"}) {
      flags.push_back(flag);
    }
  }
  return flags;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

std::vector<std::string> find_command(const std::string& kernel) {
  const char* chosen = std::getenv("CXX");
  if (chosen != nullptr && *chosen != '\0') {
    std::vector<std::string> command = words(chosen);
    const std::string path = command.empty() ? std::string() : find_program(command[0]);
    if (path.empty()) {
      throw CompileError(kernel, "kernel '" + kernel + "': the C++ compiler that CXX names, '" + chosen +
                                     "', cannot be run");
    }
    command[0] = path;
    return command;
  }
  for (const char* name : {"c++", "g++", "clang++"}) {
    const std::string path = find_program(name);
    if (!path.empty()) return {path};
  }
  throw CompileError(kernel,
                     "kernel '" + kernel +
                         "': the CPU device compiles kernels with the host's C++ compiler, and found none "
                         "(c++, g++, clang++ on PATH; or set CXX)");
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : " ") + part;
  return text;
}

// Asked for once a process and command; outside the lock, so that fork() never waits for a compiler.
std::string version_of(const std::string& kernel, const std::vector<std::string>& command) {
  static std::map<std::string, std::string> versions;
  const std::string name = joined(command);
  {
    const std::lock_guard lock(process_mutex());
    const auto known = versions.find(name);
    if (known != versions.end()) return known->second;
  }
  std::vector<std::string> argv = command;
  argv.push_back("--version");
  const ProcessResult result = run_process(argv, version_seconds);
  if (!result.error.empty() || result.timed_out || result.exit_code != 0) {
    throw CompileError(kernel,
                       "kernel '" + kernel + "': '" + name + " --version' " +
                           (result.timed_out ? "does not end" : "fails: " + result.error + result.output));
  }
  const std::lock_guard lock(process_mutex());
  versions.emplace(name, result.output);
  return result.output;
}

}  // namespace

HostCompiler HostCompiler::find(const std::string& kernel) {
  std::vector<std::string> command = find_command(kernel);
  std::string version = version_of(kernel, command);
  return HostCompiler(std::move(command), std::move(version));
}

bool HostCompiler::is_clang() const { return version_.find("clang") != std::string::npos; }

std::string HostCompiler::identity(MathMode math) const {
  return joined(command_) + "\n" + version_ + "\n" + joined(flags_for(math, is_clang()));
}

void HostCompiler::compile(const std::string& kernel, const std::string& source,
                           const std::string& include_directory, const std::string& output,
                           MathMode math) const {
  std::vector<std::string> argv = command_;
  for (std::string& flag : flags_for(math, is_clang())) argv.push_back(std::move(flag));
  argv.insert(argv.end(), {"-isystem", include_directory, "-o", output, source});
  const ProcessResult result = run_process(argv, compile_seconds);
  if (!result.error.empty()) {
    throw CompileError(kernel, "kernel '" + kernel + "': cannot run " + command_[0] + ": " + result.error);
  }
  if (result.timed_out) {
    throw CompileError(kernel, "kernel '" + kernel + "': the compiler was stopped after " +
                                   std::to_string(static_cast<int>(compile_seconds)) + " s");
  }
  if (result.exit_code != 0) {
    throw CompileError(kernel, "kernel '" + kernel + "' does not compile:\n" + result.output);
  }
}

}  // namespace metalane::cpu
