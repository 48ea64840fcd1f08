// Compiled pipelines of one library, kept on disk as an MTLBinaryArchive.
#pragma once

#import <Metal/Metal.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#import "backends/metal/owned.h"

namespace metalane::metal {

// One file for what decides the machine code: system, GPU, language, math and the library's text are in its
// name. It is a cache: where it cannot be read it is made anew, and where it cannot be written pipelines are
// compiled again the next time. Processes that write the same file replace each other's whole. Thread-safe.
class Archive {
 public:
  // `key`: everything that decides, as text. Null where Metal gives no archive or the user has no folder for
  // it.
  static std::shared_ptr<Archive> open(id<MTLDevice> device, const std::string& key);
  // Writes what was added since.
  ~Archive();

  // The pipeline as the archive has it; nil where it has none.
  Owned<id<MTLComputePipelineState>> find(id<MTLDevice> device, MTLComputePipelineDescriptor* descriptor,
                                          MTLPipelineOption options,
                                          MTLComputePipelineReflection** reflection) const;
  void add(MTLComputePipelineDescriptor* descriptor);

 private:
  Archive(Owned<id<MTLBinaryArchive>> archive, std::filesystem::path path)
      : archive_(std::move(archive)), path_(std::move(path)) {}
  void write();

  Owned<id<MTLBinaryArchive>> archive_;
  const std::filesystem::path path_;
  std::mutex mutex_;
  unsigned added_ = 0, written_ = 0;
};

}  // namespace metalane::metal
