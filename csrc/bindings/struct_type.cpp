// The native base of parameter structs: construction, field access and range checks on inline storage.
#include "bindings/struct_type.h"

#include <algorithm>
#include <bitset>
#include <cstring>

namespace metalane::python {

using namespace nb::literals;

namespace {

constexpr std::size_t kMaxFields = 256;
constexpr std::uint64_t kMaxBytes = 1 << 16;  // the device takes 4 KiB; larger ones serve as buffer contents

// ob_size counts the bytes of `data`. Objects are 16-byte aligned, and the header is a multiple of 16, so
// that vectors are aligned too.
struct StructObject {
  PyVarObject head;
  PyObject* spec_object;  // owned; holds *spec
  alignas(16) std::uint8_t data[1];
};
constexpr std::size_t kHeader = offsetof(StructObject, data);

// Descriptor of one field.
struct FieldObject {
  PyObject head;
  PyObject* spec_object;  // owned
  std::size_t index;
};

PyTypeObject* struct_type = nullptr;
PyTypeObject* field_type = nullptr;
PyObject* spec_attribute = nullptr;  // interned "__metalane_spec__"

StructSpec* spec_of(PyObject* spec_object) noexcept { return nb::inst_ptr<StructSpec>(spec_object); }

StructObject* as_struct(PyObject* object) noexcept {
  return Py_TYPE(object) == struct_type || PyType_IsSubtype(Py_TYPE(object), struct_type)
             ? reinterpret_cast<StructObject*>(object)
             : nullptr;
}

class Packer {
 public:
  Packer(const StructSpec& spec, const StructFieldSpec& field) : spec_(spec), field_(field) {}

  void pack(nb::handle value, std::uint8_t* out) const {
    if (field_.count == 0) {
      pack_element(value, out, -1);
      return;
    }
    if (pack_plain_list(value, out)) return;
    // `items` owns what it iterates over, so that a value's own conversion cannot pull it away.
    nb::object items = sequence(value, field_.count, " values");
    for (std::uint64_t i = 0; i < field_.count; ++i) {
      pack_element(tuple_item(items.ptr(), static_cast<Py_ssize_t>(i)), out + i * field_.element_size,
                   static_cast<std::int64_t>(i));
    }
  }

 private:
  // A list of as many plain numbers as the field has, without a copy of it: converting those runs no Python
  // code that could change it. False: nothing that counts was written.
  bool pack_plain_list(nb::handle value, std::uint8_t* out) const {
    PyObject* const list = value.ptr();
    const bool scalars = field_.scalar != ScalarType::structure && field_.components == 1;
    if (!scalars || PyList_CheckExact(list) == 0) return false;
    if (static_cast<std::uint64_t>(list_size(list)) != field_.count) return false;
    for (std::uint64_t i = 0; i < field_.count; ++i) {
      PyObject* const item = list_item(list, static_cast<Py_ssize_t>(i));
      if (PyLong_CheckExact(item) == 0 && PyFloat_CheckExact(item) == 0) return false;
      pack_scalar(field_.scalar, item, out + i * field_.element_size,
                  {spec_.name, field_.text, static_cast<std::int64_t>(i)});
    }
    return true;
  }

  void pack_element(nb::handle value, std::uint8_t* out, std::int64_t element) const {
    if (field_.scalar == ScalarType::structure) {
      pack_nested(value, out);
    } else if (field_.components == 1) {
      pack_scalar(field_.scalar, value, out, {spec_.name, field_.text, element});
    } else {
      nb::object items = sequence(value, field_.components, " components");
      for (std::uint32_t i = 0; i < field_.components; ++i) {
        pack_scalar(field_.scalar, PyTuple_GetItem(items.ptr(), i), out + i * field_.component_size,
                    {spec_.name, field_.text, element >= 0 ? element : i});
      }
    }
  }

  void pack_nested(nb::handle value, std::uint8_t* out) const {
    StructObject* const nested = as_struct(value.ptr());
    // A class may claim to be a subclass, and a subclass may have another layout.
    if (nested == nullptr || !nb::isinstance(value, field_.nested) ||
        static_cast<std::uint64_t>(Py_SIZE(value.ptr())) != field_.element_size) {
      throw DTypeError(spec_.name, field_.text, nb::type_name(field_.nested).c_str(),
                       repr_of(value) + " (" + type_name_of(value) + ")");
    }
    std::memcpy(out, nested->data, field_.element_size);
  }

