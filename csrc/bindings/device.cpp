// Devices and what they hand out.
#include <nanobind/stl/vector.h>

#include "bindings/check.h"
#include "bindings/checked_arguments.h"

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

// What compiles is Python: it converts NumPy arrays and makes classes of the kernels.
nb::object compile(nb::object self, nb::object source, nb::object name, nb::object math, nb::object constants,
                   nb::object headers) {
  return nb::module_::import_("metalane.compiled")
      .attr("compile_source")(self, source, "name"_a = name, "math"_a = math, "constants"_a = constants,
                              "headers"_a = headers);
}

void bind_compile(nb::class_<Device>& device) {
  device.def(
      "compile", &compile, "source"_a.none(), nb::kw_only(), "name"_a = nb::none(), "math"_a.none() = "safe",
      "constants"_a = nb::none(), "headers"_a = nb::none(),
      nb::sig("def compile(self, source: str, *, name: str | None = None, "
              "math: typing.Literal['safe', 'fast'] = 'safe', "
              "constants: Mapping[str | int, bool | int | float | Sequence[float]] | None = None, "
              "headers: Mapping[str, str] | None = None) -> CompiledSource"),
      "The kernels of a Metal source as callables: `device.compile(text).saxpy(x, y, 2.0, threads=n)`.\n\n"
      "name: what errors call the source. math: 'safe' (IEEE, the default) or 'fast'. constants: values of "
      "function constants, for every kernel. headers: what `#include \"name\"` gives.\n\n"
      "Each kernel is built when it is first called. Raises CompileError where the source cannot be read, "
      "ArgumentError and DTypeError for constants that it does not have.");
}

}  // namespace

