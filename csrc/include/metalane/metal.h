// What only the Metal device has: traces of the GPU's work.
#pragma once

#include <metalane/device.h>
#include <metalane/export.h>

#include <memory>
#include <string>

namespace metalane::metal {

// A capture of the device's work into a .gputrace document, which Xcode opens: what is committed between the
// constructor and stop(), which the destructor calls at the latest. Both wait for what is in flight.
//
// Metal allows it where the environment has METAL_CAPTURE_ENABLED=1. One capture at a time.
class METALANE_API GpuCapture {
 public:
  // Throws ArgumentError (a path that does not end in .gputrace, or is there already), DeviceError (no Metal
  // device, captures not allowed, one is running).
  GpuCapture(const Device& device, const std::string& path);
  ~GpuCapture();
  GpuCapture(const GpuCapture&) = delete;
  GpuCapture& operator=(const GpuCapture&) = delete;
  void stop() noexcept;

 private:
  std::shared_ptr<core::DeviceState> device_;  // null once stopped
};

}  // namespace metalane::metal
