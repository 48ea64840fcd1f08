// See checked_arguments.h.
#include "bindings/checked_arguments.h"

namespace metalane::python {

std::string text_from(nb::handle value, const char* op, const char* argument) {
  if (PyUnicode_Check(value.ptr()) == 0) {
    throw DTypeError(op, argument, "a str", repr_of(value) + " (" + type_name_of(value) + ")");
  }
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
  if (text == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeError) == 0) throw nb::python_error();
    PyErr_Clear();
    throw ArgumentError(op, argument, "text that UTF-8 can hold", "lone surrogates");
  }
  return {text, static_cast<std::size_t>(length)};
}

bool flag_from(nb::handle value, const char* op, const char* argument) {
  if (PyBool_Check(value.ptr()) != 0) return value.is(nb::handle(Py_True));
  if (is_numpy_bool(value)) return PyObject_IsTrue(value.ptr()) == 1;
  throw DTypeError(op, argument, "True or False", repr_of(value) + " (" + type_name_of(value) + ")");
}

std::string path_from(nb::handle value, const char* op, const char* argument) {
  nb::object encoded;
  try {
    encoded = nb::module_::import_("os").attr("fsencode")(value);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_UnicodeError)) throw;
    throw DTypeError(op, argument, "a path", repr_of(value) + " (" + type_name_of(value) + ")");
  }
  const auto bytes = nb::borrow<nb::bytes>(encoded);
  std::string path(bytes.c_str(), bytes.size());
  if (path.find('\0') != std::string::npos) {
    throw ArgumentError(op, argument, "a path without a null character", repr_of(value));
  }
  return path;
}

}  // namespace metalane::python
