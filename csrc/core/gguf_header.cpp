// Reading a header piece by piece into one reservation, so that pointers into it hold.
#include "core/gguf_header.h"

#include <metalane/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace metalane::core {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 80;
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool starts_character = (byte & 0xc0) != 0x80;
    if (i >= longest && starts_character) return out + "\"...";
    if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      if (byte == '"' || byte == '\\') out += '\\';
      out += text[i];
    }
  }
  return out + "\"";
}

bool is_utf8(std::string_view text) noexcept {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  while (at != end) {
    const unsigned lead = *at++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || end - at < more) return false;
    unsigned point = lead & (0x3f >> more);
    for (int i = 0; i < more; ++i) {
      if ((at[i] & 0xc0) != 0x80) return false;
      point = point << 6 | (at[i] & 0x3f);
    }
    at += more;
    const bool overlong = (more == 2 && point < 0x800) || (more == 3 && point < 0x10000);
    if (overlong || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
  }
  return true;
}

std::string GgufField::str(std::string_view member) const {
  if (list == nullptr) return std::string(member);
  const std::string which = name.data() != nullptr ? quoted(name) : std::to_string(index);
  return std::string(list) + "[" + which + "]." + std::string(member);
}

GgufHeader::GgufHeader(const GgufPartFile& file, std::uint64_t limit)
    : file_(file), limit_(limit), reserved_(std::max<std::uint64_t>(1, std::min(file.size(), limit))) {
  void* const memory =
      mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw OutOfMemoryError("GgufFile: no room for " + std::to_string(reserved_) + " bytes of metadata");
  }
  memory_ = static_cast<std::uint8_t*>(memory);
}

GgufHeader::~GgufHeader() { munmap(memory_, reserved_); }

void GgufHeader::fail(const GgufField& field, std::string_view member, const std::string& problem) const {
  throw GgufError(file_.path(), field.str(member), problem);
}

const std::uint8_t* GgufHeader::take(std::uint64_t nbytes, const GgufField& field, std::string_view member) {
  if (nbytes > left()) {
    fail(field, member,
         "takes " + std::to_string(nbytes) + " bytes at byte " + std::to_string(position_) +
             ", but the file ends at byte " + std::to_string(file_.size()));
  }
  if (nbytes > limit_ - position_) {
    fail(field, member, "lies past the " + std::to_string(limit_) + " bytes that metadata may take");
  }
  const std::uint64_t end = position_ + nbytes;
  if (end > loaded_) {
    // Ever larger pieces: few calls for long headers, and little more than 64 KiB for short ones.
    constexpr std::uint64_t smallest = 64 * 1024, largest = 1024 * 1024;
    const std::uint64_t ahead = std::clamp(loaded_, smallest, largest);
    const std::uint64_t until = std::min(reserved_, std::max(end, loaded_ + ahead));
    file_.read(loaded_, {memory_ + loaded_, until - loaded_}, field.str(member));
    loaded_ = until;
  }
  const std::uint8_t* const bytes = memory_ + position_;
  position_ = end;
  return bytes;
}

template <typename T>
T GgufHeader::number(const GgufField& field, std::string_view member) {
  T value;
  std::memcpy(&value, take(sizeof value, field, member), sizeof value);
  return value;
}
template std::uint32_t GgufHeader::number<std::uint32_t>(const GgufField&, std::string_view);
template std::uint64_t GgufHeader::number<std::uint64_t>(const GgufField&, std::string_view);

std::string_view GgufHeader::string(const GgufField& field, std::string_view member, std::uint64_t longest) {
  const auto length = number<std::uint64_t>(field, member);
  if (length > longest) {
    fail(field, member,
         "is " + std::to_string(length) + " bytes long; at most " + std::to_string(longest) + " are read");
  }
  return {reinterpret_cast<const char*>(take(length, field, member)), length};
}

std::uint64_t GgufHeader::count(const GgufField& field, std::string_view member, std::uint64_t each,
                                std::uint64_t most) {
  const auto given = number<std::uint64_t>(field, member);
  if (given > left() / each) {
    fail(field, member,
         "is " + std::to_string(given) + ", more than fit into the " + std::to_string(left()) +
             " bytes that are left of the file");
  }
  if (given > most) {
    fail(field, member, "is " + std::to_string(given) + "; at most " + std::to_string(most) + " are read");
  }
  return given;
}

void GgufHeader::finish() noexcept {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t kept = std::max(page, (loaded_ + page - 1) / page * page);
  if (kept >= reserved_) return;
  munmap(memory_ + kept, reserved_ - kept);
  reserved_ = kept;
}

}  // namespace metalane::core
