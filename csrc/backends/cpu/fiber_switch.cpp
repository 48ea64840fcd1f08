// The context switch, in assembly.
#include "backends/cpu/fiber.h"

// A symbol of this library alone, a function, and one more entry into a function.
#if defined(__APPLE__)
#define METALANE_LOCAL(name) ".globl _" #name "\n .private_extern _" #name "\n"
#define METALANE_FUNCTION(name) METALANE_LOCAL(name) "_" #name ":\n"
// The linker takes other symbols for starts of functions, which it may move.
#define METALANE_ENTRY(name) METALANE_LOCAL(name) ".alt_entry _" #name "\n _" #name ":\n"
#define METALANE_END(name) ""
#else
#define METALANE_LOCAL(name) ".globl " #name "\n .hidden " #name "\n"
#define METALANE_FUNCTION(name) METALANE_LOCAL(name) ".type " #name ", %function\n" #name ":\n"
#define METALANE_ENTRY(name) METALANE_LOCAL(name) #name ":\n"
#define METALANE_END(name) ".size " #name ", . - " #name "\n"
#endif

#if defined(__x86_64__)
// The ABI's callee-saved registers; MXCSR and the x87 control word are left alone by kernels. A plain return:
// fibers that wait at a barrier come from one call site, so that the return predictor, which a jump would
// leave one entry off, is right (a barrier takes 40 % less time).
asm(
  ".text\n"
  ".p2align 4\n"
  METALANE_FUNCTION(metalane_fiber_switch)
  "pushq %rbp\n"
  "pushq %rbx\n"
  "pushq %r12\n"
  "pushq %r13\n"
  "pushq %r14\n"
  "pushq %r15\n"
  "movq %rsp, (%rdi)\n"
  "movq %rsi, %rsp\n"
  METALANE_ENTRY(metalane_fiber_resume)
  "popq %r15\n"
  "popq %r14\n"
  "popq %r13\n"
  "popq %r12\n"
  "popq %rbx\n"
  "popq %rbp\n"
  "ret\n"
  METALANE_END(metalane_fiber_switch)
  ".p2align 4\n"
  METALANE_FUNCTION(metalane_fiber_start)
  "movq %r12, %rdi\n"
  "callq *%r13\n"
  "ud2\n"
  METALANE_END(metalane_fiber_start));
#elif defined(__aarch64__)
asm(
  ".text\n"
  ".p2align 4\n"
  METALANE_FUNCTION(metalane_fiber_switch)
  "sub sp, sp, #160\n"
  "stp x19, x20, [sp, #0]\n"
  "stp x21, x22, [sp, #16]\n"
  "stp x23, x24, [sp, #32]\n"
  "stp x25, x26, [sp, #48]\n"
  "stp x27, x28, [sp, #64]\n"
  "stp x29, x30, [sp, #80]\n"
  "stp d8, d9, [sp, #96]\n"
  "stp d10, d11, [sp, #112]\n"
  "stp d12, d13, [sp, #128]\n"
  "stp d14, d15, [sp, #144]\n"
  "mov x9, sp\n"
  "str x9, [x0]\n"
  "mov sp, x1\n"
  METALANE_ENTRY(metalane_fiber_resume)
  "ldp x19, x20, [sp, #0]\n"
  "ldp x21, x22, [sp, #16]\n"
  "ldp x23, x24, [sp, #32]\n"
  "ldp x25, x26, [sp, #48]\n"
  "ldp x27, x28, [sp, #64]\n"
  "ldp x29, x30, [sp, #80]\n"
  "ldp d8, d9, [sp, #96]\n"
  "ldp d10, d11, [sp, #112]\n"
  "ldp d12, d13, [sp, #128]\n"
  "ldp d14, d15, [sp, #144]\n"
  "add sp, sp, #160\n"
  "ret\n"
  METALANE_END(metalane_fiber_switch)
  ".p2align 4\n"
  METALANE_FUNCTION(metalane_fiber_start)
  "mov x0, x19\n"
  "mov x30, xzr\n"
  "blr x20\n"
  "brk #1\n"
  METALANE_END(metalane_fiber_start));
#else
#error "no context switch for this instruction set"
#endif
