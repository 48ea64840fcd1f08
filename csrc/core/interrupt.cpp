// The hook that waits call.
#include "core/interrupt.h"

#include <atomic>

namespace metalane::core {
namespace {

std::atomic<void (*)()> interrupt_check{nullptr};

}  // namespace

void set_interrupt_check(void (*check)()) noexcept { interrupt_check.store(check); }

void check_interrupt() {
  if (const auto check = interrupt_check.load()) check();
}

}  // namespace metalane::core
