// By flock(), whose locks belong to one opening of a file and end with it.
#include "core/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

namespace metalane::core {

namespace {

constexpr auto look_interval = std::chrono::milliseconds(10);

}  // namespace

void FileLock::File::drop() {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

FileLock::FileLock(std::filesystem::path path, std::chrono::seconds limit, void (*meanwhile)())
    : path_(std::move(path)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!take() && !impossible_ && std::chrono::steady_clock::now() < deadline) {
    meanwhile();
    std::this_thread::sleep_for(look_interval);
  }
}

FileLock::~FileLock() {
  if (!held_) return;
  unlink(path_.c_str());
  flock(file_.descriptor, LOCK_UN);  // a forked child may have the file open, too
}

bool FileLock::take() {
  if (file_.descriptor < 0)
    file_.descriptor = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_.descriptor < 0 || flock(file_.descriptor, LOCK_EX | LOCK_NB) != 0) {
    impossible_ = file_.descriptor < 0 || (errno != EWOULDBLOCK && errno != EINTR);
    return false;
  }
  // The owner before may have deleted the file meanwhile: then it keeps nobody else away.
  struct stat own, named;
  held_ = fstat(file_.descriptor, &own) == 0 && stat(path_.c_str(), &named) == 0 &&
          own.st_dev == named.st_dev && own.st_ino == named.st_ino;
  if (!held_) file_.drop();
  return held_;
}

}  // namespace metalane::core