  nb::object sequence(nb::handle value, std::uint64_t length, const char* what) const {
    const auto expected = [&] { return "a sequence of " + std::to_string(length) + what; };
    SequenceItems items = sequence_items(value, length);
    if (items.length < 0) {
      throw DTypeError(spec_.name, field_.text, expected(),
                       repr_of(value) + " (" + type_name_of(value) + ")");
    }
    if (static_cast<std::uint64_t>(items.length) != length) {
      throw ArgumentError(spec_.name, field_.text, expected(), std::to_string(items.length) + " values");
    }
    return std::move(items.tuple);
  }

  const StructSpec& spec_;
  const StructFieldSpec& field_;
};

PyObject* new_instance(PyTypeObject* type, PyObject* spec_object) {
  const StructSpec& spec = *spec_of(spec_object);
  PyObject* const object = PyType_GenericAlloc(type, static_cast<Py_ssize_t>(spec.defaults.size()));
  if (object == nullptr) throw nb::python_error();
  auto* const made = reinterpret_cast<StructObject*>(object);
  Py_INCREF(spec_object);
  made->spec_object = spec_object;
  std::memcpy(made->data, spec.defaults.data(), spec.defaults.size());
  return object;
}

nb::object unpack_element(const StructFieldSpec& field, const std::uint8_t* in) {
  if (field.scalar == ScalarType::structure) {
    nb::object spec_object = nb::getattr(field.nested, nb::handle(spec_attribute));
    nb::object nested =
        nb::steal(new_instance(reinterpret_cast<PyTypeObject*>(field.nested.ptr()), spec_object.ptr()));
    std::memcpy(reinterpret_cast<StructObject*>(nested.ptr())->data, in, field.element_size);
    return nested;
  }
  if (field.components == 1) return unpack_scalar(field.scalar, in);
  nb::object tuple = nb::steal(PyTuple_New(field.components));
  for (std::uint32_t i = 0; i < field.components; ++i) {
    PyTuple_SetItem(tuple.ptr(), i,
                    unpack_scalar(field.scalar, in + i * field.component_size).release().ptr());
  }
  return tuple;
}

nb::object unpack(const StructFieldSpec& field, const std::uint8_t* in) {
  if (field.count == 0) return unpack_element(field, in);
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(field.count)));
  for (std::uint64_t i = 0; i < field.count; ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i),
                    unpack_element(field, in + i * field.element_size).release().ptr());
  }
  return tuple;
}

nb::object spec_of_class(PyTypeObject* type) {
  nb::object spec_object = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), spec_attribute));
  if (!spec_object.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw nb::python_error();
    PyErr_Clear();
    throw DTypeError("Struct", "class", "a class decorated with metal_struct",
                     nb::type_name(nb::handle(reinterpret_cast<PyObject*>(type))).c_str());
  }
  if (Py_TYPE(spec_object.ptr()) != hot_types.struct_spec) {
    throw DTypeError("Struct", "__metalane_spec__", "what metal_struct placed there",
                     type_name_of(spec_object));
  }
  return spec_object;
}

// The field called `name`, tried first at `hint`: keyword arguments mostly come in the order of the fields.
std::size_t field_index(const StructSpec& spec, PyObject* name, std::size_t hint) {
  if (hint < spec.fields.size() && spec.fields[hint].name.ptr() == name) return hint;
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    if (spec.fields[i].name.ptr() == name) return i;
  }
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    if (PyUnicode_Compare(spec.fields[i].name.ptr(), name) == 0) return i;
  }
  PyErr_Format(PyExc_TypeError, "%s() got an unexpected field '%U'", spec.name.c_str(), name);
  throw nb::python_error();
}

void fill_missing(const StructSpec& spec, const std::bitset<kMaxFields>& given, std::uint8_t* data) {
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    const StructFieldSpec& field = spec.fields[i];
    if (given[i]) continue;
    if (field.default_factory.is_valid()) {
      Packer(spec, field).pack(field.default_factory(), data + field.offset);
    } else if (field.required) {
      PyErr_Format(PyExc_TypeError, "%s() misses the field '%U'", spec.name.c_str(), field.name.ptr());
      throw nb::python_error();
    }
  }
}

