// pidfd on Linux, kqueue on macOS.
#include "backends/cpu/process_watch.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <fcntl.h>
#include <sys/event.h>
#include <unistd.h>
#endif

namespace metalane::cpu {

#if defined(__linux__)

// Linux 5.3 and later.
int watch_process(pid_t child) noexcept { return static_cast<int>(syscall(SYS_pidfd_open, child, 0)); }

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
