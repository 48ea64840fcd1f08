// The CPU device: memory, native copy and fill, run-time compilation and its disk cache, fork, threads.
#include <dirent.h>
#include <fcntl.h>
#include <metalane/cpu.h>
#include <metalane/error.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "backends/cpu/fiber.h"
#include "backends/cpu/native_kernel.h"
#include "backends/cpu/process.h"
#include "check.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "cpu_modules.h"

using namespace cpu_modules;
namespace fs = std::filesystem;

namespace {

constexpr const char* saxpy_text = R"(#include <metal_stdlib>
using namespace metal;
constant float scale [[function_constant(0)]];
kernel void scaled(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = y[i] * scale + 1; }
kernel void plus_one(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] += 1; }
kernel void broken(device float* y [[buffer(0)]]) {
  y[0] = undeclared_name;
}
kernel void greediest(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float most[1ul << 40];
  threadgroup uchar more[1ul << 33];
  most[i] = y[i];
  more[i] = 1;
  y[i] = most[i ^ 1] + more[i];
}
kernel void greedy(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float big[10000];
  big[i] = y[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = big[i ^ 1];
}
)";

struct TemporaryCache {
  TemporaryCache() {
    path = fs::temp_directory_path() / "metalane-test-XXXXXX";
    mkdtemp(path.data());
    cpu::set_kernel_cache(path, 1 << 30);
  }
  ~TemporaryCache() {
    cpu::set_kernel_cache("", 1 << 30);
    fs::remove_all(path);
  }
  std::string path;
};

// Gone, or only waiting for its parent to ask.
bool has_ended(int pid) {
#if defined(__APPLE__)
  kinfo_proc process = {};
  std::size_t nbytes = sizeof process;
  int name[] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, pid};
  return sysctl(name, 4, &process, &nbytes, nullptr, 0) != 0 || nbytes == 0 ||
         process.kp_proc.p_stat == SZOMB;
#else
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(status, text);
  return text.empty() || text.find(") Z") != std::string::npos;
#endif
}
bool ends(int pid) {
  for (int i = 0; i < 5000 && !has_ended(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return has_ended(pid);
}

backend::CompileRequest request(const std::string& function, std::vector<ConstantValue> constants = {}) {
  auto source = std::make_shared<backend::SourceText>();
  source->name = "saxpy";
  source->text = saxpy_text;
  return {source, function, std::move(constants), MathMode::safe};
}

std::size_t count_threads() {
#if defined(__APPLE__)
  thread_act_array_t threads = nullptr;
  mach_msg_type_number_t count = 0;
  CHECK_EQ(task_threads(mach_task_self(), &threads, &count), KERN_SUCCESS);
  vm_deallocate(mach_task_self(), reinterpret_cast<vm_address_t>(threads), count * sizeof *threads);
  return count;
#else
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/task")) count += entry.exists() ? 1 : 0;
  return count;
#endif
}

float run_on(backend::Device& device, const backend::Pipeline& pipeline, float value) {
  Dispatch dispatch{static_cast<const cpu::CpuPipeline*>(&pipeline), {{&value, sizeof value}}};
  CHECK_EQ(Pending(device, {dispatch}).wait(), "");
  return value;
}

fs::path only_entry(const std::string& directory) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".so") found = entry.path();
  }
  return found;
}

void add_one(metalane_group* group) { buffer<std::uint32_t>(group)[0] += 1; }

}  // namespace

// First: later cases start threads of their own.
TEST_CASE(threads_start_with_the_first_commit) {
  const std::size_t before = count_threads();
  const auto device = cpu::open_device({});
  CHECK_EQ(count_threads(), before);
  std::uint32_t value = 0;
  const auto kernel = pipeline<add_one>("add_one");
  CHECK_EQ(Pending(*device, {{kernel.get(), {{&value, 4}}}}).wait(), "");
  CHECK(count_threads() > before);
}

