// The double's devices and what their objects share with command buffers in flight.
#pragma once

#import <Metal/Metal.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend.h"

namespace metal_double {

// One GPU: a private CPU device that runs the kernels.
struct DeviceState {
  std::uint32_t index = 0;
  std::atomic<std::uint64_t> allocated{0};
  std::atomic<std::uint64_t> commits{0};

  // Opened at the first use.
  metalane::backend::Device& cpu();
  bool lost() const;

 private:
  friend void lose_device(std::uint32_t index);
  std::mutex mutex_;
  std::shared_ptr<metalane::backend::Device> cpu_;
};

constexpr std::uint32_t max_devices = 8;
DeviceState& device_state(std::uint32_t index);
id<MTLDevice> device_object(const DeviceState& state);
void set_device_count(std::uint32_t count);
void lose_device(std::uint32_t index);
// References that callers hold to devices, and how many they were ever given.
std::int64_t devices_held();
std::int64_t devices_given();

struct Limits {
  std::uint64_t buffer_bytes;
  std::uint32_t threads;
  std::uint32_t threadgroup_memory;
};
Limits limits();

// A buffer's memory: the buffer's own, and that of command buffers which use it.
struct BufferState {
  ~BufferState();
  DeviceState* device = nullptr;
  std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  std::uint64_t mapped = 0;  // bytes of own pages; 0: the caller's
  NSUInteger options = 0;
  std::atomic<bool> alive{true};             // the MTLBuffer is
  std::atomic<std::uint32_t> unretained{0};  // command buffers in flight that do not retain it
};
std::shared_ptr<BufferState> state_of(id<MTLBuffer> buffer);

// A pipeline as command buffers use it.
struct PipelineState {
  DeviceState* device = nullptr;
  std::shared_ptr<const metalane::backend::Pipeline> compiled;
  std::string name;  // the label, or else the function's name
  std::uint32_t max_threads = 0;
  std::uint32_t execution_width = 0;
  std::uint32_t static_threadgroup_memory = 0;
  bool whole_simdgroups = false;
  std::atomic<bool> alive{true};
  std::atomic<std::uint32_t> unretained{0};
};
std::shared_ptr<PipelineState> state_of(id<MTLComputePipelineState> pipeline);

// An event's value and who waits for it.
struct EventState {
  DeviceState* device = nullptr;
  bool shared = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t value = 0;
  struct Listener {
    std::uint64_t value;
    std::function<void(std::uint64_t)> call;
  };
  std::vector<Listener> listeners;

  void signal(std::uint64_t new_value);
};
std::shared_ptr<EventState> state_of(id<MTLEvent> event);

// Whether an object, or nil, is of a class of the double.
bool is_double(id object, Class type);

// Objects made elsewhere than in devices.mm.
id<MTLLibrary> new_library(DeviceState& device, const std::string& text, MTLCompileOptions* options,
                           NSError** error);
id<MTLLibrary> new_library_of_file(DeviceState& device, NSURL* url, NSError** error);
id<MTLComputePipelineState> new_pipeline(DeviceState& device, MTLComputePipelineDescriptor* descriptor,
                                         MTLPipelineOption options, MTLComputePipelineReflection** reflection,
                                         NSError** error);
id<MTLBinaryArchive> new_archive(DeviceState& device, MTLBinaryArchiveDescriptor* descriptor,
                                 NSError** error);
id<MTLCommandQueue> new_queue(DeviceState& device, NSUInteger max_command_buffers);
// Command buffers that were ever committed to a queue or to a device's queues.
std::uint64_t commits_of(id queue_or_device);
id<MTLEvent> new_event(DeviceState& device, bool shared, std::shared_ptr<EventState> state);
id<MTLResidencySet> new_residency_set(DeviceState& device, MTLResidencySetDescriptor* descriptor);
MTLComputePipelineReflection* make_reflection(const metalane::KernelSignature& signature);

}  // namespace metal_double
