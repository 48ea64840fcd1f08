// What a signal handler learns and changes of the thread that was interrupted, on each system and processor.
#pragma once

#include <pthread.h>
#include <signal.h>
#if defined(__APPLE__)
#include <sys/ucontext.h>
#else
#include <ucontext.h>
#endif
#include <unistd.h>

#include <array>

#include "backends/cpu/fiber.h"

namespace metalane::cpu {

// What a worker handles: what faults raise, and what stop() sends. On Linux that is one of the former: no
// other number is taken from the program, and ThreadSanitizer delivers it at once as it does for synchronous
// ones.
#if defined(__APPLE__)
// macOS does not say of a fault's signal whether it was sent; this one no processor raises.
constexpr int stop_signal = SIGEMT;
constexpr std::array<int, 5> handled_signals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGEMT};
METALANE_NO_TSAN inline bool is_surely_sent(const siginfo_t& info) { return info.si_signo == stop_signal; }
METALANE_NO_TSAN inline bool is_surely_fault(const siginfo_t&) { return false; }
METALANE_NO_TSAN inline bool is_from_this_process(const siginfo_t&) { return true; }
constexpr const char* bus_error_causes = "memory that is protected or mapped from behind a file's end";
#else
constexpr int stop_signal = SIGILL;
constexpr std::array<int, 4> handled_signals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
METALANE_NO_TSAN inline bool is_surely_sent(const siginfo_t& info) { return info.si_code <= 0; }
METALANE_NO_TSAN inline bool is_surely_fault(const siginfo_t& info) { return info.si_code > 0; }
METALANE_NO_TSAN inline bool is_from_this_process(const siginfo_t& info) {
  return info.si_code == SI_TKILL && info.si_pid == getpid();
}
constexpr const char* bus_error_causes = "memory that is mapped from a file's end, or misaligned";
#endif

// Registers; `context` is a handler's third argument, and what is written is there when the handler returns.
#if defined(__APPLE__)
METALANE_NO_TSAN inline auto& registers_of(void* context) {
  return static_cast<ucontext_t*>(context)->uc_mcontext->__ss;
}
#if defined(__x86_64__)
METALANE_NO_TSAN inline auto& program_counter(void* context) { return registers_of(context).__rip; }
METALANE_NO_TSAN inline auto& stack_pointer(void* context) { return registers_of(context).__rsp; }
METALANE_NO_TSAN inline auto& register_a(void* context) { return registers_of(context).__rax; }
METALANE_NO_TSAN inline auto& register_d(void* context) { return registers_of(context).__rdx; }
#else
METALANE_NO_TSAN inline auto& program_counter(void* context) { return registers_of(context).__pc; }
METALANE_NO_TSAN inline auto& stack_pointer(void* context) { return registers_of(context).__sp; }
#endif
#else
METALANE_NO_TSAN inline auto& registers_of(void* context) {
  return static_cast<ucontext_t*>(context)->uc_mcontext;
}
#if defined(__x86_64__)
METALANE_NO_TSAN inline auto& program_counter(void* context) { return registers_of(context).gregs[REG_RIP]; }
METALANE_NO_TSAN inline auto& stack_pointer(void* context) { return registers_of(context).gregs[REG_RSP]; }
METALANE_NO_TSAN inline auto& register_a(void* context) { return registers_of(context).gregs[REG_RAX]; }
METALANE_NO_TSAN inline auto& register_d(void* context) { return registers_of(context).gregs[REG_RDX]; }
#else
METALANE_NO_TSAN inline auto& program_counter(void* context) { return registers_of(context).pc; }
METALANE_NO_TSAN inline auto& stack_pointer(void* context) { return registers_of(context).sp; }
#endif
#endif

}  // namespace metalane::cpu
