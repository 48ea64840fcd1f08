// Files <key>.so, each with the SHA-256 of its content behind it; the loader ignores bytes past the ELF
// image.
#include "backends/cpu/kernel_cache.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <metalane/cpu.h>
#include <metalane/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <vector>

#include "backends/cpu/process.h"
#include "backends/cpu/threadgroup.h"
#include "core/cache_folder.h"
#include "core/file_lock.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "msl/msl.h"

namespace metalane::cpu {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t digest_bytes = 64;
constexpr int load_attempts = 3;
// Longer than a compiler may run.
constexpr auto lock_limit = std::chrono::seconds(150);

std::map<std::string, std::weak_ptr<const LoadedModule>> loaded_modules;

class ScratchDirectory {
 public:
  ScratchDirectory(const std::string& kernel, const fs::path& cache)
      : path_(cache / core::scratch_name("build")) {
    if (mkdir(path_.c_str(), 0700) != 0) {
      throw CompileError(
          kernel, "kernel '" + kernel + "': cannot make " + path_.string() + ": " + std::strerror(errno));
    }
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

bool is_intact(const std::string& file) {
  if (file.size() <= digest_bytes) return false;
  const std::string_view content(file.data(), file.size() - digest_bytes);
  return file.compare(content.size(), digest_bytes, core::sha256_hex(content)) == 0;
}

// The metal_stdlib headers, in a folder named by their hash.
fs::path write_headers(const std::string& kernel, const fs::path& cache) {
  const fs::path root = cache / ("include-" + msl::stdlib_version().substr(0, 32));
  for (const msl::StdlibHeader& header : msl::stdlib_headers()) {
    const fs::path path = root / header.path;
    // The content, not the size alone: what a disk or an editor spoilt would fail every kernel from then on.
    if (core::read_file(path) == header.text) continue;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    core::write_atomically(kernel, path, header.text);
  }
  return root;
}

// Whether the entry is there; it counts as used then.
bool use_entry(const fs::path& path) {
  if (!is_intact(core::read_file(path))) return false;
  core::touch_entry(path);
  return true;
}

void build_entry(const std::string& kernel, const fs::path& cache, const fs::path& path,
                 const ModuleBuilder& build) {
  const fs::path include_directory = write_headers(kernel, cache);
  const ScratchDirectory scratch(kernel, cache);
  const fs::path output = scratch.path() / "kernel.so";
  build(include_directory.string(), scratch.path().string(), output.string());
  std::string content = core::read_file(output);
  if (content.empty()) {
    throw CompileError(kernel,
                       "kernel '" + kernel + "': the compiler reported success but wrote no shared object");
  }
  content += core::sha256_hex(content);
  core::write_atomically(kernel, path, content);
  core::trim_cache(cache, path, core::cache_limit());
}

}  // namespace

LoadedModule::LoadedModule(const std::string& path, const std::string& kernel) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    throw CompileError(kernel, "kernel '" + kernel + "': cannot load the compiled kernel: " + dlerror());
  }
  module_ = static_cast<const metalane_module*>(dlsym(handle_, "metalane_module_v1"));
  if (module_ == nullptr || module_->abi_version != METALANE_MODULE_ABI_VERSION) {
    dlclose(handle_);
    throw CompileError(kernel, "kernel '" + kernel + "': " + path + " is no kernel module of this version");
  }
  module_->attach(&module_runtime());
  // Only what the checker loads is asked for its lines later.
  if (symbol("metalane_check_v1") != nullptr) descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

LoadedModule::~LoadedModule() {
  if (descriptor_ >= 0) close(descriptor_);
  dlclose(handle_);
}

const void* LoadedModule::symbol(const char* name) const noexcept { return dlsym(handle_, name); }

std::string LoadedModule::file() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
}

std::shared_ptr<const LoadedModule> load_or_build(const std::string& kernel, const std::string& key,
                                                  const ModuleBuilder& build) {
  const fs::path cache = core::cache_directory();
  const fs::path path = cache / (key + ".so");
  const auto find_loaded = [&]() -> std::shared_ptr<const LoadedModule> {
    const auto found = loaded_modules.find(key);
    return found != loaded_modules.end() ? found->second.lock() : nullptr;
  };
  {
    const std::lock_guard lock(process_mutex());
    if (auto loaded = find_loaded()) return loaded;
  }
  std::shared_ptr<const LoadedModule> loaded;
  for (int attempt = 1; loaded == nullptr; ++attempt) {
    core::make_private_directory(kernel, cache);
    bool built = false;
    if (!use_entry(path)) {
      // Of those who want it, threads of one process or of several, one builds and the others wait and find
      // it.
      const core::FileLock lock(cache / ("tmp-lock-" + key), lock_limit, core::check_interrupt);
      built = !use_entry(path);
      if (built) build_entry(kernel, cache, path, build);
    }
    try {
      loaded = std::make_shared<const LoadedModule>(path.string(), kernel);
    } catch (const CompileError&) {
      // Another process that trims or clears the cache may have deleted the entry since it was seen. One that
      // is there and cannot be loaded is built anew.
      std::error_code error;
      const bool there = fs::exists(path, error);
      if (attempt == load_attempts || (built && there)) throw;
      if (there) fs::remove(path, error);
    }
  }
  const std::lock_guard lock(process_mutex());
  // Another thread may have loaded it meanwhile: one object a key, whose attach() ran before it was shared.
  if (auto earlier = find_loaded()) return earlier;
  std::erase_if(loaded_modules, [](const auto& entry) { return entry.second.expired(); });
  loaded_modules[key] = loaded;
  return loaded;
}

void set_kernel_cache(const std::string& directory, std::uint64_t limit) {
  core::set_cache(directory, limit);
}

KernelCacheInfo kernel_cache_info() {
  KernelCacheInfo info;
  const fs::path cache = core::cache_directory();
  info.directory = cache.string();
  for (const core::CacheEntry& entry : core::list_entries(cache)) {
    ++info.entries;
    info.nbytes += entry.nbytes;
  }
  info.limit_bytes = core::cache_limit();
  return info;
}

std::uint64_t prune_kernel_cache(std::uint64_t limit) {
  return core::trim_cache(core::cache_directory(), {}, limit);
}

std::uint64_t clear_kernel_cache() {
  std::uint64_t removed = 0;
  for (const core::CacheEntry& entry : core::list_entries(core::cache_directory())) {
    std::error_code gone;
    if (fs::remove(entry.path, gone)) ++removed;
  }
  return removed;
}

}  // namespace metalane::cpu
