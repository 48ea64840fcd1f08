// Signal handlers round running kernels.
#include "backends/cpu/faults.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <optional>

#include "backends/cpu/signal_context.h"

namespace metalane::cpu {
namespace {

// Above MINSIGSTKSZ with AVX-512 and AMX state, and room for a sanitizer's wrapper.
constexpr std::size_t signal_stack_bytes = 128 * 1024;

// Of the calling thread; reading it from a handler allocates nothing.
#if defined(__APPLE__)
// A thread_local would be allocated where a thread first reads it, which may be in a handler.
const std::optional<pthread_key_t> guard_key = []() -> std::optional<pthread_key_t> {
  pthread_key_t key;
  if (pthread_key_create(&key, nullptr) != 0) return std::nullopt;
  return key;
}();
FaultGuard* current_guard() {
  return guard_key ? static_cast<FaultGuard*>(pthread_getspecific(*guard_key)) : nullptr;
}
bool set_current_guard(FaultGuard* guard) { return guard_key && pthread_setspecific(*guard_key, guard) == 0; }
#else
__attribute__((tls_model("initial-exec"))) thread_local FaultGuard* guard_of_thread = nullptr;
METALANE_NO_TSAN FaultGuard* current_guard() { return guard_of_thread; }
bool set_current_guard(FaultGuard* guard) {
  guard_of_thread = guard;
  return true;
}
#endif

std::mutex handlers_mutex;
int handler_users = 0;
struct sigaction previous_actions[handled_signals.size()];
// Counts installations: what a handler on another thread acquires before it reads previous_actions.
std::atomic<std::uint64_t> installations{0};

std::size_t index_of(int signal) {
  std::size_t index = 0;
  while (handled_signals[index] != signal) ++index;
  return index;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  static_cast<void>(installations.load(std::memory_order_acquire));
  struct sigaction& previous = previous_actions[index_of(signal)];
  const bool is_default = (previous.sa_flags & SA_SIGINFO) == 0 && previous.sa_handler == SIG_DFL;
  const bool is_ignored = (previous.sa_flags & SA_SIGINFO) == 0 && previous.sa_handler == SIG_IGN;
  if (is_ignored && is_surely_sent(*info)) return;
  if (is_default || is_ignored) {
    // The default action ends the process when the faulting instruction, or the signal sent, comes again.
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    if (!is_surely_fault(*info)) pthread_kill(pthread_self(), signal);
    return;
  }
  // As the kernel would call it; this handler's return restores the interrupted mask.
  sigset_t mask = previous.sa_mask;
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  if ((previous.sa_flags & SA_NODEFER) != 0) {
    sigemptyset(&mask);
    sigaddset(&mask, signal);
    pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else {
    previous.sa_handler(signal);
  }
}

METALANE_NO_TSAN void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  FaultGuard* const guard = current_guard();
  if (guard == nullptr || !guard->handle(signal, info, context)) pass_on(signal, info, context);
  errno = saved_errno;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &on_signal;
}

void install_handlers() {
  for (std::size_t i = 0; i < handled_signals.size(); ++i) {
    struct sigaction current = {};
    sigaction(handled_signals[i], nullptr, &current);
    // A handler that was put over ours, and taken away since, may have left ours standing.
    if (is_ours(current)) continue;
    previous_actions[i] = current;
    installations.fetch_add(1, std::memory_order_release);
    struct sigaction action = {};
    action.sa_sigaction = &on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (const int signal : handled_signals) sigaddset(&action.sa_mask, signal);
    sigaction(handled_signals[i], &action, nullptr);
  }
}

void restore_handlers() {
  for (std::size_t i = 0; i < handled_signals.size(); ++i) {
    struct sigaction current = {};
    sigaction(handled_signals[i], nullptr, &current);
    // Someone's handler on top of ours stays, and goes on calling ours, which passes everything on.
    if (is_ours(current)) sigaction(handled_signals[i], &previous_actions[i], nullptr);
  }
}

// The launches that ran when a child was forked do not run in the child.
const int fork_handlers = pthread_atfork([] { handlers_mutex.lock(); }, [] { handlers_mutex.unlock(); },
                                         [] {
                                           if (handler_users != 0) restore_handlers();
                                           handler_users = 0;
                                           handlers_mutex.unlock();
                                         });

}  // namespace

FaultGuard::~FaultGuard() {
  if (signal_stack_ != nullptr) munmap(signal_stack_, signal_stack_bytes);
}

bool FaultGuard::attach_current_thread() {
  void* stack = mmap(nullptr, signal_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) return false;
  signal_stack_ = static_cast<std::uint8_t*>(stack);
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = signal_stack_bytes;
  if (sigaltstack(&alternate, nullptr) != 0) return false;
  thread_ = pthread_self();
  return set_current_guard(this);
}

void FaultGuard::detach_current_thread() {
  set_current_guard(nullptr);
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

void FaultGuard::arm(bool leavable) {
  leavable_ = leavable;
  state_.store(armed);
}

void FaultGuard::disarm() {
  int expected = armed;
  if (state_.compare_exchange_strong(expected, idle)) return;
  // A signal is on its way: it must not arrive after the handlers are gone.
  while (state_.load() != received) sched_yield();
  state_.store(idle);
}

void FaultGuard::stop() {
  int expected = armed;
  if (state_.compare_exchange_strong(expected, signalled)) pthread_kill(thread_, stop_signal);
}

FaultGuard::Fault FaultGuard::take_fault() {
  const Fault fault = fault_;
  fault_ = {};
  return fault;
}

METALANE_NO_TSAN bool FaultGuard::handle(int signal, const siginfo_t* info, void* context) noexcept {
  const bool on_fiber = runner_.on_fiber(context);
  if (is_surely_sent(*info)) {
    if (signal != stop_signal || !is_from_this_process(*info) || state_.load() != signalled) return false;
    if (on_fiber && leavable_ && runner_.in_kernel()) runner_.force_leave(context);
    state_.store(received);
    return true;
  }
  if (!on_fiber) return false;
  if (signal == SIGFPE && info->si_code == FPE_INTDIV && skip_division(context)) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  // A page that refuses accesses raises SIGSEGV on Linux, SIGBUS on macOS.
  const bool is_overflow = (signal == SIGSEGV || signal == SIGBUS) && runner_.is_stack_guard(address);
  fault_ = {signal, info->si_code, address, is_overflow};
  runner_.force_leave(context);
  return true;
}

std::string describe(const FaultGuard::Fault& fault) {
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(fault.address));
  if (fault.stack_overflow) {
    return std::string("stack overflow: more than ") + std::to_string(FiberPool::stack_bytes / 1024) +
           " KiB of private memory, at address " + address;
  }
  switch (fault.signal) {
    case SIGSEGV:
#if defined(SI_KERNEL)  // a general-protection fault carries no address
      if (fault.code == SI_KERNEL) return "memory access at a non-canonical address";
#endif
      return std::string("memory access at address ") + address;
    case SIGBUS:
      return std::string("bus error (") + bus_error_causes + ") at address " + address;
    case SIGILL:
      return std::string("trap or illegal instruction at address ") + address;
    default:
      return std::string("arithmetic trap at address ") + address;
  }
}

HandlerScope::HandlerScope() {
  static_cast<void>(fork_handlers);
  const std::lock_guard lock(handlers_mutex);
  if (handler_users++ == 0) install_handlers();
}

HandlerScope::~HandlerScope() {
  const std::lock_guard lock(handlers_mutex);
  if (--handler_users == 0) restore_handlers();
}

#if defined(__x86_64__)
METALANE_NO_TSAN bool skip_division(void* signal_context) noexcept {
  const auto* at = reinterpret_cast<const std::uint8_t*>(program_counter(signal_context));
  bool is_16_bit = false;
  for (bool prefix = true; prefix;) {
    switch (*at) {
      case 0x66:
        is_16_bit = true;
        ++at;
        break;
      case 0x26:
      case 0x2e:
      case 0x36:
      case 0x3e:
      case 0x64:
      case 0x65:
      case 0x67:
      case 0xf2:
      case 0xf3:
        ++at;
        break;
      default:
        prefix = false;
    }
  }
  const bool is_64_bit = (*at & 0xf8) == 0x48;  // REX.W
  if ((*at & 0xf0) == 0x40) ++at;
  const std::uint8_t opcode = *at++;
  const std::uint8_t modrm = *at++;
  const bool divides = (opcode == 0xf6 || opcode == 0xf7) && (modrm >> 3 & 7) >= 6;  // DIV /6, IDIV /7
  if (!divides) return false;
  const int mode = modrm >> 6;
  if (mode != 3) {
    const int base = modrm & 7;
    int displacement = mode == 1 ? 1 : mode == 2 ? 4 : 0;
    if (base == 4) {
      const std::uint8_t sib = *at++;
      if (mode == 0 && (sib & 7) == 5) displacement = 4;
    } else if (mode == 0 && base == 5) {
      displacement = 4;  // relative to RIP
    }
    at += displacement;
  }
  auto& rax = register_a(signal_context);
  auto& rdx = register_d(signal_context);
  if (opcode == 0xf6) {
    rax &= ~std::uint64_t{0xff00};  // remainder in AH
  } else if (is_64_bit) {
    rdx = 0;
  } else if (is_16_bit) {
    rdx &= ~std::uint64_t{0xffff};
  } else {
    rax &= 0xffffffff;
    rdx = 0;
  }
  program_counter(signal_context) = reinterpret_cast<std::uintptr_t>(at);
  return true;
}
#else
bool skip_division(void*) noexcept { return false; }
#endif

}  // namespace metalane::cpu