TEST_CASE(allocations_are_zero_and_refuse_what_cannot_be) {
  const auto device = cpu::open_device({});
  for (const std::uint64_t nbytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5} << 20}) {
    const backend::Allocation allocation = device->allocate(nbytes, true);
    const auto* bytes = static_cast<const std::uint8_t*>(allocation.address);
    CHECK(bytes != nullptr);
    bool zero = true;
    for (std::uint64_t i = 0; i < nbytes; ++i) zero = zero && bytes[i] == 0;
    CHECK(zero);
    device->release(allocation, false);
  }
  CHECK_THROWS(device->allocate(~std::uint64_t{0}, true), OutOfMemoryError, "18446744073709551615 bytes");
  CHECK_THROWS(device->allocate(std::uint64_t{1} << 62, false), OutOfMemoryError, "cannot allocate");
}

TEST_CASE(native_copy_and_fill_stay_inside_their_ranges) {
  const auto find = [](const std::string& name) -> const cpu::NativeKernel* {
    for (const auto& kernel : cpu::native_kernels()) {
      if (name == kernel.name) return &kernel;
    }
    return nullptr;
  };
  const auto device = cpu::open_device({});
  cpu::CpuPipeline copy, fill;
  copy.native = find("metalane_copy");
  fill.native = find("metalane_fill");
  CHECK(copy.native != nullptr && fill.native != nullptr);
  struct FillParams {
    std::uint64_t nbytes;
    std::uint32_t element_bytes;
    std::uint8_t element[8];
    std::uint32_t padding;
  };
  for (std::uint64_t nbytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{8191},
                               std::uint64_t{1000003}, std::uint64_t{3000000}}) {
    std::vector<std::uint8_t> source(nbytes + 64), target(nbytes + 64, 0xee);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    CHECK_EQ(
        Pending(*device, {{&copy, {{source.data(), nbytes}, {target.data(), nbytes}, {&nbytes, 8}}}}).wait(),
        "");
    CHECK(std::memcmp(source.data(), target.data(), nbytes) == 0);
    CHECK(target[nbytes] == 0xee);
    for (const std::uint32_t element : {1u, 2u, 4u, 8u}) {
      FillParams params = {nbytes, element, {1, 2, 3, 4, 5, 6, 7, 8}, 0};
      CHECK_EQ(Pending(*device, {{&fill, {{target.data(), nbytes}, {&params, sizeof params}}}}).wait(), "");
      bool right = target[nbytes] == 0xee;
      for (std::uint64_t i = 0; i < nbytes; ++i) right = right && target[i] == params.element[i % element];
      CHECK(right);
    }
  }
}

TEST_CASE(kernels_compile_at_run_time_into_the_cache) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  const auto first = device->compile(request("plus_one"));
  CHECK_EQ(run_on(*device, *first, 2.0f), 3.0f);
  CHECK_EQ(cpu::kernel_cache_info().entries, 1u);
  const ConstantValue two = {std::string("scale"), 2.0}, three = {std::uint32_t{0}, 3.0};
  CHECK_EQ(run_on(*device, *device->compile(request("scaled", {two})), 5.0f), 11.0f);
  CHECK_EQ(run_on(*device, *device->compile(request("scaled", {three})), 5.0f), 16.0f);
  CHECK_EQ(cpu::kernel_cache_info().entries, 3u);
  CHECK_EQ(cpu::clear_kernel_cache(), 3u);
  CHECK_EQ(run_on(*device, *first, 2.0f), 3.0f);  // in use: stays usable
}

TEST_CASE(damaged_cache_entries_are_rebuilt) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  device->compile(request("plus_one"));
  const fs::path entry = only_entry(cache.path);
  const auto size = fs::file_size(entry);
  {
    std::fstream file(entry, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 2));
    file.write("damaged", 7);
  }
  CHECK_EQ(run_on(*device, *device->compile(request("plus_one")), 2.0f), 3.0f);
  fs::resize_file(entry, 10);
  CHECK_EQ(run_on(*device, *device->compile(request("plus_one")), 2.0f), 3.0f);
  CHECK_EQ(fs::file_size(entry), size);
  // Whole, but no module.
  const std::string content = "no shared object";
  std::ofstream(entry, std::ios::binary) << content << core::sha256_hex(content);
  CHECK_EQ(run_on(*device, *device->compile(request("plus_one")), 2.0f), 3.0f);
  CHECK_EQ(fs::file_size(entry), size);
}

