// How a long wait asks whether it should end early: Python's Ctrl-C reaches waits of every layer by this.
#pragma once

#include <metalane/export.h>

#include <chrono>

namespace metalane::core {

// How often a wait asks.
constexpr std::chrono::milliseconds interrupt_interval{50};

// `check` throws what ends the wait that asks. Of the whole process; null: waits go on. It is called without
// the backend's locks by whichever thread waits.
METALANE_API void set_interrupt_check(void (*check)()) noexcept;
void check_interrupt();

}  // namespace metalane::core
