// Lets one parameter header serve the shader (MSL, global namespace) and C++ (namespace metalane).
// Rules for such structs: fixed-width fields, explicit padding, no bool, size_t or 3-vectors.
#ifndef METALANE_PARAMS_ABI_H
#define METALANE_PARAMS_ABI_H

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#define METALANE_PARAMS_BEGIN
#define METALANE_PARAMS_END
#else
#include <stdint.h>
#define METALANE_PARAMS_BEGIN namespace metalane {
#define METALANE_PARAMS_END }
#endif

#endif
