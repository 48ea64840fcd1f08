// Fibers: threads of control on stacks of their own, switched without the kernel's help.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define METALANE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define METALANE_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define METALANE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define METALANE_TSAN 1
#endif
#endif
#if defined(METALANE_ASAN) || defined(METALANE_TSAN)
#define METALANE_FIBER_HOOKS 1  // a sanitizer is told of every switch
#endif
// Code that must not enter ThreadSanitizer's runtime: what a signal handler does, since the signal may have
// met the runtime between two fibers, without the processor that an access is booked on; and what runs while
// a handler may leave its fiber for good, since locks of the runtime would stay held.
#define METALANE_NO_TSAN __attribute__((no_sanitize("thread")))

namespace metalane::cpu {

#if defined(METALANE_FIBER_HOOKS)
constexpr bool fiber_hooks = true;
#else
constexpr bool fiber_hooks = false;
#endif

// Saves the callee-saved registers and the stack pointer of the caller at `*saved` and continues where
// `target`, a stack pointer saved the same way, left off.
extern "C" void metalane_fiber_switch(void** saved, void* target) noexcept;

// A suspended or running thread of control. The OS thread's own stack is a Fiber, too. Small: a barrier over
// many threads goes through as many of them.
struct Fiber {
  void* stack_pointer = nullptr;
  Fiber* next_idle = nullptr;
#if defined(METALANE_FIBER_HOOKS)
  std::uint8_t* stack_bottom = nullptr;
  std::size_t stack_size = 0;
  void* fake_stack = nullptr;       // AddressSanitizer's
  void* sanitizer_fiber = nullptr;  // ThreadSanitizer's
#endif
};

// Makes `fiber` stand for the calling OS thread.
void adopt_current_thread(Fiber& fiber);
// Runs `to`; returns when something switches back to `from`.
#if defined(METALANE_FIBER_HOOKS)
void switch_fiber(Fiber& from, Fiber& to);
#else
// Inline, so that a caller with nothing left to do leaves no frame of its own on the suspended stack.
inline void switch_fiber(Fiber& from, Fiber& to) {
  metalane_fiber_switch(&from.stack_pointer, to.stack_pointer);
}
#endif
// To be called first by a fiber's function: ends the switch that started it.
void finish_first_switch();
// To be called on `fiber` when a signal handler has sent its OS thread back to it, out of another fiber.
void finish_forced_switch(Fiber& fiber);

// Changes a signal handler's context so that its return continues at `target`, as a switch would have.
void redirect_to_fiber(void* signal_context, const Fiber& target);
// The stack pointer at which a signal arrived.
std::uintptr_t interrupted_stack_pointer(void* signal_context);

// Where the caller's stack ends, without a frame of its own.
inline std::uintptr_t stack_pointer() noexcept {
  std::uintptr_t address;
#if defined(__x86_64__)
  __asm__("mov %%rsp, %0" : "=r"(address));
#elif defined(__aarch64__)
  __asm__("mov %0, sp" : "=r"(address));
#else
#error "stack_pointer() has this processor's instruction to learn"
#endif
  return address;
}

// The fibers of one worker: stacks in a few mappings, with guard pages below each. Memory is committed when a
// stack first touches it. 256 KiB hold the private arrays that kernels use and leave address space for
// 1,024 fibers a worker (256 MiB).
class FiberPool {
 public:
  static constexpr std::size_t stack_bytes = 256 * 1024;
  static constexpr std::size_t batch = 32;

  // `function(argument)` is what every fiber runs; it must never return.
  FiberPool(void (*function)(void*), void* argument) : function_(function), argument_(argument) {}
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // Null when none is idle: then grow() from the OS thread's own stack.
  Fiber* take() noexcept {
    Fiber* fiber = idle_;
    if (fiber != nullptr) idle_ = fiber->next_idle;
    return fiber;
  }
  void put(Fiber* fiber) noexcept {
    fiber->next_idle = idle_;
    idle_ = fiber;
  }
  // Adds `batch` idle fibers. False when the system gives no memory.
  bool grow();
  // Makes every fiber idle, at the start of its function, wherever it was.
  void reset();

  enum class Place : std::uint8_t { elsewhere, stack, guard };
  // Async-signal-safe.
  Place locate(std::uintptr_t address) const noexcept;

 private:
  struct Mapping {
    std::uint8_t* address = nullptr;
    std::size_t nbytes = 0;
    Fiber* fibers = nullptr;  // `batch` of them
  };
  void prepare(std::size_t index);

  // 1,024 threads in batches of 32, and room for natives: fixed, so that a handler can read it at any time.
  static constexpr std::size_t max_mappings = 1024 / batch + 1;
  void (*function_)(void*);
  void* argument_;
  Fiber* idle_ = nullptr;
  std::size_t mapping_count_ = 0;
  Mapping mappings_[max_mappings];
  std::size_t guard_bytes_ = 0;
};

}  // namespace metalane::cpu
