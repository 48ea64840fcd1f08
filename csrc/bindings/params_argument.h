// Parameter structs of operators, as Python passes them.
#pragma once

#include <string>

#include "bindings/checked_arguments.h"
#include "bindings/kernel_types.h"
#include "bindings/struct_type.h"

namespace metalane::python {

// The params object's bytes as the operator's struct: of a metal_struct class that lies in memory as the C++
// compiler says, metalane's own or another.
template <typename Params>
const Params& params_from(nb::handle value, const char* op, const char* class_name) {
  static const StructLayout& expected = cpp_layouts().at(class_name);
  const StructView view = struct_view(value);
  if (view.spec == nullptr) {
    throw DTypeError(op, "params", class_name, repr_of(value) + " (" + type_name_of(value) + ")");
  }
  if (view.spec->lies_as.load(std::memory_order_relaxed) != &expected) {
    if (const auto mismatch = compare_layouts(expected, *view.spec->layout, "")) {
      throw DTypeError(op, "params",
                       std::string(class_name) + " (" + mismatch->field + " " + mismatch->expected + ")",
                       type_name_of(value) + " (" + mismatch->given + ")");
    }
    view.spec->lies_as.store(&expected, std::memory_order_relaxed);
  }
  return *static_cast<const Params*>(view.bytes);
}

}  // namespace metalane::python
