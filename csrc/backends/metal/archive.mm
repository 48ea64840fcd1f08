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

// The file's archive, or an empty one where there is none yet or Metal cannot read it: then it will be
// written over.
Owned<id<MTLBinaryArchive>> archive_of(id<MTLDevice> device, const std::filesystem::path& path) {
  Owned<id<MTLBinaryArchive>> archive;
  std::error_code missing;
  if (std::filesystem::exists(path, missing)) archive = new_archive(device, url_of(path));
  return archive ? archive : new_archive(device, nil);
}

}  // namespace

std::shared_ptr<Archive> Archive::open(id<MTLDevice> device, const std::string& key) {
  const std::filesystem::path path = archive_path(key);
  if (path.empty()) return nullptr;
  auto archive = archive_of(device, path);
  if (!archive) return nullptr;
  core::touch_entry(path);
  return std::shared_ptr<Archive>(new Archive(Owned<id<MTLDevice>>::keep(device), path, std::move(archive)));
}

Archive::~Archive() {
  const AutoreleaseScope scope;
  write();
}

Owned<id<MTLComputePipelineState>> Archive::find(id<MTLDevice> device,
                                                 MTLComputePipelineDescriptor* descriptor,
                                                 MTLPipelineOption options,
                                                 MTLComputePipelineReflection** reflection) {
  {
    const std::lock_guard lock(mutex_);
    [descriptor setBinaryArchives:[NSArray arrayWithObject:archive_.get()]];
  }
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
  unwritten_.push_back(Owned<MTLComputePipelineDescriptor*>::keep(descriptor));
  // A write takes the whole file: at 1, 2, 4, 8, ... pipelines, and the rest at the end.
  if (++added_ >= 2 * added_at_write_) write();
}

void Archive::write() {
  if (unwritten_.empty()) return;
  added_at_write_ = added_;
  const ArchiveLock lock(path_);
  auto merged = archive_of(device_.get(), path_);
  if (!merged) return;
  NSError* error = nil;
  // Metal may have no archived form of a pipeline; that one is compiled anew each time.
  for (const auto& descriptor : unwritten_)
    [merged.get() addComputePipelineFunctionsWithDescriptor:descriptor.get() error:&error];
  const std::filesystem::path scratch = scratch_path(path_);
  if (![merged.get() serializeToURL:url_of(scratch) error:&error]) {
    std::error_code absent;
    std::filesystem::remove(scratch, absent);
    return;
  }
  if (!publish(scratch, path_)) return;
  archive_ = std::move(merged);
  unwritten_.clear();
}

}  // namespace metalane::metal
