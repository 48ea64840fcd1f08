// Python values as the bytes of a kernel's argument, typed and checked by the argument's type in the source.
#include <algorithm>
#include <cstring>

#include "bindings/kernel_types.h"
#include "bindings/struct_type.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

// Far beyond what a call's values are for; a declared array may be of any size.
constexpr std::uint64_t kMaxPackedBytes = std::uint64_t{1} << 28;

// Nesting that no type needs: arrays of structs of arrays count anew in each struct.
constexpr int kMaxNesting = 8;

// Tuples, lists, arrays and the like; not text, not mappings, not numbers that NumPy keeps in an array.
// `length` is its number of items.
bool is_sequence(nb::handle value, Py_ssize_t& length) {
  if (PySequence_Check(value.ptr()) == 0 || PyUnicode_Check(value.ptr()) != 0 ||
      PyBytes_Check(value.ptr()) != 0 || nb::hasattr(value, "keys")) {
    return false;
  }
  length = PySequence_Size(value.ptr());
  if (length >= 0) return true;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
  PyErr_Clear();  // an array without dimensions
  return false;
}

nb::object item_at(nb::handle sequence, Py_ssize_t index) {
  nb::object item = nb::steal(PySequence_GetItem(sequence.ptr(), index));
  if (!item.is_valid()) throw nb::python_error();
  return item;
}

// Lists at one moment: converting an item may run code that changes them.
std::vector<nb::object> all_items(nb::handle sequence, Py_ssize_t length) {
  nb::object snapshot = nb::borrow(sequence);
  if (PyList_Check(sequence.ptr()) != 0) snapshot = nb::steal(PyList_AsTuple(sequence.ptr()));
  std::vector<nb::object> items;
  for (Py_ssize_t i = 0; i < length; ++i) items.push_back(item_at(snapshot, i));
  return items;
}

// How deep sequences are nested in a value, seen along the first items.
int nesting_of(nb::handle value) {
  nb::object inner = nb::borrow(value);
  int depth = 0;
  for (Py_ssize_t length = 0; depth < kMaxNesting && is_sequence(inner, length); ++depth) {
    if (length == 0) return depth + 1;
    inner = item_at(inner, 0);
  }
  return depth;
}

int rank_of(const TypeInfo& type) { return (type.columns > 1 ? 1 : 0) + (type.components > 1 ? 1 : 0); }

// The value in an error. The repr of a large array may take seconds.
std::string shown(nb::handle value) {
  if (!nb::isinstance(value, nb::module_::import_("numpy").attr("ndarray"))) {
    return repr_of(value) + " (" + type_name_of(value) + ")";
  }
  return "an array of shape " + repr_of(value.attr("shape")) + " and dtype " + repr_of(value.attr("dtype"));
}

std::string quoted_names(const StructLayout& layout) {
  std::string text;
  for (const StructField& field : layout.fields) text += (text.empty() ? "" : ", ") + field.name;
  return text;
}

class ValuePacker {
 public:
  explicit ValuePacker(std::string op) : op_(std::move(op)) {}

