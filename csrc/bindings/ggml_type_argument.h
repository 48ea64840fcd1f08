// GGML types as Python passes them.
#pragma once

#include <metalane/ggml_type.h>

#include "bindings/checked_arguments.h"

namespace metalane::python {

// A member of GgmlType or its number (that of gguf's GGMLQuantizationType too), or its name. Throws
// ArgumentError or DTypeError.
GgmlType ggml_type_from(nb::handle value, const char* op);

}  // namespace metalane::python
