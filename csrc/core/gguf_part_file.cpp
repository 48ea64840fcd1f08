// Opening, reading and mapping one part of a GGUF file.
#include "core/gguf_part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <metalane/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace metalane::core {

void GgufPartFile::fail(const std::string& field, const std::string& action, int error) const {
  throw GgufError(path_, field, "cannot " + action + ": " + std::generic_category().message(error));
}

GgufPartFile::GgufPartFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: a pipe without a writer must not keep the caller waiting.
  do {
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail("file", "open it", errno);
  struct stat status = {};
  const bool known = fstat(descriptor_, &status) == 0;
  const int error = errno;
  if (!known || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    if (!known) fail("file", "ask its size", error);
    throw GgufError(path_, "file", "is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

GgufPartFile::~GgufPartFile() { close(descriptor_); }

void GgufPartFile::read(std::uint64_t offset, std::span<std::uint8_t> out, const std::string& field) const {
  // What one call reads at most: systems cut longer ones, each its own way.
  constexpr std::size_t most = std::size_t{1} << 30;
  while (!out.empty()) {
    const ssize_t count =
        pread(descriptor_, out.data(), std::min(out.size(), most), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(field, "read the file", errno);
    if (count == 0) {
      check_size(offset + out.size(), field);
      throw GgufError(path_, field, "nothing can be read at byte " + std::to_string(offset));
    }
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

std::shared_ptr<std::uint8_t> GgufPartFile::map() {
  void* const address = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED) fail("file", "map it", errno);
  mapped_at_ = reinterpret_cast<std::uint64_t>(address);
  return std::shared_ptr<std::uint8_t>(static_cast<std::uint8_t*>(address),
                                       [size = size_](std::uint8_t* pages) { munmap(pages, size); });
}

void GgufPartFile::check_size(std::uint64_t end, const std::string& field) const {
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) fail(field, "ask the file's size", errno);
  if (static_cast<std::uint64_t>(status.st_size) >= end) return;
  throw GgufError(path_, field,
                  "the file has shrunk to " + std::to_string(status.st_size) +
                      " bytes since it was opened; " + std::to_string(end) + " are needed");
}

void GgufPartFile::check_readable(const AddressRange& range) const {
  if (range.empty()) return;
  check_size(range.end - mapped_at_, "tensor data");
}

}  // namespace metalane::core
