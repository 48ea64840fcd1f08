// Memory, pipelines and submissions of the CPU device.
#include "backends/cpu/cpu_device.h"

#include <metalane/cpu.h>
#include <metalane/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "backends/cpu/builtin_modules.h"
#include "backends/cpu/check_system.h"
#include "backends/cpu/checker.h"
#include "backends/cpu/host_compiler.h"
#include "backends/cpu/instruction_set.h"
#include "backends/cpu/kernel_cache.h"
#include "backends/cpu/pages.h"
#include "backends/cpu/processors.h"
#include "core/fork.h"
#include "core/hash.h"
#include "msl/msl.h"

namespace metalane::cpu {
namespace {

constexpr const char* inherited_message =
    "cpu device: created before fork; open a new Device in this process";

std::atomic<unsigned> chosen_thread_count{0};

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t mapped_bytes(std::uint64_t nbytes) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return std::max(page, (nbytes + page - 1) / page * page);
}

// The modules of the levels that run here, by level and kernel; attached once for all devices.
struct AttachedModules {
  std::map<std::pair<std::string_view, std::string_view>, const metalane_module*> by_kernel;
  AttachedModules() {
    for (const BuiltinModule& built : builtin_modules()) {
      if (!supports_level(built.isa)) continue;
      built.module->attach(&module_runtime());
      by_kernel[{built.isa, built.kernel}] = built.module;
    }
  }
};

// Of the best level up to an instruction set that was built: test builds have one.
const metalane_module* find_builtin_module(const std::string& kernel, Isa isa) {
  static const AttachedModules modules;
  for (const Isa level : {Isa::avx512, Isa::avx2, Isa::baseline}) {
    if (level > isa) continue;
    const auto found = modules.by_kernel.find({level_of(level), kernel});
    if (found != modules.by_kernel.end()) return found->second;
  }
  return nullptr;
}

// The best one up to an instruction set.
const NativeKernel* find_native_kernel(const std::string& kernel, Isa isa) {
  for (const NativeKernel& native : native_kernels()) {
    if (kernel == native.name && native.isa <= isa && supports(native.isa)) return &native;
  }
  return nullptr;
}

void append_part(std::string& text, std::string_view name, std::string_view value) {
  text += name;
  text += ':';
  text += std::to_string(value.size());
  text += ':';
  text += value;
  text += '\n';
}

// Everything that decides the machine code of one module. `adapted` holds the kernel's name and constants.
std::string cache_key(const std::string& adapted, MathMode math, ModuleUse use,
                      const HostCompiler& compiler) {
  std::string text;
  append_part(text, "source", adapted);
  append_part(text, "compiler", compiler.identity(math, use));
  append_part(text, "stdlib", msl::stdlib_version());
  append_part(text, "abi", std::to_string(METALANE_MODULE_ABI_VERSION));
  append_part(text, "processor", instruction_set_id());
  return core::sha256_hex(text);
}

std::shared_ptr<const LoadedModule> compile_module(const backend::CompileRequest& request,
                                                   const msl::Program& program, ModuleUse use) {
  const HostCompiler compiler = HostCompiler::find(request.function);
  msl::Program::AdaptOptions options;
  options.constants = request.constants;
  const std::string adapted = program.adapt(request.function, options);
  const std::string& kernel = request.function;
  return load_or_build(kernel, cache_key(adapted, request.math, use, compiler),
                       [&](const std::string& include_directory, const std::string& scratch_directory,
                           const std::string& output_path) {
                         const std::string source_path = scratch_directory + "/kernel.cpp";
                         std::ofstream stream(source_path, std::ios::binary);
                         stream << adapted;
                         stream.close();
                         if (stream.fail())
                           throw CompileError(kernel, "kernel '" + kernel + "': cannot write " + source_path);
                         try {
                           compiler.compile(kernel, source_path, include_directory, output_path,
                                            scratch_directory, request.math, use);
                         } catch (const CompileError& error) {
                           throw CompileError(kernel, program.explain(error.what()));
                         }
                       });
}

// Launches run one after another, each over all threads, so that a barrier and an order of launches hold
// without doing anything; every failure carries its own launch's label.
class CpuSubmission final : public backend::Submission {
 public:
  CpuSubmission(std::shared_ptr<WorkerPool> pool, bool concurrent)
      : pool_(std::move(pool)), list_(pool_->take_list()), concurrent_(concurrent) {}
  ~CpuSubmission() override {
    if (list_ != nullptr && !in_forked_child()) pool_->put_list(std::move(list_));
  }
  void dispatch(const backend::Launch& launch) override {
    if (!concurrent_) list_->barrier();
    list_->append(launch);
  }
  void barrier() override { list_->barrier(); }
  void push_label(std::string_view) override {}
  void pop_label() override {}
  void time_launches() override { list_->timed = true; }
  void commit(std::optional<double> time_limit, std::function<void(backend::Completion)> done) override {
    list_->seal();
    list_->time_limit = time_limit;
    list_->done = std::move(done);
    backend::Completion completion;
    try {
      if (in_forked_child()) throw DeviceError(inherited_message);
      pool_->submit(list_);
      return;
    } catch (const DeviceError& error) {
      completion.error = std::make_exception_ptr(CommandBufferError("device", "", true, error.what()));
    }
    list_->done(std::move(completion));
  }

