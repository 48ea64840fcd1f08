// What Metal's compiler says of a kernel, compared with what our reader says.
#pragma once

#import <Metal/Metal.h>
#include <metalane/kernel.h>

namespace metalane::metal {

// MTLDataTypeNone for what Metal has no data type of (matrices are not taken as constants or compared).
MTLDataType data_type_of(const TypeInfo& type);

// Every binding of the kernel must be an argument of the signature: index, kind, size, and the members of its
// struct with offset and type; and Metal may not say that it writes what the reader says is only read. Throws
// CompileError naming kernel, argument and member.
void check_reflection(MTLComputePipelineReflection* reflection, const KernelSignature& signature);

}  // namespace metalane::metal
