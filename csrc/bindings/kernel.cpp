// Signatures, struct layouts, pipelines and the kernel registry.
#include <nanobind/stl/vector.h>

#include "bindings/checked_arguments.h"
#include "bindings/kernel_types.h"
#include "bindings/struct_type.h"
#include "core/device_state.h"
#include "core/registry.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

const char* space_name(AddressSpace space) {
  switch (space) {
    case AddressSpace::device:
      return "device";
    case AddressSpace::constant:
      return "constant";
    case AddressSpace::threadgroup:
      return "threadgroup";
  }
  return "device";
}

const char* access_name(Access access) {
  switch (access) {
    case Access::none:
      return "none";
    case Access::read:
      return "read";
    case Access::write:
      return "write";
    case Access::read_write:
      return "read_write";
  }
  return "none";
}

std::string argument_text(const KernelArgument& argument) {
  const char* index = argument.space == AddressSpace::threadgroup ? "threadgroup" : "buffer";
  return std::string(space_name(argument.space)) + " " + type_text(argument.type) +
         (argument.is_reference ? "& " : "* ") + argument.name + " [[" + index + "(" +
         number(argument.index) + ")]]";
}

// As the source declares it: "device const float* x".
std::string declaration_text(const KernelArgument& argument) {
  const bool is_const = argument.space == AddressSpace::device && !writes(argument.access);
  return std::string(space_name(argument.space)) + (is_const ? " const " : " ") +
         (argument.type.name.empty() ? type_text(argument.type) : argument.type.name) +
         (argument.is_reference ? "& " : "* ") + argument.name;
}

// What a call gives for the argument.
const char* kind_name(const KernelArgument& argument) {
  if (argument.space == AddressSpace::threadgroup) return "threadgroup";
  if (!argument.is_reference || writes(argument.access)) return "buffer";
  if (argument.type.scalar == ScalarType::structure) return "struct";
  if (argument.type.scalar == ScalarType::opaque) return "buffer";
  if (argument.type.columns > 1) return "matrix";
  return argument.type.components > 1 ? "vector" : "scalar";
}

nb::object layout_object(const std::shared_ptr<const StructLayout>& layout) {
  return layout == nullptr ? nb::none() : nb::cast(*layout);
}

void bind_layout_types(nb::module_& module) {
  nb::class_<StructField>(module, "StructField", nb::is_final(), nb::type_slots(made_by_runtime),
                          "One field of a struct as the device lays it out.")
      .def_ro("name", &StructField::name)
      .def_prop_ro(
          "type", [](const StructField& field) { return type_text(field.type); },
          "Element type: 'u32', 'f32x4', or a struct's name.")
      .def_prop_ro(
          "layout", [](const StructField& field) { return layout_object(field.type.layout); },
          nb::sig("def layout(self) -> StructLayout | None"), "Layout of a field that is a struct.")
      .def_ro("count", &StructField::count, "Elements of an array; 0 where the field is none.")
      .def_ro("offset", &StructField::offset, "Bytes from the start of the struct.")
      .def_ro("size", &StructField::size, "Bytes of the whole field.")
      .def("__repr__", [](const StructField& field) {
        return "<StructField " + type_text(field.type) + " " + field.name +
               (field.count == 0 ? "" : "[" + number(field.count) + "]") + " at " + number(field.offset) +
               ", " + number(field.size) + " bytes>";
      });
  nb::class_<StructLayout>(module, "StructLayout", nb::is_final(), nb::type_slots(made_by_runtime),
                           "A struct's memory: its fields in order.")
      .def_ro("name", &StructLayout::name)
      .def_ro("size", &StructLayout::size, "Bytes.")
      .def_ro("alignment", &StructLayout::alignment, "Bytes.")
      .def_prop_ro("fields", [](const StructLayout& layout) { return layout.fields; })
      .def(
          "difference",
          [](const StructLayout& self, nb::handle other) -> nb::object {
            const auto& given =
                object_from<StructLayout>(other, "StructLayout.difference", "other", "a StructLayout");
            std::optional<LayoutMismatch> found = compare_layouts(self, given, "");
            if (!found) return nb::none();
            return nb::make_tuple(found->field, found->expected, found->given);
          },
          "other"_a.none(),
          nb::sig("def difference(self, other: StructLayout) -> tuple[str, str, str] | None"),
          "The first field that `other` lays out differently, as (field, expected, given); None where they "
          "agree.")
      .def("__repr__", [](const StructLayout& layout) {
        return "<StructLayout " + layout.name + ", " + number(layout.fields.size()) + " fields, " +
               number(layout.size) + " bytes>";
      });
}