TEST_CASE(a_builder_that_died_keeps_nobody_waiting) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  device->compile(request("plus_one"));
  const std::string lock = cache.path + "/tmp-lock-" + only_entry(cache.path).stem().string();
  fs::remove(only_entry(cache.path));
  const pid_t owner = fork();
  if (owner == 0) {
    const int descriptor = open(lock.c_str(), O_RDWR | O_CREAT, 0600);
    _exit(descriptor >= 0 && flock(descriptor, LOCK_EX) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(owner, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(fs::exists(lock));
  CHECK_EQ(run_on(*device, *device->compile(request("plus_one")), 2.0f), 3.0f);
  CHECK(!fs::exists(lock));
}

TEST_CASE(the_cache_keeps_to_its_limit) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  device->compile(request("plus_one"));
  const std::uint64_t one = cpu::kernel_cache_info().nbytes;
  cpu::set_kernel_cache(cache.path, one + one / 2);
  const ConstantValue two = {std::string("scale"), 2.0};
  device->compile(request("scaled", {two}));
  CHECK_EQ(cpu::kernel_cache_info().entries, 1u);  // the older one went
}

TEST_CASE(compile_errors_name_kernel_file_and_line) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  CHECK_THROWS(device->compile(request("broken")), CompileError, "kernel 'broken'");
  CHECK_THROWS(device->compile(request("broken")), CompileError, "saxpy:7");
  CHECK_THROWS(device->compile(request("broken")), CompileError, "undeclared_name");
  CHECK_THROWS(device->compile(request("greedy")), CompileError, "40000 bytes, the limit is 32768");
  CHECK_THROWS(device->compile(request("greediest")), CompileError, "1073741824 bytes, the limit is 32768");
  CHECK_THROWS(device->compile(request("missing")), KernelNotFoundError, "plus_one");
  const auto native = cpu::open_device({KernelChoice::native, {}});
  CHECK_THROWS(native->compile(request("plus_one")), CompileError, "no native kernel");
}

TEST_CASE(a_missing_compiler_is_one_clear_error) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  const char* before = std::getenv("CXX");
  const std::string kept = before != nullptr ? before : "";
  setenv("CXX", "/nonexistent/c++", 1);
  CHECK_THROWS(device->compile(request("plus_one")), CompileError, "/nonexistent/c++");
  before != nullptr ? setenv("CXX", kept.c_str(), 1) : unsetenv("CXX");
}

TEST_CASE(what_never_ends_compiling_is_a_compile_error) {
  const TemporaryCache cache;
  const auto device = cpu::open_device({});
  const auto compile = [&](const std::string& text) {
    auto source = std::make_shared<backend::SourceText>();
    source->name = "greedy";
    source->text = "#include <metal_stdlib>\nusing namespace metal;\n" + text;
    device->compile({source, "k", {}, MathMode::safe});
  };
  // 4 GiB that the assembler would write out, 256 GiB, and a loop in the compiler.
  CHECK_THROWS(compile("constant int big[1 << 30] = {1};\n"
                       "kernel void k(device int* y [[buffer(0)]]) { y[0] = big[y[1]]; }"),
               CompileError, "kernel 'k'");
  CHECK_THROWS(compile("constant int big[1ul << 36] = {1};\n"
                       "kernel void k(device int* y [[buffer(0)]]) { y[0] = big[y[1]]; }"),
               CompileError, "kernel 'k'");
  CHECK_THROWS(compile("constexpr int count() { int i = 0; for (;;) i ^= 1; return i; }\n"
                       "constant int n = count();\n"
                       "constant int big[count()] = {1};\n"
                       "kernel void k(device int* y [[buffer(0)]]) { y[0] = n + big[y[1]]; }"),
               CompileError, "greedy:5");
  // Nothing of it stays behind.
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(cache.path)) {
    left += entry.path().filename().string().starts_with("tmp-") ? 1 : 0;
  }
  CHECK_EQ(left, 0u);
}

