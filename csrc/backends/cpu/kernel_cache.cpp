// Files <key>.so, each with the SHA-256 of its content behind it; the loader ignores bytes past the ELF
// image.
#include "backends/cpu/kernel_cache.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <metalane/cpu.h>
#include <metalane/error.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cpu/process.h"
#include "backends/cpu/threadgroup.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "msl/msl.h"

namespace metalane::cpu {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t digest_bytes = 64;
constexpr std::uint64_t default_limit = std::uint64_t{1} << 30;
// What a process that was killed while it compiled leaves behind.
constexpr auto stale_age = std::chrono::hours(1);
constexpr int load_attempts = 3;
// Longer than a compiler may run.
constexpr auto lock_limit = std::chrono::seconds(150);
constexpr auto lock_interval = std::chrono::milliseconds(10);

std::string chosen_directory;
std::uint64_t limit_bytes = default_limit;
std::map<std::string, std::weak_ptr<const LoadedModule>> loaded_modules;

std::string home_directory() {
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return home;
  passwd entry;
  passwd* found = nullptr;
  char buffer[4096];
  if (getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    return found->pw_dir;
  return {};
}

fs::path configured_directory() {
  {
    const std::lock_guard lock(process_mutex());
    if (!chosen_directory.empty()) return chosen_directory;
  }
  const auto from_environment = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? std::string(value) : std::string();
  };
  if (const std::string own = from_environment("METALANE_CACHE_DIR"); !own.empty()) return own;
  if (const std::string xdg = from_environment("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "metalane";
  const std::string home = home_directory();
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "metalane";
}

// Absolute, so that a compiler takes no path for an option. Empty where the user has no home.
fs::path directory() {
  const fs::path path = configured_directory();
  std::error_code error;
  fs::path absolute = path.empty() ? path : fs::absolute(path, error);
  return error ? path : absolute;
}

// The folder exists and is this user's alone: code is loaded from it.
void make_private_directory(const std::string& kernel, const fs::path& path) {
  const auto refuse = [&](const std::string& why) {
    throw CompileError(kernel, "kernel '" + kernel + "': the folder for compiled kernels, " + path.string() +
                                   ", " + why + " (METALANE_CACHE_DIR chooses another)");
  };
  if (path.empty()) refuse("cannot be found: this user has no home folder");
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    refuse(std::string("cannot be made: ") + std::strerror(errno));
  struct stat status;
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) refuse("is no folder");
  if (status.st_uid != geteuid()) refuse("belongs to another user");
  if ((status.st_mode & 0022) != 0) refuse("can be written by other users");
  if (access(path.c_str(), W_OK | X_OK) != 0) refuse("cannot be written");
}

// Empty where there is no such file.
std::string read_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// A name that no other thread or process uses.
std::string scratch_name(const std::string& stem) {
  static std::atomic<std::uint64_t> counter{0};
  return "tmp-" + std::to_string(getpid()) + "-" + std::to_string(counter.fetch_add(1)) + "-" + stem;
}

class ScratchDirectory {
 public:
  ScratchDirectory(const std::string& kernel, const fs::path& cache) : path_(cache / scratch_name("build")) {
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

// Held while an entry is built, by one thread of one process: others wait and find the entry. The system
// releases it with its owner. It orders work and guards nothing: without it, where a file system has no locks
// or an owner takes longer than `lock_limit`, an entry is built twice.
class BuildLock {
 public:
  explicit BuildLock(fs::path path) : path_(std::move(path)) {
    const auto deadline = std::chrono::steady_clock::now() + lock_limit;
    while (!take() && !impossible_ && std::chrono::steady_clock::now() < deadline) {
      core::check_interrupt();
      std::this_thread::sleep_for(lock_interval);
    }
  }
  ~BuildLock() {
    if (!held_) return;
    unlink(path_.c_str());
    flock(file_.descriptor, LOCK_UN);  // a forked child may have the file open, too
  }
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  struct File {
    int descriptor = -1;
    ~File() { drop(); }
    void drop() {
      if (descriptor >= 0) close(descriptor);
      descriptor = -1;
    }
  };

  bool take() {
    if (file_.descriptor < 0)
      file_.descriptor = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_.descriptor < 0 || flock(file_.descriptor, LOCK_EX | LOCK_NB) != 0) {
      impossible_ = file_.descriptor < 0 || (errno != EWOULDBLOCK && errno != EINTR);
      return false;
    }
    // The owner before may have deleted the file meanwhile: then it keeps nobody else away.
    struct stat own, named;
    held_ = fstat(file_.descriptor, &own) == 0 && stat(path_.c_str(), &named) == 0 &&
            own.st_dev == named.st_dev && own.st_ino == named.st_ino;
    if (!held_) file_.drop();
    return held_;
  }

  const fs::path path_;
  File file_;
  bool held_ = false;
  bool impossible_ = false;
};

void write_atomically(const std::string& kernel, const fs::path& path, const std::string& text) {
  const fs::path scratch = path.parent_path() / scratch_name(path.filename().string());
  bool written = false;
  int reason = 0;
  {
    std::ofstream stream(scratch, std::ios::binary);
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    stream.close();
    written = !stream.fail();
    reason = errno;
  }
  std::error_code error;
  if (written) fs::rename(scratch, path, error);
  if (!written || error) {
    std::error_code ignored;
    fs::remove(scratch, ignored);
    throw CompileError(kernel, "kernel '" + kernel + "': cannot write " + path.string() + ": " +
                                   (error ? error.message() : std::strerror(reason)));
  }
}

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
    if (read_file(path) == header.text) continue;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    write_atomically(kernel, path, header.text);
  }
  return root;
}

struct Entry {
  fs::path path;
  fs::file_time_type used;
  std::uint64_t nbytes;
};

std::vector<Entry> list_entries(const fs::path& cache) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(cache, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".so" || it->path().filename().string().starts_with("tmp-")) continue;
    std::error_code gone;
    const std::uint64_t nbytes = it->file_size(gone);
    const fs::file_time_type used = gone ? fs::file_time_type{} : it->last_write_time(gone);
    if (!gone) entries.push_back({it->path(), used, nbytes});
  }
  return entries;
}

