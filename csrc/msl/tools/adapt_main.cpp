// metalane-adapt: lists the kernels of a .metal file, writes their modules as C++, or the one text that
// Metal's compiler is given for it (a build-time tool).
//
//   metalane-adapt list FILE [-I name=path]...
//   metalane-adapt module --family F --out OUT.cpp FILE [-I name=path]...
//   metalane-adapt metal --family F --out OUT.metal FILE [-I name=path]...
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "msl/family.h"
#include "msl/metal_text.h"
#include "msl/msl.h"

namespace {

constexpr const char* usage =
    "usage: metalane-adapt list FILE [-I name=path]...\n"
    "       metalane-adapt module --family F --out OUT.cpp FILE [-I name=path]...\n"
    "       metalane-adapt metal --family F --out OUT.metal FILE [-I name=path]...\n";

struct Options {
  std::string command, file, family, out;
  std::map<std::string, std::string> headers;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-I" || argument == "--family" || argument == "--out") {
      if (++i == arguments.size()) throw std::invalid_argument(argument + " needs a value");
      const std::string& value = arguments[i];
      const std::size_t equals = value.find('=');
      if (argument == "--family") {
        options.family = value;
      } else if (argument == "--out") {
        options.out = value;
      } else if (equals == std::string::npos) {
        throw std::invalid_argument("-I needs name=path, got " + value);
      } else {
        options.headers[value.substr(0, equals)] = read_file(value.substr(equals + 1));
      }
    } else if (options.command.empty()) {
      options.command = argument;
    } else if (options.file.empty()) {
      options.file = argument;
    } else {
      throw std::invalid_argument("unexpected argument " + argument);
    }
  }
  const bool writes = options.command == "module" || options.command == "metal";
  const bool complete = writes ? !options.family.empty() && !options.out.empty() : options.command == "list";
  if (options.file.empty() || !complete) throw std::invalid_argument("missing arguments");
  return options;
}

void run(const Options& options) {
  const std::string source = read_file(options.file);
  std::string text;
  if (options.command == "metal") {
    // As the registry names it.
    text = metalane::msl::metal_text(options.family, source, options.headers, metalane::MathMode::safe);
  } else {
    const std::string name = std::filesystem::path(options.file).filename().string();
    const auto program = metalane::msl::Program::read(name, source, options.headers);
    if (options.command == "list") {
      for (const auto& kernel : program->kernels()) std::printf("%s\n", kernel.name.c_str());
      return;
    }
    text = metalane::msl::adapt_family(*program, options.family);
  }
  std::ofstream out(options.out, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw std::runtime_error(options.out + ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "metalane-adapt: %s\n%s", error.what(), usage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