void bind_signature_types(nb::module_& module) {
  nb::class_<KernelArgument>(module, "KernelArgument", nb::is_final(), nb::type_slots(made_by_runtime),
                             "One argument of a kernel, from its source.")
      .def_ro("name", &KernelArgument::name)
      .def_ro("index", &KernelArgument::index, "Of [[buffer(index)]] or [[threadgroup(index)]].")
      .def_prop_ro(
          "space", [](const KernelArgument& argument) { return space_name(argument.space); },
          "'device', 'constant' or 'threadgroup'.")
      .def_prop_ro(
          "access", [](const KernelArgument& argument) { return access_name(argument.access); },
          "'read', 'write' or 'read_write'.")
      .def_ro("is_reference", &KernelArgument::is_reference)
      .def_ro("is_optional", &KernelArgument::is_optional)
      .def_prop_ro("type", [](const KernelArgument& argument) { return type_text(argument.type); })
      .def_prop_ro(
          "layout", [](const KernelArgument& argument) { return layout_object(argument.type.layout); },
          nb::sig("def layout(self) -> StructLayout | None"), "Layout of what a struct argument points to.")
      .def_prop_ro("kind", &kind_name,
                   "'buffer', 'scalar', 'vector', 'matrix' or 'struct' (by value), or 'threadgroup'.")
      .def_prop_ro(
          "dtype", [](const KernelArgument& argument) { return dtype_of_type(argument.type); },
          nb::sig("def dtype(self) -> numpy.dtype[typing.Any] | None"),
          "NumPy's dtype of an element: a scalar's (also for vectors of it), or a record dtype for a struct; "
          "None for void and types that are not known.")
      .def_prop_ro(
          "size", [](const KernelArgument& argument) { return argument.type.size; },
          "Bytes of one element; 0 where the type is not known.")
      .def_prop_ro(
          "alignment", [](const KernelArgument& argument) { return argument.type.alignment; },
          "Bytes that the address must be a multiple of; 0 where the type is not known.")
      .def_prop_ro("declaration", &declaration_text, "As in the source: 'device const float* x'.")
      .def("__repr__",
           [](const KernelArgument& argument) { return "<KernelArgument " + argument_text(argument) + ">"; });
  nb::class_<FunctionConstant>(module, "FunctionConstant", nb::is_final(), nb::type_slots(made_by_runtime),
                               "One [[function_constant(index)]].")
      .def_ro("name", &FunctionConstant::name)
      .def_ro("index", &FunctionConstant::index)
      .def_prop_ro("type", [](const FunctionConstant& constant) { return type_text(constant.type); })
      .def("__repr__", [](const FunctionConstant& constant) {
        return "<FunctionConstant " + type_text(constant.type) + " " + constant.name + " (" +
               number(constant.index) + ")>";
      });
  nb::class_<KernelSignature>(module, "KernelSignature", nb::is_final(), nb::type_slots(made_by_runtime),
                              "What a kernel takes, read from its source.")
      .def_ro("name", &KernelSignature::name)
      .def_ro("function", &KernelSignature::function)
      .def_prop_ro("arguments", [](const KernelSignature& signature) { return signature.arguments; })
      .def_prop_ro("constants", [](const KernelSignature& signature) { return signature.constants; })
      .def("__repr__", [](const KernelSignature& signature) {
        std::string text;
        for (const KernelArgument& argument : signature.arguments) {
          text += (text.empty() ? "" : ", ") + argument_text(argument);
        }
        return "<KernelSignature " + signature.name + "(" + text + ")>";
      });
}

nb::object constant_object(const ConstantNumber& number) {
  return std::visit([](auto value) { return nb::cast(value); }, number);
}

nb::dict constants_dict(const std::vector<ConstantValue>& constants) {
  nb::dict values;
  for (const ConstantValue& constant : constants) {
    const nb::object key = std::visit([](const auto& name) { return nb::cast(name); }, constant.key);
    values[key] = std::visit(
        [](const auto& value) -> nb::object {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<ConstantNumber>>) {
            nb::list components;
            for (const ConstantNumber& number : value) components.append(constant_object(number));
            return nb::tuple(components);
          } else {
            return nb::cast(value);
          }
        },
        constant.value);
  }
  return values;
}

