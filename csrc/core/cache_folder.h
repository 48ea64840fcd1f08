// The user's folder of compiled kernels and pipelines, and how files in it are written, found and trimmed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace metalane::core {

struct CacheEntry {
  std::filesystem::path path;
  std::filesystem::file_time_type used;
  std::uint64_t nbytes;
};

// Process-wide. See cpu::set_kernel_cache.
void set_cache(const std::string& directory, std::uint64_t limit_bytes);
// Absolute, so that a compiler takes no path for an option. Empty where the user has no home.
std::filesystem::path cache_directory();
std::uint64_t cache_limit();

// The folder exists and is this user's alone: code is loaded from it. Throws CompileError naming `kernel`,
// for which it is wanted.
void make_private_directory(const std::string& kernel, const std::filesystem::path& path);
// Empty where there is no such file.
std::string read_file(const std::filesystem::path& path);
// A name that no other thread or process uses.
std::string scratch_name(const std::string& stem);
// Throws CompileError.
void write_atomically(const std::string& kernel, const std::filesystem::path& path, const std::string& text);
// It counts as used now.
void touch_entry(const std::filesystem::path& path);
// Compiled kernels and archives of pipelines.
std::vector<CacheEntry> list_entries(const std::filesystem::path& cache);
// Deletes leftovers of killed processes, and the least recently used entries beyond `limit` bytes, but not
// `keep`; returns how many of these.
std::uint64_t trim_cache(const std::filesystem::path& cache, const std::filesystem::path& keep,
                         std::uint64_t limit);

}  // namespace metalane::core
