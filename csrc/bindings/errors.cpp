// Turns the runtime's exceptions into the classes of metalane.errors, attributes included.
#include <new>

#include "bindings/check.h"

namespace metalane::python {

namespace {

// Compilers and kernel sources bring bytes that are no UTF-8.
nb::object text_object(std::string_view bytes) {
  nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

nb::object new_exception(const char* class_name, const char* message) {
  return nb::module_::import_("metalane.errors").attr(class_name)(text_object(message));
}

nb::object argument_exception(const char* class_name, const ArgumentError& error) {
  nb::object object = new_exception(class_name, error.what());
  object.attr("op") = text_object(error.op());
  object.attr("argument") = text_object(error.argument());
  object.attr("expected") = text_object(error.expected());
  object.attr("given") = text_object(error.given());
  return object;
}

nb::object command_buffer_exception(const char* class_name, const CommandBufferError& error) {
  nb::object object = new_exception(class_name, error.what());
  object.attr("code") = error.code();
  object.attr("label") = text_object(error.label());
  object.attr("is_transient") = error.is_transient();
  return object;
}

}  // namespace

nb::object exception_object(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const DTypeError& error) {
    return argument_exception("DTypeError", error);
  } catch (const ArgumentError& error) {
    return argument_exception("ArgumentError", error);
  } catch (const OutOfMemoryError& error) {
    return new_exception("OutOfMemoryError", error.what());
  } catch (const KernelNotFoundError& error) {
    return new_exception("KernelNotFoundError", error.what());
  } catch (const TensorNotFoundError& error) {
    return new_exception("TensorNotFoundError", error.what());
  } catch (const GgufError& error) {
    nb::object object = new_exception("GgufError", error.what());
    object.attr("path") =
        nb::module_::import_("os").attr("fsdecode")(nb::bytes(error.path().data(), error.path().size()));
    object.attr("field") = text_object(error.field());
    return object;
  } catch (const CompileError& error) {
    nb::object object = new_exception("CompileError", error.what());
    object.attr("kernel") = text_object(error.kernel());
    return object;
  } catch (const DeviceError& error) {
    return new_exception("DeviceError", error.what());
  } catch (const CheckError& error) {
    nb::object object = command_buffer_exception("CheckError", error);
    object.attr("findings") = findings_tuple(error.findings());
    return object;
  } catch (const CommandBufferError& error) {
    return command_buffer_exception("CommandBufferError", error);
  } catch (const TimeoutError& error) {
    return new_exception("TimeoutError", error.what());
  } catch (const Error& error) {
    return new_exception("Error", error.what());
  } catch (const std::bad_alloc&) {
    return new_exception("OutOfMemoryError", "out of host memory");
  }
}

void set_python_error(const std::exception_ptr& pointer) noexcept {
  try {
    nb::object object = exception_object(pointer);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())), object.ptr());
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void bind_errors(nb::module_&) {
  // Exceptions that are not the runtime's leave exception_object() as they came and go to nanobind's own
  // translators.
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    nb::object object = exception_object(pointer);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())), object.ptr());
  });
}

}  // namespace metalane::python
