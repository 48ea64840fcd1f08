// metal_atomic: atomic objects in device and threadgroup memory.
#ifndef METALANE_STDLIB_ATOMIC_H
#define METALANE_STDLIB_ATOMIC_H

#include "check.h"
#include "common.h"

METALANE_STDLIB_BEGIN

// With the values of the host's orders, which the compiler's built-ins take.
enum memory_order : int {
  memory_order_relaxed = __ATOMIC_RELAXED,
  memory_order_acquire = __ATOMIC_ACQUIRE,
  memory_order_release = __ATOMIC_RELEASE,
  memory_order_acq_rel = __ATOMIC_ACQ_REL,
  memory_order_seq_cst = __ATOMIC_SEQ_CST,
};

enum thread_scope : int {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
};

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }

template <class T>
struct atomic {
  T value;
};
using atomic_bool = atomic<bool>;
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_long = atomic<long>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

namespace detail {

// Calls change(old) until no other thread came between; returns the old value.
template <class T, class F>
T atomic_update(volatile atomic<T>* object, memory_order order, F change) {
  T old, desired;
  __atomic_load(&object->value, &old, __ATOMIC_RELAXED);
  do {
    desired = change(old);
  } while (!__atomic_compare_exchange(&object->value, &old, &desired, true, order, __ATOMIC_RELAXED));
  return old;
}

// Orders that a load, or a store, can have: the built-ins refuse the others.
constexpr int load_order(int order) {
  return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL ? int(__ATOMIC_ACQUIRE) : order;
}
constexpr int store_order(int order) {
  return order == __ATOMIC_ACQUIRE || order == __ATOMIC_ACQ_REL ? int(__ATOMIC_RELEASE) : order;
}

}  // namespace detail

template <class T>
void atomic_store_explicit(volatile atomic<T>* object, detail::identity_t<T> desired, memory_order order) {
  __atomic_store(&object->value, &desired, detail::store_order(order));
}
template <class T>
T atomic_load_explicit(const volatile atomic<T>* object, memory_order order) {
  T result;
  __atomic_load(const_cast<volatile T*>(&object->value), &result, detail::load_order(order));
  return result;
}
template <class T>
T atomic_exchange_explicit(volatile atomic<T>* object, detail::identity_t<T> desired, memory_order order) {
  T result;
  __atomic_exchange(&object->value, &desired, &result, order);
  return result;
}
// Compares bits; on failure `expected` gets the value found. May fail where the values are equal.
template <class T>
bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected,
                                           detail::identity_t<T> desired, memory_order success,
                                           memory_order failure) {
  return __atomic_compare_exchange(&object->value, expected, &desired, true, success,
                                   detail::load_order(failure));
}

// Read, change, write; returns the value before. Integers wrap.
#define METALANE_ATOMIC_FETCH(name, ...)                                                      \
  template <class T>                                                                          \
  T atomic_fetch_##name##_explicit(volatile atomic<T>* object, detail::identity_t<T> operand, \
                                   memory_order order) {                                      \
    if constexpr (is_integral_v<T>) {                                                         \
      return __atomic_fetch_##name(&object->value, operand, order);                           \
    } else {                                                                                  \
      return detail::atomic_update(object, order, [=](T old) { return T(__VA_ARGS__); });     \
    }                                                                                         \
  }
METALANE_ATOMIC_FETCH(add, old + operand)
METALANE_ATOMIC_FETCH(sub, old - operand)
#undef METALANE_ATOMIC_FETCH
#define METALANE_ATOMIC_FETCH_BITS(name)                                                      \
  template <class T, class = enable_if_t<is_integral_v<T>>>                                   \
  T atomic_fetch_##name##_explicit(volatile atomic<T>* object, detail::identity_t<T> operand, \
                                   memory_order order) {                                      \
    return __atomic_fetch_##name(&object->value, operand, order);                             \
  }
METALANE_ATOMIC_FETCH_BITS(and)
METALANE_ATOMIC_FETCH_BITS(or)
METALANE_ATOMIC_FETCH_BITS(xor)
#undef METALANE_ATOMIC_FETCH_BITS
#define METALANE_ATOMIC_EXTREME(name, pick)                                                         \
  template <class T>                                                                                \
  T atomic_fetch_##name##_explicit(volatile atomic<T>* object, detail::identity_t<T> operand,       \
                                   memory_order order) {                                            \
    return detail::atomic_update(object, order, [=](T old) { return detail::pick(old, operand); }); \
  }                                                                                                 \
  template <class T>                                                                                \
  void atomic_##name##_explicit(volatile atomic<T>* object, detail::identity_t<T> operand,          \
                                memory_order order) {                                               \
    atomic_fetch_##name##_explicit(object, operand, order);                                         \
  }
METALANE_ATOMIC_EXTREME(min, smaller)
METALANE_ATOMIC_EXTREME(max, larger)
#undef METALANE_ATOMIC_EXTREME

inline void atomic_thread_fence(mem_flags flags, memory_order order, thread_scope = thread_scope_device) {
  detail::note_fence(uint(flags));
  __atomic_thread_fence(order);
}

METALANE_STDLIB_END

#endif
