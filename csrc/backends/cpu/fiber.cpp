// Stacks with guard pages, and what sanitizers and signal handlers have to do with a switch.
#include "backends/cpu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "backends/cpu/pages.h"
#include "backends/cpu/signal_context.h"

#if defined(METALANE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(METALANE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

extern "C" void metalane_fiber_resume();
extern "C" void metalane_fiber_start();

namespace metalane::cpu {
namespace {

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// At least 16 KiB, and such that stacks lie an odd number of pages apart. With an even number the pages of 32
// stacks fall into a few of the 16 sets of an x86 processor's first translation cache, which then misses at
// every switch: 5.3 ns instead of 3.3.
std::size_t guard_size() {
  const std::size_t page = page_bytes();
  const std::size_t guard = page > 16384 ? page : 16384;
  return (guard + FiberPool::stack_bytes) / page % 2 == 0 ? guard + page : guard;
}

// Tops that are all aligned alike fall into the same few cache sets: a barrier over 256 threads takes twice
// as long. Steps of three cache lines reach every set of a page.
std::size_t stagger(std::size_t index) { return (index * 192) % 4096; }

}  // namespace

void adopt_current_thread([[maybe_unused]] Fiber& fiber) {
#if defined(METALANE_FIBER_HOOKS)
#if defined(__APPLE__)
  fiber.stack_size = pthread_get_stacksize_np(pthread_self());
  fiber.stack_bottom =
      static_cast<std::uint8_t*>(pthread_get_stackaddr_np(pthread_self())) - fiber.stack_size;
#else
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* bottom = nullptr;
    pthread_attr_getstack(&attributes, &bottom, &fiber.stack_size);
    fiber.stack_bottom = static_cast<std::uint8_t*>(bottom);
    pthread_attr_destroy(&attributes);
  }
#endif
#endif
#if defined(METALANE_TSAN)
  fiber.sanitizer_fiber = __tsan_get_current_fiber();
#endif
}

