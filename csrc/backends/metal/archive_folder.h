// Where archives of pipelines lie: the folder of compiled kernels, in plain C++, which may catch.
#pragma once

#include <filesystem>
#include <string>

#include "core/file_lock.h"

namespace metalane::metal {

// Empty where there is no folder that is the user's alone.
std::filesystem::path archive_path(const std::string& key);
// A name in the same folder, for a file that becomes `path`.
std::filesystem::path scratch_path(const std::filesystem::path& path);
// Held from reading `path` to publishing it, so that what others publish meanwhile is not lost.
class ArchiveLock {
 public:
  explicit ArchiveLock(const std::filesystem::path& path);

 private:
  core::FileLock lock_;
};

// Puts the file at `scratch` in the place of `path` and trims the folder. False where that cannot be.
bool publish(const std::filesystem::path& scratch, const std::filesystem::path& path);

}  // namespace metalane::metal