// Deletes leftovers, and the least recently used entries beyond `limit` bytes; returns how many of these.
std::uint64_t trim(const fs::path& cache, const fs::path& keep, std::uint64_t limit) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(cache, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (it->path().filename().string().starts_with("tmp-") && now - it->last_write_time(gone) > stale_age &&
        !gone) {
      fs::remove_all(it->path(), gone);
    }
  }
  std::vector<Entry> entries = list_entries(cache);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  std::uint64_t total = 0;
  for (const Entry& entry : entries) total += entry.nbytes;
  std::uint64_t removed = 0;
  for (const Entry& entry : entries) {
    if (total <= limit) break;
    if (entry.path == keep) continue;
    std::error_code gone;
    if (fs::remove(entry.path, gone)) ++removed;
    total -= entry.nbytes;
  }
  return removed;
}

std::uint64_t current_limit() {
  const std::lock_guard lock(process_mutex());
  return limit_bytes;
}

// Whether the entry is there; it counts as used then.
bool use_entry(const fs::path& path) {
  if (!is_intact(read_file(path))) return false;
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return true;
}

void build_entry(const std::string& kernel, const fs::path& cache, const fs::path& path,
                 const ModuleBuilder& build) {
  const fs::path include_directory = write_headers(kernel, cache);
  const ScratchDirectory scratch(kernel, cache);
  const fs::path output = scratch.path() / "kernel.so";
  build(include_directory.string(), scratch.path().string(), output.string());
  std::string content = read_file(output);
  if (content.empty()) {
    throw CompileError(kernel,
                       "kernel '" + kernel + "': the compiler reported success but wrote no shared object");
  }
  content += core::sha256_hex(content);
  write_atomically(kernel, path, content);
  trim(cache, path, current_limit());
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
  const fs::path cache = directory();
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
    make_private_directory(kernel, cache);
    bool built = false;
    if (!use_entry(path)) {
      const BuildLock lock(cache / ("tmp-lock-" + key));
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
  const std::lock_guard lock(process_mutex());
  chosen_directory = directory;
  limit_bytes = limit;
}

KernelCacheInfo kernel_cache_info() {
  KernelCacheInfo info;
  const fs::path cache = directory();
  info.directory = cache.string();
  for (const Entry& entry : list_entries(cache)) {
    ++info.entries;
    info.nbytes += entry.nbytes;
  }
  info.limit_bytes = current_limit();
  return info;
}

std::uint64_t prune_kernel_cache(std::uint64_t limit) { return trim(directory(), {}, limit); }

std::uint64_t clear_kernel_cache() {
  std::uint64_t removed = 0;
  for (const Entry& entry : list_entries(directory())) {
    std::error_code gone;
    if (fs::remove(entry.path, gone)) ++removed;
  }
  return removed;
}

}  // namespace metalane::cpu