// One instance while its fields are filled in.
class Construction {
 public:
  explicit Construction(PyTypeObject* type)
      : spec_object_(spec_of_class(type)),
        spec_(*spec_of(spec_object_.ptr())),
        made_(nb::steal(new_instance(type, spec_object_.ptr()))),
        data_(reinterpret_cast<StructObject*>(made_.ptr())->data) {}

  // Before the first add().
  void check_positional(std::size_t count) const {
    if (count <= spec_.positional) return;
    PyErr_Format(PyExc_TypeError, "%s() takes %zu fields%s, got %zu", spec_.name.c_str(), spec_.positional,
                 spec_.positional == spec_.fields.size() ? "" : " by position", count);
    throw nb::python_error();
  }
  void add(PyObject* value) {
    while (spec_.fields[next_].keyword_only) ++next_;
    pack(next_, value);
  }
  void add(PyObject* name, PyObject* value) {
    const std::size_t i = field_index(spec_, name, next_);
    if (given_[i]) {
      PyErr_Format(PyExc_TypeError, "%s() got the field '%U' twice", spec_.name.c_str(), name);
      throw nb::python_error();
    }
    pack(i, value);
  }
  PyObject* finish() {
    fill_missing(spec_, given_, data_);
    return made_.release().ptr();
  }

 private:
  void pack(std::size_t i, PyObject* value) {
    Packer(spec_, spec_.fields[i]).pack(value, data_ + spec_.fields[i].offset);
    given_.set(i);
    next_ = i + 1;
  }

  nb::object spec_object_;
  const StructSpec& spec_;
  nb::object made_;
  std::uint8_t* data_;
  std::bitset<kMaxFields> given_;
  std::size_t next_ = 0;
};

PyObject* struct_new(PyTypeObject* type, PyObject* args, PyObject* kwargs);

#if !defined(Py_LIMITED_API)
// Calls of the class without a tuple and a dict of its arguments: 0.2 us less. Only for classes that are made
// as Struct makes them: an __init__ or __new__ of their own, also one set later, is called as ever.
PyObject* struct_vectorcall(PyObject* self, PyObject* const* args, std::size_t flagged_count,
                            PyObject* names) {
  auto* const type = reinterpret_cast<PyTypeObject*>(self);
  const auto positional = static_cast<std::size_t>(PyVectorcall_NARGS(flagged_count));
  const auto named = static_cast<std::size_t>(names == nullptr ? 0 : PyTuple_Size(names));
  return guarded<PyObject*>(nullptr, [&] {
    if (type->tp_new != struct_new || type->tp_init != PyBaseObject_Type.tp_init) {
      nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(positional)));
      nb::object dict = nb::steal(PyDict_New());
      if (!tuple.is_valid() || !dict.is_valid()) throw nb::python_error();
      for (std::size_t i = 0; i < positional; ++i) {
        PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::borrow(args[i]).release().ptr());
      }
      for (std::size_t i = 0; i < named; ++i) {
        PyObject* const name = PyTuple_GetItem(names, static_cast<Py_ssize_t>(i));
        if (PyDict_SetItem(dict.ptr(), name, args[positional + i]) != 0) throw nb::python_error();
      }
      return PyType_Type.tp_call(self, tuple.ptr(), dict.ptr());
    }
    Construction construction(type);
    construction.check_positional(positional);
    for (std::size_t i = 0; i < positional; ++i) construction.add(args[i]);
    for (std::size_t i = 0; i < named; ++i) {
      construction.add(tuple_item(names, static_cast<Py_ssize_t>(i)), args[positional + i]);
    }
    return construction.finish();
  });
}
#endif

PyObject* struct_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded<PyObject*>(nullptr, [&] {
    Construction construction(type);
#if !defined(Py_LIMITED_API)
    // From the second call on. Subclasses don't inherit it: each comes here once.
    if (type->tp_vectorcall == nullptr) type->tp_vectorcall = struct_vectorcall;
#endif
    const Py_ssize_t positional = PyTuple_Size(args);
    construction.check_positional(static_cast<std::size_t>(positional));
    for (Py_ssize_t i = 0; i < positional; ++i) construction.add(PyTuple_GetItem(args, i));
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; kwargs != nullptr && PyDict_Next(kwargs, &position, &name, &value) != 0;) {
      construction.add(name, value);
    }
    return construction.finish();
  });
}

