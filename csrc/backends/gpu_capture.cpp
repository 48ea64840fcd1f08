// GpuCapture: a capture of the backend's as a scope.
#include <metalane/error.h>
#include <metalane/metal.h>

#include <filesystem>
#include <utility>

#include "core/device_state.h"

namespace metalane::metal {

GpuCapture::GpuCapture(const Device& device, const std::string& path) {
  constexpr const char* op = "Device.gpu_capture";
  device.state()->check_process();
  if (!path.ends_with(".gputrace") || path.find('\0') != std::string::npos)
    throw ArgumentError(op, "path", "a path that ends in .gputrace", "\"" + path + "\"");
  std::error_code error;
  if (std::filesystem::exists(path, error))
    throw ArgumentError(op, "path", "a path where nothing is yet", "\"" + path + "\"");
  device.synchronize();
  device.state()->backend().start_gpu_capture(path);
  device_ = device.state();
}

GpuCapture::~GpuCapture() { stop(); }

void GpuCapture::stop() noexcept {
  const std::shared_ptr<core::DeviceState> device = std::exchange(device_, nullptr);
  if (device == nullptr || device->in_other_process()) return;
  device->timeline().wait_idle();
  device->backend().stop_gpu_capture();
}

}  // namespace metalane::metal
