// Bytes of a GGUF file in the making, and reading all of a file that may be malformed.
#pragma once

#include <metalane/error.h>
#include <metalane/gguf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gguf_bytes {

using Bytes = std::vector<std::uint8_t>;

// Appends fields in the file's order.
class Writer {
 public:
  template <typename T>
  Writer& number(T value) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof value);
    return *this;
  }
  Writer& text(std::string_view value) {
    number<std::uint64_t>(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  Writer& head(std::uint64_t tensors, std::uint64_t entries) {
    return number(0x46554747u).number(3u).number(tensors).number(entries);
  }
  Writer& key(std::string_view name, metalane::GgufValueType type) {
    return text(name).number(static_cast<std::uint32_t>(type));
  }
  Writer& array(metalane::GgufValueType type, std::uint64_t length) {
    return number(static_cast<std::uint32_t>(type)).number(length);
  }
  Writer& tensor(std::string_view name, std::span<const std::uint64_t> ne, metalane::GgmlType type,
                 std::uint64_t offset) {
    text(name).number(static_cast<std::uint32_t>(ne.size()));
    for (const std::uint64_t dim : ne) number(dim);
    return number(static_cast<std::uint32_t>(type)).number(offset);
  }
  Writer& pad(std::size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// A file that holds some bytes for as long as this lives; in memory where the system has such files.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes) {
#if defined(__linux__)
    descriptor_ = memfd_create("gguf", MFD_CLOEXEC);
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
#else
    path_ = (std::filesystem::temp_directory_path() / "metalane-gguf-XXXXXX").string();
    descriptor_ = mkstemp(path_.data());
#endif
    std::size_t written = 0;
    while (written < bytes.size()) {
      const ssize_t count = write(descriptor_, bytes.data() + written, bytes.size() - written);
      if (count <= 0) std::abort();
      written += static_cast<std::size_t>(count);
    }
  }
  ~MemoryFile() {
    close(descriptor_);
#if !defined(__linux__)
    unlink(path_.c_str());
#endif
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }
  void truncate(std::uint64_t nbytes) const {
    if (ftruncate(descriptor_, static_cast<off_t>(nbytes)) != 0) std::abort();
  }

 private:
  std::string path_;
  int descriptor_;
};

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Looks at every byte of a value through its public face; returns something that depends on them.
inline std::uint64_t walk(const metalane::GgufValue& value) {
  switch (value.type()) {
    case metalane::GgufValueType::float32:
    case metalane::GgufValueType::float64:
      return value.as_float() > 0;
    case metalane::GgufValueType::boolean:
      return value.as_bool();
    case metalane::GgufValueType::string: {
      std::uint64_t sum = 0;
      for (const char c : value.as_string()) sum += static_cast<unsigned char>(c);
      return sum;
    }
    case metalane::GgufValueType::array: {
      std::uint64_t sum = 0, count = 0;
      const metalane::GgufArray array = value.as_array();
      for (const metalane::GgufValue& element : array) {
        sum += walk(element);
        ++count;
      }
      require(count == array.size(), "an array has the elements that it says");
      return sum;
    }
    default:
      return static_cast<std::uint64_t>(value.nbytes());
  }
}

// Opens the file and reads everything in it; aborts where a promise of the reader is broken. False:
// GgufError.
inline bool read_everything(std::span<const std::uint8_t> bytes) {
  const MemoryFile memory(bytes);
  try {
    const metalane::GgufFile file(memory.path());
    std::uint64_t sum = 0;
    for (const metalane::GgufEntry& entry : file.metadata()) {
      sum += walk(entry.value);
      require(file.find(entry.key).has_value(), "every key is found");
    }
    for (const metalane::GgufTensor& tensor : file.tensors()) {
      require(file.find_tensor(tensor.name) == &tensor, "every tensor is found");
      require(tensor.offset <= bytes.size() && tensor.byte_len <= bytes.size() - tensor.offset,
              "tensors lie in the file");
      Bytes data(tensor.byte_len);
      file.read_tensor(tensor.name, data);
      require(data.empty() || std::memcmp(data.data(), bytes.data() + tensor.offset, data.size()) == 0,
              "a tensor is the file's bytes");
      if (metalane::find_ggml_type(tensor.ggml_type)->decodes) {
        for (const float value : file.load_tensor_f32(tensor.name)) sum += value > 0;
      }
    }
    asm volatile("" : : "r"(sum));  // the reads have a use
    return true;
  } catch (const metalane::GgufError& error) {
    require(!error.field().empty(), "an error names a field");
    return false;
  }
}

}  // namespace gguf_bytes
