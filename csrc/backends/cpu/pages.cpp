// Advice where the system takes it, and guard pages.
#include "backends/cpu/pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

namespace metalane::cpu {

#if defined(__linux__)
namespace {

// MADV_GUARD_INSTALL (Linux 6.13): a guard without a mapping of its own, of which a process may have 65,530.
constexpr int guard_advice = 102;

// Only a page that refuses an access shows that advice was taken: QEMU takes any for done. The kernel reports
// what it may not read as EFAULT.
bool guard_advice_works() noexcept {
  static const bool works = [] {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* probe = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) return false;
    int ends[2];
    bool refused = false;
    if (madvise(probe, page, guard_advice) == 0 && pipe(ends) == 0) {
      refused = write(ends[1], probe, 1) < 0 && errno == EFAULT;
      close(ends[0]);
      close(ends[1]);
    }
    munmap(probe, page);
    return refused;
  }();
  return works;
}

}  // namespace

void prefer_huge_pages(void* address, std::size_t nbytes) noexcept {
  madvise(address, nbytes, MADV_HUGEPAGE);
}

void avoid_huge_pages(void* address, std::size_t nbytes) noexcept {
  madvise(address, nbytes, MADV_NOHUGEPAGE);
}

bool install_guard(void* address, std::size_t nbytes) noexcept {
  return (guard_advice_works() && madvise(address, nbytes, guard_advice) == 0) ||
         mprotect(address, nbytes, PROT_NONE) == 0;
}

#else

void prefer_huge_pages(void*, std::size_t) noexcept {}
void avoid_huge_pages(void*, std::size_t) noexcept {}
bool install_guard(void* address, std::size_t nbytes) noexcept {
  return mprotect(address, nbytes, PROT_NONE) == 0;
}

#endif

}  // namespace metalane::cpu
