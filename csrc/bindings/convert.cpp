// Conversions of call arguments: dtypes, shapes, sizes, constants.
#include <array>
#include <cmath>

#include "bindings/checked_arguments.h"

namespace metalane::python {

namespace {

constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::int64) + 1;
constexpr std::array<const char*, kDTypes> kShortNames = {"f32", "f16", "bf16", "u8",  "i8", "u16",
                                                          "i16", "u32", "i32",  "u64", "i64"};

// Filled on first use, so that importing the extension imports nothing else.
const std::array<PyObject*, kDTypes>& numpy_dtypes() {
  static std::array<PyObject*, kDTypes> cache{};
  if (cache.back() == nullptr) {
    nb::object make = nb::module_::import_("numpy").attr("dtype");
    for (std::size_t i = 0; i < kDTypes; ++i) {
      const auto dtype = static_cast<DType>(i);
      nb::object dtype_object = dtype == DType::bfloat16
                                    ? make(nb::module_::import_("ml_dtypes").attr("bfloat16"))
                                    : make(std::string(name_of(dtype)));
      cache[i] = dtype_object.release().ptr();
    }
  }
  return cache;
}

std::optional<DType> dtype_by_name(std::string_view name) {
  for (std::size_t i = 0; i < kDTypes; ++i) {
    if (name == kShortNames[i] || name == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

[[noreturn]] void throw_dtype(nb::handle value, const char* op) {
  std::string names;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    names += (i == 0 ? "" : ", ") + std::string(name_of(static_cast<DType>(i)));
  }
  throw DTypeError(op, "dtype", "one of " + names, repr_of(value));
}

}  // namespace

std::string repr_of(nb::handle value) {
  constexpr std::size_t kLongest = 120;
  // NumPy takes seconds to print an array of many dimensions.
  if (type_name_of(value) == "ndarray") {
    return "an array of shape " + repr_of(value.attr("shape")) + " and dtype " + repr_of(value.attr("dtype"));
  }
  nb::object made = nb::steal(PyObject_Repr(value.ptr()));
  if (!made.is_valid()) {
    // An integer of too many digits, say. What must reach the caller is the error that the text is for.
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();
    PyErr_Clear();
    return "a value without a repr";
  }
  nb::object bytes = nb::steal(PyUnicode_AsEncodedString(made.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  std::string text(PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr())));
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not within a character
  return text.substr(0, end) + "...";
}

std::string type_name_of(nb::handle value) { return nb::type_name(value.type()).c_str(); }

nb::handle numpy_dtype(DType dtype) { return numpy_dtypes()[static_cast<std::size_t>(dtype)]; }

DType dtype_from(nb::handle value, const char* op) {
  const std::array<PyObject*, kDTypes>& known = numpy_dtypes();
  for (std::size_t i = 0; i < kDTypes; ++i) {
    if (value.ptr() == known[i]) return static_cast<DType>(i);
  }
  if (nb::isinstance<nb::str>(value)) {
    if (std::optional<DType> dtype = dtype_by_name(text_from(value, op, "dtype"))) return *dtype;
  }
  // NumPy reads None as float64, which would hide a forgotten argument.
  if (value.is_none()) throw_dtype(value, op);
  PyObject* made = PyObject_CallFunctionObjArgs(nb::module_::import_("numpy").attr("dtype").ptr(),
                                                value.ptr(), static_cast<PyObject*>(nullptr));
  if (made == nullptr) {
    // NumPy's words for what it cannot read: TypeError mostly, ValueError for sizes and long integers.
    const bool refused = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ||
                         PyErr_ExceptionMatches(PyExc_ValueError) != 0 ||
                         PyErr_ExceptionMatches(PyExc_SyntaxError) != 0;
    if (!refused) throw nb::python_error();
    PyErr_Clear();
    throw_dtype(value, op);
  }
  nb::object dtype = nb::steal(made);
  for (std::size_t i = 0; i < kDTypes; ++i) {
    if (dtype.equal(nb::handle(known[i]))) return static_cast<DType>(i);
  }
  throw_dtype(value, op);
}

bool is_numpy_bool(nb::handle value) {
  if (PyLong_Check(value.ptr())) return false;  // without a search for NumPy's type
  return nb::isinstance(value, nb::module_::import_("numpy").attr("bool_"));
}

void clear_refusal() {
  for (PyObject* refusal : {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError}) {
    if (PyErr_ExceptionMatches(refusal) == 0) continue;
    PyErr_Clear();
    return;
  }
  throw nb::python_error();
}

nb::object integer_from(nb::handle value) {
  if (PyLong_Check(value.ptr())) return nb::borrow(value);
  if (PyIndex_Check(value.ptr()) == 0) return {};
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    // NumPy's arrays have __index__ and refuse it with this type.
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
    PyErr_Clear();
  }
  return index;
}

std::uint64_t u64_from(nb::handle value, const char* op, const char* argument) {
  const char* expected = "an integer from 0 to 2^64 - 1";
  if (PyLong_CheckExact(value.ptr())) {
    const std::size_t plain = PyLong_AsSize_t(value.ptr());
    if (plain != static_cast<std::size_t>(-1)) return plain;
    PyErr_Clear();  // or 2^64 - 1 itself
  }
  nb::object index = integer_from(value);
  if (!index.is_valid()) {
    throw DTypeError(op, argument, expected, repr_of(value) + " (" + type_name_of(value) + ")");
  }
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw ArgumentError(op, argument, expected, repr_of(value));
  }
  return number;
}

