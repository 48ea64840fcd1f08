// GgufFile on any bytes: a libFuzzer target where METALANE_FUZZ is on, else a program that reads the files it
// is given.
#include "core/builtin.h"
#include "gguf_bytes.h"

// Only core is linked, so that the whole program is quickly built for a fuzzer: there are no kernels in it.
namespace metalane::core {
std::span<const BuiltinSource> builtin_sources() { return {}; }
std::span<const BuiltinHeader> builtin_headers() { return {}; }
std::span<const BuiltinKernel> builtin_kernels() { return {}; }
}  // namespace metalane::core

#if defined(METALANE_LIBFUZZER)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gguf_bytes::read_everything({data, size});
  return 0;
}

#else

#include <filesystem>
#include <fstream>
#include <iterator>

int main(int argc, char** argv) {
  std::size_t files = 0, opened = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
      opened +=
          gguf_bytes::read_everything({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
      ++files;
    }
  }
  std::printf("%zu of %zu files are correct\n", opened, files);
  return files > 0 ? 0 : 1;
}

#endif
