// Arguments of one class: nanobind's own TypeError for a wrong one names neither the argument nor what was
// expected.
#pragma once

#include "bindings/bindings.h"

namespace metalane::python {

// A str as UTF-8. Throws DTypeError, and ArgumentError for lone surrogates.
std::string text_from(nb::handle value, const char* op, const char* argument);
// A path as the system takes it: it need not be UTF-8. Throws DTypeError, and ArgumentError for null
// characters.
std::string path_from(nb::handle value, const char* op, const char* argument);
bool flag_from(nb::handle value, const char* op, const char* argument);

// An object of a class of this module.
template <typename T>
T& object_from(nb::handle value, const char* op, const char* argument, const char* expected) {
  if (!nb::isinstance<T>(value)) {
    throw DTypeError(op, argument, expected, repr_of(value) + " (" + type_name_of(value) + ")");
  }
  // Devices have a constructor, so that Python can make one without calling it.
  if (!nb::inst_ready(value)) throw DTypeError(op, argument, expected, "one whose __init__ was not called");
  return *nb::inst_ptr<T>(value);
}

}  // namespace metalane::python
