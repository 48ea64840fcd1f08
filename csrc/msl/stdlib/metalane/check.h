// The checker's side of a module: compiled with the compiler's memory-access instrumentation, whose callbacks
// stand here, hidden, and hand over to the host. Without METALANE_CHECK nothing of it is left.
//
// The instrumentation is ThreadSanitizer's (`-fsanitize=thread`), the module is linked without its runtime.
#ifndef METALANE_STDLIB_CHECK_H
#define METALANE_STDLIB_CHECK_H

#include "../check_abi.h"
#include "runtime.h"

#if defined(METALANE_CHECK)

// Clang goes on instrumenting atomics where only the sanitizer is named.
#if defined(__clang__)
#define METALANE_UNWATCHED __attribute__((disable_sanitizer_instrumentation))
#else
#define METALANE_UNWATCHED __attribute__((no_sanitize("thread")))
#endif

METALANE_STDLIB_BEGIN
namespace detail {

// Before the host attaches, only initialisers run: they touch nothing that is watched.
METALANE_UNWATCHED inline void ignore_access(const void*, const void*) {}
METALANE_UNWATCHED inline void ignore_range(const void*, uint64_t, const void*) {}
METALANE_UNWATCHED inline void ignore_atomic(const void*, uint32_t, uint32_t, const void*) {}
METALANE_UNWATCHED inline void ignore_barrier(uint32_t, uint32_t) {}
METALANE_UNWATCHED inline void ignore_end() {}
METALANE_UNWATCHED inline void ignore_fence(uint32_t) {}
METALANE_UNWATCHED inline void ignore_lane(uint32_t, int32_t) {}

inline constexpr metalane_check_host unattached_host = {
    {ignore_access, ignore_access, ignore_access, ignore_access, ignore_access},
    {ignore_access, ignore_access, ignore_access, ignore_access, ignore_access},
    ignore_range,
    ignore_range,
    ignore_atomic,
    ignore_barrier,
    ignore_end,
    ignore_fence,
    ignore_lane,
    nullptr,
    nullptr};
inline const metalane_check_host* check_host_storage = &unattached_host;
METALANE_UNWATCHED inline const metalane_check_host*& check_host() { return check_host_storage; }

// What atomic operations and fences that order other accesses tell, barriers with their flags, and a thread
// at the end of a kernel with simdgroup barriers.
METALANE_UNWATCHED inline void note_barrier(uint32_t site, uint32_t flags) {
  check_host()->barrier(site, flags);
}
METALANE_UNWATCHED inline void note_end() { check_host()->end(); }
METALANE_UNWATCHED inline void note_fence(uint32_t flags) { check_host()->fence(flags); }
METALANE_UNWATCHED inline void note_absent_lane(int lane, int from) {
  check_host()->absent_lane(uint32_t(lane), from);
}

}  // namespace detail
METALANE_STDLIB_END

