// GGUF files, GGML's types, and decoding on the host.
#include <metalane/gguf.h>
#include <metalane/ops/dequantize.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "bindings/ggml_type_argument.h"
#include "core/ggml_decode.h"

namespace metalane::python {

using namespace nb::literals;

GgmlType ggml_type_from(nb::handle value, const char* op) {
  if (nb::isinstance<nb::str>(value)) {
    const std::string name = text_from(value, op, "ggml_type");
    if (const GgmlTypeInfo* info = find_ggml_type(name)) return info->type;
  } else if (!PyBool_Check(value.ptr()) && !is_numpy_bool(value) && integer_from(value).is_valid()) {
    const std::uint64_t number = u64_from(value, op, "ggml_type");
    const auto type = static_cast<GgmlType>(number);
    if (number >> 32 == 0 && find_ggml_type(type) != nullptr) return type;
  } else {
    throw DTypeError(op, "ggml_type", "a GgmlType, its number or its name",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  throw ArgumentError(op, "ggml_type", "a type of ggml (see ggml_types())", repr_of(value));
}

namespace {

// What Python keeps of a tensor: nothing of the file, which may be closed.
struct TensorInfo {
  std::string name;
  GgmlType ggml_type;
  Shape shape;
  std::uint64_t byte_len;
  std::uint64_t offset;
  std::uint32_t part;
};

// Bytes of a file are mostly UTF-8; what is not survives the way to Python and back.
nb::object text_object(std::string_view bytes) {
  nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape"));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

// `most`: elements of an array that are taken, here and in arrays within.
nb::object value_object(const GgufValue& value, std::uint64_t most);

nb::object list_object(const GgufArray& array, std::uint64_t most) {
  const auto length = static_cast<Py_ssize_t>(std::min(array.size(), most));
  nb::object list = nb::steal(PyList_New(length));
  if (!list.is_valid()) throw nb::python_error();
  auto element = array.begin();
  for (Py_ssize_t i = 0; i < length; ++i, ++element) {
    PyList_SetItem(list.ptr(), i, value_object(*element, most).release().ptr());
  }
  return list;
}

nb::object value_object(const GgufValue& value, std::uint64_t most) {
  switch (value.type()) {
    case GgufValueType::uint8:
    case GgufValueType::uint16:
    case GgufValueType::uint32:
    case GgufValueType::uint64:
      return nb::int_(value.as_uint());
    case GgufValueType::int8:
    case GgufValueType::int16:
    case GgufValueType::int32:
    case GgufValueType::int64:
      return nb::int_(value.as_int());
    case GgufValueType::float32:
    case GgufValueType::float64:
      return nb::float_(value.as_float());
    case GgufValueType::boolean:
      return nb::bool_(value.as_bool());
    case GgufValueType::string:
      return text_object(value.as_string());
    case GgufValueType::array:
      return list_object(value.as_array(), most);
  }
  return nb::none();
}

std::string value_type_name(const GgufValue& value) {
  if (value.type() != GgufValueType::array) return std::string(name_of(value.type()));
  const GgufArray array = value.as_array();
  return "array of " + std::to_string(array.size()) + " " + std::string(name_of(array.element_type()));
}

nb::object empty_array(const Shape& shape, DType dtype) {
  try {
    return nb::module_::import_("numpy").attr("empty")(shape_tuple(shape), numpy_dtype(dtype));
  } catch (nb::python_error& error) {
    // NumPy's ValueError: more bytes than addresses.
    if (!error.matches(PyExc_MemoryError) && !error.matches(PyExc_ValueError)) throw;
    throw OutOfMemoryError("GgufFile: no memory for an array of shape " + shape.str() + " and dtype " +
                           std::string(name_of(dtype)));
  }
}

template <typename T>
std::span<T> elements_of(nb::handle array, std::uint64_t count) {
  const auto address = nb::cast<std::uint64_t>(array.attr("ctypes").attr("data"));
  return {reinterpret_cast<T*>(address), count};
}

// A file that Python opened; empty once closed. Calls copy the handle before they let go of the GIL, so that
// closing disturbs none that runs.
class Reader {
 public:
  explicit Reader(GgufFile file) : file_(std::move(file)) {}
  void close() noexcept { file_.reset(); }
  bool closed() const noexcept { return !file_; }
  GgufFile file() const {
    if (!file_) throw ArgumentError("GgufFile: it was closed");
    return *file_;
  }

 private:
  std::optional<GgufFile> file_;
};

nb::object open_gguf(nb::handle path) {
  const std::string name = path_from(path, "GgufFile", "path");
  std::optional<Reader> reader;
  {
    Unlocked unlocked;
    reader.emplace(GgufFile(name));
  }
  return nb::cast(std::move(*reader));
}

std::string tensor_name_from(nb::handle name, const char* op) { return text_from(name, op, "name"); }

Buffer load_tensor(const Reader& self, nb::handle name, nb::handle device) {
  const std::string text = tensor_name_from(name, "GgufFile.load_tensor");
  const Device target = object_from<Device>(device, "GgufFile.load_tensor", "device", "a Device");
  const GgufFile file = self.file();
  Unlocked unlocked;
  return file.load_tensor(text, target);
}

nb::object read_tensor(const Reader& self, nb::handle name) {
  const GgufFile file = self.file();
  const GgufTensor& tensor = file.tensor(tensor_name_from(name, "GgufFile.numpy"));
  nb::object array = empty_array(tensor.buffer_shape(), tensor.buffer_dtype());
  const std::span<std::uint8_t> bytes = elements_of<std::uint8_t>(array, tensor.byte_len);
  Unlocked unlocked;
  file.read_tensor(tensor.name, bytes);
  return array;
}

nb::object load_tensor_f32(const Reader& self, nb::handle name) {
  const GgufFile file = self.file();
  const GgufTensor& tensor = file.tensor(tensor_name_from(name, "GgufFile.load_tensor_f32"));
  core::require_decodable("GgufFile.load_tensor_f32", tensor.ggml_type);  // before an array is made for it
  nb::object array = empty_array(tensor.shape, DType::float32);
  const std::span<float> floats = elements_of<float>(array, tensor.shape.elements());
  Unlocked unlocked;
  file.load_tensor_f32(tensor.name, floats);
  return array;
}

TensorInfo tensor_info(const Reader& self, nb::handle name) {
  const GgufFile file = self.file();
  const GgufTensor& tensor = file.tensor(tensor_name_from(name, "GgufFile.tensor_info"));
  return {std::string(tensor.name), tensor.ggml_type, tensor.shape,
          tensor.byte_len,          tensor.offset,    tensor.part};
}

GgufValue value_at(const GgufFile& file, nb::handle index) {
  const std::uint64_t at = u64_from(index, "GgufFile.metadata", "index");
  const std::span<const GgufEntry> entries = file.metadata();
  if (at >= entries.size()) {
    throw ArgumentError("GgufFile.metadata", "index", "below " + std::to_string(entries.size()),
                        std::to_string(at));
  }
  return entries[at].value;
}

// Memory of an object with the buffer protocol, held while this lives.
class Exported {
 public:
  Exported(nb::handle object, int flags, const char* argument, const char* expected) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
    const bool refused = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ||
                         PyErr_ExceptionMatches(PyExc_BufferError) != 0 ||
                         PyErr_ExceptionMatches(PyExc_ValueError) != 0;
    if (!refused) throw nb::python_error();
    PyErr_Clear();
    throw DTypeError("dequantize", argument, expected, repr_of(object) + " (" + type_name_of(object) + ")");
  }
  ~Exported() { PyBuffer_Release(&view_); }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;
  const Py_buffer& view() const noexcept { return view_; }

 private:
  Py_buffer view_ = {};
};

void decode_into(nb::handle data, nb::handle ggml_type, nb::handle out) {
  const GgmlType type = ggml_type_from(ggml_type, "dequantize");
  const Exported blocks(data, PyBUF_SIMPLE, "data", "contiguous bytes");
  const char* const floats = "a writable, contiguous float32 array";
  const Exported result(out, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_ND, "out", floats);
  const Py_buffer& view = result.view();
  if (view.itemsize != sizeof(float) || view.format == nullptr || std::string_view(view.format) != "f") {
    throw DTypeError("dequantize", "out", floats, repr_of(out) + " (" + type_name_of(out) + ")");
  }
  const std::span<const std::uint8_t> in(static_cast<const std::uint8_t*>(blocks.view().buf),
                                         static_cast<std::size_t>(blocks.view().len));
  const std::span<float> decoded(static_cast<float*>(view.buf),
                                 static_cast<std::size_t>(view.len) / sizeof(float));
  Unlocked unlocked;
  dequantize(in, type, decoded);
}

void bind_types(nb::module_& module) {
  nb::enum_<GgmlType> types(module, "GgmlType", nb::is_arithmetic(),
                            "Element types of GGML, numbered as in GGUF files.");
  for (const GgmlTypeInfo& info : ggml_types()) types.value(info.name.data(), info.type);

  nb::class_<GgmlTypeInfo>(module, "GgmlTypeInfo", nb::is_final(), nb::type_slots(made_by_runtime),
                           "What a block of a GGML type holds.")
      .def_ro("type", &GgmlTypeInfo::type)
      .def_prop_ro("name", [](const GgmlTypeInfo& self) { return std::string(self.name); })
      .def_ro("block_length", &GgmlTypeInfo::block_length, "Elements of a block; rows are whole blocks.")
      .def_ro("block_bytes", &GgmlTypeInfo::block_bytes)
      .def_ro("alignment", &GgmlTypeInfo::alignment,
              "Of a block's address in bytes, for kernels that read its halves and words.")
      .def_ro("decodes", &GgmlTypeInfo::decodes, "True where dequantize() takes the type.")
      .def_prop_ro(
          "dtype",
          [](const GgmlTypeInfo& self) {
            return self.dtype ? nb::borrow(numpy_dtype(*self.dtype)) : nb::object(nb::none());
          },
          nb::sig("def dtype(self) -> numpy.dtype[typing.Any] | None"),
          "NumPy's dtype of the elements where they are plain numbers that buffers hold, else None.")
      .def("__repr__", [](const GgmlTypeInfo& self) {
        return "<GgmlTypeInfo " + std::string(self.name) + ": " + std::to_string(self.block_length) +
               " elements in " + std::to_string(self.block_bytes) + " bytes>";
      });
  module.def(
      "ggml_types", [] { return std::vector<GgmlTypeInfo>(ggml_types().begin(), ggml_types().end()); },
      "Every GGML type that files may hold; those that decode first.");
  module.def(
      "ggml_type_info",
      [](nb::handle type) { return *find_ggml_type(ggml_type_from(type, "ggml_type_info")); },
      "ggml_type"_a.none(), nb::sig("def ggml_type_info(ggml_type: GgmlType | int | str) -> GgmlTypeInfo"),
      "What a block of the type holds. Raises ArgumentError where there is no such type.");
  module.def(
      "_decode_into", &decode_into, "data"_a.none(), "ggml_type"_a.none(), "out"_a.none(),
      nb::sig("def _decode_into(data: typing.Any, ggml_type: GgmlType | int | str, out: typing.Any) -> "
              "None"),
      "metalane.dequantize() on memory that is contiguous.");
}

void bind_tensor_info(nb::module_& module) {
  nb::class_<TensorInfo>(module, "TensorInfo", nb::is_final(), nb::type_slots(made_by_runtime),
                         "A tensor of a GGUF file.")
      .def_ro("name", &TensorInfo::name)
      .def_ro("ggml_type", &TensorInfo::ggml_type)
      .def_prop_ro(
          "shape", [](const TensorInfo& self) { return shape_tuple(self.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"),
          "Elements in NumPy's order, slowest first: weights are (n, k).")
      .def_prop_ro(
          "ne",
          [](const TensorInfo& self) {
            std::vector<std::uint64_t> dims(self.shape.dims().rbegin(), self.shape.dims().rend());
            return shape_tuple(Shape(dims));
          },
          nb::sig("def ne(self) -> tuple[int, ...]"), "Elements in the file's order, fastest first.")
      .def_ro("byte_len", &TensorInfo::byte_len, "Bytes of the packed data.")
      .def_ro("offset", &TensorInfo::offset, "Of the data, in bytes from the start of its file.")
      .def_ro("part", &TensorInfo::part, "Index of its file among those of a split one.")
      .def("__repr__", [](const TensorInfo& self) {
        return "<TensorInfo " + self.name + ": " + std::string(find_ggml_type(self.ggml_type)->name) + " " +
               self.shape.str() + ", " + std::to_string(self.byte_len) + " bytes at " +
               std::to_string(self.offset) + ">";
      });
}

}  // namespace

void bind_gguf(nb::module_& module) {
  bind_types(module);
  bind_tensor_info(module);
  nb::class_<Reader>(module, "GgufReader", nb::is_final(), nb::type_slots(made_by_runtime),
                     "The native side of metalane.GgufFile.")
      .def("close", &Reader::close, "Lets go of the file; buffers of it stay.")
      .def_prop_ro("closed", &Reader::closed)
      .def_prop_ro("version", [](const Reader& self) { return self.file().version(); })
      .def_prop_ro("file_bytes", [](const Reader& self) { return self.file().file_bytes(); })
      .def_prop_ro(
          "paths",
          [](const Reader& self) {
            nb::list paths;
            nb::object decode = nb::module_::import_("os").attr("fsdecode");
            const GgufFile file = self.file();
            for (const std::string& path : file.paths()) {
              paths.append(decode(nb::bytes(path.data(), path.size())));
            }
            return paths;
          },
          nb::sig("def paths(self) -> list[str]"))
      .def(
          "keys",
          [](const Reader& self) {
            nb::list keys;
            const GgufFile file = self.file();
            for (const GgufEntry& entry : file.metadata()) keys.append(text_object(entry.key));
            return keys;
          },
          nb::sig("def keys(self) -> list[str]"), "Keys of the metadata, in the file's order.")
      .def(
          "value",
          [](const Reader& self, nb::handle index, nb::handle most) {
            const GgufFile file = self.file();
            const std::uint64_t elements = most.is_none() ? std::numeric_limits<std::uint64_t>::max()
                                                          : u64_from(most, "GgufFile.metadata", "most");
            return value_object(value_at(file, index), elements);
          },
          "index"_a.none(), "most"_a = nb::none(),
          nb::sig("def value(self, index: int, most: int | None = None) -> typing.Any"),
          "The value of the key at `index`; of arrays the first `most` elements.")
      .def(
          "value_type",
          [](const Reader& self, nb::handle index) {
            const GgufFile file = self.file();
            return value_type_name(value_at(file, index));
          },
          "index"_a.none(), nb::sig("def value_type(self, index: int) -> str"),
          "Its type in words: 'uint32', 'array of 3 string'.")
      .def(
          "tensor_names",
          [](const Reader& self) {
            nb::list names;
            const GgufFile file = self.file();
            for (const GgufTensor& tensor : file.tensors()) names.append(text_object(tensor.name));
            return names;
          },
          nb::sig("def tensor_names(self) -> list[str]"), "In the file's order.")
      .def("tensor_info", &tensor_info, "name"_a.none(),
           nb::sig("def tensor_info(self, name: str) -> TensorInfo"))
      .def("load_tensor", &load_tensor, "name"_a.none(), "device"_a.none(),
           nb::sig("def load_tensor(self, name: str, device: Device) -> Buffer"))
      .def("read_tensor", &read_tensor, "name"_a.none(),
           nb::sig("def read_tensor(self, name: str) -> NDArray[typing.Any]"))
      .def("load_tensor_f32", &load_tensor_f32, "name"_a.none(),
           nb::sig("def load_tensor_f32(self, name: str) -> NDArray[numpy.float32]"));
  module.def("open_gguf", &open_gguf, "path"_a.none(),
             nb::sig("def open_gguf(path: str | bytes | os.PathLike[str]) -> GgufReader"),
             "Opens a GGUF file, or all parts of a split one. Raises GgufError.");
}

}  // namespace metalane::python
