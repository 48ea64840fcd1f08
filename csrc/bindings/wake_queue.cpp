// See wake_queue.h. A pipe is what event loops of every kind can watch, on Linux and macOS alike.
#include "bindings/wake_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace metalane::python {

WakeQueue::WakeQueue() {
  int ends[2];
  if (pipe(ends) != 0)
    throw std::system_error(errno, std::generic_category(), "metalane: no pipe to wake by");
  read_end_ = ends[0];
  write_end_ = ends[1];
  for (const int end : ends) {
    fcntl(end, F_SETFD, FD_CLOEXEC);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
}

WakeQueue::~WakeQueue() {
  close(read_end_);
  close(write_end_);
}

void WakeQueue::put(Numbers& numbers) noexcept {
  if (numbers.empty()) return;
  std::lock_guard lock(mutex_);
  const bool wake = numbers_.empty();
  numbers_.splice(numbers_.end(), numbers);
  if (!wake) return;  // whoever reads has been woken
  const char byte = 0;
  while (write(write_end_, &byte, 1) < 0 && errno == EINTR) {
  }
}

WakeQueue::Numbers WakeQueue::take() noexcept {
  std::lock_guard lock(mutex_);
  if (!numbers_.empty()) {
    char byte = 0;
    while (read(read_end_, &byte, 1) < 0 && errno == EINTR) {
    }
  }
  return std::move(numbers_);
}

}  // namespace metalane::python
