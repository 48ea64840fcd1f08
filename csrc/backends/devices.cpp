// The list of backends, and how a device is chosen.
#include <metalane/device.h>
#include <metalane/error.h>

#include <string_view>

#include "backends/cpu/cpu_device.h"
#include "backends/null/null_device.h"
#include "core/device_state.h"

namespace metalane {

namespace {

struct Backend {
  const char* kind;
  backend::Opener open;
  bool is_default;  // may be chosen where no kind is named
};

constexpr Backend backends[] = {
    {"cpu", cpu::open_device, true},
    {"null", null::open_device, false},
};

const Backend& find_backend(const std::string& kind) {
  std::string known;
  for (const Backend& backend : backends) {
    if (kind.empty() ? backend.is_default : kind == backend.kind) return backend;
    known += (known.empty() ? "" : ", ") + std::string(backend.kind);
  }
  throw DeviceError("Device: there is no device of kind \"" + kind + "\" here; there are: " + known);
}

}  // namespace

Device::Device(const std::string& kind, KernelChoice kernels) : Device(kind, DeviceOptions{kernels, {}}) {}

Device::Device(const std::string& kind, const DeviceOptions& options) {
  const Backend& backend = find_backend(kind);
  if (options.check.any() && std::string_view(backend.kind) != "cpu")
    throw ArgumentError("Device", "check", "nothing: the checker is the CPU device's", backend.kind);
  if (options.check.any() && options.kernels == KernelChoice::native)
    throw ArgumentError("Device", "kernels", "\"auto\" or \"shader\" with a checker, which watches shaders",
                        "\"native\"");
  state_ = core::DeviceState::create(backend.open({options.kernels, options.check}), options);
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  for (const Backend& backend : backends) {
    found.push_back({backend.kind, backend.open({})->capabilities().name});
  }
  return found;
}

}  // namespace metalane