MathMode math_from(nb::handle value, const char* op) {
  const std::string math = text_from(value, op, "math");
  if (math == "safe") return MathMode::safe;
  if (math == "fast") return MathMode::fast;
  throw ArgumentError(op, "math", "'safe' or 'fast'", "'" + math + "'");
}

// A registry of its own for one compiled source: its kernels meet no others, and go with it.
KernelRegistry private_registry(nb::handle value) {
  const auto& device = object_from<Device>(value, "Device.compile", "self", "a Device");
  const std::shared_ptr<core::DeviceState>& state = device.state();
  if (state->in_other_process()) {
    throw DeviceError(
        "Device.compile: the device was opened before this process was forked; open a new Device here");
  }
  // The backend lives as long as the state that owns it.
  std::shared_ptr<backend::Device> backend(state, &state->backend());
  return KernelRegistry(std::make_shared<core::RegistryState>(std::move(backend)));
}

void bind_registry(nb::module_& module) {
  nb::class_<KernelRegistry>(module, "KernelRegistry", nb::is_final(), nb::type_slots(made_by_runtime),
                             "The kernel sources of one device and the pipelines built from them.")
      .def(
          "register_source",
          [](KernelRegistry& self, nb::handle name, nb::handle source) {
            const std::string key = text_from(name, "KernelRegistry.register_source", "name");
            const std::string text = text_from(source, "KernelRegistry.register_source", "source");
            Unlocked unlocked;
            self.register_source(key, text);
          },
          "name"_a.none(), "source"_a.none(),
          nb::sig("def register_source(self, name: str, source: str) -> None"),
          "Registers MSL text under `name`; replaces what was registered under it. Pipelines already built "
          "stay "
          "valid.")
      .def(
          "register_header",
          [](KernelRegistry& self, nb::handle name, nb::handle text) {
            const std::string key = text_from(name, "KernelRegistry.register_header", "name");
            const std::string content = text_from(text, "KernelRegistry.register_header", "text");
            Unlocked unlocked;
            self.register_header(key, content);
          },
          "name"_a.none(), "text"_a.none(),
          nb::sig("def register_header(self, name: str, text: str) -> None"),
          "What `#include \"name\"` gives in every source of this registry.")
      .def(
          "pipeline",
          [](KernelRegistry& self, nb::handle name, nb::handle constants, nb::handle math) {
            const std::string kernel = text_from(name, "KernelRegistry.pipeline", "name");
            const std::vector<ConstantValue> values = constants_from(constants, "KernelRegistry.pipeline");
            const MathMode mode = math_from(math, "KernelRegistry.pipeline");
            Unlocked unlocked;
            return self.pipeline(kernel, values, mode);
          },
          "name"_a.none(), "constants"_a = nb::none(), "math"_a.none() = "safe",
          nb::sig("def pipeline(self, name: str, constants: Mapping[str | int, bool | int | float | "
                  "Sequence[float]] | None = "
                  "None, "
                  "math: str = 'safe') -> Pipeline"),
          "The compiled kernel `name` with these function constants; built once.\n\n"
          "Raises KernelNotFoundError, ArgumentError (constants) or CompileError.")
      .def(
          "kernels",
          [](KernelRegistry& self, nb::handle name) {
            const std::string key = text_from(name, "KernelRegistry.kernels", "name");
            Unlocked unlocked;
            return self.kernels(key);
          },
          "name"_a.none(), nb::sig("def kernels(self, name: str) -> list[KernelSignature]"),
          "Signatures of the kernels of the source registered as `name`, compiled or not.")
      .def(
          "metal_source",
          [](KernelRegistry& self, nb::handle name, nb::handle math) {
            const std::string key = text_from(name, "KernelRegistry.metal_source", "name");
            const MathMode mode = math_from(math, "KernelRegistry.metal_source");
            Unlocked unlocked;
            return self.metal_source(key, mode);
          },
          "name"_a.none(), "math"_a.none() = "safe",
          nb::sig("def metal_source(self, name: str, math: str = 'safe') -> str"),
          "The one text that Metal's compiler is given for the source of the kernel `name`: registered "
          "headers in place, `#line` marks, pragmas for safe math.\n\n"
          "Raises KernelNotFoundError or CompileError.")
      .def_prop_ro("names", &KernelRegistry::names, "Every name that `pipeline` takes.")
      .def("__repr__", [](const KernelRegistry& self) {
        return "<KernelRegistry of " + number(self.names().size()) + " names>";
      });
  module.def(
      "_pipeline_of_source",
      [](nb::handle registry, nb::handle name, nb::handle source, nb::handle constants, nb::handle math) {
        constexpr const char* op = "ComputeGraph.load";
        const auto& self = object_from<KernelRegistry>(registry, op, "registry", "a KernelRegistry");
        const std::string kernel = text_from(name, op, "kernel");
        const core::PipelineOrigin origin = {text_from(source, op, "source"), constants_from(constants, op),
                                             math_from(math, op)};
        Unlocked unlocked;
        return self.state()->pipeline_of_source(kernel, origin);
      },
      "registry"_a.none(), "name"_a.none(), "source"_a.none(), "constants"_a.none(), "math"_a.none(),
      nb::sig("def _pipeline_of_source(registry: KernelRegistry, name: str, source: str, "
              "constants: Mapping[str | int, bool | int | float | Sequence[float]], math: str) -> Pipeline"),
      "The kernel `name` of the source with that hash, built in or registered under whatever name.");
  module.def("_private_registry", &private_registry, "device"_a.none(),
             nb::sig("def _private_registry(device: Device) -> KernelRegistry"),
             "A registry of its own on the device, for one compiled source.");
}

}  // namespace

