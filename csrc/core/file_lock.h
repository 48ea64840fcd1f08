// A lock between the threads of all processes, in a folder that they share.
#pragma once

#include <chrono>
#include <filesystem>

namespace metalane::core {

// A file that is there while the lock is held; the system releases it with its owner. It orders work and
// guards nothing: where a file system has no locks, or an owner takes longer than the limit, its user goes on
// without.
class FileLock {
 public:
  // Waits for it up to `limit`, and calls `meanwhile` between two looks: what that throws ends the wait.
  FileLock(std::filesystem::path path, std::chrono::seconds limit, void (*meanwhile)());
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  struct File {
    int descriptor = -1;
    ~File() { drop(); }
    void drop();
  };

  bool take();

  const std::filesystem::path path_;
  File file_;
  bool held_ = false;
  bool impossible_ = false;
};

}  // namespace metalane::core
