// The contract between the runtime and a device. The duties stand here, above each method; backends trust
// what core has checked and check nothing again.
//
// A backend runs launches. It knows nothing of dtypes, shapes, hazards, graphs or tickets: core derives
// barriers, orders submissions against each other across devices, finishes tickets in commit order, and
// turns a completion into errors. Everything here may be called from any thread, except one open Submission,
// which core calls from one thread at a time.
#pragma once

#include <metalane/check.h>
#include <metalane/device.h>
#include <metalane/kernel.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace metalane::backend {

struct Capabilities {
  std::string kind;          // "cpu", "metal", "null"
  std::string name;          // for people
  std::string architecture;  // DeviceInfo says what these three are
  std::vector<std::string> families;
  std::uint64_t memory_bytes = 0;
  std::uint64_t max_buffer_bytes = 0;
  std::uint32_t max_threads_per_threadgroup = 1024;
  std::uint32_t max_threadgroup_memory = 32 * 1024;
  std::uint32_t thread_execution_width = 32;
  std::uint64_t wrap_alignment = 1;  // what wrap() asks of an address and a length
};

// Memory that host and device share. `native` is the backend's own handle (id<MTLBuffer>, say).
struct Allocation {
  void* address = nullptr;
  std::uint64_t nbytes = 0;
  void* native = nullptr;
};

// A text to compile and what its #include lines may name. `builtin` sources come with the library.
struct SourceText {
  std::string name;
  std::string text;
  std::map<std::string, std::string> headers;
  bool builtin = false;
};

struct CompileRequest {
  std::shared_ptr<const SourceText> source;
  std::string function;  // a kernel's name or [[host_name]]
  std::vector<ConstantValue> constants;
  MathMode math = MathMode::safe;
};

// A compiled kernel. The fields never change after construction.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  KernelSignature signature;
  std::uint32_t max_total_threads_per_threadgroup = 1024;
  std::uint32_t static_threadgroup_memory = 0;
  std::uint32_t thread_execution_width = 32;
};

// A buffer bound at `index`: `address` is the first byte of the view, `native`/`native_offset` the same
// place as the backend names it.
struct BufferBinding {
  std::uint32_t index = 0;
  Access access = Access::read;
  std::uint8_t* address = nullptr;
  std::uint64_t nbytes = 0;
  void* native = nullptr;
  std::uint64_t native_offset = 0;
};

struct BytesBinding {
  std::uint32_t index = 0;
  std::uint32_t nbytes = 0;
  const std::uint8_t* data = nullptr;
};

struct ThreadgroupBinding {
  std::uint32_t index = 0;
  std::uint32_t nbytes = 0;
};

// One launch as data, checked: limits hold, every argument of the signature is bound, ranges are inside
// their allocations, which stay alive until the submission's completion. The spans, bytes and label are
// valid during dispatch() only.
struct Launch {
  const Pipeline* pipeline = nullptr;  // alive until the submission's completion
  std::span<const BufferBinding> buffers;
  std::span<const BytesBinding> bytes;
  std::span<const ThreadgroupBinding> threadgroup_memory;
  Grid::Kind grid_kind = Grid::Kind::threadgroups;
  std::uint32_t grid[3] = {1, 1, 1};  // threadgroups or threads, by grid_kind
  std::uint32_t threads_per_threadgroup[3] = {1, 1, 1};
  BufferBinding indirect;  // Grid::Kind::indirect: three u32, read when the launch starts. A zero count runs
                           // nothing; counts that the backend cannot run fail the submission (but on Metal:
                           // docs/metal.md).
  std::string_view label;
};

// By the clock of core/host_clock.h; both 0 for a launch that never started.
struct LaunchTime {
  double start_seconds = 0;
  double end_seconds = 0;
};

// How a submission ended.
struct Completion {
  std::exception_ptr error;  // a CommandBufferError, or null
  std::string warning;       // what a kernel reported without failing; empty: nothing
  double start_seconds = 0;  // by the clock of core/host_clock.h; both 0 where nothing ran
  double end_seconds = 0;
  std::vector<LaunchTime> launches;  // see Submission::time_launches()
};