void StructSpec::check_matches(const Pipeline& pipeline, const KernelArgument& argument) const {
  const std::shared_ptr<const core::PipelineState>& state = pipeline.state();
  for (const Checked& checked : checked_) {
    if (checked.index == argument.index && !checked.pipeline.owner_before(state) &&
        !state.owner_before(checked.pipeline)) {
      return;
    }
  }
  if (argument.type.layout != nullptr) {
    if (std::optional<LayoutMismatch> found = compare_layouts(*argument.type.layout, *layout, "")) {
      throw ArgumentError(pipeline.signature().name,
                          argument.name + "." + found->field + " (struct " + name + ")", found->expected,
                          found->given);
    }
  }
  if (checked_.size() < kChecked) {
    checked_.push_back({state, argument.index});
  } else {
    checked_[next_checked_++ % kChecked] = {state, argument.index};
  }
}

void bind_kernel(nb::module_& module) {
  bind_layout_types(module);
  bind_signature_types(module);
  nb::class_<Pipeline> pipeline(module, "Pipeline", nb::is_final(), nb::type_slots(made_by_runtime),
                                "A kernel compiled for one device.");
  hot_types.pipeline = reinterpret_cast<PyTypeObject*>(pipeline.ptr());
  pipeline.def_prop_ro("name", [](const Pipeline& self) { return self.signature().name; })
      .def_prop_ro("signature", [](const Pipeline& self) { return self.signature(); })
      .def_prop_ro("key", &Pipeline::key, "Everything that decided the compiled code, readable.")
      .def_prop_ro(
          "source_hash", [](const Pipeline& self) { return self.state()->origin.source_hash; },
          "SHA-256 of the source and of the headers that it may include, in hex.")
      .def_prop_ro(
          "constants", [](const Pipeline& self) { return constants_dict(self.state()->origin.constants); },
          nb::sig(
              "def constants(self) -> dict[str | int, bool | int | float | tuple[bool | int | float, ...]]"),
          "The function constants that it was built with.")
      .def_prop_ro(
          "math",
          [](const Pipeline& self) { return self.state()->origin.math == MathMode::safe ? "safe" : "fast"; },
          nb::sig("def math(self) -> typing.Literal['safe', 'fast']"))
      .def_prop_ro("max_total_threads_per_threadgroup", &Pipeline::max_total_threads_per_threadgroup)
      .def_prop_ro("thread_execution_width", &Pipeline::thread_execution_width, "Threads of a simdgroup.")
      .def_prop_ro("static_threadgroup_memory", &Pipeline::static_threadgroup_memory, "Bytes.")
      .def("__repr__", [](const Pipeline& self) { return "<Pipeline " + self.key() + ">"; });
  bind_registry(module);
}

}  // namespace metalane::python
