// What the files of the extension module share: one bind function a file, and the conversions between
// Python's objects and the runtime's.
#pragma once

#include <metalane/metalane.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace metalane::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_kernel(nb::module_& module);
void bind_argument_values(nb::module_& module);
void bind_aio(nb::module_& module);
void bind_buffer(nb::module_& module);
void bind_buffer_pool(nb::module_& module);
void bind_cpu(nb::module_& module);
void bind_gpu_capture(nb::module_& module, nb::class_<Device>& device);
void bind_gguf(nb::module_& module);
void bind_ticket(nb::module_& module);
void bind_graph(nb::module_& module);
void bind_encoder(nb::module_& module);
void bind_device(nb::module_& module);
void bind_struct(nb::module_& module);
void bind_lifetime(nb::module_& module);
void bind_layouts(nb::module_& module);
void bind_profile(nb::module_& module, nb::class_<Device>& device);
void bind_null_record(nb::module_& module);
void bind_dflash2_selector(nb::module_& module);
void bind_ggml_products(nb::module_& module);
void bind_speculative_rows(nb::module_& module);
void bind_speculative_verify(nb::module_& module);
void bind_acceptance_model(nb::module_& module);

// The types that hot paths compare with; nanobind's own look-up is a hash table. Set when they are bound.
struct HotTypes {
  PyTypeObject* buffer = nullptr;
  PyTypeObject* pipeline = nullptr;
  PyTypeObject* struct_spec = nullptr;
};
inline HotTypes hot_types;
inline bool is_buffer(nb::handle value) noexcept { return Py_TYPE(value.ptr()) == hot_types.buffer; }
inline bool is_pipeline(nb::handle value) noexcept { return Py_TYPE(value.ptr()) == hot_types.pipeline; }

// For classes whose objects come from the runtime alone. What `cls.__new__(cls)` gives otherwise has nothing
// in it, and code that only compares types would read that.
inline PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError, "%U: no constructor defined, the runtime makes these objects",
               nb::type_name(reinterpret_cast<PyObject*>(type)).ptr());
  return nullptr;
}
inline PyType_Slot made_by_runtime[] = {{Py_tp_new, reinterpret_cast<void*>(&refuse_new)}, {0, nullptr}};

// Items of exact tuples and lists, borrowed and unchecked: macros where the stable ABI does not ask for
// calls.
inline PyObject* tuple_item(PyObject* tuple, Py_ssize_t i) noexcept {
#if defined(Py_LIMITED_API)
  return PyTuple_GetItem(tuple, i);
#else
  return PyTuple_GET_ITEM(tuple, i);
#endif
}
inline PyObject* list_item(PyObject* list, Py_ssize_t i) noexcept {
#if defined(Py_LIMITED_API)
  return PyList_GetItem(list, i);
#else
  return PyList_GET_ITEM(list, i);
#endif
}
inline Py_ssize_t list_size(PyObject* list) noexcept {
#if defined(Py_LIMITED_API)
  return PyList_Size(list);
#else
  return PyList_GET_SIZE(list);
#endif
}

