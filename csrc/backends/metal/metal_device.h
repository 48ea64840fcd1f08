// The Metal device, for those who know nothing of Metal.
#pragma once

#include <metalane/device.h>

#include <memory>
#include <vector>

#include "core/backend.h"

namespace metalane::metal {

// Throws DeviceError where there is no such device, or none that kernels can count on.
std::shared_ptr<backend::Device> open_device(const backend::OpenOptions& options);
// How many devices there are.
std::uint32_t device_count();

}  // namespace metalane::metal
