// The adapted kernel's side of the module interface: call sites, the running group and thread's path,
// `threadgroup` variables.
//
// Everything of the standard library lives in an inline namespace named by METALANE_ISA_NS, with hidden
// visibility. Modules compiled for different instruction sets are linked into one library; under one name the
// linker would keep one copy of each inline function, and an old CPU would meet AVX-512 code. Whoever links
// several modules together defines METALANE_ISA_NS to a name of its own for each set of compiler flags
// (math mode included).
#ifndef METALANE_STDLIB_RUNTIME_H
#define METALANE_STDLIB_RUNTIME_H

#include "../check_abi.h"
#include "../module_abi.h"

#ifndef METALANE_ISA_NS
#define METALANE_ISA_NS isa_module
#endif

#define METALANE_STDLIB_BEGIN                              \
  _Pragma("GCC visibility push(hidden)") namespace metal { \
    inline namespace METALANE_ISA_NS {
#define METALANE_STDLIB_END \
  }                         \
  }                         \
  _Pragma("GCC visibility pop")

METALANE_STDLIB_BEGIN
namespace detail {

// Where a rendezvous stands in the user's text: an index into the module's `sites`. The adapter gives it as
// the first argument of every barrier, simd_*, quad_* and simdgroup_* call.
struct site {
  uint32_t index;
};

inline __thread metalane_group* current_group_storage = nullptr;
inline const metalane_runtime* runtime_storage = nullptr;

// The group that runs on this OS thread. Set by the module's `entry` before its first kernel call. All fibers
// of a group run on one OS thread, so that the address may be kept over a rendezvous.
inline metalane_group*& current_group() { return current_group_storage; }
// The executor's table. Set by the module's `attach`.
inline const metalane_runtime*& runtime() { return runtime_storage; }

// One element of the path of the thread that runs, for as long as it is in a call or goes round a loop.
class path_element {
 public:
  explicit path_element(uint32_t place) : element_{current_group()->path, place, 0, 0} {
    if (element_.outer != nullptr) element_.depth = element_.outer->depth + 1;
    current_group()->path = &element_;
  }
  ~path_element() { current_group()->path = element_.outer; }
  path_element(const path_element&) = delete;
  path_element& operator=(const path_element&) = delete;
  // Another iteration of the loop begins.
  void next_turn() { ++element_.turn; }

 private:
  metalane_path element_;
};

// Bytes of the `threadgroup` variables of one kernel. `Kernel` is a tag type that names the kernel: several
// kernels may share a translation unit.
template <class Kernel>
struct threadgroup_layout {
  static inline uint32_t bytes = 0;
};
template <class Kernel>
uint32_t& threadgroup_bytes() {
  return threadgroup_layout<Kernel>::bytes;
}

// 16 is what simdgroup loads and casts to vectors of four rely on, whatever the declared element type.
constexpr uint32_t threadgroup_alignment = 16;

template <class Kernel>
uint32_t reserve_threadgroup_bytes(uint64_t bytes, uint32_t alignment) {
  constexpr uint64_t most = 1u << 30;  // far past any device's limit: sums stay there, and are refused
  uint32_t& total = threadgroup_layout<Kernel>::bytes;
  const uint32_t mask = (alignment < threadgroup_alignment ? threadgroup_alignment : alignment) - 1;
  const uint32_t offset = (total + mask) & ~mask;
  total = bytes < most - offset ? uint32_t(offset + bytes) : uint32_t(most);
  return offset;
}

#if defined(METALANE_CHECK)
template <class T>
struct innermost {
  using type = T;
};
template <class T, unsigned long N>
struct innermost<T[N]> : innermost<T> {};

constexpr uint32_t max_check_variables = 512;
inline metalane_check_variable check_variables[max_check_variables];
inline uint32_t check_variable_count = 0;

// The checker's offset of a variable, which has a place apart; `packed` is what it would have otherwise.
inline uint32_t place_variable(uint32_t packed, uint32_t id, uint64_t bytes, uint64_t element_bytes) {
  if (bytes > METALANE_CHECK_PITCH / 2 || check_variable_count == max_check_variables) return packed;
  check_variables[check_variable_count] = {id, uint32_t(bytes), uint32_t(element_bytes)};
  return METALANE_CHECK_PITCH * check_variable_count++ + METALANE_CHECK_MARGIN;
}
template <class Kernel, class T, int Id>
uint32_t threadgroup_offset() {
  const uint32_t packed = reserve_threadgroup_bytes<Kernel>(sizeof(T), uint32_t(alignof(T)));
  return place_variable(packed, Id, sizeof(T), sizeof(typename innermost<T>::type));
}
#else
template <class Kernel, class T, int Id>
uint32_t threadgroup_offset() {
  return reserve_threadgroup_bytes<Kernel>(sizeof(T), uint32_t(alignof(T)));
}
#endif

// The place of one variable, given when the module is loaded: only variables of code that is instantiated
// count.
template <class Kernel, class T, int Id>
struct threadgroup_slot {
  static inline const uint32_t offset = threadgroup_offset<Kernel, T, Id>();
};

// `threadgroup T name;` number Id of the kernel: one object shared by all threads of the group.
template <class Kernel, class T, int Id>
T& threadgroup_variable() {
  return *reinterpret_cast<T*>(current_group()->threadgroup_memory + threadgroup_slot<Kernel, T, Id>::offset);
}

}  // namespace detail
METALANE_STDLIB_END

#endif
