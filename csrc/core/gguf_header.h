// The bytes before a file's tensor data: read once, into memory that nobody else can change, and walked by a
// cursor that knows their end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/gguf_part_file.h"

namespace metalane::core {

// What an error names. Formatted only when something is wrong.
struct GgufField {
  const char* list = nullptr;  // "metadata" or "tensors"; null: the file itself
  std::uint64_t index = 0;
  std::string_view name;  // UTF-8; null until it has been read
  std::string str(std::string_view member) const;
};

// Text of a file in an error: quoted, shortened, control characters escaped.
std::string quoted(std::string_view text);
bool is_utf8(std::string_view text) noexcept;

class GgufHeader {
 public:
  // `limit`: bytes that may be taken at most. Throws OutOfMemoryError.
  GgufHeader(const GgufPartFile& file, std::uint64_t limit);
  ~GgufHeader();
  GgufHeader(const GgufHeader&) = delete;
  GgufHeader& operator=(const GgufHeader&) = delete;

  std::uint64_t position() const noexcept { return position_; }
  // Bytes of the file behind the cursor.
  std::uint64_t left() const noexcept { return file_.size() - position_; }
  // The next `nbytes` bytes, which stay where they are. Throws GgufError where the file ends before or the
  // limit is passed.
  const std::uint8_t* take(std::uint64_t nbytes, const GgufField& field, std::string_view member);
  template <typename T>
  T number(const GgufField& field, std::string_view member);
  // A length and as many bytes.
  std::string_view string(const GgufField& field, std::string_view member, std::uint64_t longest);
  // A number of things that take `each` bytes at least, so that a wild one ends before anything is done with
  // it.
  std::uint64_t count(const GgufField& field, std::string_view member, std::uint64_t each,
                      std::uint64_t most);
  [[noreturn]] void fail(const GgufField& field, std::string_view member, const std::string& problem) const;
  // Gives back what was reserved and not read. The cursor does not move any more.
  void finish() noexcept;

 private:
  const GgufPartFile& file_;
  std::uint64_t limit_;
  std::uint64_t reserved_;
  std::uint8_t* memory_ = nullptr;
  std::uint64_t loaded_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace metalane::core
