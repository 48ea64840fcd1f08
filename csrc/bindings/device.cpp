// Devices and what they hand out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

KernelChoice choice_from(const std::string& kernels) {
  if (kernels == "auto") return KernelChoice::automatic;
  if (kernels == "native") return KernelChoice::native;
  if (kernels == "shader") return KernelChoice::shader;
  throw ArgumentError("Device", "kernels", "'auto', 'native' or 'shader'", "'" + kernels + "'");
}

const char* choice_name(KernelChoice choice) {
  switch (choice) {
    case KernelChoice::automatic:
      return "auto";
    case KernelChoice::native:
      return "native";
    case KernelChoice::shader:
      return "shader";
  }
  return "auto";
}

// A NumPy array's memory, element type and shape, by its array interface.
struct HostArray {
  void* address;
  Shape shape;
  DType dtype;
  bool readonly;
};

HostArray host_array(nb::handle array, const char* op) {
  const DType dtype = dtype_from(array.attr("dtype"), op);
  nb::object interface = array.attr("__array_interface__");
  nb::object data = interface["data"];
  return {reinterpret_cast<void*>(u64_from(data[0], op, "data")), shape_from(array.attr("shape"), op), dtype,
          nb::cast<bool>(data[1])};
}

Buffer from_numpy(const Device& device, nb::handle value) {
  nb::dict keywords;
  keywords["order"] = "C";
  nb::object array = nb::module_::import_("numpy").attr("asarray")(value, **keywords);
  const HostArray host = host_array(array, "Device.from_numpy");
  Unlocked unlocked;
  return device.copy_of(host.address, host.shape, host.dtype);
}

Buffer wrap(const Device& device, nb::object array) {
  drain_deferred();
  nb::object numpy = nb::module_::import_("numpy");
  if (!nb::isinstance(array, numpy.attr("ndarray"))) {
    throw DTypeError("Device.wrap", "a", "a numpy.ndarray (from_numpy copies anything else)",
                     type_name_of(array));
  }
  if (!nb::cast<bool>(array.attr("flags").attr("c_contiguous"))) {
    throw ArgumentError("Device.wrap", "a", "row-major contiguous (from_numpy copies anything else)",
                        "strides " + repr_of(array.attr("strides")));
  }
  const HostArray host = host_array(array, "Device.wrap");
  return device.wrap(host.address, host.shape, host.dtype, host.readonly,
                     deferred_reference(std::move(array)));
}

void bind_memory(nb::class_<Device>& device) {
  device
      .def(
          "zeros",
          [](const Device& self, nb::handle shape, nb::handle dtype) {
            const Shape dims = shape_from(shape, "Device.zeros");
            const DType element = dtype_from(dtype, "Device.zeros");
            Unlocked unlocked;
            return self.zeros(dims, element);
          },
          "shape"_a.none(), "dtype"_a.none(),
          nb::sig("def zeros(self, shape: int | Sequence[int], dtype: typing.Any) -> Buffer"),
          "A zero-filled buffer. Raises OutOfMemoryError, ArgumentError (shape) or DTypeError.")
      .def(
          "empty",
          [](const Device& self, nb::handle shape, nb::handle dtype) {
            const Shape dims = shape_from(shape, "Device.empty");
            const DType element = dtype_from(dtype, "Device.empty");
            Unlocked unlocked;
            return self.empty(dims, element);
          },
          "shape"_a.none(), "dtype"_a.none(),
          nb::sig("def empty(self, shape: int | Sequence[int], dtype: typing.Any) -> Buffer"),
          "A buffer with unspecified contents.")
      .def("from_numpy", &from_numpy, "a"_a.none(), nb::sig("def from_numpy(self, a: typing.Any) -> Buffer"),
           "A new buffer with a copy of an array (or of anything that numpy.asarray takes).")
      .def("wrap", &wrap, "a"_a.none(), nb::sig("def wrap(self, a: NDArray[typing.Any]) -> Buffer"),
           "The array's own memory as a buffer, without a copy: it keeps `a` alive and is read-only where "
           "`a` is.\n\n"
           "Raises ArgumentError where `a` is not contiguous or not aligned for the device.");
}

}  // namespace

void bind_device(nb::module_& module) {
  nb::class_<DeviceInfo>(module, "DeviceInfo", nb::is_final(), "A device that this process can open.")
      .def_ro("kind", &DeviceInfo::kind, "'metal', 'cpu' or 'null'.")
      .def_ro("name", &DeviceInfo::name)
      .def("__repr__",
           [](const DeviceInfo& self) { return "<DeviceInfo " + self.kind + ": " + self.name + ">"; });
  module.def("devices", &devices, nb::call_guard<Unlocked>(),
             "The devices that this process can open, the default one first.");

  nb::class_<Device> device(
      module, "Device", nb::is_final(),
      "A device with its own queue, registry and pipelines. Thread-safe; two in one process are "
      "independent.");
  device
      .def(
          "__init__",
          [](Device* self, const std::optional<std::string>& kind, const std::string& kernels) {
            const KernelChoice choice = choice_from(kernels);
            Unlocked unlocked;
            new (self) Device(kind.value_or(""), choice);
          },
          "kind"_a = nb::none(), "kernels"_a = "auto",
          nb::sig("def __init__(self, kind: str | None = None, "
                  "kernels: typing.Literal['auto', 'native', 'shader'] = 'auto') -> None"),
          "kind: 'metal', 'cpu' or 'null' (records launches, runs nothing); None: Metal where there is one, "
          "else the "
          "CPU.\n"
          "kernels: on the CPU device, prefer hand-written native kernels ('auto'), insist on them "
          "('native') or "
          "always run the .metal source ('shader').\n\n"
          "Raises DeviceError where there is no such device.")
      .def_prop_ro("kind", &Device::kind)
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("kernels", [](const Device& self) { return choice_name(self.kernels()); })
      .def_prop_ro("registry", &Device::registry, "The device's kernel sources and pipelines.")
      .def(
          "command_encoder",
          [](const Device& self, bool concurrent, bool auto_barriers) {
            return new Encoder{self.command_encoder({concurrent, auto_barriers}), std::nullopt};
          },
          "concurrent"_a = true, "auto_barriers"_a = true, nb::rv_policy::take_ownership,
          "A new encoder.\n\n"
          "concurrent: launches may overlap where their ranges allow; False: one after another.\n"
          "auto_barriers: place barriers by the kernels' declared access; False: only memory_barrier() "
          "orders.")
      .def(
          "__eq__",
          [](const Device& self, nb::handle other) {
            return nb::isinstance<Device>(other) && self == *nb::inst_ptr<Device>(other);
          },
          "other"_a.none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__", [](const Device& self) { return std::hash<const void*>{}(self.state().get()); })
      .def("__repr__",
           [](const Device& self) { return "<Device " + self.kind() + ": " + self.name() + ">"; });
  bind_memory(device);
  module.def("from_dlpack", &buffer_from_dlpack, "x"_a.none(), "device"_a,
             nb::sig("def from_dlpack(x: typing.Any, device: Device) -> Buffer"),
             "A buffer on the memory of any object with __dlpack__ in host memory, without a copy.\n\n"
             "Raises ArgumentError (strides, alignment, not host memory) or DTypeError.");
}

}  // namespace metalane::python