 private:
  bool in_forked_child() const noexcept { return core::fork_generation() != fork_generation_; }

  const std::uint64_t fork_generation_ = core::fork_generation();
  std::shared_ptr<WorkerPool> pool_;
  std::unique_ptr<CommandList> list_;
  const bool concurrent_;
};

}  // namespace

void set_thread_count(std::uint64_t count) {
  // More threads than any machine that metalane runs on has processors; a slip must not start a million.
  constexpr std::uint64_t most = 4096;
  if (count > most) {
    throw ArgumentError("set_thread_count", "count", "at most " + std::to_string(most),
                        std::to_string(count));
  }
  chosen_thread_count.store(static_cast<unsigned>(count));
}

std::shared_ptr<backend::Device> open_device(const backend::OpenOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

CpuDevice::CpuDevice(const backend::OpenOptions& options)
    : kernels_(options.kernels),
      isa_(options.isa.empty() ? best_isa() : isa_from(options.isa)),
      fork_generation_(core::fork_generation()) {
  const unsigned chosen = chosen_thread_count.load();
  if (options.check.any() && !has_checker) {
    throw DeviceError("Device: check: the checker runs on Linux; this system lacks what it needs");
  }
  if (options.check.any()) checker_ = std::make_shared<Checker>(options.check);
  // Findings are the same from run to run only where one thread runs everything.
  const unsigned threads = chosen != 0 ? chosen : usable_processor_count();
  pool_ = std::make_shared<WorkerPool>(checker_ != nullptr ? 1 : threads, checker_);
  capabilities_.kind = "cpu";
  capabilities_.name = processor_name();
#if defined(__x86_64__)
  capabilities_.architecture = "x86_64";
#elif defined(__aarch64__)
  capabilities_.architecture = "arm64";
#endif
  for (const char* level : {"x86-64-v4", "x86-64-v3"}) {
    if (supports_level(level)) capabilities_.families.emplace_back(level);
  }
  capabilities_.memory_bytes = physical_memory();
  capabilities_.max_buffer_bytes = capabilities_.memory_bytes;
  capabilities_.max_threads_per_threadgroup = max_threads_per_threadgroup;
  capabilities_.max_threadgroup_memory = max_threadgroup_memory;
  capabilities_.thread_execution_width = METALANE_SIMD_WIDTH;
}

CpuDevice::~CpuDevice() {
  if (in_forked_child()) {
    // Its threads stayed in the parent and its locks may be held: what they guard is left as it is.
    new std::shared_ptr<WorkerPool>(std::move(pool_));
    return;
  }
  pool_->shut_down();
}

bool CpuDevice::in_forked_child() const noexcept { return core::fork_generation() != fork_generation_; }

void CpuDevice::check_process() const {
  if (in_forked_child()) {
    throw DeviceError(inherited_message);
  }
}

backend::Allocation CpuDevice::allocate(std::uint64_t nbytes, bool zero) {
  check_process();
  const auto refuse = [nbytes] {
    throw OutOfMemoryError("cpu device: cannot allocate " + std::to_string(nbytes) + " bytes");
  };
  if (nbytes > capabilities_.max_buffer_bytes) refuse();
  if (checker_ != nullptr) {
    void* shared = checker_->allocations().allocate(nbytes, zero);
    if (shared == nullptr) refuse();
    allocated_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
    return {shared, nbytes, nullptr};
  }
  const std::uint64_t mapped = mapped_bytes(nbytes);
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) refuse();
  allocated_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
  // Fresh pages are zero.
  constexpr std::uint64_t huge_page = 2 << 20;
  if (mapped >= huge_page) prefer_huge_pages(address, mapped);
  return {address, nbytes, nullptr};
}

backend::Allocation CpuDevice::wrap(void* address, std::uint64_t nbytes, bool) {
  check_process();
  return {address, nbytes, nullptr};
}

// Core does not call it for what a forked child inherited.
void CpuDevice::release(const backend::Allocation& allocation, bool wrapped) noexcept {
  if (wrapped) return;
  allocated_bytes_.fetch_sub(allocation.nbytes, std::memory_order_relaxed);
  if (checker_ != nullptr) {
    checker_->allocations().release(allocation.address);
  } else {
    munmap(allocation.address, mapped_bytes(allocation.nbytes));
  }
}

