// Reading GGUF files: metadata, tensors, and weights as buffers on the file's own pages.
//
// A file is untrusted. Whatever its bytes, opening it either gives a file whose every size has been checked,
// or throws GgufError; the bounds on counts stand in GgufLimits.
#pragma once

#include <metalane/buffer.h>
#include <metalane/export.h>
#include <metalane/ggml_type.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace metalane {

class Device;
namespace core {
struct GgufState;
}

// What a file may hold at most; one that holds more is refused.
struct GgufLimits {
  static constexpr std::uint64_t metadata_bytes = std::uint64_t{256}
                                                  << 20;  // before the tensors' data, a part
  static constexpr std::uint64_t keys = 65'536;           // of a part
  static constexpr std::uint64_t tensors = 262'144;       // of all parts
  static constexpr std::uint64_t name_bytes = 65'535;     // of a key or a tensor's name
  static constexpr std::uint32_t dimensions = 4;
  static constexpr std::uint32_t array_depth = 4;  // arrays within arrays
  static constexpr std::uint32_t alignment = 1u << 24;
  static constexpr std::uint32_t parts = 1024;
};

// Valued as in the file.
enum class GgufValueType : std::uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64,
};
METALANE_API std::string_view name_of(GgufValueType type) noexcept;

class GgufArray;

// A value where it lies in the file's metadata; nothing is copied. Valid while the GgufFile it came from, or
// a copy of that, lives. The as_ functions throw DTypeError for a value of another kind, and ArgumentError
// out of range.
class METALANE_API GgufValue {
 public:
  GgufValueType type() const noexcept { return type_; }
  std::uint64_t as_uint() const;  // of any integer type
  std::int64_t as_int() const;    // of any integer type
  double as_float() const;        // of either float type
  bool as_bool() const;
  std::string_view as_string() const;  // mostly UTF-8: files are not held to it
  GgufArray as_array() const;
  // For the runtime: a value of checked bytes.
  GgufValue(GgufValueType type, const std::uint8_t* bytes) noexcept : type_(type), bytes_(bytes) {}
  const std::uint8_t* bytes() const noexcept { return bytes_; }
  // Bytes that the value takes in the file.
  std::uint64_t nbytes() const noexcept;

 private:
  GgufValueType type_;
  const std::uint8_t* bytes_;
};

// Elements of one type, in order. Those of strings and arrays differ in size: only a walk finds them.
class METALANE_API GgufArray {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = GgufValue;
    using difference_type = std::ptrdiff_t;
    Iterator(GgufValue value, std::uint64_t left) noexcept : value_(value), left_(left) {}
    const GgufValue& operator*() const noexcept { return value_; }
    const GgufValue* operator->() const noexcept { return &value_; }
    Iterator& operator++() noexcept {
      if (--left_ != 0) value_ = GgufValue(value_.type(), value_.bytes() + value_.nbytes());
      return *this;
    }
    void operator++(int) noexcept { ++*this; }
    bool operator==(const Iterator& other) const noexcept { return left_ == other.left_; }

   private:
    GgufValue value_;
    std::uint64_t left_;
  };

  GgufValueType element_type() const noexcept { return type_; }
  std::uint64_t size() const noexcept { return size_; }
  Iterator begin() const noexcept { return Iterator(GgufValue(type_, bytes_), size_); }
  Iterator end() const noexcept { return Iterator(GgufValue(type_, bytes_), 0); }
  GgufArray(GgufValueType type, std::uint64_t size, const std::uint8_t* bytes) noexcept
      : type_(type), size_(size), bytes_(bytes) {}

 private:
  GgufValueType type_;
  std::uint64_t size_;
  const std::uint8_t* bytes_;
};

struct GgufEntry {
  std::string_view key;  // UTF-8
  GgufValue value;
};

struct METALANE_API GgufTensor {
  std::string_view name;  // UTF-8
  GgmlType ggml_type;
  Shape shape;  // slowest dimension first, so that weights are [n, k]; the file has the reverse
  std::uint64_t byte_len;
  std::uint64_t offset;  // in its part
  std::uint32_t part;

  // How a buffer shows it: plain numbers with their dtype and the tensor's shape; blocks packed, uint8 [...,
  // bytes of a row].
  DType buffer_dtype() const noexcept;
  Shape buffer_shape() const;
};

// An open file. A handle: cheap to copy, thread-safe. Buffers that it gave outlive it.
class METALANE_API GgufFile {
 public:
  // Opens a file, or of one that is split into parts (`-00001-of-00003.gguf`) its first and with it all of
  // them. Reads the metadata, no tensor. Throws GgufError.
  explicit GgufFile(const std::string& path);

  std::uint32_t version() const noexcept;
  std::span<const std::string> paths() const noexcept;  // of the parts
  std::uint64_t file_bytes() const noexcept;            // of all parts

  // In the file's order; of a split file the first part's, then what later parts add.
  std::span<const GgufEntry> metadata() const noexcept;
  std::optional<GgufValue> find(std::string_view key) const noexcept;

  // In the file's order.
  std::span<const GgufTensor> tensors() const noexcept;
  const GgufTensor* find_tensor(std::string_view name) const noexcept;
  const GgufTensor& tensor(std::string_view name) const;  // throws TensorNotFoundError

  // The tensor as a read-only buffer: a view of the file's pages where the device can map them and its
  // elements or blocks are aligned, else a copy. Where the file shrinks afterwards, a launch or host read
  // that meets the hole throws. Throws OutOfMemoryError where the device has no buffers as long.
  Buffer load_tensor(std::string_view name, const Device& device) const;
  // A copy of the tensor's bytes, byte_len of them. Throws GgufError where the file has shrunk.
  void read_tensor(std::string_view name, std::span<std::uint8_t> out) const;
  // The tensor decoded, as many floats as it has elements. Throws ArgumentError for types that do not decode.
  void load_tensor_f32(std::string_view name, std::span<float> out) const;
  std::vector<float> load_tensor_f32(std::string_view name) const;

 private:
  std::shared_ptr<const core::GgufState> state_;
};

}  // namespace metalane