void bind_device(nb::module_& module) {
  nb::class_<DeviceLimits>(module, "DeviceLimits", nb::is_final(), nb::type_slots(made_by_runtime),
                           "What a device allows.")
      .def_ro("max_buffer_bytes", &DeviceLimits::max_buffer_bytes)
      .def_ro("max_threads_per_threadgroup", &DeviceLimits::max_threads_per_threadgroup,
              "A pipeline may allow fewer.")
      .def_ro("max_threadgroup_memory", &DeviceLimits::max_threadgroup_memory, "Bytes.")
      .def_ro("thread_execution_width", &DeviceLimits::thread_execution_width, "Threads of a simdgroup.")
      .def_ro("wrap_alignment", &DeviceLimits::wrap_alignment,
              "Bytes that the address of wrapped memory is a multiple of.")
      .def("__repr__", [](const DeviceLimits& self) {
        return "<DeviceLimits: " + std::to_string(self.max_buffer_bytes) + " bytes a buffer, " +
               std::to_string(self.max_threads_per_threadgroup) + " threads and " +
               std::to_string(self.max_threadgroup_memory) + " bytes a threadgroup>";
      });
  nb::class_<DeviceInfo>(module, "DeviceInfo", nb::is_final(), nb::type_slots(made_by_runtime),
                         "A device that this process can open.")
      .def_ro("kind", &DeviceInfo::kind, "'metal', 'cpu' or 'null'.")
      .def_ro("name", &DeviceInfo::name)
      .def_ro("selector", &DeviceInfo::selector, "What `Device` takes for it: 'metal', 'metal:1', 'cpu'.")
      .def_ro("architecture", &DeviceInfo::architecture, "Of the processor or GPU; '' where nobody says.")
      .def_ro("families", &DeviceInfo::families, "Metal's GPU families, or levels of the instruction set.")
      .def_ro("limits", &DeviceInfo::limits)
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes,
              "Memory that it can use at its full speed; 0: not known.")
      .def("__repr__",
           [](const DeviceInfo& self) { return "<DeviceInfo " + self.kind + ": " + self.name + ">"; });
  module.def("devices", &devices, nb::call_guard<Unlocked>(),
             "The devices that this process can open, the default one first.");

  nb::class_<Device> device(
      module, "Device", nb::is_final(), nb::is_weak_referenceable(),
      "A device with its own queue, registry and pipelines. Thread-safe; two in one process are "
      "independent.");
  device
      .def(
          "__init__",
          [](nb::pointer_and_handle<Device> self, nb::handle kind, nb::handle kernels, nb::handle check,
             nb::handle reports, nb::handle residency_bytes, nb::handle pipeline_archive, nb::handle isa) {
            const std::string name = kind.is_none() ? std::string() : text_from(kind, "Device", "kind");
            DeviceOptions options;
            options.kernels = choice_from(text_from(kernels, "Device", "kernels"));
            options.check = check_from(check, reports);
            options.residency_bytes = u64_from(residency_bytes, "Device", "residency_bytes");
            if (!isa.is_none()) options.isa = text_from(isa, "Device", "isa");
            options.pipeline_archive = flag_from(pipeline_archive, "Device", "pipeline_archive");
            const nb::object session =
                check.is_none() ? check_session_of(name, choice_name(options.kernels)) : nb::none();
            if (!session.is_none())
              options.check = check_from(session.attr("check"), session.attr("reports"));
            {
              Unlocked unlocked;
              new (self.p) Device(name, options);
            }
            nb::inst_mark_ready(self.h);  // the sessions use it
            if (!session.is_none()) session.attr("opened")(self.h);
            nb::module_::import_("metalane.profile_session").attr("opened")(self.h);
          },
          "kind"_a = nb::none(), "kernels"_a.none() = "auto", nb::kw_only(), "check"_a = nb::none(),
          "reports"_a.none() = "raise", "residency_bytes"_a.none() = 0, "pipeline_archive"_a.none() = true,
          "isa"_a = nb::none(),
          nb::sig("def __init__(self, kind: str | None = None, "
                  "kernels: typing.Literal['auto', 'native', 'shader'] = 'auto', *, "
                  "check: bool | str | Sequence[str] | None = None, "
                  "reports: typing.Literal['raise', 'list'] = 'raise', residency_bytes: int = 0, "
                  "pipeline_archive: bool = True, "
                  "isa: typing.Literal['avx512', 'avx2', 'neon', 'baseline'] | None = None) "
                  "-> None"),
          "kind: 'metal', 'cpu' or 'null' (records launches, runs nothing), with a number for those after "
          "the "
          "first "
          "('metal:1'); None: Metal where there is one, else the CPU.\n"
          "kernels: on the CPU device, prefer hand-written native kernels ('auto'), insist on them "
          "('native') or "
          "always run the .metal source ('shader').\n\n"
          "check: on the CPU device, run shaders under the checker, which finds races, accesses out of "
          "bounds, "
          "reads of memory never written and divergent barriers: True, or some of 'races bounds "
          "uninitialised "
          "divergence traffic'. None: nothing, except in a metalane.check_session.CheckSession.\n"
          "reports: errors that it finds fail their submission with CheckError ('raise'), or are only kept "
          "for "
          "check_report() ('list'), as warnings always are.\n\n"
          "residency_bytes: on the Metal device, allocations stay resident on the GPU while they are this "
          "many bytes in all at most; 0: as the system decides.\n"
          "pipeline_archive: on the Metal device, keep compiled pipelines on disk, in the folder of "
          "metalane.cpu.set_kernel_cache.\n"
          "isa: the instruction set that the CPU device's built-in kernels use at most; None: the best that "
          "the processor has.\n\n"
          "Raises DeviceError where there is no such device, ArgumentError for an instruction set that the "
          "processor lacks.")
      .def_prop_ro("kind", &Device::kind)
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("kernels", [](const Device& self) { return choice_name(self.kernels()); })
      .def_prop_ro("info", &Device::info, "Name, limits, families, memory.")
      .def_prop_ro(
          "limits", [](const Device& self) { return self.info().limits; }, "Of `info`.")
      .def_prop_ro(
          "allocated_bytes", &Device::allocated_bytes,
          "Bytes of device-visible memory that it holds now; on Metal those of everybody in the process.")
      .def_prop_ro("registry", &Device::registry, "The device's kernel sources and pipelines.")
      .def(
          "command_encoder",
          [](const Device& self, nb::handle concurrent, nb::handle auto_barriers) {
            const char* const op = "Device.command_encoder";
            return new Encoder{self.command_encoder({flag_from(concurrent, op, "concurrent"),
                                                     flag_from(auto_barriers, op, "auto_barriers")}),
                               std::nullopt};
          },
          "concurrent"_a.none() = true, "auto_barriers"_a.none() = true, nb::rv_policy::take_ownership,
          nb::sig("def command_encoder(self, concurrent: bool = True, auto_barriers: bool = True) -> "
                  "CommandEncoder"),
          "A new encoder.\n\n"
          "concurrent: launches may overlap where their ranges allow; False: one after another.\n"
          "auto_barriers: place barriers by the kernels' declared access; False: only memory_barrier() "
          "orders.")
      .def(
          "__eq__",
          [](const Device& self, nb::handle other) {
            return nb::isinstance<Device>(other) && nb::inst_ready(other) &&
                   self == *nb::inst_ptr<Device>(other);
          },
          "other"_a.none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__", [](const Device& self) { return std::hash<const void*>{}(self.state().get()); })
      .def("__repr__",
           [](const Device& self) { return "<Device " + self.kind() + ": " + self.name() + ">"; });
  bind_memory(device);
  bind_gpu_capture(module, device);
  bind_compile(device);
  bind_check(device);
  bind_profile(module, device);
  module.def(
      "from_dlpack",
      [](nb::handle x, nb::handle device) {
        return buffer_from_dlpack(x, object_from<Device>(device, "from_dlpack", "device", "a Device"));
      },
      "x"_a.none(), "device"_a.none(), nb::sig("def from_dlpack(x: typing.Any, device: Device) -> Buffer"),
      "A buffer on the memory of any object with __dlpack__ in host memory, without a copy.\n\n"
      "Raises ArgumentError (strides, alignment, not host memory) or DTypeError.");
}

}  // namespace metalane::python
