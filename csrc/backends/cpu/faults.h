// Turns what a kernel does to the processor (bad access, stack overflow, endless loop) into a launch that is
// left, and passes on every signal that is not a kernel's.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "backends/cpu/threadgroup.h"

namespace metalane::cpu {

// A worker's side. While it is armed, other threads may stop() it.
class FaultGuard {
 public:
  explicit FaultGuard(ThreadgroupRunner& runner) : runner_(runner) {}
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  // Binds the guard to the calling OS thread and gives that thread an alternate signal stack. False when the
  // system gives no memory.
  bool attach_current_thread();
  // Before that thread ends.
  static void detach_current_thread();

  // Round the running of fibers. `leavable`: stop() may cut a fiber short; otherwise it waits for its end.
  void arm(bool leavable);
  void disarm();
  // From another thread: makes an armed worker leave its fiber. The caller has set the runner's stop flag
  // before, which the worker reads before it starts another one.
  void stop();

  // What made the runner leave; empty when it was stop().
  struct Fault {
    int signal = 0;
    int code = 0;
    std::uintptr_t address = 0;
    bool stack_overflow = false;
    explicit operator bool() const noexcept { return signal != 0; }
  };
  Fault take_fault();

  // From the signal handler: true when the signal was this worker's.
  bool handle(int signal, const siginfo_t* info, void* context) noexcept;

 private:
  enum State : int { idle, armed, signalled, received };
  ThreadgroupRunner& runner_;
  pthread_t thread_{};
  std::atomic<int> state_{idle};
  bool leavable_ = false;
  Fault fault_;
  std::uint8_t* signal_stack_ = nullptr;
};

// "memory access at address 0x10"
std::string describe(const FaultGuard::Fault& fault);

// The process's handlers of SIGSEGV, SIGBUS, SIGILL and SIGFPE while at least one scope lives; the handlers
// that stood before get every signal that no kernel caused, and stand again afterwards.
class HandlerScope {
 public:
  HandlerScope();
  ~HandlerScope();
  HandlerScope(const HandlerScope&) = delete;
  HandlerScope& operator=(const HandlerScope&) = delete;
};

// On x86-64 an integer division by zero, or of the least integer by -1, traps; MSL gives it some value. Makes
// the quotient the dividend's low half and the remainder 0, and steps over the instruction. False when the
// interrupted instruction is no division.
bool skip_division(void* signal_context) noexcept;

}  // namespace metalane::cpu