struct SubmissionOptions {
  bool concurrent = true;  // false: every launch is ordered behind the one before it
};

// Commands in the making. Dropped without commit(), it must leave no trace.
class Submission {
 public:
  virtual ~Submission() = default;
  // Records a launch. Without a barrier between them launches may run in any order and at once.
  virtual void dispatch(const Launch& launch) = 0;
  // Everything recorded later runs after, and sees, everything recorded before.
  virtual void barrier() = 0;
  virtual void push_label(std::string_view label) = 0;
  virtual void pop_label() = 0;
  // Called before the first launch: the completion then has each launch's time, in the order of dispatch().
  // Devices that cannot tell leave that list empty.
  virtual void time_launches() {}
  // Hands the commands to the device and returns without waiting. Submissions of one device run as if one
  // after another in the order of their commit() calls, which core makes one at a time. `done` is called
  // exactly once, from any thread (also from inside commit()), with no lock of the backend held, in commit
  // order, after the submission's writes are visible to the host, and is given the only owner of its error;
  // it does not throw. Past `time_limit` seconds of running the submission is ended with CommandBufferError
  // "timeout". The object may be destroyed after commit() returns. Throws nothing: what goes wrong goes to
  // `done`.
  virtual void commit(std::optional<double> time_limit, std::function<void(Completion)> done) = 0;
};

class Device {
 public:
  // Ends its threads. May run on one of them, inside or after `done`, when the last owner lets go there; that
  // thread then ends by itself. In a forked child, where the threads do not exist, it only lets go.
  virtual ~Device() = default;
  virtual const Capabilities& capabilities() const = 0;
  // Page-aligned shared memory; zero-filled when `zero`. nbytes may be 0. Throws OutOfMemoryError.
  virtual Allocation allocate(std::uint64_t nbytes, bool zero) = 0;
  // Shared access to host memory, aligned as capabilities() ask. Throws ArgumentError where it cannot.
  virtual Allocation wrap(void* address, std::uint64_t nbytes, bool readonly) = 0;
  // Ends what allocate() (wrapped = false) or wrap() gave.
  virtual void release(const Allocation& allocation, bool wrapped) noexcept = 0;
  // Throws KernelNotFoundError (naming the kernels there are), ArgumentError (constants), CompileError.
  virtual std::shared_ptr<const Pipeline> compile(const CompileRequest& request) = 0;
  // The signatures of all kernels of a source, without compiling it. Throws CompileError.
  virtual std::vector<KernelSignature> inspect(const SourceText& source) = 0;
  // What else than the source decides the compiled code: compiler and version, flags, instruction set.
  virtual std::string compiler_key() const = 0;
  virtual std::unique_ptr<Submission> open(const SubmissionOptions& options) = 0;
  // The host may have written these addresses of allocate() or wrap(), or may do so from now on: the checker
  // counts them as initialised.
  virtual void host_may_write(const void* address, std::uint64_t nbytes) noexcept {
    static_cast<void>(address);
    static_cast<void>(nbytes);
  }
  // See Device::check_report.
  virtual CheckReport check_report() { return {}; }
  virtual void clear_check_report() {}
  // Bytes of device-visible memory that the device holds now, as far as it knows.
  virtual std::uint64_t allocated_bytes() const { return 0; }
  // A trace of the GPU's work into the file `path`, from here to stop_gpu_capture(), which ends what was
  // begun. Throws DeviceError, also on devices that have no such thing.
  virtual void start_gpu_capture(const std::string& path);
  virtual void stop_gpu_capture() noexcept {}
  // Ends running and waiting submissions with code "cancelled", as soon as can be. For process exit.
  virtual void cancel_all() noexcept = 0;
};

struct OpenOptions {
  KernelChoice kernels = KernelChoice::automatic;
  CheckOptions check;
  std::uint32_t index = 0;            // which of the kind's devices
  std::uint64_t residency_bytes = 0;  // DeviceOptions says what these are
  bool pipeline_archive = true;
  std::string isa;
};

// Opens the device of a kind; throws DeviceError. One function a backend, listed in backends/devices.cpp.
using Opener = std::shared_ptr<Device> (*)(const OpenOptions&);

}  // namespace metalane::backend
