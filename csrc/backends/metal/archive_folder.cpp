// See archive_folder.h.
#include "backends/metal/archive_folder.h"

#include <metalane/error.h>

#include <chrono>
#include <system_error>

#include "core/cache_folder.h"
#include "core/hash.h"

namespace metalane::metal {

namespace fs = std::filesystem;

namespace {

// Much longer than a write takes: an owner that was stopped holds nobody up for long.
constexpr auto lock_limit = std::chrono::seconds(5);

}  // namespace

fs::path archive_path(const std::string& key) {
  const fs::path folder = core::cache_directory();
  try {
    core::make_private_directory("", folder);
  } catch (const CompileError&) {
    return {};
  }
  return folder / (core::sha256_hex(key) + ".metalarchive");
}

fs::path scratch_path(const fs::path& path) {
  return path.parent_path() / core::scratch_name(path.filename().string());
}

ArchiveLock::ArchiveLock(const fs::path& path)
    : lock_(path.parent_path() / ("tmp-lock-" + path.filename().string()), lock_limit, [] {}) {}

bool publish(const fs::path& scratch, const fs::path& path) {
  std::error_code error;
  fs::rename(scratch, path, error);
  if (error) {
    fs::remove(scratch, error);
    return false;
  }
  core::trim_cache(path.parent_path(), path, core::cache_limit());
  return true;
}

}  // namespace metalane::metal
