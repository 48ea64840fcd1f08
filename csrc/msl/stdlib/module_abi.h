/* The binary interface between a compiled kernel module and the CPU executor that runs it.
 *
 * A module is one kernel of one MSL source, adapted to C++ and compiled, either into a shared object (at run
 * time) or into the library (built-in kernels). It exports one `const struct metalane_module`, and reaches
 * the executor only through the table it is given in `attach`.
 *
 * How a threadgroup runs: all its threads run on one OS thread, each on a fiber of its own where it must
 * wait. The executor calls `entry` on a fiber. `entry` takes thread after thread from the group
 * (`next_thread` up to `end_thread`, the end of the current simdgroup), runs the kernel for it and counts it
 * in `finished_threads`. A thread that meets a barrier or collective calls into the executor, which parks
 * that fiber and calls `entry` on a fresh one to go on with the next thread. A kernel that never waits thus
 * runs as a plain loop.
 */
#ifndef METALANE_MODULE_ABI_H
#define METALANE_MODULE_ABI_H

#include <stdint.h>

#define METALANE_MODULE_ABI_VERSION 3u
#define METALANE_MAX_BUFFERS 31
#define METALANE_MAX_THREADGROUP_ARGS 31
#define METALANE_SIMD_WIDTH 32

/* What every thread of a launch shares. */
struct metalane_launch {
  void* buffers[METALANE_MAX_BUFFERS]; /* address bound at [[buffer(i)]], bytes arguments included */
  uint32_t threadgroup_offsets[METALANE_MAX_THREADGROUP_ARGS]; /* [[threadgroup(i)]] within
                                                                  metalane_group.threadgroup_memory */
  uint32_t grid_threads[3];                                    /* [[threads_per_grid]] */
  uint32_t grid_groups[3];                                     /* [[threadgroups_per_grid]] */
  uint32_t nominal_threads[3];                                 /* [[dispatch_threads_per_threadgroup]] */
};

/* How a thread came where it is: one element for each call that it is in and each loop that it goes round, on
 * its own stack. Only where the site of a rendezvous does not say enough: see metalane_module.keeps_paths. */
struct metalane_path {
  const struct metalane_path* outer; /* null: the kernel itself */
  uint32_t place;                    /* of the call or the loop: an index into the module's `sites` */
  uint32_t depth;                    /* elements outside */
  uint64_t turn;                     /* of a loop: which iteration; counts from 1 */
};

/* One threadgroup while it runs. Thread numbers are linear: x + threads.x * (y + threads.y * z). */
struct metalane_group {
  const struct metalane_launch* launch;
  uint8_t* threadgroup_memory; /* the module's own variables at 0, then the bound arguments */
  uint32_t position[3];        /* [[threadgroup_position_in_grid]] */
  uint32_t threads[3];         /* [[threads_per_threadgroup]]: less than nominal at a ragged edge */
  uint32_t thread_count;       /* product of threads */
  uint32_t next_thread;        /* the next one that entry takes */
  uint32_t end_thread;         /* where entry stops taking: the end of the current simdgroup */
  uint32_t current_thread;     /* the one that runs; set by entry, and by the executor on every switch */
  uint32_t finished_threads;   /* count; entry adds one after each kernel call */
  /* The innermost element of the path of the thread that runs. Kept by the module, null when a kernel begins;
     the executor brings it back when a thread goes on. */
  const struct metalane_path* path;
};

/* Lanes that meet in a collective. */
struct metalane_lanes {
  uint32_t active;       /* bit i: lane i takes part */
  uint32_t lane_count;   /* lanes that the simdgroup has (32, or fewer in the last one) */
  void* const* operands; /* operands[i]: what active lane i gave, on its own stack, where its result goes */
};
typedef void (*metalane_combine)(const struct metalane_lanes* lanes);

/* What a module asks of the executor. `site` is an index into the module's `sites`. Every call is made by
 * the thread `current_thread` of the group that runs on this OS thread. */
struct metalane_runtime {
  /* threadgroup_barrier: returns when every thread of the threadgroup waits at this site. */
  void (*threadgroup_barrier)(struct metalane_group* group, uint32_t site);
  /* A simd_* or quad_* operation: waits until every lane of the simdgroup has finished or waits somewhere;
   * then `combine`, which knows the operand's type, reads the operands of the lanes that wait at this site,
   * by the same path and with this `combine` (one place in a template is many operations), and leaves results
   * in their place. Of several sites and paths at which lanes wait the earliest goes first: compared element
   * by element from the outermost, by place, then by turn, the site being the last element. */
  void (*simd_collective)(struct metalane_group* group, uint32_t site, metalane_combine combine,
                          void* operand);
};

/* Where a barrier, collective, call or loop stands in the user's text. */
struct metalane_site {
  const char* operation; /* "threadgroup_barrier", "simd_sum", ...; a function's name, "for", ... */
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct metalane_module {
  uint32_t abi_version;
  const char* kernel;
  const struct metalane_site* sites;
  uint32_t site_count;
  /* Called once before the first entry; any thread. */
  void (*attach)(const struct metalane_runtime* runtime);
  /* Bytes of the kernel's own `threadgroup` variables; valid after load. */
  uint32_t (*threadgroup_bytes)(void);
  void (*entry)(struct metalane_group* group);
  /* Whether lanes that wait at one site may have come there by different calls or in different iterations. */
  uint32_t keeps_paths;
};

#endif
