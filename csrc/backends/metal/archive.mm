// See archive.h.
#import "backends/metal/archive.h"

#include <system_error>

#include "backends/metal/archive_folder.h"
#import "backends/metal/boundary.h"
#include "core/cache_folder.h"

namespace metalane::metal {

namespace {

Owned<id<MTLBinaryArchive>> new_archive(id<MTLDevice> device, NSURL* url) {
  auto descriptor = Owned<MTLBinaryArchiveDescriptor*>::adopt([[MTLBinaryArchiveDescriptor alloc] init]);
  [descriptor.get() setUrl:url];
  NSError* error = nil;
  return Owned<id<MTLBinaryArchive>>::adopt([device newBinaryArchiveWithDescriptor:descriptor.get()
                                                                             error:&error]);
}

NSURL* url_of(const std::filesystem::path& path) { return [NSURL fileURLWithPath:string_of(path.string())]; }

}  // namespace

std::shared_ptr<Archive> Archive::open(id<MTLDevice> device, const std::string& key) {
  const std::filesystem::path path = archive_path(key);
  if (path.empty()) return nullptr;
  Owned<id<MTLBinaryArchive>> archive;
  std::error_code missing;
  if (std::filesystem::exists(path, missing)) {
    archive = new_archive(device, url_of(path));
    if (archive) core::touch_entry(path);
  }
  // None yet, or one that Metal cannot read: it will be written over.
  if (!archive) archive = new_archive(device, nil);
  if (!archive) return nullptr;
  return std::shared_ptr<Archive>(new Archive(std::move(archive), path));
}

Archive::~Archive() {
  const AutoreleaseScope scope;
  write();
}

Owned<id<MTLComputePipelineState>> Archive::find(id<MTLDevice> device,
                                                 MTLComputePipelineDescriptor* descriptor,
                                                 MTLPipelineOption options,
                                                 MTLComputePipelineReflection** reflection) const {
  [descriptor setBinaryArchives:[NSArray arrayWithObject:archive_.get()]];
  NSError* error = nil;
  auto state = Owned<id<MTLComputePipelineState>>::adopt([device
      newComputePipelineStateWithDescriptor:descriptor
                                    options:options | MTLPipelineOptionFailOnBinaryArchiveMiss
                                 reflection:reflection
                                      error:&error]);
  if (!state) [descriptor setBinaryArchives:nil];  // no need to look again
  return state;
}

void Archive::add(MTLComputePipelineDescriptor* descriptor) {
  const std::lock_guard lock(mutex_);
  NSError* error = nil;
  if (![archive_.get() addComputePipelineFunctionsWithDescriptor:descriptor error:&error]) return;
  // A write takes the whole file: at 1, 2, 4, 8, ... pipelines, and the rest at the end.
  if (++added_ >= 2 * written_) write();
}

void Archive::write() {
  if (added_ == written_) return;
  written_ = added_;
  const std::filesystem::path scratch = scratch_path(path_);
  NSError* error = nil;
  if ([archive_.get() serializeToURL:url_of(scratch) error:&error]) publish(scratch, path_);
}

}  // namespace metalane::metal
