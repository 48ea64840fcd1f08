// The disk cache of kernels compiled at run time, and the shared objects that are loaded from it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "msl/stdlib/module_abi.h"

namespace metalane::cpu {

// A loaded shared object; unloaded with its last owner.
class LoadedModule {
 public:
  // Throws CompileError for `kernel` where the file is no module of this library's version.
  LoadedModule(const std::string& path, const std::string& kernel);
  ~LoadedModule();
  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;
  const metalane_module& module() const noexcept { return *module_; }
  // Null where the shared object exports no such symbol.
  const void* symbol(const char* name) const noexcept;
  // A path of the file, also when the cache has dropped it since.
  std::string file() const;

 private:
  void* handle_ = nullptr;
  const metalane_module* module_ = nullptr;
  int descriptor_ = -1;
};

// Writes a shared object to `output_path`, given the folder of the metal_stdlib headers and an empty folder
// for what it needs on the way, which is deleted afterwards.
using ModuleBuilder =
    std::function<void(const std::string& include_directory, const std::string& scratch_directory,
                       const std::string& output_path)>;

// The module stored under `key` (64 hexadecimal digits), built and stored first where it is missing or
// damaged. Several threads and processes may ask for one key at once. Throws CompileError for `kernel`.
std::shared_ptr<const LoadedModule> load_or_build(const std::string& kernel, const std::string& key,
                                                  const ModuleBuilder& build);

}  // namespace metalane::cpu
