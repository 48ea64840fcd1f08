// Devices: where memory comes from and launches run.
#pragma once

#include <metalane/buffer.h>
#include <metalane/check.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/kernel.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace metalane {

namespace core {
class DeviceState;
}

// Which implementation of a built-in kernel the CPU device runs: `automatic` prefers hand-written native
// kernels, `native` fails where there is none, `shader` always runs the .metal source.
enum class KernelChoice : std::uint8_t { automatic, native, shader };

struct DeviceLimits {
  std::uint64_t max_buffer_bytes = 0;
  std::uint32_t max_threads_per_threadgroup = 0;  // a pipeline may allow fewer
  std::uint32_t max_threadgroup_memory = 0;       // bytes
  std::uint32_t thread_execution_width = 0;       // threads of a simdgroup
  std::uint64_t wrap_alignment = 1;               // bytes that the address of wrapped memory is a multiple of
};

struct DeviceInfo {
  std::string kind;  // "metal", "cpu", "null"
  std::string name;
  std::string selector;      // what Device() takes for it: "metal", "metal:1", "cpu"
  std::string architecture;  // "applegpu_g13s", "x86_64"; empty where nobody says
  std::vector<std::string>
      families;  // of Metal's GPU families, or levels of the instruction set: "apple7", "avx2"
  DeviceLimits limits;
  std::uint64_t memory_bytes = 0;  // that it can use at its full speed; 0: not known
};

struct DeviceOptions {
  KernelChoice kernels = KernelChoice::automatic;
  CheckOptions check;  // the CPU device's; it then runs shaders, one threadgroup after another
  // Metal's: allocations stay resident on the GPU while they are this many bytes in all at most. 0: as the
  // system decides.
  std::uint64_t residency_bytes = 0;
  // Metal's: compiled pipelines are kept on disk, in the folder of cpu::set_kernel_cache.
  bool pipeline_archive = true;
  // The CPU's: the instruction set that its built-in kernels use at most, one of cpu::instruction_sets();
  // empty for the best.
  std::string isa;
};

// A device of its own queue, registry and pipelines; two in one process are independent. Cheap to copy,
// thread-safe.
class METALANE_API Device {
 public:
  // kind: "metal", "cpu", "null", a kind and a number for those after the first ("metal:1"), or empty for
  // Metal where there is one and the CPU elsewhere. Throws DeviceError where there is none of that kind.
  explicit Device(const std::string& kind = "", KernelChoice kernels = KernelChoice::automatic);
  // Throws ArgumentError for options that no device of that kind has.
  Device(const std::string& kind, const DeviceOptions& options);
  explicit Device(std::shared_ptr<core::DeviceState> state) : state_(std::move(state)) {}
  // Never empty: a move copies.
  Device(const Device&) = default;
  Device& operator=(const Device&) = default;

  const std::string& kind() const noexcept;
  const std::string& name() const noexcept;
  KernelChoice kernels() const noexcept;
  const CheckOptions& check() const noexcept;
  DeviceInfo info() const;
  // Bytes of device-visible memory that it holds now; on Metal those of everybody in the process.
  std::uint64_t allocated_bytes() const;

  Buffer zeros(const Shape& shape, DType dtype) const;
  Buffer empty(const Shape& shape, DType dtype) const;
  // Host memory without a copy. `owner` is kept until nothing uses the memory any more. Throws
  // ArgumentError where the address is not aligned for the dtype or the device cannot map it.
  Buffer wrap(void* address, const Shape& shape, DType dtype, bool readonly,
              std::shared_ptr<void> owner) const;
  // A new buffer with a copy of `shape` elements at `address`.
  Buffer copy_of(const void* address, const Shape& shape, DType dtype) const;

  KernelRegistry registry() const;
  CommandEncoder command_encoder(EncoderOptions options = {}) const;
  // Returns when nothing that was committed so far is in flight; never throws a submission's error.
  void synchronize() const;

  // What a device with the checker has found and counted since it was opened or cleared; empty for others.
  // Both wait for what was committed so far.
  CheckReport check_report() const;
  void clear_check_report() const;

  bool operator==(const Device& other) const noexcept { return state_ == other.state_; }
  const std::shared_ptr<core::DeviceState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<core::DeviceState> state_;
};

// The devices that this process can open, the default first.
METALANE_API std::vector<DeviceInfo> devices();

}  // namespace metalane
