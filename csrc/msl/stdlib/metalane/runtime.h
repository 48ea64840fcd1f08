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

template <class T>
struct innermost {
  using type = T;
};
template <class T, unsigned long N>
struct innermost<T[N]> : innermost<T> {};

// The place of one `threadgroup` variable: given when the module is loaded.
struct threadgroup_place {
  uint64_t bytes;
  uint64_t element_bytes;
  uint32_t alignment;
  uint32_t id;
  uint32_t offset;
  const void* kernel;  // its threadgroup_layout
};

#ifdef __ELF__
// The constraint of an assembly operand that is the address of an object.
#ifdef __aarch64__
#define METALANE_ADDRESS "S"
#else
#define METALANE_ADDRESS "i"
#endif

// Code that uses a variable leaves the address of its place here. What the compiler finds dead, `if
// (ARGSORT)` of a template's other instance among it, leaves nothing, and such variables take no memory, as
// on Metal.
extern "C" {
extern threadgroup_place* const __start_metalane_places[] __attribute__((weak, visibility("hidden")));
extern threadgroup_place* const __stop_metalane_places[] __attribute__((weak, visibility("hidden")));
}
#endif

#if defined(METALANE_CHECK)
constexpr uint32_t max_check_variables = 512;
inline metalane_check_variable check_variables[max_check_variables];
inline uint32_t check_variable_count = 0;

// The checker's offset of a variable, which has a place apart; `packed` is what it would have otherwise.
inline uint32_t variable_offset(const threadgroup_place& place, uint32_t packed) {
  if (place.bytes > METALANE_CHECK_PITCH / 2 || check_variable_count == max_check_variables) return packed;
  check_variables[check_variable_count] = {place.id, uint32_t(place.bytes), uint32_t(place.element_bytes)};
  return METALANE_CHECK_PITCH * check_variable_count++ + METALANE_CHECK_MARGIN;
}
#else
inline uint32_t variable_offset(const threadgroup_place&, uint32_t packed) { return packed; }
#endif

// Gives `place` room behind `total` bytes; sums past any device's limit stay there, and are refused.
inline uint32_t place_threadgroup_variable(threadgroup_place& place, uint32_t total) {
  constexpr uint64_t most = 1u << 30;
  // 16 is what simdgroup loads and casts to vectors of four rely on, whatever the declared element type.
  const uint32_t mask = (place.alignment < 16 ? 16 : place.alignment) - 1;
  const uint32_t packed = (total + mask) & ~mask;
  place.offset = variable_offset(place, packed);
  return place.bytes < most - packed ? uint32_t(packed + place.bytes) : uint32_t(most);
}

// Bytes of the variables of one kernel. `Kernel` is a tag type that names the kernel: several kernels may
// share a translation unit.
template <class Kernel>
struct threadgroup_layout {
  static constexpr uint32_t unplaced = ~0u;
#ifdef __ELF__
  // In the order of their declarations, whatever order the compiler left the code in.
  static threadgroup_place* next_unplaced() {
    threadgroup_place* next = nullptr;
    for (auto at = __start_metalane_places; at != __stop_metalane_places; ++at) {
      threadgroup_place* place = *at;
      if (place->kernel == &bytes && place->offset == unplaced && (next == nullptr || place->id < next->id))
        next = place;
    }
    return next;
  }
  static uint32_t lay_out() {
    uint32_t total = 0;
    while (threadgroup_place* place = next_unplaced()) total = place_threadgroup_variable(*place, total);
    return total;
  }
  static inline uint32_t bytes = lay_out();
#else
  static inline uint32_t bytes = 0;
#endif
};
template <class Kernel>
uint32_t& threadgroup_bytes() {
  return threadgroup_layout<Kernel>::bytes;
}

template <class Kernel, class T, int Id>
struct threadgroup_slot {
  using layout = threadgroup_layout<Kernel>;
  static inline threadgroup_place place = {
      sizeof(T),     sizeof(typename innermost<T>::type), uint32_t(alignof(T)), Id, layout::unplaced,
      &layout::bytes};
#ifndef __ELF__
  // Without sections to gather places from, every variable of code that is instantiated counts.
  static inline const bool is_placed =
      (layout::bytes = place_threadgroup_variable(place, layout::bytes), true);
#endif
};

// `threadgroup T name;` number Id of the kernel: one object shared by all threads of the group.
template <class Kernel, class T, int Id>
T& threadgroup_variable() {
  using slot = threadgroup_slot<Kernel, T, Id>;
  uint8_t* at = current_group()->threadgroup_memory + slot::place.offset;
#ifdef __ELF__
  // Not volatile: a variable that is declared and never touched is dead, too.
  __asm__ inline(".pushsection metalane_places,\"aw\"\n\t.balign 8\n\t.quad %c1\n\t.popsection"
                 : "+r"(at)
                 : METALANE_ADDRESS(&slot::place));
#else
  static_cast<void>(slot::is_placed);
#endif
  return *reinterpret_cast<T*>(at);
}
#undef METALANE_ADDRESS

}  // namespace detail
METALANE_STDLIB_END

#endif
