// The list of backends, and how a device is chosen.
#include <metalane/device.h>
#include <metalane/error.h>

#include <charconv>
#include <string_view>

#include "backends/cpu/cpu_device.h"
#include "backends/null/null_device.h"
#include "core/device_state.h"

#ifdef METALANE_METAL
#include "backends/metal/metal_device.h"
#endif

namespace metalane {

namespace {

std::uint32_t one() { return 1; }

struct Backend {
  const char* kind;
  backend::Opener open;
  std::uint32_t (*count)();  // how many devices of the kind there are
  bool is_default;           // may be chosen where no kind is named
};

constexpr Backend backends[] = {
#ifdef METALANE_METAL
    {"metal", metal::open_device, metal::device_count, true},
#endif
    {"cpu", cpu::open_device, one, true},
    {"null", null::open_device, one, false},
};

struct Choice {
  const Backend* backend;
  std::uint32_t index;
};

// "cpu", "metal:1", or "" for the first that there is.
Choice choose(const std::string& name) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = std::string_view(name).substr(0, colon);
  std::string known;
  for (const Backend& backend : backends) {
    const std::uint32_t count = backend.count();
    if (count == 0) continue;
    if (name.empty() ? backend.is_default : kind == backend.kind) {
      if (colon == std::string::npos) return {&backend, 0};
      const std::string_view digits = std::string_view(name).substr(colon + 1);
      std::uint32_t index = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
      if (error == std::errc() && end == digits.data() + digits.size() && index < count)
        return {&backend, index};
      throw DeviceError("Device: there is no device \"" + name + "\"; of kind \"" + backend.kind +
                        "\" there " + (count == 1 ? "is 1" : "are " + std::to_string(count)));
    }
    known += (known.empty() ? "" : ", ") + std::string(backend.kind);
  }
  throw DeviceError("Device: there is no device of kind \"" + std::string(kind) +
                    "\" here; there are: " + known);
}

}  // namespace

Device::Device(const std::string& kind, KernelChoice kernels)
    : Device(kind, DeviceOptions{kernels, {}, 0, true, {}}) {}

Device::Device(const std::string& kind, const DeviceOptions& options) {
  const auto [backend, index] = choose(kind);
  if (options.check.any() && std::string_view(backend->kind) != "cpu")
    throw ArgumentError("Device", "check", "nothing: the checker is the CPU device's", backend->kind);
  if (options.check.any() && options.kernels == KernelChoice::native)
    throw ArgumentError("Device", "kernels", "\"auto\" or \"shader\" with a checker, which watches shaders",
                        "\"native\"");
  if (options.residency_bytes != 0 && std::string_view(backend->kind) != "metal")
    throw ArgumentError("Device", "residency_bytes", "0: residency sets are the Metal device's",
                        std::to_string(options.residency_bytes));
  if (!options.isa.empty() && std::string_view(backend->kind) != "cpu")
    throw ArgumentError("Device", "isa", "nothing: instruction sets are the CPU device's", backend->kind);
  state_ =
      core::DeviceState::create(backend->open({options.kernels, options.check, index, options.residency_bytes,
                                               options.pipeline_archive, options.isa}),
                                options, index);
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  for (const Backend& backend : backends) {
    for (std::uint32_t index = 0; index < backend.count(); ++index) {
      backend::OpenOptions options;
      options.index = index;
      options.pipeline_archive = false;
      found.push_back(core::info_of(backend.open(options)->capabilities(), index));
    }
  }
  return found;
}

}  // namespace metalane
