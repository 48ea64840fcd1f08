// See cache_folder.h.
#include "core/cache_folder.h"

#include <metalane/error.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>

namespace metalane::core {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t default_limit = std::uint64_t{1} << 30;
// What a process that was killed while it compiled leaves behind.
constexpr auto stale_age = std::chrono::hours(1);

std::mutex settings_mutex;
[[maybe_unused]] const int fork_handlers = pthread_atfork(
    [] { settings_mutex.lock(); }, [] { settings_mutex.unlock(); }, [] { settings_mutex.unlock(); });
std::string chosen_directory;
std::uint64_t limit_bytes = default_limit;

bool is_entry(const fs::path& extension) { return extension == ".so" || extension == ".metalarchive"; }

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
    const std::lock_guard lock(settings_mutex);
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

}  // namespace

fs::path cache_directory() {
  const fs::path path = configured_directory();
  std::error_code error;
  fs::path absolute = path.empty() ? path : fs::absolute(path, error);
  return error ? path : absolute;
}

void set_cache(const std::string& directory, std::uint64_t limit) {
  const std::lock_guard lock(settings_mutex);
  chosen_directory = directory;
  limit_bytes = limit;
}

std::uint64_t cache_limit() {
  const std::lock_guard lock(settings_mutex);
  return limit_bytes;
}

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

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string scratch_name(const std::string& stem) {
  static std::atomic<std::uint64_t> counter{0};
  return "tmp-" + std::to_string(getpid()) + "-" + std::to_string(counter.fetch_add(1)) + "-" + stem;
}

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

void touch_entry(const fs::path& path) {
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
}

std::vector<CacheEntry> list_entries(const fs::path& cache) {
  std::vector<CacheEntry> entries;
  std::error_code error;
  for (fs::directory_iterator it(cache, error), end; !error && it != end; it.increment(error)) {
    if (!is_entry(it->path().extension()) || it->path().filename().string().starts_with("tmp-")) continue;
    std::error_code gone;
    const std::uint64_t nbytes = it->file_size(gone);
    const fs::file_time_type used = gone ? fs::file_time_type{} : it->last_write_time(gone);
    if (!gone) entries.push_back({it->path(), used, nbytes});
  }
  return entries;
}

std::uint64_t trim_cache(const fs::path& cache, const fs::path& keep, std::uint64_t limit) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(cache, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (it->path().filename().string().starts_with("tmp-") && now - it->last_write_time(gone) > stale_age &&
        !gone) {
      fs::remove_all(it->path(), gone);
    }
  }
  std::vector<CacheEntry> entries = list_entries(cache);
  std::sort(entries.begin(), entries.end(),
            [](const CacheEntry& a, const CacheEntry& b) { return a.used < b.used; });
  std::uint64_t total = 0;
  for (const CacheEntry& entry : entries) total += entry.nbytes;
  std::uint64_t removed = 0;
  for (const CacheEntry& entry : entries) {
    if (total <= limit) break;
    if (entry.path == keep) continue;
    std::error_code gone;
    if (fs::remove(entry.path, gone)) ++removed;
    total -= entry.nbytes;
  }
  return removed;
}

}  // namespace metalane::core