void struct_dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Py_XDECREF(reinterpret_cast<StructObject*>(self)->spec_object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* struct_bytes(PyObject* self, PyObject*) {
  const auto* object = reinterpret_cast<StructObject*>(self);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(object->data), Py_SIZE(self));
}

PyObject* struct_from_bytes(PyObject* type, PyObject* bytes) {
  return guarded<PyObject*>(nullptr, [&] {
    nb::object spec_object = spec_of_class(reinterpret_cast<PyTypeObject*>(type));
    const StructSpec& spec = *spec_of(spec_object.ptr());
    if (PyBytes_Check(bytes) == 0) {
      throw DTypeError(spec.name + ".from_bytes", "data", "bytes", type_name_of(bytes));
    }
    if (static_cast<std::size_t>(PyBytes_Size(bytes)) != spec.defaults.size()) {
      throw ArgumentError(spec.name + ".from_bytes", "data", std::to_string(spec.defaults.size()) + " bytes",
                          std::to_string(PyBytes_Size(bytes)) + " bytes");
    }
    PyObject* const made = new_instance(reinterpret_cast<PyTypeObject*>(type), spec_object.ptr());
    std::memcpy(reinterpret_cast<StructObject*>(made)->data, PyBytes_AsString(bytes), spec.defaults.size());
    return made;
  });
}

// The instance that a descriptor is used on; null with an error set where it is of another struct.
StructObject* field_owner(const FieldObject* field, PyObject* instance) {
  StructObject* const owner = as_struct(instance);
  if (owner == nullptr || owner->spec_object != field->spec_object) {
    PyErr_Format(PyExc_TypeError, "the field belongs to %s, not to '%R'",
                 spec_of(field->spec_object)->name.c_str(), instance);
    return nullptr;
  }
  return owner;
}

PyObject* field_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) {
    Py_INCREF(self);
    return self;
  }
  const auto* field = reinterpret_cast<FieldObject*>(self);
  StructObject* const owner = field_owner(field, instance);
  if (owner == nullptr) return nullptr;
  return guarded<PyObject*>(nullptr, [&] {
    const StructFieldSpec& spec = spec_of(field->spec_object)->fields[field->index];
    return unpack(spec, owner->data + spec.offset).release().ptr();
  });
}

int field_set(PyObject* self, PyObject* instance, PyObject* value) {
  const auto* field = reinterpret_cast<FieldObject*>(self);
  StructObject* const owner = field_owner(field, instance);
  if (owner == nullptr) return -1;
  if (value == nullptr) {
    PyErr_SetString(PyExc_AttributeError, "a field of a struct cannot be deleted");
    return -1;
  }
  return guarded<int>(-1, [&] {
    const StructSpec& spec = *spec_of(field->spec_object);
    const StructFieldSpec& target = spec.fields[field->index];
    // Into a copy first: a refused element leaves the field as it was.
    std::vector<std::uint8_t> packed(spec.layout->fields[field->index].size);
    Packer(spec, target).pack(value, packed.data());
    std::memcpy(owner->data + target.offset, packed.data(), packed.size());
    return 0;
  });
}

PyObject* field_repr(PyObject* self) {
  const auto* field = reinterpret_cast<FieldObject*>(self);
  const StructSpec& spec = *spec_of(field->spec_object);
  const StructField& info = spec.layout->fields[field->index];
  return PyUnicode_FromFormat("<field %s.%s: %s, offset %llu, %llu bytes>", spec.name.c_str(),
                              info.name.c_str(), info.type.name.c_str(),
                              static_cast<unsigned long long>(info.offset),
                              static_cast<unsigned long long>(info.size));
}

