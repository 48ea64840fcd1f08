// How tests drive the test double of Metal: counts of objects, violations of Metal's rules, faults to come,
// the system that it plays. Everything may be called from any thread. Texts stay valid until the same
// thread's next call of the same function.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define METAL_DOUBLE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Objects of a class or protocol ("MTLBuffer", "MTLCommandBuffer", "MTLCompileOptions", ...) that are alive,
// and that were ever made. Null: of all.
METAL_DOUBLE_API int64_t metal_double_live_objects(const char* type);
METAL_DOUBLE_API int64_t metal_double_made_objects(const char* type);
// One line a type: its name, how many are alive, how many were made.
METAL_DOUBLE_API const char* metal_double_object_counts(void);

// What was done against Metal's rules, in the order in which it happened. Indices from 0; null past the end.
METAL_DOUBLE_API size_t metal_double_violation_count(void);
METAL_DOUBLE_API const char* metal_double_violation(size_t index);
METAL_DOUBLE_API void metal_double_clear_violations(void);

// How often something happened since the library was loaded: "dispatches", "indirect dispatches", "barriers",
// "encoders", "concurrent encoders", "commits", "compilations", "pipelines", "archive hits", "archive
// misses", "captures", "debug groups", what encoders had set ("pipelines set", "buffers set", "buffer offsets
// set", "bytes set", "threadgroup memory set"), "event waits" and "event signals" of command buffers, what
// residency sets were told ("residency adds", "residency removes", "residency commits", "residency
// requests"). -1 for other names.
METAL_DOUBLE_API int64_t metal_double_count(const char* what);

// What the last compilation of a source was asked for: "mathMode=0 functions=1 fastMath=0
// languageVersion=3.1".
METAL_DOUBLE_API const char* metal_double_last_compilation(void);

// newLibraryWithURL: takes files made of this line and Metal source behind it, in place of Apple's compiled
// form.
#define METAL_DOUBLE_LIBRARY_MAGIC "MTLB double\n"

// The system played. 0 is one with everything; METAL_DOUBLE_SYSTEM=older in the environment starts with
// METAL_DOUBLE_OLDER. Devices have to be opened anew.
enum {
  METAL_DOUBLE_NO_RESIDENCY_SETS = 1,
  METAL_DOUBLE_NO_MATH_MODE = 2,
  METAL_DOUBLE_NO_BINARY_ARCHIVES = 4,
  METAL_DOUBLE_SMALL_LIMITS = 8,  // 64 MiB a buffer, 512 threads and 16 KiB a threadgroup
  METAL_DOUBLE_NO_CAPTURE = 16,
  METAL_DOUBLE_OLDER = 15,
};
METAL_DOUBLE_API void metal_double_set_system(uint32_t without);
METAL_DOUBLE_API uint32_t metal_double_system(void);
// maxBufferLength of devices; 0: the system's.
METAL_DOUBLE_API void metal_double_set_max_buffer_length(uint64_t length);
// How many devices there are (two by default, at most 8).
METAL_DOUBLE_API void metal_double_set_device_count(uint32_t count);

// The order of dispatches between two barriers of a concurrent encoder follows from this seed and the command
// buffer's number. Set, it counts for command buffers made from now on. METAL_DOUBLE_SEED=... in the
// environment sets the first one.
METAL_DOUBLE_API void metal_double_set_shuffle_seed(uint64_t seed);
METAL_DOUBLE_API uint64_t metal_double_shuffle_seed(void);

// Faults: the next `count` calls after `skip` that pass.
METAL_DOUBLE_API void metal_double_fail_allocations(uint32_t skip, uint32_t count);  // newBuffer... is nil
METAL_DOUBLE_API void metal_double_fail_command_buffers(uint32_t skip,
                                                        uint32_t count);  // commandBuffer is nil
METAL_DOUBLE_API void metal_double_fail_compilations(uint32_t count, const char* text);  // newLibrary...
METAL_DOUBLE_API void metal_double_fail_pipelines(uint32_t count,
                                                  const char* text);     // newComputePipelineState...
METAL_DOUBLE_API void metal_double_fail_archive_writes(uint32_t count);  // serializeToURL
// Command buffers end with this code of MTLCommandBufferErrorDomain and run nothing.
METAL_DOUBLE_API void metal_double_fail_execution(uint32_t skip, uint32_t count, int64_t code);
// Every command buffer takes this much longer, until set to 0.
METAL_DOUBLE_API void metal_double_delay_completion(double seconds);
// All work of the device that is not done ends with MTLCommandBufferErrorDeviceRemoved, until faults are
// cleared.
METAL_DOUBLE_API void metal_double_lose_device(uint32_t device);
// Command buffers that run longer than this (30 s) end with MTLCommandBufferErrorTimeout, as by a system's
// watchdog.
METAL_DOUBLE_API void metal_double_set_watchdog(double seconds);
// Reflection lies: of the member `member` (null: the argument itself) of the argument `argument` of every
// kernel, `what` ("offset", "dataType", "access", "index", "arrayLength", "dataSize", "used") reads `value`.
METAL_DOUBLE_API void metal_double_plant_reflection(const char* argument, const char* member,
                                                    const char* what, uint64_t value);
// Pipelines made from now on say so of themselves: "threadExecutionWidth", "maxTotalThreadsPerThreadgroup",
// "staticThreadgroupMemoryLength".
METAL_DOUBLE_API void metal_double_plant_pipeline(const char* what, uint64_t value);
// No faults, nothing planted, all devices there, the system that the environment asks for.
METAL_DOUBLE_API void metal_double_reset(void);

// JSON {"protocols": {name: {selector: encoding}}, "classes": {name: {"+" or "-" and selector: encoding}}}:
// what the Objective-C runtime knows of the protocols and classes that the double's headers declare.
METAL_DOUBLE_API const char* metal_double_interface(void);

// Where this library was built: its object files and compile_commands.json.
METAL_DOUBLE_API const char* metal_double_build_directory(void);

#ifdef __cplusplus
}
#endif
