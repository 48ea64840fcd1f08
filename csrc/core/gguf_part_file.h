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
  // Maps the whole file, read-only. Once, before the object is shared; throws GgufError.
  void map();
  // The mapped pages, which stay while anyone holds this.
  const std::shared_ptr<std::uint8_t>& pages() const noexcept { return pages_; }
  void check_readable(const AddressRange& range) const override;

 private:
  void check_size(std::uint64_t end, const std::string& field) const;
  [[noreturn]] void fail(const std::string& field, const std::string& action, int error) const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::shared_ptr<std::uint8_t> pages_;
};

}  // namespace metalane::core
