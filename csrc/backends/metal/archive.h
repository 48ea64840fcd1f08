// Compiled pipelines of one library, kept on disk as an MTLBinaryArchive.
#pragma once

#import <Metal/Metal.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#import "backends/metal/owned.h"

namespace metalane::metal {

// One file for what decides the machine code: system, GPU, language, math and the library's text are in its
// name. It is a cache: where it cannot be read it is made anew, and where it cannot be written pipelines are
// compiled again the next time. Who writes adds to what the file has by then, so that processes keep each
// other's pipelines. Thread-safe.
class Archive {
 public:
  // `key`: everything that decides, as text. Null where Metal gives no archive or the user has no folder for
  // it.
  static std::shared_ptr<Archive> open(id<MTLDevice> device, const std::string& key);
  // Writes what was added since.
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // The pipeline as the archive has it; nil where it has none.
  Owned<id<MTLComputePipelineState>> find(id<MTLDevice> device, MTLComputePipelineDescriptor* descriptor,
                                          MTLPipelineOption options,
                                          MTLComputePipelineReflection** reflection);
  void add(MTLComputePipelineDescriptor* descriptor);

 private:
  Archive(Owned<id<MTLDevice>> device, std::filesystem::path path, Owned<id<MTLBinaryArchive>> archive)
      : device_(std::move(device)), path_(std::move(path)), archive_(std::move(archive)) {}
  void write();

  const Owned<id<MTLDevice>> device_;
  const std::filesystem::path path_;
  std::mutex mutex_;
  Owned<id<MTLBinaryArchive>> archive_;  // the file as it was last read or written
  std::vector<Owned<MTLComputePipelineDescriptor*>> unwritten_;
  unsigned added_ = 0, added_at_write_ = 0;
};

}  // namespace metalane::metal