TEST_CASE(programs_run_within_limits) {
  const cpu::ProcessLimits limits = {20, std::uint64_t{1} << 30, std::uint64_t{1} << 20};
  const TemporaryCache folder;
  const auto run = [&](const std::string& script, const cpu::ProcessLimits& within) {
    return cpu::run_process({"sh", "-c", script}, folder.path, within);
  };
  // In KiB, blocks of 512 bytes, and seconds.
  CHECK_EQ(run("ulimit -v; ulimit -f; ulimit -t; ulimit -c; echo $TMPDIR", limits).output,
           "1048576\n2048\n21\n0\n" + folder.path + "\n");
  CHECK_EQ(run("exit 3", limits).exit_code, 3);
  CHECK_EQ(run("kill -9 $$", limits).exit_code, 128 + SIGKILL);
  CHECK(run("exec head -c 2000000 /dev/zero > $TMPDIR/file", limits).exit_code != 0);
  CHECK_EQ(fs::file_size(folder.path + "/file"), std::uintmax_t{1} << 20);
  CHECK(!cpu::run_process({"/nonexistent/program"}, folder.path, limits).error.empty());
  // What it leaves behind, as compiler caches do with their servers, keeps nobody waiting.
  const auto start = std::chrono::steady_clock::now();
  const cpu::ProcessResult server = run("sleep 100 & echo $!", limits);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(!server.timed_out);
  CHECK_EQ(server.exit_code, 0);
  kill(std::stoi(server.output), SIGKILL);
  CHECK_EQ(run("head -c 300000 /dev/zero | tr '\\0' x", limits).output, std::string(300000, 'x'));
  // What it started ends with it.
  const cpu::ProcessResult late =
      run("sleep 100 & echo $!; wait", {0.3, limits.memory_bytes, limits.file_bytes});
  CHECK(late.timed_out);
  CHECK_EQ(late.exit_code, 128 + SIGKILL);
  CHECK(ends(std::stoi(late.output)));
}

