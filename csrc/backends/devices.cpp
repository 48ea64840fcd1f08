// The list of backends, and how a device is chosen.
#include <metalane/device.h>
#include <metalane/error.h>

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

Device::Device(const std::string& kind, KernelChoice kernels)
    : state_(core::DeviceState::create(find_backend(kind).open({kernels}), kernels)) {}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  for (const Backend& backend : backends) {
    found.push_back({backend.kind, backend.open({})->capabilities().name});
  }
  return found;
}

}  // namespace metalane