SequenceItems sequence_items(nb::handle value, std::uint64_t limit) {
  PyObject* const object = value.ptr();
  if (PySequence_Check(object) == 0 || PyUnicode_Check(object) != 0 || PyBytes_Check(object) != 0) return {};
  SequenceItems items;
  items.length = PySequence_Size(object);
  if (items.length < 0) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
    PyErr_Clear();
    return {};
  }
  if (static_cast<std::uint64_t>(items.length) > limit) return items;
  if (PyTuple_CheckExact(object)) {
    items.tuple = nb::borrow(value);
    return items;
  }
  items.tuple = nb::steal(PyTuple_New(items.length));
  for (Py_ssize_t i = 0; items.tuple.is_valid() && i < items.length; ++i) {
    PyObject* const item = PySequence_GetItem(object, i);
    if (item == nullptr) throw nb::python_error();
    PyTuple_SetItem(items.tuple.ptr(), i, item);
  }
  if (!items.tuple.is_valid()) throw nb::python_error();
  return items;
}

namespace {

// One to `most` integers given as a sequence.
SequenceItems integers_of(nb::handle value, const char* op, const char* argument, const char* expected,
                          std::uint64_t most) {
  SequenceItems items = sequence_items(value, most);
  if (items.length < 0) {
    throw DTypeError(op, argument, expected, repr_of(value) + " (" + type_name_of(value) + ")");
  }
  if (!items.tuple.is_valid()) {
    throw ArgumentError(op, argument, expected, std::to_string(items.length) + " integers");
  }
  return items;
}

}  // namespace

Shape shape_from(nb::handle value, const char* op) {
  if (integer_from(value).is_valid()) return Shape({u64_from(value, op, "shape")});
  const char* expected = "an integer or a sequence of at most 8 integers";
  const SequenceItems items = integers_of(value, op, "shape", expected, Shape::max_rank);
  std::array<std::uint64_t, Shape::max_rank> dims;
  for (Py_ssize_t axis = 0; axis < items.length; ++axis) {
    dims[static_cast<std::size_t>(axis)] = u64_from(tuple_item(items.tuple.ptr(), axis), op, "shape");
  }
  return Shape(std::span<const std::uint64_t>(dims.data(), static_cast<std::size_t>(items.length)));
}

nb::tuple shape_tuple(const Shape& shape) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.rank())));
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(axis), PyLong_FromUnsignedLongLong(shape[axis]));
  }
  return nb::borrow<nb::tuple>(tuple);
}

