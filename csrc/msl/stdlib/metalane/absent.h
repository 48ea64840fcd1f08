// Namespaces of what the CPU device does not have: sources that name them in directives still have other
// kernels.
#ifndef METALANE_STDLIB_ABSENT_H
#define METALANE_STDLIB_ABSENT_H

namespace metal {
namespace raytracing {}
}  // namespace metal
namespace mpp {
namespace tensor_ops {}
}  // namespace mpp

#endif