  // `out` has type.size bytes, all zero; `place` names the value in errors: "p.weights[2]".
  void pack(const TypeInfo& type, nb::handle value, std::uint8_t* out, const std::string& place) const {
    if (type.scalar == ScalarType::structure && type.layout != nullptr) {
      pack_struct(*type.layout, value, out, place);
    } else if (type.columns > 1) {
      const std::vector<nb::object> columns = items_of(value, type.columns, "columns", place);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        pack_vector(type, columns[i], out + i * (type.size / type.columns), element(place, i));
      }
    } else if (type.components > 1) {
      pack_vector(type, value, out, place);
    } else {
      pack_number(type, value, out, place);
    }
  }

 private:
  static std::string element(const std::string& place, std::size_t index) {
    return place + "[" + std::to_string(index) + "]";
  }

  [[noreturn]] void refuse_type(const std::string& place, const std::string& expected,
                                nb::handle value) const {
    throw DTypeError(op_, place, expected, shown(value));
  }

  // All items of a sequence that must have `expected` of them.
  std::vector<nb::object> items_of(nb::handle value, std::uint32_t expected, const char* what,
                                   const std::string& place) const {
    const std::string words = std::to_string(expected) + " " + what;
    Py_ssize_t length = 0;
    if (!is_sequence(value, length)) refuse_type(place, "a sequence of " + words, value);
    if (length != static_cast<Py_ssize_t>(expected)) {
      throw ArgumentError(op_, place, words, std::to_string(length));
    }
    return all_items(value, length);
  }

  void pack_number(const TypeInfo& type, nb::handle value, std::uint8_t* out,
                   const std::string& place) const {
    Py_ssize_t length = 0;
    if (scalar_size(type.scalar) == 0) {
      refuse_type(place, "bytes (nothing is known of the type " + type.name + ")", value);
    }
    if (is_sequence(value, length)) {
      refuse_type(place, std::string("one number (") + scalar_name(type.scalar) + ")", value);
    }
    pack_scalar(type.scalar, value, out, {op_, place});
  }

  void pack_vector(const TypeInfo& type, nb::handle value, std::uint8_t* out,
                   const std::string& place) const {
    const std::vector<nb::object> numbers = items_of(value, type.components, "numbers", place);
    TypeInfo scalar;
    scalar.scalar = type.scalar;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      pack_number(scalar, numbers[i], out + i * scalar_size(type.scalar), element(place, i));
    }
  }

  // {field: value} of whatever names its fields; invalid where the value does not.
  nb::object fields_of(nb::handle value) const {
    if (PyDict_Check(value.ptr()) != 0) return nb::steal(PyDict_Copy(value.ptr()));
    if (nb::hasattr(value, "keys")) {
      return nb::borrow(reinterpret_cast<PyObject*>(&PyDict_Type))(value);
    }
    if (PyType_Check(value.ptr()) != 0 || !nb::hasattr(value, "__dataclass_fields__")) return {};
    nb::dict fields;
    for (nb::handle field : nb::module_::import_("dataclasses").attr("fields")(value)) {
      nb::object name = field.attr("name");
      fields[name] = nb::getattr(value, name);
    }
    return fields;
  }

  void pack_struct(const StructLayout& layout, nb::handle value, std::uint8_t* out,
                   const std::string& place) const {
    if (const StructView view = struct_view(value); view.spec != nullptr) {
      if (std::optional<LayoutMismatch> found = compare_layouts(layout, *view.spec->layout, "")) {
        throw ArgumentError(op_, place + "." + found->field + " (struct " + view.spec->name + ")",
                            found->expected, found->given);
      }
      std::memcpy(out, view.bytes, layout.size);
    } else if (PyBytes_Check(value.ptr()) != 0) {
      pack_bytes(layout, nb::borrow<nb::bytes>(value), out, place);
    } else if (nb::isinstance(value, nb::module_::import_("numpy").attr("void"))) {
      check_record_dtype(op_, place, layout, value.attr("dtype"));
      pack_bytes(layout, nb::borrow<nb::bytes>(value.attr("tobytes")()), out, place);
    } else if (nb::object fields = fields_of(value); fields.is_valid()) {
      pack_fields(layout, nb::borrow<nb::dict>(fields), out, place);
    } else {
      refuse_type(place, "a struct " + layout.name + " as metal_struct, dataclass or dict", value);
    }
  }

  void pack_bytes(const StructLayout& layout, const nb::bytes& bytes, std::uint8_t* out,
                  const std::string& place) const {
    if (bytes.size() != layout.size) {
      throw ArgumentError(op_, place, std::to_string(layout.size) + " bytes, the size of " + layout.name,
                          std::to_string(bytes.size()));
    }
    std::memcpy(out, bytes.c_str(), layout.size);
  }

  void pack_fields(const StructLayout& layout, const nb::dict& given, std::uint8_t* out,
                   const std::string& place) const {
    const std::string one_of =
        (layout.is_union ? "one of the members " : "the fields ") + quoted_names(layout);
    std::size_t known = 0;
    for (const StructField& field : layout.fields) {
      nb::str name(field.name.c_str());
      if (!given.contains(name)) {
        if (layout.is_union) continue;
        throw ArgumentError(op_, place + "." + field.name, "given", "nothing");
      }
      ++known;
      pack_field(field, given[name], out + field.offset, place + "." + field.name);
    }
    if (layout.is_union && known != 1) {
      throw ArgumentError(op_, place, one_of, repr_of(given));
    }
    if (known == given.size()) return;
    for (nb::handle key : given.keys()) {
      const bool is_field = std::any_of(layout.fields.begin(), layout.fields.end(), [&](const auto& field) {
        return nb::str(field.name.c_str()).equal(key);
      });
      if (!is_field) throw ArgumentError(op_, place, one_of, repr_of(key));
    }
  }

  void pack_field(const StructField& field, nb::handle value, std::uint8_t* out,
                  const std::string& place) const {
    if (field.count == 0) {
      pack(field.type, value, out, place);
      return;
    }
    // An array of arrays may be given nested or flat.
    std::vector<nb::object> items;
    flatten(value, std::max(1, nesting_of(value) - rank_of(field.type)), field.count, items, place);
    if (items.size() != field.count) {
      throw ArgumentError(op_, place, std::to_string(field.count) + " values", std::to_string(items.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      pack(field.type, items[i], out + i * (field.size / field.count), element(place, i));
    }
  }

  void flatten(nb::handle value, int levels, std::uint64_t limit, std::vector<nb::object>& items,
               const std::string& place) const {
    Py_ssize_t length = 0;
    const std::string expected = "a sequence of " + std::to_string(limit) + " values";
    if (!is_sequence(value, length)) refuse_type(place, expected, value);
    if (static_cast<std::uint64_t>(length) > limit - items.size()) {
      throw ArgumentError(op_, place, expected, "more than that");
    }
    for (nb::object& item : all_items(value, length)) {
      if (levels > 1) {
        flatten(item, levels - 1, limit, items, place);
      } else {
        items.push_back(std::move(item));
      }
    }
  }

  std::string op_;
};

// One value, or for a pointer a list or tuple of them.
nb::bytes pack_argument(const KernelArgument& argument, nb::handle value, const std::string& kernel) {
  const TypeInfo& type = argument.type;
  const ValuePacker packer(kernel);
  const bool is_list = PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0;
  const std::uint64_t most = kMaxPackedBytes / std::max<std::uint64_t>(type.size, 1);
  const char* const expected_bytes = "at most 256 MiB when not given as a buffer or an array";
  if (most == 0) throw ArgumentError(kernel, argument.name, expected_bytes, "a value of " + type.name);
  std::vector<std::uint8_t> bytes(type.size);
  if (argument.is_reference || !is_list || nesting_of(value) <= rank_of(type)) {
    packer.pack(type, value, bytes.data(), argument.name);
  } else {
    nb::object items = nb::steal(PySequence_Tuple(value.ptr()));
    const auto count = static_cast<std::size_t>(PyTuple_Size(items.ptr()));
    if (count == 0) throw ArgumentError(kernel, argument.name, "at least one element", "none");
    if (count > most) throw ArgumentError(kernel, argument.name, expected_bytes, "a longer list");
    bytes.resize(count * type.size);
    for (std::size_t i = 0; i < count; ++i) {
      packer.pack(type, PyTuple_GetItem(items.ptr(), static_cast<Py_ssize_t>(i)),
                  bytes.data() + i * type.size, argument.name + "[" + std::to_string(i) + "]");
    }
  }
  return nb::bytes(bytes.data(), bytes.size());
}

// A number of the constant as the plain bool, int or float that pipelines are keyed by.
nb::object constant_number(ScalarType type, nb::handle value, const std::uint8_t* packed) {
  switch (type) {
    case ScalarType::boolean:
      return nb::bool_(packed[0] != 0);
    case ScalarType::float16:
    case ScalarType::bfloat16:
    case ScalarType::float32:
      return nb::steal(PyNumber_Float(value.ptr()));
    default:
      return unpack_scalar(type, packed);
  }
}

// The value that the constant will have; a tuple for a vector.
nb::object constant_value(const FunctionConstant& constant, nb::handle value, const std::string& op) {
  const std::string place = "constants['" + constant.name + "']";
  if (constant.type.columns > 1) {
    throw ArgumentError(op, place, "a scalar or vector constant", "one of type " + constant.type.name);
  }
  const std::size_t components = constant.type.components;
  // A vector of three has the room of four.
  std::uint8_t packed[4 * sizeof(std::uint64_t)] = {};
  if (components == 1) {
    ValuePacker(op).pack(constant.type, value, packed, place);
    return constant_number(constant.type.scalar, value, packed);
  }
  Py_ssize_t length = 0;
  if (!is_sequence(value, length) || static_cast<std::size_t>(length) != components) {
    throw ArgumentError(op, place, std::to_string(components) + " numbers (" + constant.type.name + ")",
                        repr_of(value));
  }
  nb::list given, numbers;
  const std::vector<nb::object> items = all_items(value, length);
  for (const nb::object& item : items) given.append(item);
  const std::size_t stride = constant.type.size / (components == 3 ? 4 : components);
  ValuePacker(op).pack(constant.type, given, packed, place);
  for (std::size_t i = 0; i < components; ++i)
    numbers.append(constant_number(constant.type.scalar, items[i], packed + i * stride));
  return nb::steal(PyList_AsTuple(numbers.ptr()));
}

}  // namespace

void bind_argument_values(nb::module_& module) {
  module.def("_pack_argument", &pack_argument, "argument"_a, "value"_a.none(), "kernel"_a,
             nb::sig("def _pack_argument(argument: KernelArgument, value: typing.Any, kernel: str) -> bytes"),
             "The value as the bytes that the argument reads; errors name the kernel and the place.");
  module.def("_constant_value", &constant_value, "constant"_a, "value"_a.none(), "op"_a,
             nb::sig("def _constant_value(constant: FunctionConstant, value: typing.Any, op: str) -> bool | "
                     "int | float | tuple[bool | int | float, ...]"),
             "The value as the constant will have it, range-checked.");
}

}  // namespace metalane::python