Size3 size3_from(nb::handle value, const char* op, const char* argument) {
  Size3 size;
  if (PyLong_CheckExact(value.ptr()) || integer_from(value).is_valid()) {
    size.x = u64_from(value, op, argument);
    return size;
  }
  const char* expected = "an integer or one to three integers";
  const SequenceItems items = integers_of(value, op, argument, expected, 3);
  if (items.length == 0) throw ArgumentError(op, argument, expected, repr_of(value));
  std::uint64_t* const axes[3] = {&size.x, &size.y, &size.z};
  for (Py_ssize_t axis = 0; axis < items.length; ++axis) {
    *axes[axis] = u64_from(tuple_item(items.tuple.ptr(), axis), op, argument);
  }
  return size;
}

nb::tuple size3_tuple(const Size3& size) { return nb::make_tuple(size.x, size.y, size.z); }

std::optional<double> seconds_from(nb::handle value, const char* op, const char* argument, bool may_be_zero) {
  if (value.is_none()) return std::nullopt;
  const double seconds = PyFloat_AsDouble(value.ptr());
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) {
    clear_refusal();
    throw DTypeError(op, argument, "a number of seconds or None",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  if (std::isnan(seconds) || seconds < 0 || (seconds == 0 && !may_be_zero)) {
    const char* expected = may_be_zero ? "a number of seconds from 0 up" : "a positive number of seconds";
    throw ArgumentError(op, argument, expected, repr_of(value));
  }
  // Beyond any process's life; clocks overflow on more.
  constexpr double kLongest = 1e9;
  return seconds < kLongest ? std::optional<double>(seconds) : std::nullopt;
}

namespace {

ConstantNumber constant_number(nb::handle key, nb::handle value, const char* op) {
  if (PyBool_Check(value.ptr()) || is_numpy_bool(value)) return PyObject_IsTrue(value.ptr()) == 1;
  if (nb::object index = integer_from(value); index.is_valid()) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow == 0) return static_cast<std::int64_t>(number);
    return u64_from(index, op, "constants");
  }
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    clear_refusal();
    throw DTypeError(op, "constants[" + repr_of(key) + "]",
                     "a bool, an integer, a float, or a tuple or list of them",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  return number;
}

ConstantValue constant_from(nb::handle key, nb::handle value, const char* op) {
  ConstantValue constant;
  if (nb::isinstance<nb::str>(key)) {
    constant.key = text_from(key, op, "constants");
  } else {
    if (PyBool_Check(key.ptr()) != 0) {
      throw DTypeError(op, "constants", "named by text or an index", repr_of(key) + " (bool)");
    }
    const std::uint64_t index = u64_from(key, op, "constants");
    if (index > UINT32_MAX) throw ArgumentError(op, "constants", "an index below 2^32", repr_of(key));
    constant.key = static_cast<std::uint32_t>(index);
  }
  const bool is_list = PyTuple_Check(value.ptr()) != 0 || PyList_Check(value.ptr()) != 0;
  if (!is_list) {
    std::visit([&](const auto& number) { constant.value = number; }, constant_number(key, value, op));
    return constant;
  }
  nb::object items = nb::steal(PySequence_Tuple(value.ptr()));
  std::vector<ConstantNumber> components;
  for (nb::handle item : nb::borrow<nb::tuple>(items)) components.push_back(constant_number(key, item, op));
  constant.value = std::move(components);
  return constant;
}

}  // namespace

std::vector<ConstantValue> constants_from(nb::handle value, const char* op) {
  std::vector<ConstantValue> constants;
  if (value.is_none()) return constants;
  if (!nb::isinstance<nb::dict>(value)) {
    throw DTypeError(op, "constants", "a dict {name or index: value} or None",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  // A copy: converting a value may run Python code that changes the caller's dict.
  nb::object items = nb::steal(PyDict_Items(value.ptr()));
  const Py_ssize_t count = PyList_Size(items.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const item = PyList_GetItem(items.ptr(), i);
    constants.push_back(constant_from(PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 1), op));
  }
  return constants;
}

}  // namespace metalane::python
