// Classes whose fields are the buffers of one operator.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "bindings/checked_arguments.h"

namespace metalane::python {

template <typename Buffers>
struct BufferField {
  const char* name;
  Buffer Buffers::* member;
};

// The class, made of its buffers by position or name. `fields`: all of them, in the struct's order.
template <typename Buffers, std::size_t n, std::size_t... i>
nb::class_<Buffers> buffers_class(nb::module_& module, const char* name, const char* doc,
                                  const std::array<BufferField<Buffers>, n>& fields,
                                  std::index_sequence<i...>) {
  nb::class_<Buffers> cls(module, name, nb::is_final(), doc);
  cls.def(
      "__init__",
      [](Buffers* self, decltype((void)i, std::declval<const Buffer&>())... buffers) {
        new (self) Buffers{buffers...};
      },
      nb::arg(fields[i].name)...);
  for (const BufferField<Buffers>& field : fields) {
    cls.def_prop_rw(
        field.name, [member = field.member](const Buffers& self) { return self.*member; },
        [member = field.member](Buffers& self, const Buffer& buffer) { self.*member = buffer; },
        nb::for_getter(nb::sig(("def " + std::string(field.name) + "(self) -> Buffer").c_str())),
        nb::for_setter(
            nb::sig(("def " + std::string(field.name) + "(self, buffer: Buffer) -> None").c_str())));
  }
  cls.def("__repr__", [class_name = std::string(name), fields](const Buffers& self) {
    std::string text;
    for (const BufferField<Buffers>& field : fields) {
      text +=
          (text.empty() ? "" : ", ") + std::string(field.name) + "=" + repr_of(nb::cast(self.*field.member));
    }
    return class_name + "(" + text + ")";
  });
  nb::list names;
  for (const BufferField<Buffers>& field : fields) names.append(field.name);
  cls.attr("__match_args__") = nb::tuple(names);
  return cls;
}

template <typename Buffers, std::size_t n>
nb::class_<Buffers> buffers_class(nb::module_& module, const char* name, const char* doc,
                                  const std::array<BufferField<Buffers>, n>& fields) {
  return buffers_class(module, name, doc, fields, std::make_index_sequence<n>());
}

}  // namespace metalane::python
