// Opening, memory, pipelines and submissions of a Metal device.
#import "backends/metal/device.h"

#include <metalane/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#import "backends/metal/boundary.h"
#import "backends/metal/command_error.h"
#include "backends/metal/metal_device.h"
#import "backends/metal/pipeline.h"
#include "core/hash.h"

namespace metalane::metal {

namespace {

// Twice what runs at a time (submission_queue.cpp): a buffer may count until its handler has returned.
constexpr NSUInteger max_command_buffers = 128;

// Launch lists that wait for their next submission.
constexpr std::size_t max_spare_lists = 64;

constexpr MTLResourceOptions buffer_options =
    MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;

NSUInteger page_bytes() { return static_cast<NSUInteger>(sysconf(_SC_PAGESIZE)); }

// The default device first.
std::vector<Owned<id<MTLDevice>>> all_devices() {
  std::vector<Owned<id<MTLDevice>>> devices;
  const auto first = Owned<id<MTLDevice>>::adopt(MTLCreateSystemDefaultDevice());
  if (first) devices.push_back(first);
  const auto listed = Owned<NSArray*>::adopt(MTLCopyAllDevices());
  for (id<MTLDevice> device in listed.get()) {
    if (!first || [device registryID] != [first.get() registryID])
      devices.push_back(Owned<id<MTLDevice>>::keep(device));
  }
  return devices;
}

// Records; Metal hears of it at the commit.
class MetalSubmission final : public backend::Submission {
 public:
  MetalSubmission(std::shared_ptr<MetalDevice> device, bool concurrent)
      : device_(std::move(device)), list_(device_->take_list(concurrent)) {}
  ~MetalSubmission() override {
    if (list_ != nullptr && !device_->in_forked_child()) device_->put_list(std::move(list_));
  }
  void dispatch(const backend::Launch& launch) override { list_->launch(launch); }
  void barrier() override { list_->barrier(); }
  void push_label(std::string_view label) override { list_->push_label(label); }
  void pop_label() override { list_->pop_label(); }
  void commit(std::optional<double> time_limit, std::function<void(backend::Completion)> done) override {
    auto execution = std::make_shared<Execution>();
    execution->owner = device_;
    execution->launches = std::move(list_);
    execution->time_limit = time_limit;
    execution->done = std::move(done);
    device_->queue().commit(std::move(execution));
  }

 private:
  std::shared_ptr<MetalDevice> device_;
  std::unique_ptr<LaunchList> list_;
};

// An encoder that has ended whenever it is let go: Metal wants that of every one.
class EncodingScope {
 public:
  EncodingScope(id<MTLCommandBuffer> commands, bool concurrent)
      : encoder_([commands computeCommandEncoderWithDispatchType:concurrent ? MTLDispatchTypeConcurrent
                                                                            : MTLDispatchTypeSerial]) {
    if (encoder_ == nil) throw DeviceError("Metal gave no compute encoder");
  }
  ~EncodingScope() { [encoder_ endEncoding]; }
  EncodingScope(const EncodingScope&) = delete;
  EncodingScope& operator=(const EncodingScope&) = delete;
  id<MTLComputeCommandEncoder> encoder() const noexcept { return encoder_; }

