// Ids in a buffer, looked at by the host where it may.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>

#include <cstdint>

namespace metalane::ops {

// Throws ArgumentError for the first of `count` u32 ids that is not below `bound`, unless recorded, captured
// or committed work may write them: then kernels meet them.
void check_ids(const char* op, const CommandEncoder& encoder, const Buffer& ids, std::uint64_t count,
               std::uint32_t bound, const char* bound_name);

}  // namespace metalane::ops
