// pidfd on Linux, kqueue on macOS.
#include "backends/cpu/process_watch.h"

#include <unistd.h>
#if !defined(__linux__)
#include <fcntl.h>
#include <sys/event.h>
#endif

namespace metalane::cpu {

#if defined(__linux__)

// Linux 5.3 and later; the number is the same on all processors, and in no header of manylinux_2_28.
int watch_process(pid_t child) noexcept {
  constexpr long pidfd_open = 434;
  return static_cast<int>(syscall(pidfd_open, child, 0));
}

#else

int watch_process(pid_t child) noexcept {
  const int queue = kqueue();
  if (queue < 0) return -1;
  struct kevent change;
  EV_SET(&change, child, EVFILT_PROC, EV_ADD, NOTE_EXIT, 0, nullptr);
  // Refused where the child has ended already.
  if (fcntl(queue, F_SETFD, FD_CLOEXEC) != 0 || kevent(queue, &change, 1, nullptr, 0, nullptr) != 0) {
    close(queue);
    return -1;
  }
  return queue;
}

#endif

}  // namespace metalane::cpu