#if defined(METALANE_FIBER_HOOKS)
// Not instrumented: ThreadSanitizer would book the entry on one fiber and the exit on another.
METALANE_NO_TSAN void switch_fiber(Fiber& from, Fiber& to) {
#if defined(METALANE_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_size);
#endif
#if defined(METALANE_TSAN)
  __tsan_switch_to_fiber(to.sanitizer_fiber, 0);
#endif
  metalane_fiber_switch(&from.stack_pointer, to.stack_pointer);
#if defined(METALANE_ASAN)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}
#endif

void finish_first_switch() {
#if defined(METALANE_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

// Not instrumented for the same reason: its entry would be booked on the fiber that was left.
METALANE_NO_TSAN void finish_forced_switch([[maybe_unused]] Fiber& fiber) {
#if defined(METALANE_TSAN)
  __tsan_switch_to_fiber(fiber.sanitizer_fiber, 0);
#endif
}

METALANE_NO_TSAN void redirect_to_fiber(void* signal_context, const Fiber& target) {
#if defined(METALANE_ASAN)
  // switch_fiber finishes this where `target` left off. The fiber that is left does not run on: null drops
  // its fake frames.
  __sanitizer_start_switch_fiber(nullptr, target.stack_bottom, target.stack_size);
#endif
  program_counter(signal_context) = reinterpret_cast<std::uintptr_t>(&metalane_fiber_resume);
  stack_pointer(signal_context) = reinterpret_cast<std::uintptr_t>(target.stack_pointer);
}

METALANE_NO_TSAN std::uintptr_t interrupted_stack_pointer(void* signal_context) {
  return static_cast<std::uintptr_t>(stack_pointer(signal_context));
}

FiberPool::~FiberPool() {
  for (std::size_t i = 0; i < mapping_count_; ++i) {
#if defined(METALANE_TSAN)
    for (std::size_t k = 0; k < batch; ++k) __tsan_destroy_fiber(mappings_[i].fibers[k].sanitizer_fiber);
#endif
    delete[] mappings_[i].fibers;
    munmap(mappings_[i].address, mappings_[i].nbytes);
  }
}

bool FiberPool::grow() {
  if (mapping_count_ == max_mappings) return false;
  if (guard_bytes_ == 0) guard_bytes_ = guard_size();
  const std::size_t slot = guard_bytes_ + stack_bytes;
  const std::size_t nbytes = slot * batch;
  auto* fibers = new (std::nothrow) Fiber[batch];
  if (fibers == nullptr) return false;
  void* address =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool guarded = address != MAP_FAILED;
  auto* base = static_cast<std::uint8_t*>(address);
  for (std::size_t i = 0; i < batch && guarded; ++i) {
    guarded = install_guard(base + i * slot, guard_bytes_);
  }
  if (!guarded) {
    if (address != MAP_FAILED) munmap(address, nbytes);
    delete[] fibers;
    return false;
  }
  // A huge page would commit the stacks of eight fibers at the first touch of one.
  avoid_huge_pages(address, nbytes);
  const std::size_t first = mapping_count_ * batch;
  mappings_[mapping_count_] = {base, nbytes, fibers};
  ++mapping_count_;
  for (std::size_t i = batch; i-- > 0;) prepare(first + i);
  return true;
}

void FiberPool::reset() {
  idle_ = nullptr;
  for (std::size_t i = mapping_count_ * batch; i-- > 0;) prepare(i);
}

// Makes one fiber idle, at the start of its function.
void FiberPool::prepare(std::size_t index) {
  const Mapping& mapping = mappings_[index / batch];
  Fiber& fiber = mapping.fibers[index % batch];
  std::uint8_t* bottom = mapping.address + index % batch * (guard_bytes_ + stack_bytes) + guard_bytes_;
#if defined(METALANE_FIBER_HOOKS)
  fiber.stack_bottom = bottom;
  fiber.stack_size = stack_bytes;
#endif
#if defined(METALANE_ASAN)
  __asan_unpoison_memory_region(bottom, stack_bytes);
  fiber.fake_stack = nullptr;
#endif
#if defined(METALANE_TSAN)
  if (fiber.sanitizer_fiber != nullptr) __tsan_destroy_fiber(fiber.sanitizer_fiber);
  fiber.sanitizer_fiber = __tsan_create_fiber(0);
#endif
  // The frame that metalane_fiber_switch would have left: registers, then where to continue.
  std::uint8_t* top = bottom + stack_bytes - stagger(index);
#if defined(__x86_64__)
  auto* frame = reinterpret_cast<void**>(top) - 9;  // leaves the stack 16-byte aligned at the start label
  std::memset(frame, 0, 9 * sizeof(void*));
  frame[3] = argument_;                           // r12
  frame[2] = reinterpret_cast<void*>(function_);  // r13
  frame[6] = reinterpret_cast<void*>(&metalane_fiber_start);
#else
  auto* frame = reinterpret_cast<void**>(top) - 20;
  std::memset(frame, 0, 20 * sizeof(void*));
  frame[0] = argument_;                                        // x19
  frame[1] = reinterpret_cast<void*>(function_);               // x20
  frame[11] = reinterpret_cast<void*>(&metalane_fiber_start);  // x30
#endif
  fiber.stack_pointer = frame;
  put(&fiber);
}

METALANE_NO_TSAN FiberPool::Place FiberPool::locate(std::uintptr_t address) const noexcept {
  const std::size_t slot = guard_bytes_ + stack_bytes;
  for (std::size_t i = 0; i < mapping_count_; ++i) {
    const auto base = reinterpret_cast<std::uintptr_t>(mappings_[i].address);
    if (address < base || address >= base + mappings_[i].nbytes) continue;
    return (address - base) % slot < guard_bytes_ ? Place::guard : Place::stack;
  }
  return Place::elsewhere;
}

}  // namespace metalane::cpu