// errors.cpp ------------------------------------------------------------------------------------------------
// The Python exception of metalane.errors for an exception of the runtime.
nb::object exception_object(const std::exception_ptr& error);
// The same, set as Python's current error: for slots that nanobind does not wrap.
void set_python_error(const std::exception_ptr& error) noexcept;
// Runs `body` for such a slot: its result, or `failure` with Python's error set.
template <typename Result, typename Body>
Result guarded(Result failure, const Body& body) noexcept {
  try {
    return body();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return failure;
}

// convert.cpp -----------------------------------------------------------------------------------------------
// NumPy's dtype of an element type (ml_dtypes' for bfloat16); borrowed from a cache that lives for ever.
nb::handle numpy_dtype(DType dtype);
// Whatever NumPy takes for a dtype, and the short names "f32", "bf16", ... Throws DTypeError.
DType dtype_from(nb::handle value, const char* op);
// An int, or a sequence of up to eight.
Shape shape_from(nb::handle value, const char* op);
nb::tuple shape_tuple(const Shape& shape);
// An int, or a sequence of one to three; missing ones are 1.
Size3 size3_from(nb::handle value, const char* op, const char* argument);
nb::tuple size3_tuple(const Size3& size);
std::uint64_t u64_from(nb::handle value, const char* op, const char* argument);
// A number of seconds from 0, or above 0, or None.
std::optional<double> seconds_from(nb::handle value, const char* op, const char* argument,
                                   bool may_be_zero = true);
// {name or index: bool, int, float, or a sequence of them}, or None.
std::vector<ConstantValue> constants_from(nb::handle value, const char* op);
// The value as a Python int where it is one or has __index__; an invalid object otherwise.
nb::object integer_from(nb::handle value);
bool is_numpy_bool(nb::handle value);
// Clears the error of a value that is no such number. Others (KeyboardInterrupt, what the value's own method
// raised) are thrown on.
void clear_refusal();
// The items of a sequence, when there are at most `limit`: its length is asked first, so that an endless one
// ends.
struct SequenceItems {
  Py_ssize_t length = -1;  // -1: no sequence (text, a mapping, an array without dimensions)
  nb::object tuple;        // valid where 0 <= length <= limit
};
SequenceItems sequence_items(nb::handle value, std::uint64_t limit);
// The value in an error: shortened, and never an error of its own.
std::string repr_of(nb::handle value);
std::string type_name_of(nb::handle value);

// scalar.cpp ------------------------------------------------------------------------------------------------
// Where a scalar that is being converted came from, for the error's words; formatted only when it fails.
struct ScalarSource {
  std::string_view op;
  std::string_view argument;
  std::int64_t element = -1;  // index within an array; negative: not one
};
// Writes `value` as a device scalar, range-checked: integers refuse what does not fit, floats refuse finite
// numbers that would become infinite. Throws ArgumentError or DTypeError.
void pack_scalar(ScalarType type, nb::handle value, void* out, const ScalarSource& source);
nb::object unpack_scalar(ScalarType type, const void* in);
std::size_t scalar_size(ScalarType type) noexcept;
ScalarType scalar_of(DType dtype) noexcept;
const char* scalar_name(ScalarType type) noexcept;

// lifetime.cpp ----------------------------------------------------------------------------------------------
// An owner for wrapped memory that may be dropped on any thread, without the GIL: `release(object)` then runs
// on a thread that holds it.
std::shared_ptr<void> deferred_owner(void* object, void (*release)(void*));
std::shared_ptr<void> deferred_reference(nb::object object);
// Runs the releases that are due; the caller holds the GIL.
void drain_deferred() noexcept;
// Remembers work that interpreter exit has to wait for.
void track_ticket(const Ticket& ticket);

// Never returns on a thread that must not ask for the GIL any more: CPython ends a daemon thread that does so
// while the interpreter goes down, by unwinding through frames that must not be unwound.
void park_if_exiting() noexcept;
// A scope without the GIL.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    park_if_exiting();
    PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// wait.cpp --------------------------------------------------------------------------------------------------
// Lets Ctrl-C end waits below the bindings, too.
void bind_waits();
// Waits without the GIL and lets signal handlers run at least every 50 ms; an exception that one raises
// (KeyboardInterrupt) ends the wait.
void wait_for_ticket(const Ticket& ticket, std::optional<double> seconds);
// Until the place is granted; throws TimeoutError.
void wait_for_place(const core::InFlightPlace& place, std::optional<double> seconds);
// Until everything that the profile has seen is done.
void wait_for_profile(const Profile& profile);
// Until no committed work writes the buffer's range; throws that work's error.
void wait_for_buffer(const Buffer& buffer);

// buffer.cpp ------------------------------------------------------------------------------------------------
// Keeps the pages of a buffer in place for a NumPy array or a DLPack tensor, whatever the buffer does.
class HostView {
 public:
  HostView(const Buffer& buffer, const char* op);
  ~HostView();
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  const Buffer& buffer() const noexcept { return buffer_; }
  void* address() const noexcept { return address_; }

 private:
  Buffer buffer_;
  void* address_;
};
// Throws ArgumentError for a released buffer.
void check_live(const Buffer& buffer, const char* op);
nb::object numpy_view(const Buffer& buffer, const char* op);

// dlpack.cpp ------------------------------------------------------------------------------------------------
nb::object dlpack_capsule(const Buffer& buffer, nb::handle max_version, nb::handle dl_device,
                          nb::handle copy);
Buffer buffer_from_dlpack(nb::handle source, const Device& device);

// encoder.cpp -----------------------------------------------------------------------------------------------
struct Encoder {
  CommandEncoder core;
  std::optional<Ticket> ticket;
};

}  // namespace metalane::python