void CpuDevice::host_may_write(const void* address, std::uint64_t nbytes) noexcept {
  if (checker_ != nullptr && !in_forked_child()) checker_->allocations().host_may_write(address, nbytes);
}

CheckReport CpuDevice::check_report() { return checker_ != nullptr ? checker_->report() : CheckReport(); }

void CpuDevice::clear_check_report() {
  if (checker_ != nullptr) checker_->clear_report();
}

std::shared_ptr<const msl::Program> CpuDevice::read_program(const backend::SourceText& source) {
  return programs_.read(source.name, source.text, source.headers);
}

std::vector<KernelSignature> CpuDevice::inspect(const backend::SourceText& source) {
  check_process();
  return read_program(source)->kernels();
}

std::shared_ptr<const backend::Pipeline> CpuDevice::compile(const backend::CompileRequest& request) {
  check_process();
  const std::shared_ptr<const msl::Program> program = read_program(*request.source);
  const auto& kernels = program->kernels();
  const auto found = std::find_if(
      kernels.begin(), kernels.end(),
      [&request](const KernelSignature& signature) { return signature.name == request.function; });
  if (found == kernels.end()) {
    std::string names;
    for (const KernelSignature& signature : kernels) names += (names.empty() ? "" : ", ") + signature.name;
    throw KernelNotFoundError("source '" + request.source->name + "' has no kernel '" + request.function +
                              "'; it has: " + (names.empty() ? "none" : names));
  }
  auto pipeline = std::make_shared<CpuPipeline>();
  pipeline->signature = program->signature(request.function, request.constants);
  if (const std::uint32_t limit = found->max_total_threads_per_threadgroup; limit != 0) {
    pipeline->max_total_threads_per_threadgroup = std::min(limit, max_threads_per_threadgroup);
  }
  choose_code(*pipeline, request, *program);
  return pipeline;
}

void CpuDevice::choose_code(CpuPipeline& pipeline, const backend::CompileRequest& request,
                            const msl::Program& program) const {
  const std::string& kernel = request.function;
  if (checker_ == nullptr && request.source->builtin && request.constants.empty()) {
    if (kernels_ != KernelChoice::shader) pipeline.native = find_native_kernel(kernel, isa_);
    if (pipeline.native != nullptr) return;
    // Compiled for safe math, which fast math permits.
    if (kernels_ != KernelChoice::native) pipeline.module = find_builtin_module(kernel, isa_);
  }
  if (kernels_ == KernelChoice::native) {
    throw CompileError(kernel, "kernel '" + kernel +
                                   "': there is no native kernel of this name for this processor, "
                                   "and the device was opened with kernels=\"native\"");
  }
  if (pipeline.module == nullptr) {
    const ModuleUse use = checker_ != nullptr ? ModuleUse::checked : ModuleUse::run;
    const std::shared_ptr<const LoadedModule> loaded = compile_module(request, program, use);
    if (checker_ != nullptr)
      pipeline.checked = std::make_shared<CheckedModule>(loaded, kernel, Checker::host());
    pipeline.library = loaded;
    pipeline.module = &loaded->module();
  }
  pipeline.static_threadgroup_memory = pipeline.module->threadgroup_bytes();
  if (pipeline.static_threadgroup_memory > max_threadgroup_memory) {
    throw CompileError(kernel, "kernel '" + kernel + "': its threadgroup variables take " +
                                   std::to_string(pipeline.static_threadgroup_memory) +
                                   " bytes, the limit is " + std::to_string(max_threadgroup_memory));
  }
}

std::string CpuDevice::compiler_key() const {
  check_process();
  std::string compiler = "none";
  try {
    compiler = core::sha256_hex(HostCompiler::find("").identity(MathMode::safe)).substr(0, 16);
  } catch (const CompileError&) {
    // Built-in kernels need no compiler; a kernel that does raises this error when it is compiled.
  }
  return "compiler=" + compiler + " stdlib=" + msl::stdlib_version().substr(0, 16) +
         " abi=" + std::to_string(METALANE_MODULE_ABI_VERSION) +
         " isa=" + core::sha256_hex(instruction_set_id()).substr(0, 16);
}

std::unique_ptr<backend::Submission> CpuDevice::open(const backend::SubmissionOptions& options) {
  check_process();
  return std::make_unique<CpuSubmission>(pool_, options.concurrent);
}

void CpuDevice::cancel_all() noexcept {
  if (!in_forked_child()) pool_->cancel_all();
}

}  // namespace metalane::cpu
