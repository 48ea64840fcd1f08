// See kernel_types.h.
#include "bindings/kernel_types.h"

#include <algorithm>

namespace metalane::python {

using namespace nb::literals;

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

std::optional<DType> dtype_of_scalar(ScalarType scalar) {
  for (int i = 0; i <= static_cast<int>(DType::int64); ++i) {
    if (scalar_of(static_cast<DType>(i)) == scalar) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// A field's dtype, its vectors, columns and array elements as dimensions. Elements that repeat take the room
// of their stride: float3 has four of them there.
nb::object field_dtype(const StructField& field) {
  const TypeInfo& type = field.type;
  nb::object element = dtype_of_type(type);
  if (element.is_none()) {
    return nb::module_::import_("numpy").attr("dtype")("V" + number(field.size));
  }
  nb::list shape;
  if (field.count != 0) shape.append(field.count);
  if (type.columns > 1) shape.append(type.columns);
  if (type.components > 1 && type.scalar != ScalarType::structure) {
    const bool repeats = field.count != 0 || type.columns > 1;
    shape.append(repeats ? type.size / type.columns / scalar_size(type.scalar)
                         : std::uint64_t{type.components});
  }
  return shape.size() == 0 ? element : nb::object(nb::make_tuple(element, nb::tuple(shape)));
}

nb::object record_dtype(const StructLayout& layout) {
  nb::list names, formats, offsets;
  for (const StructField& field : layout.fields) {
    names.append(field.name);
    formats.append(field_dtype(field));
    offsets.append(field.offset);
  }
  nb::dict spec;
  spec["names"] = names;
  spec["formats"] = formats;
  spec["offsets"] = offsets;
  spec["itemsize"] = layout.size;
  return nb::module_::import_("numpy").attr("dtype")(spec);
}

}  // namespace

std::string type_text(const TypeInfo& type) {
  if (type.scalar == ScalarType::structure || type.scalar == ScalarType::opaque) return type.name;
  std::string text = scalar_name(type.scalar);
  if (type.components > 1) text += "x" + number(type.components);
  if (type.columns > 1) text += "x" + number(type.columns) + " matrix";
  return text;
}

std::optional<LayoutMismatch> compare_layouts(const StructLayout& expected, const StructLayout& given,
                                              const std::string& prefix) {
  for (std::size_t i = 0; i < std::max(expected.fields.size(), given.fields.size()); ++i) {
    if (i >= given.fields.size())
      return LayoutMismatch{prefix + expected.fields[i].name, "present", "no such field"};
    if (i >= expected.fields.size())
      return LayoutMismatch{prefix + given.fields[i].name, "absent", "a field"};
    const StructField& want = expected.fields[i];
    const StructField& have = given.fields[i];
    const std::string field = prefix + want.name;
    if (want.name != have.name)
      return LayoutMismatch{field, "named '" + want.name + "'", "'" + have.name + "'"};
    if (want.type.scalar != have.type.scalar || want.type.components != have.type.components ||
        want.type.columns != have.type.columns) {
      return LayoutMismatch{field, "of type " + type_text(want.type), type_text(have.type)};
    }
    if (want.count != have.count) {
      return LayoutMismatch{field, "an array of " + number(want.count), "an array of " + number(have.count)};
    }
    if (want.offset != have.offset) {
      return LayoutMismatch{field, "at offset " + number(want.offset), "offset " + number(have.offset)};
    }
    if (want.type.layout != nullptr && have.type.layout != nullptr) {
      std::optional<LayoutMismatch> inner =
          compare_layouts(*want.type.layout, *have.type.layout, field + ".");
      if (inner) return inner;
    }
    if (want.size != have.size) {
      return LayoutMismatch{field, number(want.size) + " bytes long", number(have.size) + " bytes"};
    }
  }
  if (expected.size != given.size) {
    return LayoutMismatch{prefix + "sizeof", number(expected.size) + " bytes", number(given.size) + " bytes"};
  }
  return std::nullopt;
}

nb::object dtype_of_type(const TypeInfo& type) {
  if (type.scalar == ScalarType::structure) {
    return type.layout == nullptr ? nb::none() : record_dtype(*type.layout);
  }
  if (type.scalar == ScalarType::boolean) return nb::module_::import_("numpy").attr("dtype")("bool");
  const std::optional<DType> dtype = dtype_of_scalar(type.scalar);
  return dtype ? nb::borrow(numpy_dtype(*dtype)) : nb::none();
}

void check_record_dtype(const std::string& op, const std::string& argument, const StructLayout& layout,
                        nb::handle dtype) {
  nb::object expected = record_dtype(layout);
  if (expected.equal(dtype)) return;
  nb::object expected_fields = expected.attr("fields");
  nb::object given_fields = dtype.attr("fields");
  if (!given_fields.is_none()) {
    for (nb::handle name : expected.attr("names")) {
      nb::object given = given_fields.attr("get")(name);
      nb::object want = expected_fields[name];
      if (!want.equal(given)) {
        throw DTypeError(op, argument + "." + nb::cast<std::string>(name),
                         "dtype and offset " + repr_of(want),
                         given.is_none() ? "no such field" : repr_of(given));
      }
    }
  }
  throw DTypeError(op, argument, "dtype " + nb::cast<std::string>(nb::repr(expected)), repr_of(dtype));
}

}  // namespace metalane::python
