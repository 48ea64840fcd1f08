// What a kernel's signature says of its types: comparison of layouts, and their NumPy dtypes.
#pragma once

#include "bindings/bindings.h"

namespace metalane::python {

// What differs between two layouts of one struct; see compare_layouts.
struct LayoutMismatch {
  std::string field, expected, given;
};
// The first difference; nothing where the layouts agree. `prefix` goes before field names.
std::optional<LayoutMismatch> compare_layouts(const StructLayout& expected, const StructLayout& given,
                                              const std::string& prefix);

// "f32x4", "f32x3x3 matrix", or a struct's name.
std::string type_text(const TypeInfo& type);

// NumPy's dtype of one scalar of the type, or of the whole struct; None where the type is not known.
nb::object dtype_of_type(const TypeInfo& type);
// Throws DTypeError naming the first field in which a NumPy record dtype lies otherwise than the struct.
void check_record_dtype(const std::string& op, const std::string& argument, const StructLayout& layout,
                        nb::handle dtype);

}  // namespace metalane::python