 private:
  id<MTLComputeCommandEncoder> encoder_;
};

backend::Completion completion_of(id<MTLCommandBuffer> commands, const Execution& execution) {
  backend::Completion completion;
  completion.start_seconds = [commands GPUStartTime];
  completion.end_seconds = [commands GPUEndTime];
  const std::string& label = execution.launches->name();
  if ([commands status] == MTLCommandBufferStatusError) {
    completion.error = command_buffer_error([commands error], label);
  } else if (execution.time_limit &&
             completion.end_seconds - completion.start_seconds > *execution.time_limit) {
    // Metal ends no command buffer on request: what ran too long has run to its end.
    completion.error = std::make_exception_ptr(
        CommandBufferError("timeout", label, true,
                           label + ": ran past the time limit of " + std::to_string(*execution.time_limit) +
                               " s (Metal cannot stop it; it has ended by itself)"));
  }
  return completion;
}

}  // namespace

MetalDevice::MetalDevice(Owned<id<MTLDevice>> given, const backend::OpenOptions& options)
    : fork_generation_(core::fork_generation()), queue_(*this) {
  spare_lists_.reserve(max_spare_lists);
  Features features = features_of(given.get());
  const std::string name = text_of([given.get() name]);
  if (!features.apple_gpu) {
    throw DeviceError(
        "Device: the GPU \"" + name +
        "\" is none of Apple's that metalane runs on (GPU family apple7 with unified memory: M1 and later)");
  }
  metal_ = std::make_unique<Objects>(std::move(given), std::move(features));
  const id<MTLDevice> device = metal_->device.get();
  metal_->queue = Owned<id<MTLCommandQueue>>::adopt(
      [device newCommandQueueWithMaxCommandBufferCount:max_command_buffers]);
  metal_->event = Owned<id<MTLSharedEvent>>::adopt([device newSharedEvent]);
  if (!metal_->queue || !metal_->event) throw DeviceError("Device: Metal gave no command queue");
  [metal_->queue.get() setLabel:@"metalane"];
  [metal_->event.get() setLabel:@"metalane"];

  metal_->residency =
      std::make_unique<Residency>(device, metal_->queue.get(), metal_->features, options.residency_bytes);

  capabilities_.kind = "metal";
  capabilities_.name = name;
  if (metal_->features.architecture) capabilities_.architecture = text_of([[device architecture] name]);
  capabilities_.families = metal_->features.families;
  capabilities_.memory_bytes = [device recommendedMaxWorkingSetSize];
  capabilities_.max_buffer_bytes = [device maxBufferLength];
  const MTLSize most = [device maxThreadsPerThreadgroup];
  capabilities_.max_threads_per_threadgroup = static_cast<std::uint32_t>(most.width);
  capabilities_.max_threadgroup_memory = static_cast<std::uint32_t>([device maxThreadgroupMemoryLength]);
  capabilities_.wrap_alignment = page_bytes();

  const std::string system = text_of([[NSProcessInfo processInfo] operatingSystemVersionString]);
  compiler_key_ = "system=" + core::sha256_hex(system).substr(0, 16) + " gpu=" + name;
  for (const std::string& family : metal_->features.families) compiler_key_ += "," + family;
  compiler_key_ += " language=" + metal_->features.language_name;
  if (options.pipeline_archive && metal_->features.binary_archives)
    metal_->libraries.keep_pipelines(compiler_key_);
}

MetalDevice::~MetalDevice() {
  if (in_forked_child()) {
    static_cast<void>(metal_.release());  // Metal's objects belong to the process that made them
    return;
  }
  const AutoreleaseScope scope;
  metal_.reset();
}

void MetalDevice::check_process() const {
  if (in_forked_child())
    throw DeviceError("metal device: created before fork; open a new Device in this process");
}

backend::Allocation MetalDevice::allocate(std::uint64_t nbytes, bool zero) {
  check_process();
  return call_metal("allocate", [&] {
    // Metal has no buffers of no bytes.
    auto buffer =
        Owned<id<MTLBuffer>>::adopt([metal_->device.get() newBufferWithLength:std::max<NSUInteger>(nbytes, 1)
                                                                      options:buffer_options]);
    if (!buffer) {
      throw OutOfMemoryError("metal device: cannot allocate " + std::to_string(nbytes) + " bytes");
    }
    metal_->residency->add(buffer.get());
    void* const address = [buffer.get() contents];
    // That new buffers are zero is nowhere promised.
    if (zero) std::memset(address, 0, nbytes);
    return backend::Allocation{address, nbytes, buffer.leave()};
  });
}

backend::Allocation MetalDevice::wrap(void* address, std::uint64_t nbytes, bool) {
  check_process();
  if (nbytes == 0) return {address, 0, allocate(0, false).native};
  const NSUInteger page = page_bytes();
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  if (begin % page != 0) {
    throw ArgumentError(
        "Device.wrap", "address",
        "aligned to " + std::to_string(page) + " bytes, a page, for Metal (copy with from_numpy instead)",
        std::to_string(begin));
  }
  if (nbytes > capabilities_.max_buffer_bytes) {
    throw ArgumentError(
        "Device.wrap", "size",
        "at most " + std::to_string(capabilities_.max_buffer_bytes) + " bytes, the device's limit",
        std::to_string(nbytes));
  }
  return call_metal("wrap", [&] {
    // The rest of the last page belongs to the same mapping.
    auto buffer = Owned<id<MTLBuffer>>::adopt([metal_->device.get()
        newBufferWithBytesNoCopy:address
                          length:(nbytes + page - 1) / page * page
                         options:buffer_options
                     deallocator:nil]);
    if (!buffer) {
      throw ArgumentError(
          "Device.wrap", "memory", "memory that Metal can map",
          std::to_string(nbytes) + " bytes at " + std::to_string(begin) + ", which it refuses");
    }
    metal_->residency->add(buffer.get());
    return backend::Allocation{address, nbytes, buffer.leave()};
  });
}

std::uint64_t MetalDevice::allocated_bytes() const {
  check_process();
  return call_metal("allocated bytes",
                    [&] { return std::uint64_t{[metal_->device.get() currentAllocatedSize]}; });
}

void MetalDevice::release(const backend::Allocation& allocation, bool) noexcept {
  const AutoreleaseScope scope;
  const id<MTLBuffer> buffer = static_cast<id<MTLBuffer>>(allocation.native);
  metal_->residency->remove(buffer);
  [buffer release];
}

std::vector<KernelSignature> MetalDevice::inspect(const backend::SourceText& source) {
  check_process();
  return programs_.read(source.name, source.text, source.headers)->kernels();
}

std::shared_ptr<const backend::Pipeline> MetalDevice::compile(const backend::CompileRequest& request) {
  check_process();
  const backend::SourceText& source = *request.source;
  const auto program = programs_.read(source.name, source.text, source.headers);
  return call_metal("compile", [&]() -> std::shared_ptr<const backend::Pipeline> {
    static_cast<void>(
        program->signature(request.function, request.constants));  // throws where it has no such kernel
    const auto library = metal_->libraries.of(source, request.math, request.function);
    return build_pipeline(metal_->device.get(), *library, request, *program);
  });
}

std::unique_ptr<backend::Submission> MetalDevice::open(const backend::SubmissionOptions& options) {
  check_process();
  return std::make_unique<MetalSubmission>(shared_from_this(), options.concurrent);
}

std::unique_ptr<LaunchList> MetalDevice::take_list(bool concurrent) {
  {
    const std::lock_guard lock(lists_mutex_);
    if (!spare_lists_.empty()) {
      std::unique_ptr<LaunchList> list = std::move(spare_lists_.back());
      spare_lists_.pop_back();
      list->set_concurrent(concurrent);
      return list;
    }
  }
  return std::make_unique<LaunchList>(concurrent);
}

void MetalDevice::put_list(std::unique_ptr<LaunchList> list) noexcept {
  list->clear();
  const std::lock_guard lock(lists_mutex_);
  if (spare_lists_.size() < max_spare_lists) spare_lists_.push_back(std::move(list));
}

void MetalDevice::start_gpu_capture(const std::string& path) {
  check_process();
  call_metal("gpu_capture", [&] {
    MTLCaptureManager* const manager = [MTLCaptureManager sharedCaptureManager];
    const std::string what = "Device.gpu_capture: ";
    if (![manager supportsDestination:MTLCaptureDestinationGPUTraceDocument]) {
      throw DeviceError(
          what + "Metal allows no trace documents here; start the process with METAL_CAPTURE_ENABLED=1");
    }
    if ([manager isCapturing]) throw DeviceError(what + "a capture is running already");
    auto descriptor = Owned<MTLCaptureDescriptor*>::adopt([[MTLCaptureDescriptor alloc] init]);
    // The queue, not the device: other runtimes in this process have queues of their own.
    [descriptor.get() setCaptureObject:metal_->queue.get()];
    [descriptor.get() setDestination:MTLCaptureDestinationGPUTraceDocument];
    [descriptor.get() setOutputURL:[NSURL fileURLWithPath:string_of(path)]];
    NSError* error = nil;
    if (![manager startCaptureWithDescriptor:descriptor.get() error:&error])
      throw DeviceError(what + text_of(error));
  });
}

void MetalDevice::stop_gpu_capture() noexcept {
  const AutoreleaseScope scope;
  MTLCaptureManager* const manager = [MTLCaptureManager sharedCaptureManager];
  if ([manager isCapturing]) [manager stopCapture];
}

void MetalDevice::cancel_all() noexcept {
  if (!in_forked_child()) queue_.cancel_waiting();
}

void MetalDevice::start(const std::shared_ptr<Execution>& execution) {
  check_process();
  call_metal("commit", [&] {
    const LaunchList& list = *execution->launches;
    auto descriptor = Owned<MTLCommandBufferDescriptor*>::adopt([[MTLCommandBufferDescriptor alloc] init]);
    [descriptor.get() setErrorOptions:MTLCommandBufferErrorOptionEncoderExecutionStatus];
    const id<MTLCommandBuffer> commands = [metal_->queue.get() commandBufferWithDescriptor:descriptor.get()];
    if (commands == nil) throw DeviceError("Metal gave no command buffer");
    NSString* const name = metal_->labels.of(list.name());
    [commands setLabel:name];
    const std::uint64_t value = metal_->last_signal + 1;
    if (value > 1) [commands encodeWaitForEvent:metal_->event.get() value:value - 1];
    {
      const EncodingScope encoding(commands, list.concurrent());
      [encoding.encoder() setLabel:name];
      encode(list, encoding.encoder(), metal_->labels);
    }
    [commands encodeSignalEvent:metal_->event.get() value:value];
    const std::shared_ptr<Execution> kept = execution;
    [commands addCompletedHandler:^(id<MTLCommandBuffer> finished) {
      const AutoreleaseScope scope;
      queue_.ended(kept, [&] { return completion_of(finished, *kept); });
    }];
    execution->signal_value = metal_->last_signal = value;
    [commands commit];
  });
}

void MetalDevice::settle(Execution& execution) noexcept {
  const AutoreleaseScope scope;
  // Failed work may not have signalled, and what came after it would wait for ever.
  const id<MTLSharedEvent> event = metal_->event.get();
  if (execution.signal_value > [event signaledValue]) [event setSignaledValue:execution.signal_value];
  put_list(std::move(execution.launches));
}

std::shared_ptr<backend::Device> open_device(const backend::OpenOptions& options) {
  return call_metal("open", [&]() -> std::shared_ptr<backend::Device> {
    std::vector<Owned<id<MTLDevice>>> devices = all_devices();
    if (options.index >= devices.size()) {
      throw DeviceError("Device: there is no Metal device " + std::to_string(options.index) + "; there are " +
                        std::to_string(devices.size()));
    }
    return std::make_shared<MetalDevice>(std::move(devices[options.index]), options);
  });
}

std::uint32_t device_count() {
  return call_metal("list devices", [] { return static_cast<std::uint32_t>(all_devices().size()); });
}

}  // namespace metalane::metal
