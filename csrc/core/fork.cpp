// Counts forks through pthread_atfork.
#include "core/fork.h"

#include <pthread.h>

#include <atomic>

namespace metalane::core {
namespace {

std::atomic<std::uint64_t> generation{0};

// Registered while the library is loaded, so that no device can be older than the handler.
const int registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_generation() noexcept {
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace metalane::core
