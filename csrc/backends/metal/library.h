// Libraries: sources compiled by Metal, each once for a math mode.
#pragma once

#import <Metal/Metal.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#import "backends/metal/archive.h"
#import "backends/metal/features.h"
#import "backends/metal/owned.h"
#include "core/backend.h"

namespace metalane::metal {

struct Library {
  Owned<id<MTLLibrary>> object;
  std::shared_ptr<Archive> archive;  // null: pipelines are not kept
};

// Thread-safe; a source compiles once, different ones at the same time.
class Libraries {
 public:
  Libraries(id<MTLDevice> device, const Features& features) : device_(device), features_(features) {}
  // Pipelines of libraries compiled from now on are kept on disk; `key` is what else than source and math
  // mode decides them.
  void keep_pipelines(const std::string& key) { archive_key_ = key; }
  // Throws CompileError with the compiler's messages. `kernel` is whom it is for.
  std::shared_ptr<const Library> of(const backend::SourceText& source, MathMode math,
                                    const std::string& kernel);

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const Library> library;
  };

  Owned<id<MTLLibrary>> compile(const backend::SourceText& source, const std::string& text,
                                const std::string& hash, MathMode math, const std::string& kernel) const;

  // Of users' sources; those of the built-in ones stay.
  static constexpr std::size_t max_entries = 64;
  id<MTLDevice> device_;
  const Features& features_;
  std::string archive_key_;  // empty: nothing is kept
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> builtin_, others_;
};

}  // namespace metalane::metal