void field_dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Py_XDECREF(reinterpret_cast<FieldObject*>(self)->spec_object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

nb::object make_field(nb::handle spec_object, std::size_t index) {
  if (index >= spec_of(spec_object.ptr())->fields.size()) throw nb::index_error();
  PyObject* const object = PyType_GenericAlloc(field_type, 0);
  if (object == nullptr) throw nb::python_error();
  auto* const field = reinterpret_cast<FieldObject*>(object);
  field->spec_object = nb::borrow(spec_object).release().ptr();
  field->index = index;
  return nb::steal(object);
}

std::uint64_t vector_alignment(std::uint32_t components, bool packed, std::uint64_t component_size) {
  if (components == 1 || packed) return component_size;
  return component_size * (components == 3 ? 4 : components);
}

// One field of metal_struct's description: (name, scalar or struct class, components, packed, count, default
// or
// ..., factory or None, keyword only).
struct FieldRow {
  std::string name;
  nb::object type;
  std::uint32_t components;
  bool packed;
  std::uint64_t count;
  nb::object factory;
  bool required;
  bool keyword_only;
};

// Appends a field behind the last one. Returns its alignment.
std::uint64_t append_field(StructSpec& spec, StructLayout& layout, const FieldRow& row) {
  StructFieldSpec field;
  StructField info;
  field.name = nb::steal(PyUnicode_InternFromString(row.name.c_str()));
  info.name = field.text = row.name;
  if (nb::isinstance<nb::str>(row.type)) {
    const DType dtype = dtype_from(row.type, spec.name.c_str());
    field.scalar = scalar_of(dtype);
    field.component_size = size_of(dtype);
    info.type.alignment = vector_alignment(row.components, row.packed, field.component_size);
    info.type.size =
        row.packed || row.components == 1 ? row.components * field.component_size : info.type.alignment;
    info.type.name = (row.packed ? "packed_" : "") + std::string(scalar_name(field.scalar)) +
                     (row.components == 1 ? "" : "x" + std::to_string(row.components));
  } else {
    nb::object nested = spec_of_class(reinterpret_cast<PyTypeObject*>(row.type.ptr()));
    const StructSpec& inner = *spec_of(nested.ptr());
    field.scalar = ScalarType::structure;
    field.nested = row.type;
    info.type.name = inner.name;
    info.type.size = inner.layout->size;
    info.type.alignment = inner.layout->alignment;
    info.type.layout = inner.layout;
  }
  info.type.scalar = field.scalar;
  info.type.components = field.components = row.components;
  info.count = field.count = row.count;
  field.element_size = info.type.size;
  info.offset = field.offset = layout.size;
  if (__builtin_mul_overflow(info.type.size, row.count == 0 ? 1 : row.count, &info.size) ||
      info.size > kMaxBytes - layout.size) {
    throw ArgumentError(spec.name, row.name, "a struct of at most 65536 bytes", "a larger one");
  }
  const std::uint64_t used = row.components * field.component_size;
  if (info.offset % info.type.alignment != 0) {
    const std::uint64_t missing = info.type.alignment - info.offset % info.type.alignment;
    throw ArgumentError(spec.name, row.name,
                        "at a multiple of its alignment of " + std::to_string(info.type.alignment) +
                            " bytes, with padding written out as fields",
                        "offset " + std::to_string(info.offset) + " (" + std::to_string(missing) +
                            " hidden bytes before it)");
  }
  if (field.scalar != ScalarType::structure && used != info.type.size) {
    throw ArgumentError(spec.name, row.name, "a type without hidden padding (packed, say)",
                        info.type.name + " with " + std::to_string(info.type.size - used) + " hidden bytes");
  }
  field.required = row.required;
  field.keyword_only = row.keyword_only;
  spec.positional += row.keyword_only ? 0 : 1;
  if (!row.factory.is_none()) field.default_factory = row.factory;
  layout.size += info.size;
  spec.fields.push_back(std::move(field));
  layout.fields.push_back(std::move(info));
  return layout.fields.back().type.alignment;
}

StructSpec* make_spec(const std::string& name, nb::list rows) {
  auto spec = std::make_unique<StructSpec>();
  auto layout = std::make_shared<StructLayout>();
  spec->name = layout->name = name;
  layout->alignment = 1;
  if (rows.size() == 0) throw ArgumentError(name, "fields", "at least one", "none");
  if (rows.size() > kMaxFields) {
    throw ArgumentError(name, "fields", "at most 256", std::to_string(rows.size()));
  }
  std::vector<nb::object> defaults;
  for (nb::handle item : rows) {
    auto row = nb::cast<nb::tuple>(item);
    const bool required = row[5].is(nb::handle(Py_Ellipsis)) && row[6].is_none();
    const std::uint64_t alignment =
        append_field(*spec, *layout,
                     {nb::cast<std::string>(row[0]), nb::borrow(row[1]), nb::cast<std::uint32_t>(row[2]),
                      nb::cast<bool>(row[3]), nb::cast<std::uint64_t>(row[4]), nb::borrow(row[6]), required,
                      nb::cast<bool>(row[7])});
    layout->alignment = std::max(layout->alignment, alignment);
    defaults.push_back(nb::borrow(row[5]));
  }
  if (layout->size % layout->alignment != 0) {
    throw ArgumentError(name, "size",
                        "a multiple of the struct's alignment of " + std::to_string(layout->alignment) +
                            " bytes, with padding written out as fields",
                        std::to_string(layout->size) + " bytes");
  }
  spec->defaults.resize(layout->size);
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    if (defaults[i].is(nb::handle(Py_Ellipsis))) continue;
    Packer(*spec, spec->fields[i]).pack(defaults[i], spec->defaults.data() + spec->fields[i].offset);
  }
  spec->layout = std::move(layout);
  return spec.release();
}

