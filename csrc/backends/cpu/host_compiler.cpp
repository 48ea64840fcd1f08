// Finds the compiler, tells it from others by its files, and runs it within limits.
#include "backends/cpu/host_compiler.h"

#include <metalane/error.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>

#include "backends/cpu/process.h"

namespace metalane::cpu {
namespace {

// A kernel file of 10,000 lines takes a tenth of the time and the memory. A program-scope array of 4 GiB,
// which the assembler would write out, ends at the file size.
constexpr ProcessLimits compile_limits = {120, std::uint64_t{4} << 30, std::uint64_t{256} << 20};
#if defined(__x86_64__)
constexpr bool is_x86 = true;
#else
constexpr bool is_x86 = false;
#endif

// `safe`: no contraction, no reassociation, NaN and infinities kept. `fast` gives these up, except that NaN
// and infinities stay, and flushes nothing: -ffast-math itself would change the loading thread's FPU mode.
// -fwrapv, -fno-strict-aliasing, -fsigned-char: what kernels may rely on in MSL.
std::vector<std::string> flags_for(MathMode math, ModuleUse use, bool is_clang) {
  std::vector<std::string> flags = {"-std=gnu++17",
                                    "-O2",
                                    "-fPIC",
                                    "-w",
                                    "-fvisibility=hidden",
                                    "-fno-math-errno",
                                    "-fno-trapping-math",
                                    "-fno-strict-aliasing",
                                    "-fwrapv",
                                    "-fsigned-char",
                                    "-fstack-clash-protection",
                                    "-fdiagnostics-color=never"};
  flags.push_back(is_x86 ? "-march=native" : "-mcpu=native");
  // GCC 12.2 writes a masked vmovsh to memory, which no processor has, for `*p = x > 0 ? x : half(0)`.
  if (is_x86 && !is_clang) flags.push_back("-mno-avx512fp16");
  // Kernels read and write vectors at addresses of their elements, which a GPU allows: no aligned moves,
  // which fault there. The GNU assembler knows how; Clang's own does not.
  if (is_x86 && is_clang) flags.push_back("-fno-integrated-as");
  if (is_x86) flags.push_back("-Wa,-muse-unaligned-vector-move");
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
  if (use == ModuleUse::checked) {
    // addr2line 2.40 loses the lines that inlined functions are called from in DWARF 5. A callback's return
    // address is the access's place, and loads through null are loads.
    for (const char* flag : {"-DMETALANE_CHECK", "-g1", "-gdwarf-4", "-fsanitize=thread",
                             "-fno-optimize-sibling-calls", "-fno-delete-null-pointer-checks"}) {
      flags.push_back(flag);
    }
    // The library's functions, inlined, have the user's lines.
    if (is_clang) {
      // Its instrumentation runs last: vectors that it makes itself would be past the widths that are told.
      for (const char* flag :
           {"-fno-vectorize", "-fno-slp-vectorize", "-mllvm", "-tsan-instrument-read-before-write=1",
            "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-inline-threshold=2000"}) {
        flags.push_back(flag);
      }
    } else {
      for (const char* flag : {"--param=tsan-instrument-func-entry-exit=0",
                               "--param=max-inline-insns-auto=400", "--param=max-inline-insns-single=2000"}) {
        flags.push_back(flag);
      }
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

// The program that `path` starts. On macOS the compilers in /usr/bin start those of Xcode or of the command
// line tools, whichever `xcode-select` has chosen, and stay the same when these are updated.
std::string compiler_behind(const std::string& path) {
#if defined(__APPLE__)
  if (!path.starts_with("/usr/bin/")) return path;
  const char* chosen = std::getenv("DEVELOPER_DIR");
  std::error_code error;
  std::string tools =
      chosen != nullptr ? chosen : std::filesystem::read_symlink("/var/db/xcode_select_link", error).string();
  if (tools.empty()) tools = "/Library/Developer/CommandLineTools";
  for (const char* folder : {"/Toolchains/XcodeDefault.xctoolchain/usr/bin/", "/usr/bin/"}) {
    std::string compiler = find_program(tools + folder + path.substr(std::strlen("/usr/bin/")));
    if (!compiler.empty()) return compiler;
  }
#endif
  return path;
}

// Its name, and what changes when it is replaced; empty where there is none.
std::string identity_of_file(const std::string& path) {
  struct stat status;
  if (path.empty() || stat(path.c_str(), &status) != 0) return {};
#if defined(__APPLE__)
  const timespec& changed = status.st_mtimespec;
#else
  const timespec& changed = status.st_mtim;
#endif
  std::string text = "\n" + path;
  for (const std::int64_t part :
       {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
        static_cast<std::int64_t>(status.st_size), static_cast<std::int64_t>(changed.tv_sec),
        static_cast<std::int64_t>(changed.tv_nsec)}) {
    text += " " + std::to_string(part);
  }
  return text;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : " ") + part;
  return text;
}

}  // namespace

HostCompiler HostCompiler::find(const std::string& kernel) { return HostCompiler(find_command(kernel)); }

// Asked once of each compiler.
bool HostCompiler::is_clang(const std::string& kernel, const std::string& temporary_directory) const {
  static std::map<std::string, bool> known;
  const std::string files = identity(MathMode::safe);
  {
    const std::lock_guard lock(process_mutex());
    if (const auto found = known.find(files); found != known.end()) return found->second;
  }
  std::vector<std::string> argv = command_;
  argv.push_back("--version");
  const ProcessResult result = run_process(argv, temporary_directory, compile_limits);
  if (!result.error.empty() || result.timed_out || result.exit_code != 0) {
    throw CompileError(
        kernel, "kernel '" + kernel + "': '" + joined(argv) + "' fails: " + result.error + result.output);
  }
  const bool is_clang = result.output.find("clang") != std::string::npos;
  const std::lock_guard lock(process_mutex());
  known.emplace(files, is_clang);
  return is_clang;
}

// The programs' files stand for their versions: asking a compiler for its version takes 10 ms, five times as
// long as everything else that a process does before its first kernel from the disk cache.
std::string HostCompiler::identity(MathMode math, ModuleUse use) const {
  std::string text = joined(command_) + "\n" + joined(flags_for(math, use, false));
  for (const std::string& word : command_) {
    text += identity_of_file(compiler_behind(find_program(word)));
  }
  return text;
}

// A checked module takes two steps: with the instrumentation's flag a compiler links the sanitizer's runtime.
void HostCompiler::compile(const std::string& kernel, const std::string& source,
                           const std::string& include_directory, const std::string& output,
                           const std::string& temporary_directory, MathMode math, ModuleUse use) const {
  const bool clang = is_clang(kernel, temporary_directory);
  std::vector<std::string> argv = command_;
  for (std::string& flag : flags_for(math, use, clang)) argv.push_back(std::move(flag));
  argv.insert(argv.end(), {"-isystem", include_directory});
  if (use == ModuleUse::checked) {
    // The user's names are relative to the folder that the compiler runs in.
    std::error_code error;
    argv.push_back("-fdebug-prefix-map=" + std::filesystem::current_path(error).string() + "=" + debug_root);
  }
  if (use == ModuleUse::run) {
    argv.insert(argv.end(), {"-shared", "-o", output, source});
    run(kernel, argv, temporary_directory);
    return;
  }
  const std::string object = temporary_directory + "/kernel.o";
  argv.insert(argv.end(), {"-c", "-o", object, source});
  run(kernel, argv, temporary_directory);
  argv = command_;
  argv.insert(argv.end(), {"-shared", "-o", output, object});
  run(kernel, argv, temporary_directory);
}

void HostCompiler::run(const std::string& kernel, const std::vector<std::string>& argv,
                       const std::string& temporary_directory) const {
  const ProcessResult result = run_process(argv, temporary_directory, compile_limits);
  if (!result.error.empty()) {
    throw CompileError(kernel, "kernel '" + kernel + "': cannot run " + command_[0] + ": " + result.error);
  }
  if (result.timed_out) {
    throw CompileError(kernel, "kernel '" + kernel + "': the compiler was stopped after " +
                                   std::to_string(static_cast<int>(compile_limits.seconds)) + " s");
  }
  if (result.exit_code != 0) {
    throw CompileError(kernel, "kernel '" + kernel + "' does not compile:\n" +
                                   (result.output.empty() ? command_[0] + " ended with exit code " +
                                                                std::to_string(result.exit_code)
                                                          : result.output));
  }
}

}  // namespace metalane::cpu
