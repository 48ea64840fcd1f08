// The context switch in assembly, and stacks with guard pages.
#include "backends/cpu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#if defined(METALANE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(METALANE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// MADV_GUARD_INSTALL (Linux 6.13): a guard without a mapping of its own, of which a process may have 65,530.
#if !defined(MADV_GUARD_INSTALL)
#define MADV_GUARD_INSTALL 102
#endif

#if defined(__x86_64__)
// The ABI's callee-saved registers; MXCSR and the x87 control word are left alone by kernels. A plain return:
// fibers that wait at a barrier come from one call site, so that the return predictor, which a jump would
// leave one entry off, is right (a barrier takes 40 % less time).
asm(R"(
  .text
  .p2align 4
  .globl metalane_fiber_switch
  .hidden metalane_fiber_switch
  .type metalane_fiber_switch, @function
metalane_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  .globl metalane_fiber_resume
  .hidden metalane_fiber_resume
metalane_fiber_resume:
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size metalane_fiber_switch, . - metalane_fiber_switch

  .p2align 4
  .globl metalane_fiber_start
  .hidden metalane_fiber_start
  .type metalane_fiber_start, @function
metalane_fiber_start:
  movq %r12, %rdi
  callq *%r13
  ud2
  .size metalane_fiber_start, . - metalane_fiber_start
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .p2align 4
  .globl metalane_fiber_switch
  .hidden metalane_fiber_switch
  .type metalane_fiber_switch, %function
metalane_fiber_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  .globl metalane_fiber_resume
  .hidden metalane_fiber_resume
metalane_fiber_resume:
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size metalane_fiber_switch, . - metalane_fiber_switch

  .p2align 4
  .globl metalane_fiber_start
  .hidden metalane_fiber_start
  .type metalane_fiber_start, %function
metalane_fiber_start:
  mov x0, x19
  mov x30, xzr
  blr x20
  brk #1
  .size metalane_fiber_start, . - metalane_fiber_start
)");
#else
#error "no context switch for this instruction set"
#endif

extern "C" void metalane_fiber_resume();
extern "C" void metalane_fiber_start();

namespace metalane::cpu {
namespace {

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Guard pages by advice cost no mapping each, but only a page that refuses an access shows that they are
// there: QEMU takes any advice for done. The kernel reports what it may not read as EFAULT.
bool guard_advice_works() {
  static const bool works = [] {
    void* probe = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) return false;
    int ends[2];
    bool refused = false;
    if (madvise(probe, page_bytes(), MADV_GUARD_INSTALL) == 0 && pipe(ends) == 0) {
      refused = write(ends[1], probe, 1) < 0 && errno == EFAULT;
      close(ends[0]);
      close(ends[1]);
    }
    munmap(probe, page_bytes());
    return refused;
  }();
  return works;
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
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* bottom = nullptr;
    pthread_attr_getstack(&attributes, &bottom, &fiber.stack_size);
    fiber.stack_bottom = static_cast<std::uint8_t*>(bottom);
    pthread_attr_destroy(&attributes);
  }
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
  auto* context = static_cast<ucontext_t*>(signal_context);
  const auto resume = reinterpret_cast<std::uintptr_t>(&metalane_fiber_resume);
  const auto stack_pointer = reinterpret_cast<std::uintptr_t>(target.stack_pointer);
#if defined(__x86_64__)
  context->uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(resume);
  context->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(stack_pointer);
#else
  context->uc_mcontext.pc = resume;
  context->uc_mcontext.sp = stack_pointer;
#endif
}

METALANE_NO_TSAN std::uintptr_t interrupted_stack_pointer(const void* signal_context) {
  const auto* context = static_cast<const ucontext_t*>(signal_context);
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(context->uc_mcontext.gregs[REG_RSP]);
#else
  return context->uc_mcontext.sp;
#endif
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
  void* address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  bool guarded = address != MAP_FAILED;
  auto* base = static_cast<std::uint8_t*>(address);
  for (std::size_t i = 0; i < batch && guarded; ++i) {
    std::uint8_t* guard = base + i * slot;
    guarded = (guard_advice_works() && madvise(guard, guard_bytes_, MADV_GUARD_INSTALL) == 0) ||
              mprotect(guard, guard_bytes_, PROT_NONE) == 0;
  }
  if (!guarded) {
    if (address != MAP_FAILED) munmap(address, nbytes);
    delete[] fibers;
    return false;
  }
  // A huge page would commit the stacks of eight fibers at the first touch of one.
  madvise(address, nbytes, MADV_NOHUGEPAGE);
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
