/* The binary interface between a module compiled for the checker and the host that watches it: a second table
 * beside the one of module_abi.h. The module calls the host before each access to memory.
 */
#ifndef METALANE_CHECK_ABI_H
#define METALANE_CHECK_ABI_H

#include <stdint.h>

#define METALANE_CHECK_ABI_VERSION 2u

/* Threadgroup variables stand apart, so that what runs over one of them meets nothing: number n begins at
 * n * METALANE_CHECK_PITCH + METALANE_CHECK_MARGIN of the group's memory, arguments behind the module's own.
 */
#define METALANE_CHECK_PITCH (1u << 20)
#define METALANE_CHECK_MARGIN (1u << 18)

/* Among the flags of a barrier: it is a simdgroup_barrier of the source. */
#define METALANE_CHECK_SIMDGROUP (1u << 31)

enum metalane_check_atomic { METALANE_CHECK_LOAD = 0, METALANE_CHECK_STORE = 1, METALANE_CHECK_UPDATE = 2 };

/* `pc`: where the call returns to, one instruction behind the access's own line. A call that finds the access
 * bad does not return. */
struct metalane_check_host {
  void (*read[5])(const void* address, const void* pc); /* of 1, 2, 4, 8, 16 bytes */
  void (*write[5])(const void* address, const void* pc);
  void (*read_range)(const void* address, uint64_t bytes, const void* pc);
  void (*write_range)(const void* address, uint64_t bytes, const void* pc);
  void (*atomic)(const void* address, uint32_t bytes, uint32_t what, const void* pc);
  /* A barrier that the current thread is about to wait at; `flags` are mem_flags. */
  void (*barrier)(uint32_t site, uint32_t flags);
  /* The current thread has come to the end of the kernel's text: it did not return before. */
  void (*end)(void);
  /* atomic_thread_fence with these flags, or an atomic operation that orders others. */
  void (*fence)(uint32_t flags);
  /* The value of lane `from`, which takes no part, is wanted by `lane`. */
  void (*absent_lane)(uint32_t lane, int32_t from);
  void* (*copy)(void* to, const void* from, uint64_t bytes); /* memmove and memset, unwatched */
  void* (*fill)(void* to, int value, uint64_t bytes);
};

struct metalane_check_variable {
  uint32_t id; /* index into names */
  uint32_t bytes;
  uint32_t element_bytes; /* of an array's element */
};

struct metalane_check_module {
  uint32_t abi_version;
  void (*attach)(const struct metalane_check_host* host);
  /* The `threadgroup` variables in use, by their number; valid after load. */
  uint32_t (*variable_count)(void);
  const struct metalane_check_variable* (*variables)(void);
  const char* const* names;
  const char* const* files; /* of the source, as debug information names them; a null pointer ends them */
};

#endif