PyTypeObject* make_type(nb::module_& module, PyType_Spec& spec, const char* name) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw nb::python_error();
  nb::setattr(type, "__module__", module.attr("__name__"));
  module.attr(name) = nb::handle(type);
  return reinterpret_cast<PyTypeObject*>(type);  // kept for the life of the process
}

}  // namespace

StructView struct_view(nb::handle value) noexcept {
  StructObject* const object = as_struct(value.ptr());
  if (object == nullptr) return {};
  return {spec_of(object->spec_object), object->data};
}

void bind_struct(nb::module_& module) {
  spec_attribute = PyUnicode_InternFromString("__metalane_spec__");

  static PyMethodDef struct_methods[] = {
      {"__bytes__", struct_bytes, METH_NOARGS, "The packed bytes, as the device reads them."},
      {"from_bytes", struct_from_bytes, METH_O | METH_CLASS,
       "from_bytes(data)\n--\n\nAn instance of packed bytes."},
      {nullptr, nullptr, 0, nullptr}};
  PyType_Slot struct_slots[] = {
      {Py_tp_doc, const_cast<char*>("Base of the classes that metal_struct makes.")},
      {Py_tp_new, reinterpret_cast<void*>(struct_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(struct_dealloc)},
      {Py_tp_methods, struct_methods},
      {0, nullptr}};
  PyType_Spec struct_spec = {"metalane._core.Struct", kHeader, 1, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             struct_slots};
  struct_type = make_type(module, struct_spec, "Struct");

  PyType_Slot field_slots[] = {{Py_tp_doc, const_cast<char*>("Descriptor of one field of a struct.")},
                               {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
                               {Py_tp_descr_get, reinterpret_cast<void*>(field_get)},
                               {Py_tp_descr_set, reinterpret_cast<void*>(field_set)},
                               {Py_tp_repr, reinterpret_cast<void*>(field_repr)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(field_dealloc)},
                               {0, nullptr}};
  PyType_Spec field_spec = {"metalane._core.StructFieldDescriptor", sizeof(FieldObject), 0,
                            Py_TPFLAGS_DEFAULT, field_slots};
  field_type = make_type(module, field_spec, "StructFieldDescriptor");

  nb::class_<StructSpec> spec_class(module, "StructSpec", nb::is_final(), nb::type_slots(made_by_runtime),
                                    "How a class made by metal_struct lies in memory.");
  hot_types.struct_spec = reinterpret_cast<PyTypeObject*>(spec_class.ptr());
  spec_class
      .def_prop_ro(
          "layout", [](const StructSpec& spec) { return *spec.layout; }, "The layout, field by field.")
      .def(
          "descriptor", [](nb::handle self, std::size_t index) { return make_field(self, index); }, "index"_a)
      .def("__repr__", [](const StructSpec& spec) {
        return "<StructSpec " + spec.name + ", " + std::to_string(spec.layout->size) + " bytes>";
      });
  module.def("_struct_spec", &make_spec, nb::rv_policy::take_ownership, "name"_a, "fields"_a,
             nb::sig("def _struct_spec(name: str, fields: list[tuple[typing.Any, ...]]) -> StructSpec"),
             "The packed layout of these fields; refuses hidden padding. For metal_struct.");
}

}  // namespace metalane::python
