// One file on disk, opened for reading and mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/storage.h"

namespace metalane::core {

// Reads go by pread: where the file has shrunk they throw, while touching its mapped pages would be a SIGBUS.
// Thread-safe.
class GgufPartFile final : public HostSource {
 public:
  // Throws GgufError: no such file, no permission, not a regular file.
  explicit GgufPartFile(const std::string& path);
  ~GgufPartFile() override;
  GgufPartFile(const GgufPartFile&) = delete;
  GgufPartFile& operator=(const GgufPartFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }  // when it was opened
  // Fills `out` with the bytes from `offset` on. Throws GgufError naming `field` where the file ends before
  // that.
  void read(std::uint64_t offset, std::span<std::uint8_t> out, const std::string& field) const;
  // The whole file's pages, read-only, which stay while anyone holds them. Once, before the object is shared;
  // throws GgufError.
  std::shared_ptr<std::uint8_t> map();
  // Whether the file still has the bytes of these mapped addresses. Holds no pages.
  void check_readable(const AddressRange& range) const override;

 private:
  void check_size(std::uint64_t end, const std::string& field) const;
  [[noreturn]] void fail(const std::string& field, const std::string& action, int error) const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t mapped_at_ = 0;
};

}  // namespace metalane::core