// Functions that the compiler calls by these names, which GCC has declarations of its own for: they are given
// as the names of the symbols alone. Each is one jump: what decides is the host's.
#define METALANE_CALLBACK(result, name, ...)                                                       \
  extern "C" __attribute__((visibility("hidden"), used)) METALANE_UNWATCHED result metalane##name( \
      __VA_ARGS__) __asm__(#name);                                                                 \
  METALANE_UNWATCHED result metalane##name(__VA_ARGS__)
#define METALANE_HERE __builtin_return_address(0)
#define METALANE_HOST ::metal::detail::check_host_storage

#define METALANE_ACCESS(bytes, log2)                                            \
  METALANE_CALLBACK(void, __tsan_read##bytes, const void* address) {            \
    METALANE_HOST->read[log2](address, METALANE_HERE);                          \
  }                                                                             \
  METALANE_CALLBACK(void, __tsan_write##bytes, const void* address) {           \
    METALANE_HOST->write[log2](address, METALANE_HERE);                         \
  }                                                                             \
  METALANE_CALLBACK(void, __tsan_unaligned_read##bytes, const void* address) {  \
    METALANE_HOST->read_range(address, bytes, METALANE_HERE);                   \
  }                                                                             \
  METALANE_CALLBACK(void, __tsan_unaligned_write##bytes, const void* address) { \
    METALANE_HOST->write_range(address, bytes, METALANE_HERE);                  \
  }
METALANE_ACCESS(1, 0)
METALANE_ACCESS(2, 1)
METALANE_ACCESS(4, 2)
METALANE_ACCESS(8, 3)
METALANE_ACCESS(16, 4)
#undef METALANE_ACCESS

METALANE_CALLBACK(void, __tsan_read_range, const void* address, unsigned long bytes) {
  METALANE_HOST->read_range(address, bytes, METALANE_HERE);
}
METALANE_CALLBACK(void, __tsan_write_range, const void* address, unsigned long bytes) {
  METALANE_HOST->write_range(address, bytes, METALANE_HERE);
}
METALANE_CALLBACK(void, __tsan_init) {}

// Calls of these are what instrumentation leaves out (GCC) or renames (Clang).
#define METALANE_COPY(name)                                                         \
  METALANE_CALLBACK(void*, name, void* to, const void* from, unsigned long bytes) { \
    METALANE_HOST->read_range(from, bytes, METALANE_HERE);                          \
    METALANE_HOST->write_range(to, bytes, METALANE_HERE);                           \
    return METALANE_HOST->copy(to, from, bytes);                                    \
  }
#define METALANE_FILL(name)                                                  \
  METALANE_CALLBACK(void*, name, void* to, int value, unsigned long bytes) { \
    METALANE_HOST->write_range(to, bytes, METALANE_HERE);                    \
    return METALANE_HOST->fill(to, value, bytes);                            \
  }
METALANE_COPY(memcpy)
METALANE_COPY(memmove)
METALANE_FILL(memset)
METALANE_COPY(__tsan_memcpy)
METALANE_COPY(__tsan_memmove)
METALANE_FILL(__tsan_memset)
#undef METALANE_COPY
#undef METALANE_FILL

// The operation itself stays atomic: the host may look on.
#define METALANE_TELL_ATOMIC(what)                          \
  if (order != __ATOMIC_RELAXED) METALANE_HOST->fence(~0u); \
  METALANE_HOST->atomic(const_cast<const void*>(object), sizeof(type), what, METALANE_HERE)
#define METALANE_ATOMIC_FETCH(bits, integer, name)                                                       \
  METALANE_CALLBACK(integer, __tsan_atomic##bits##_fetch_##name, volatile void* object, integer operand, \
                    int order) {                                                                         \
    using type = integer;                                                                                \
    METALANE_TELL_ATOMIC(METALANE_CHECK_UPDATE);                                                         \
    return __atomic_fetch_##name((volatile type*)object, operand, __ATOMIC_SEQ_CST);                     \
  }
#define METALANE_ATOMIC_COMPARE(bits, integer, name)                                            \
  METALANE_CALLBACK(bool, __tsan_atomic##bits##_compare_exchange_##name, volatile void* object, \
                    void* expected, integer desired, int order, int) {                          \
    using type = integer;                                                                       \
    METALANE_TELL_ATOMIC(METALANE_CHECK_UPDATE);                                                \
    return __atomic_compare_exchange_n((volatile type*)object, (type*)expected, desired, false, \
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
  }
#define METALANE_ATOMIC_CALLBACKS(bits, integer)                                                          \
  METALANE_CALLBACK(integer, __tsan_atomic##bits##_load, const volatile void* object, int order) {        \
    using type = integer;                                                                                 \
    METALANE_TELL_ATOMIC(METALANE_CHECK_LOAD);                                                            \
    return __atomic_load_n((const volatile type*)object, __ATOMIC_SEQ_CST);                               \
  }                                                                                                       \
  METALANE_CALLBACK(void, __tsan_atomic##bits##_store, volatile void* object, integer value, int order) { \
    using type = integer;                                                                                 \
    METALANE_TELL_ATOMIC(METALANE_CHECK_STORE);                                                           \
    __atomic_store_n((volatile type*)object, value, __ATOMIC_SEQ_CST);                                    \
  }                                                                                                       \
  METALANE_CALLBACK(integer, __tsan_atomic##bits##_exchange, volatile void* object, integer value,        \
                    int order) {                                                                          \
    using type = integer;                                                                                 \
    METALANE_TELL_ATOMIC(METALANE_CHECK_UPDATE);                                                          \
    return __atomic_exchange_n((volatile type*)object, value, __ATOMIC_SEQ_CST);                          \
  }                                                                                                       \
  METALANE_ATOMIC_FETCH(bits, integer, add)                                                               \
  METALANE_ATOMIC_FETCH(bits, integer, sub)                                                               \
  METALANE_ATOMIC_FETCH(bits, integer, and)                                                               \
  METALANE_ATOMIC_FETCH(bits, integer, or)                                                                \
  METALANE_ATOMIC_FETCH(bits, integer, xor)                                                               \
  METALANE_ATOMIC_COMPARE(bits, integer, strong)                                                          \
  METALANE_ATOMIC_COMPARE(bits, integer, weak)                                                            \
  METALANE_CALLBACK(integer, __tsan_atomic##bits##_compare_exchange_val, volatile void* object,           \
                    integer expected, integer desired, int order, int) {                                  \
    using type = integer;                                                                                 \
    METALANE_TELL_ATOMIC(METALANE_CHECK_UPDATE);                                                          \
    __atomic_compare_exchange_n((volatile type*)object, &expected, desired, false, __ATOMIC_SEQ_CST,      \
                                __ATOMIC_SEQ_CST);                                                        \
    return expected;                                                                                      \
  }
METALANE_ATOMIC_CALLBACKS(8, uint8_t)
METALANE_ATOMIC_CALLBACKS(16, uint16_t)
METALANE_ATOMIC_CALLBACKS(32, uint32_t)
METALANE_ATOMIC_CALLBACKS(64, uint64_t)
#undef METALANE_ATOMIC_CALLBACKS
#undef METALANE_ATOMIC_COMPARE
#undef METALANE_ATOMIC_FETCH
#undef METALANE_TELL_ATOMIC
METALANE_CALLBACK(void, __tsan_atomic_thread_fence, int) {}
METALANE_CALLBACK(void, __tsan_atomic_signal_fence, int) {}

#undef METALANE_HOST
#undef METALANE_HERE
#undef METALANE_CALLBACK

#else

METALANE_STDLIB_BEGIN
namespace detail {
inline void note_barrier(uint32_t, uint32_t) {}
inline void note_end() {}
inline void note_fence(uint32_t) {}
inline void note_absent_lane(int, int) {}
}  // namespace detail
METALANE_STDLIB_END

#endif

#endif
