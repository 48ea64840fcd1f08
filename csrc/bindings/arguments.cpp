// Walks the arguments of a dispatch. This is the hot path of every call from Python: buffers cost one type
// comparison each.
#include "bindings/arguments.h"

#include <algorithm>
#include <new>

#include "bindings/struct_type.h"

namespace metalane::python {

namespace {

// The argument bound at `index`, or null. Buffers come first in a signature, by index: mostly at that
// position.
const KernelArgument* argument_at(const KernelSignature& signature, std::uint32_t index) {
  const std::vector<KernelArgument>& arguments = signature.arguments;
  const auto is_it = [index](const KernelArgument& argument) {
    return argument.index == index && argument.space != AddressSpace::threadgroup;
  };
  if (index < arguments.size() && is_it(arguments[index])) return &arguments[index];
  for (const KernelArgument& argument : arguments) {
    if (is_it(argument)) return &argument;
  }
  return nullptr;
}

std::string argument_name(const KernelSignature& signature, std::uint32_t index) {
  const KernelArgument* argument = argument_at(signature, index);
  return "argument " + std::to_string(index) + (argument == nullptr ? "" : " (" + argument->name + ")");
}

}  // namespace

ArgumentList::~ArgumentList() {
  for (std::size_t i = 0; i < held_count_; ++i) Py_DECREF(held_[i]);
}

// Before anything is done with the value: converting it may run Python code that drops it elsewhere.
void ArgumentList::hold(PyObject* value) {
  if (held_count_ == kMaxArguments) return;  // add() refuses the argument
  Py_INCREF(value);
  held_[held_count_++] = value;
}

void ArgumentList::add_number(const KernelSignature& signature, std::uint32_t index, nb::handle value) {
  const KernelArgument* argument = argument_at(signature, index);
  const std::string name = argument_name(signature, index);
  if (argument == nullptr) {
    throw ArgumentError(signature.name, name, "an index that the kernel has", repr_of(value));
  }
  const TypeInfo& type = argument->type;
  std::uint8_t* const out = scalars_[count_].data();
  const std::size_t size = scalar_size(type.scalar);
  const bool number = size != 0 && type.columns == 1 && argument->space == AddressSpace::constant;
  if (!number || (type.components > 1 && nb::isinstance<nb::str>(value))) {
    throw DTypeError(signature.name, name, number ? "numbers" : "a buffer, a metal_struct or bytes",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  std::uint64_t nbytes = size;
  if (type.components == 1) {
    pack_scalar(type.scalar, value, out, {signature.name, name});
  } else {
    const SequenceItems items = sequence_items(value, type.components);
    if (items.length < 0) {
      throw DTypeError(signature.name, name, std::to_string(type.components) + " numbers",
                       repr_of(value) + " (" + type_name_of(value) + ")");
    }
    if (items.length != type.components) {
      throw ArgumentError(signature.name, name, std::to_string(type.components) + " numbers", repr_of(value));
    }
    for (std::uint32_t i = 0; i < type.components; ++i) {
      pack_scalar(type.scalar, tuple_item(items.tuple.ptr(), i), out + i * size, {signature.name, name, i});
    }
    // A vector of three takes the room of four, unless it is packed.
    if (type.size > type.components * size) {
      std::fill(out + type.components * size, out + type.size, std::uint8_t{0});
    }
    nbytes = type.size;
  }
  new (&args_[count_]) KernelArg(index, out, nbytes);
}

void ArgumentList::add(const KernelSignature& signature, const Pipeline& pipeline, std::uint64_t given_index,
                       nb::handle value) {
  if (given_index >= kMaxArguments || count_ == kMaxArguments) {
    throw ArgumentError(signature.name, "args", "at most 31, at indices 0 to 30",
                        "index " + std::to_string(given_index));
  }
  const auto index = static_cast<std::uint32_t>(given_index);
  if (is_buffer(value)) {
    new (&args_[count_]) KernelArg(index, *nb::inst_ptr<Buffer>(value));
  } else if (const StructView view = struct_view(value); view.spec != nullptr) {
    const KernelArgument* argument = argument_at(signature, index);
    if (argument != nullptr && argument->type.scalar == ScalarType::structure) {
      view.spec->check_matches(pipeline, *argument);
    }
    new (&args_[count_]) KernelArg(index, view.bytes, view.spec->defaults.size());
  } else if (PyBytes_Check(value.ptr()) != 0) {
    new (&args_[count_]) KernelArg(index, PyBytes_AsString(value.ptr()),
                                   static_cast<std::uint64_t>(PyBytes_Size(value.ptr())));
  } else {
    add_number(signature, index, value);
  }
  ++count_;
}

void ArgumentList::read(const Pipeline& pipeline, nb::handle arguments) {
  const KernelSignature& signature = pipeline.signature();
  PyObject* const object = arguments.ptr();
  // Sizes are asked anew in each turn: converting a number may run Python code that changes the container.
  if (PyTuple_Check(object) != 0) {
    const Py_ssize_t count = PyTuple_Size(object);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const item = tuple_item(object, i);
      hold(item);
      add(signature, pipeline, static_cast<std::uint64_t>(i), item);
    }
  } else if (PyList_Check(object) != 0) {
    for (Py_ssize_t i = 0; i < list_size(object); ++i) {
      PyObject* const item = list_item(object, i);
      hold(item);
      add(signature, pipeline, static_cast<std::uint64_t>(i), item);
    }
  } else if (PyDict_Check(object) != 0) {
    nb::object items = nb::steal(PyDict_Items(object));
    const Py_ssize_t count = PyList_Size(items.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const item = PyList_GetItem(items.ptr(), i);
      hold(PyTuple_GetItem(item, 1));
      add(signature, pipeline, u64_from(PyTuple_GetItem(item, 0), signature.name.c_str(), "args"),
          PyTuple_GetItem(item, 1));
    }
  } else {
    throw DTypeError(signature.name, "args", "a list or tuple of arguments, or a dict {index: argument}",
                     type_name_of(arguments));
  }
}

}  // namespace metalane::python
