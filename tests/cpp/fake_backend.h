// A backend that finishes submissions when the test says so, in any order, with any error.
#pragma once

#include <metalane/device.h>
#include <metalane/error.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/device_state.h"

namespace fake {

using namespace metalane;

class Device;

struct Committed {
  std::vector<std::string> events;
  std::optional<double> time_limit;
  std::function<void(backend::Completion)> done;
};

class Submission final : public backend::Submission {
 public:
  explicit Submission(Device& device) : device_(device) {}
  void dispatch(const backend::Launch& launch) override {
    events_.push_back("launch " + launch.pipeline->signature.name +
                      (launch.label.empty() ? "" : " @" + std::string(launch.label)));
  }
  void barrier() override { events_.push_back("barrier"); }
  void push_label(std::string_view label) override { events_.push_back("push " + std::string(label)); }
  void pop_label() override { events_.push_back("pop"); }
  void commit(std::optional<double> time_limit, std::function<void(backend::Completion)> done) override;

 private:
  Device& device_;
  std::vector<std::string> events_;
};

// Kernels by name: "rw" takes const device float* at 0 and device float* at 1; "in_place" device float* at 0.
class Device final : public backend::Device {
 public:
  explicit Device(std::uint64_t wrap_alignment = 1) {
    capabilities_.wrap_alignment = wrap_alignment;
    capabilities_.kind = "fake";
    capabilities_.name = "fake";
    capabilities_.max_buffer_bytes = 1ull << 32;
  }
  const backend::Capabilities& capabilities() const override { return capabilities_; }
  backend::Allocation allocate(std::uint64_t nbytes, bool) override {
    ++live_allocations;
    return {std::calloc(nbytes + 16, 1), nbytes, nullptr};
  }
  backend::Allocation wrap(void* address, std::uint64_t nbytes, bool) override {
    const std::uint64_t step = capabilities_.wrap_alignment;
    if (refuse_wrap || reinterpret_cast<std::uint64_t>(address) % step != 0 || nbytes % step != 0) {
      throw ArgumentError("fake", "memory", "mappable", "memory that is not");
    }
    ++live_allocations;
    return {address, nbytes, nullptr};
  }
  void release(const backend::Allocation& allocation, bool wrapped) noexcept override {
    --live_allocations;
    if (!wrapped) std::free(allocation.address);
  }
  std::shared_ptr<const backend::Pipeline> compile(const backend::CompileRequest& request) override {
    auto pipeline = std::make_shared<backend::Pipeline>();
    pipeline->signature = signature(request.function);
    return pipeline;
  }
  std::vector<KernelSignature> inspect(const backend::SourceText& source) override {
    return {signature(source.name)};
  }
  std::string compiler_key() const override { return "fake"; }
  std::unique_ptr<backend::Submission> open(const backend::SubmissionOptions&) override {
    return std::make_unique<Submission>(*this);
  }
  void cancel_all() noexcept override {}

  // Ends the `which`-th of the committed submissions that the test has not ended yet.
  void complete(std::size_t which = 0, std::exception_ptr error = nullptr) {
    Committed committed;
    {
      std::lock_guard lock(mutex);
      committed = std::move(pending.at(which));
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
    }
    backend::Completion completion;
    completion.error = std::move(error);
    committed.done(std::move(completion));
  }
  std::size_t pending_count() {
    std::lock_guard lock(mutex);
    return pending.size();
  }

  std::mutex mutex;
  std::deque<Committed> pending;
  std::atomic<int> live_allocations{0};
  bool refuse_wrap = false;

 private:
  static KernelSignature signature(const std::string& name) {
    KernelSignature signature;
    signature.name = signature.function = name;
    const TypeInfo float_type{"float", ScalarType::float32, 1, 1, 4, 4, nullptr};
    const TypeInfo uint_type{"uint", ScalarType::uint32, 1, 1, 4, 4, nullptr};
    if (name == "rw") {
      signature.arguments = {{"x", AddressSpace::device, Access::read, 0, false, float_type},
                             {"y", AddressSpace::device, Access::read_write, 1, false, float_type}};
    } else if (name == "in_place") {
      signature.arguments = {{"x", AddressSpace::device, Access::read_write, 0, false, float_type}};
    } else if (name == "params") {
      signature.arguments = {{"x", AddressSpace::device, Access::read_write, 0, false, float_type},
                             {"n", AddressSpace::constant, Access::read, 1, true, uint_type},
                             {"shared", AddressSpace::threadgroup, Access::read_write, 0, false, float_type}};
    }
    return signature;
  }
  backend::Capabilities capabilities_;
};

inline void Submission::commit(std::optional<double> time_limit,
                               std::function<void(backend::Completion)> done) {
  std::lock_guard lock(device_.mutex);
  device_.pending.push_back({std::move(events_), time_limit, std::move(done)});
}

// A device on the fake backend, and the backend itself.
struct Opened {
  std::shared_ptr<Device> backend = std::make_shared<Device>();
  metalane::Device device{core::DeviceState::create(backend, DeviceOptions{})};
  Pipeline pipeline(const std::string& name) {
    device.registry().register_source(name, "");
    return device.registry().pipeline(name);
  }
};

}  // namespace fake
