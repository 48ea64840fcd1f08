// What only the Metal device has.
#include <metalane/metal.h>

#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

// Starts when it is entered, so that one that is never entered captures nothing.
struct CaptureScope {
  Device device;
  std::string path;
  std::unique_ptr<metal::GpuCapture> running;

  ~CaptureScope() { leave(); }
  void leave() {
    if (running == nullptr) return;
    Unlocked unlocked;
    running.reset();
  }
};

void enter(CaptureScope& scope) {
  if (scope.running != nullptr) throw ArgumentError("Device.gpu_capture: the scope is entered already");
  Unlocked unlocked;
  scope.running = std::make_unique<metal::GpuCapture>(scope.device, scope.path);
}

}  // namespace

void bind_gpu_capture(nb::module_& module, nb::class_<Device>& device) {
  nb::class_<CaptureScope>(module, "GpuCapture", nb::is_final(), nb::type_slots(made_by_runtime),
                           "A scope in which the GPU's work goes into a trace document.")
      .def(
          "__enter__",
          [](nb::handle self) {
            enter(nb::cast<CaptureScope&>(self));
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> GpuCapture"))
      .def(
          "__exit__", [](CaptureScope& self, nb::args) { self.leave(); },
          nb::sig("def __exit__(self, *error: object) -> None"));
  device.def(
      "gpu_capture",
      [](const Device& self, nb::handle path) {
        return new CaptureScope{self, path_from(path, "Device.gpu_capture", "path"), nullptr};
      },
      "path"_a.none(), nb::rv_policy::take_ownership,
      nb::sig("def gpu_capture(self, path: str | os.PathLike[str]) -> GpuCapture"),
      "`with device.gpu_capture('run.gputrace'):` writes what is committed inside into a trace document for "
      "Xcode.\n\n"
      "Entering and leaving wait for work in flight. Entering raises ArgumentError (a path that does not end "
      "in "
      ".gputrace or is there already) or DeviceError: not a Metal device, another capture runs, or the "
      "process "
      "lacks METAL_CAPTURE_ENABLED=1.");
}

}  // namespace metalane::python
