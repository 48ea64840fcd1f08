// Buffers and views, and their faces towards NumPy and DLPack.

#include "bindings/bindings.h"
#include "core/storage.h"

namespace metalane::python {

using namespace nb::literals;

void check_live(const Buffer& buffer, const char* op) {
  if (buffer.released())
    throw ArgumentError(op, "self", "a buffer that was not released", "a released buffer");
}

HostView::HostView(const Buffer& buffer, const char* op) : buffer_(buffer) {
  check_live(buffer, op);
  if (!buffer_.storage()->try_pin()) check_live(Buffer(), op);  // released by another thread meanwhile
  address_ = buffer_.storage()->address() + buffer_.byte_offset();
  if (!buffer_.readonly()) buffer_.storage()->host_may_write(buffer_.byte_offset(), buffer_.nbytes());
}

HostView::~HostView() { buffer_.storage()->unpin(); }

namespace {

// NumPy's array protocol, for a view that keeps the pages in place. bfloat16 goes as two opaque bytes that
// the caller then views as ml_dtypes' type.
nb::dict array_interface(const HostView& view) {
  const Buffer& buffer = view.buffer();
  nb::dict interface;
  interface["version"] = 3;
  interface["shape"] = shape_tuple(buffer.shape());
  interface["typestr"] = buffer.dtype() == DType::bfloat16
                             ? nb::object(nb::str("<u2"))
                             : nb::object(numpy_dtype(buffer.dtype()).attr("str"));
  interface["data"] = nb::make_tuple(reinterpret_cast<std::uint64_t>(view.address()), buffer.readonly());
  return interface;
}

nb::object array_for(const Buffer& buffer, nb::handle dtype, nb::handle copy) {
  nb::object array = numpy_view(buffer, "Buffer.__array__");
  if (!dtype.is_none() &&
      !numpy_dtype(buffer.dtype()).equal(nb::module_::import_("numpy").attr("dtype")(dtype))) {
    if (copy.is(nb::handle(Py_False))) {
      PyErr_Format(PyExc_ValueError, "Buffer.__array__: %R cannot be had from %R without a copy", dtype.ptr(),
                   numpy_dtype(buffer.dtype()).ptr());
      throw nb::python_error();
    }
    return array.attr("astype")(dtype);
  }
  return copy.is(nb::handle(Py_True)) ? nb::object(array.attr("copy")()) : array;
}

nb::object to_list(const Buffer& buffer) {
  nb::object array = numpy_view(buffer, "Buffer.tolist");
  if (buffer.dtype() == DType::bfloat16) array = array.attr("astype")("float32");
  return array.attr("tolist")();
}

std::string buffer_repr(const Buffer& buffer) {
  if (buffer.released()) return "<Buffer, released>";
  std::string text = "<Buffer " + std::string(name_of(buffer.dtype())) + " " + buffer.shape().str() + ", " +
                     std::to_string(buffer.nbytes()) + " bytes on " + buffer.device().kind();
  if (buffer.is_view()) text += ", view at byte " + std::to_string(buffer.byte_offset());
  if (buffer.readonly()) text += ", read-only";
  return text + ">";
}

void bind_properties(nb::class_<Buffer>& buffer) {
  buffer
      .def_prop_ro(
          "dtype", [](const Buffer& self) { return nb::borrow(numpy_dtype(self.dtype())); },
          nb::sig("def dtype(self) -> numpy.dtype[typing.Any]"), "NumPy's dtype of the elements.")
      .def_prop_ro(
          "shape", [](const Buffer& self) { return shape_tuple(self.shape()); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("nbytes", &Buffer::nbytes, "Bytes of all elements.")
      .def_prop_ro("byte_offset", &Buffer::byte_offset, "Bytes from the start of the allocation.")
      .def_prop_ro("address", &Buffer::address,
                   "Address of the first byte in this process; raises when released.")
      .def_prop_ro("readonly", &Buffer::readonly, "True where neither kernels nor the host may write.")
      .def_prop_ro("released", &Buffer::released)
      .def_prop_ro("device", &Buffer::device, nb::sig("def device(self) -> Device"));
}

}  // namespace

nb::object numpy_view(const Buffer& buffer, const char* op) {
  check_live(buffer, op);
  wait_for_buffer(buffer);
  nb::object view = nb::cast(std::make_unique<HostView>(buffer, op).release(), nb::rv_policy::take_ownership);
  nb::object array = nb::module_::import_("numpy").attr("asarray")(view);
  if (buffer.dtype() == DType::bfloat16) array = array.attr("view")(numpy_dtype(DType::bfloat16));
  return array;
}

void bind_buffer(nb::module_& module) {
  nb::class_<HostView>(module, "HostView", nb::is_final(), nb::type_slots(made_by_runtime),
                       "What a NumPy array made from a buffer has as its base: keeps the pages in place.")
      .def_prop_ro("__array_interface__", &array_interface,
                   nb::sig("def __array_interface__(self) -> dict[str, typing.Any]"))
      .def("__repr__",
           [](const HostView& self) { return "<HostView of " + buffer_repr(self.buffer()) + ">"; });

  nb::class_<Buffer> buffer(
      module, "Buffer", nb::is_final(), nb::type_slots(made_by_runtime),
      "A typed, contiguous range of memory that host and device share: an allocation or a view.");
  hot_types.buffer = reinterpret_cast<PyTypeObject*>(buffer.ptr());
  bind_properties(buffer);
  buffer
      .def(
          "view",
          [](const Buffer& self, nb::object byte_offset, nb::object shape, nb::object dtype) {
            std::optional<DType> element;
            if (!dtype.is_none()) element = dtype_from(dtype, "Buffer.view");
            return self.view(u64_from(byte_offset, "Buffer.view", "byte_offset"),
                             shape_from(shape, "Buffer.view"), element);
          },
          "byte_offset"_a.none(), "shape"_a.none(), "dtype"_a = nb::none(),
          nb::sig("def view(self, byte_offset: int, shape: int | Sequence[int], dtype: typing.Any = None) -> "
                  "Buffer"),
          "A view of `shape` elements that starts `byte_offset` bytes into this buffer; views of views add "
          "up.\n\n"
          "Raises ArgumentError where it would leave this buffer or the offset is no multiple of the "
          "element's size.")
      .def("as_readonly", &Buffer::as_readonly, "The same range, not writable.")
      .def("release", &Buffer::release,
           "Frees an allocation at once (with the last NumPy view or launch in flight that holds it) and "
           "makes later "
           "use, also through views, raise. On a view it lets go of the view.")
      .def(
          "synchronize", [](const Buffer& self) { wait_for_buffer(self); },
          "Waits until no committed work that writes this range is in flight; raises that work's error.")
      .def(
          "numpy", [](const Buffer& self) { return numpy_view(self, "Buffer.numpy"); },
          nb::sig("def numpy(self) -> NDArray[typing.Any]"),
          "A NumPy array on the same memory (no copy), after waiting for committed work that writes it.\n\n"
          "Raises that work's error, and ArgumentError while an open encoder holds a launch that writes the "
          "range. "
          "An array taken earlier is plain memory: later launches change it without further waiting.")
      .def("__array__", &array_for, "dtype"_a = nb::none(), "copy"_a = nb::none(),
           nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> "
                   "NDArray[typing.Any]"))
      .def("tolist", &to_list, nb::sig("def tolist(self) -> typing.Any"),
           "The elements as (nested) Python numbers; waits like numpy().")
      .def(
          "__dlpack__",
          [](const Buffer& self, nb::object stream, nb::object max_version, nb::object dl_device,
             nb::object copy) {
            (void)stream;  // host memory has no stream
            return dlpack_capsule(self, max_version, dl_device, copy);
          },
          nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
          "copy"_a = nb::none(),
          nb::sig("def __dlpack__(self, *, stream: typing.Any = None, max_version: tuple[int, int] | None = "
                  "None, "
                  "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "__dlpack_device__", [](const Buffer&) { return nb::make_tuple(1, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__len__",
           [](const Buffer& self) {
             if (self.shape().rank() == 0) {
               PyErr_SetString(PyExc_TypeError, "Buffer: a buffer without dimensions has no len()");
               throw nb::python_error();
             }
             return self.shape()[0];
           })
      .def("__repr__", &buffer_repr);
}

}  // namespace metalane::python