TEST_CASE(a_program_ends_when_its_starter_dies) {
  const TemporaryCache folder;
  const std::string pid_file = folder.path + "/pid";
  const pid_t starter = fork();
  if (starter == 0) {
    // What the program has started, as a compiler's driver does, in the foreground.
    cpu::run_process(
        {"sh", "-c", "sh -c 'echo $$ > $TMPDIR/new; mv $TMPDIR/new $TMPDIR/pid; exec sleep 100'; true"},
        folder.path, {60, std::uint64_t{1} << 30, std::uint64_t{1} << 20});
    _exit(0);
  }
  while (!fs::exists(pid_file)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  int program = 0;
  std::ifstream(pid_file) >> program;
  CHECK(program > 0 && !has_ended(program));
  kill(starter, SIGKILL);
  waitpid(starter, nullptr, 0);
  CHECK(ends(program));
}

TEST_CASE(interrupts_end_programs) {
  const TemporaryCache folder;
  static const std::string pid_file = folder.path + "/pid";
  struct Interrupted : std::runtime_error {
    Interrupted() : std::runtime_error("interrupted") {}
  };
  core::set_interrupt_check([] {
    if (fs::exists(pid_file)) throw Interrupted();
  });
  CHECK_THROWS(
      cpu::run_process({"sh", "-c", "sleep 100 & echo $! > $TMPDIR/new; mv $TMPDIR/new $TMPDIR/pid; wait"},
                       folder.path, {60, std::uint64_t{1} << 30, std::uint64_t{1} << 20}),
      Interrupted, "interrupted");
  core::set_interrupt_check(nullptr);
  int program = 0;
  std::ifstream(pid_file) >> program;
  CHECK(program > 0 && ends(program));
}

TEST_CASE(processes_share_the_cache) {
  const TemporaryCache cache;
  const std::string wrapper = cache.path + "/compiler", log = cache.path + "/log";
  const char* before = std::getenv("CXX");
  const std::string kept = before != nullptr ? before : "";
  {
    std::ofstream script(wrapper);
    script << "#!/bin/sh\necho $$ >> " << log << "\nexec " << (kept.empty() ? "c++" : kept) << " \"$@\"\n";
  }
  fs::permissions(wrapper, fs::perms::owner_all);
  setenv("CXX", wrapper.c_str(), 1);
  // Half of them compile the same kernel at once, the others one of their own.
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(200);
      int status = 1;
      try {
        const auto device = cpu::open_device({});
        const ConstantValue scale = {std::string("scale"), i < 4 ? 2.0 : i};
        device->compile(request("scaled", {scale}));
        status = 0;
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(status);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK_EQ(cpu::kernel_cache_info().entries, 5u);
  // What is there is found without running the compiler, by this process as by the next.
  const auto runs = [&log] {
    std::ifstream lines(log);
    return std::count(std::istreambuf_iterator<char>(lines), {}, '\n');
  };
  const auto compiled = runs();
  CHECK_EQ(compiled, 10);  // each is compiled once, by a process that asks which compiler it has
  const auto device = cpu::open_device({});
  CHECK(!device->compiler_key().empty());
  const ConstantValue two = {std::string("scale"), 2.0}, seven = {std::string("scale"), 7.0};
  CHECK_EQ(run_on(*device, *device->compile(request("scaled", {two})), 5.0f), 11.0f);
  CHECK_EQ(run_on(*device, *device->compile(request("scaled", {seven})), 5.0f), 36.0f);
  CHECK_EQ(runs(), compiled);
  // Another compiler is another key: it is run, and asked which one it is.
  fs::last_write_time(wrapper, fs::file_time_type::clock::now() + std::chrono::hours(1));
  device->compile(request("scaled", {two}));
  CHECK_EQ(runs(), compiled + 2);
  kept.empty() ? unsetenv("CXX") : setenv("CXX", kept.c_str(), 1);
}

// ThreadSanitizer refuses new threads in a forked child. AddressSanitizer before Clang 18 and GCC 15 forks
// while other threads hold locks of its allocator, on which the child then waits for ever, also in programs
// without this library.
#if !defined(METALANE_TSAN) && \
    (!defined(METALANE_ASAN) || (defined(__clang__) ? __clang_major__ >= 18 : __GNUC__ >= 15))
TEST_CASE(a_forked_child_gets_one_clear_error_and_may_open_its_own) {
  const auto device = cpu::open_device({});
  const auto kernel = pipeline<add_one>("add_one");
  std::uint32_t value = 0;
  CHECK_EQ(Pending(*device, {{kernel.get(), {{&value, 4}}}}).wait(), "");
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int status = 1;
    try {
      device->allocate(16, true);
    } catch (const DeviceError& error) {
      const bool clear = std::strstr(error.what(), "before fork") != nullptr;
      auto own = cpu::open_device({});
      const bool works = Pending(*own, {{kernel.get(), {{&value, 4}}}}).wait().empty() && value == 2;
      own.reset();
      status = clear && works ? 0 : 2;
    }
    _exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE(a_device_may_end_on_its_own_thread) {
  std::uint32_t value = 0;
  const auto kernel = pipeline<add_one>("add_one");
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> ended{false};
    auto device = cpu::open_device({});
    auto submission = device->open({});
    backend::BufferBinding binding;
    binding.address = reinterpret_cast<std::uint8_t*>(&value);
    binding.nbytes = 4;
    backend::Launch launch;
    launch.pipeline = kernel.get();
    launch.buffers = {&binding, 1};
    submission->dispatch(launch);
    auto holder = std::make_shared<std::shared_ptr<backend::Device>>(std::move(device));
    submission->commit(std::nullopt, [holder, &ended](const backend::Completion&) {
      holder->reset();
      ended.store(true);
    });
    while (!ended.load()) std::this_thread::yield();
  }
  CHECK_EQ(value, 20u);
}

TEST_CASE(submissions_finish_in_commit_order_from_many_threads) {
  const auto device = cpu::open_device({});
  const auto kernel = pipeline<add_one>("add_one");
  std::uint32_t value = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const std::string code = Pending(*device, {{kernel.get(), {{&value, 4}}}}).wait();
        if (!code.empty()) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(value, 800u);
}

CHECK_MAIN()
