// See gguf_mapping.h.
#include "core/gguf_mapping.h"

#include <metalane/error.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "core/device_state.h"
#include "core/gguf_part.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

// Of all mappings, so that a fork can wait for it: a file that was open before may be used in the child.
std::mutex mappings_mutex;
[[maybe_unused]] const int fork_handlers = pthread_atfork(
    [] { mappings_mutex.lock(); }, [] { mappings_mutex.unlock(); }, [] { mappings_mutex.unlock(); });

}  // namespace

std::vector<GgufSegment> plan_segments(std::span<const GgufTensor> tensors, std::uint64_t step,
                                       std::uint64_t most) {
  std::vector<GgufSegment> pages;  // of each tensor
  pages.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) {
    const GgufSegment own{tensor.offset / step * step,
                          (tensor.offset + tensor.byte_len + step - 1) / step * step};
    if (tensor.byte_len != 0 && own.end - own.begin <= most) pages.push_back(own);
  }
  // Tensors do not overlap, so that what begins later also ends later.
  std::sort(pages.begin(), pages.end(), [](const GgufSegment& a, const GgufSegment& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<GgufSegment> segments;
  for (const GgufSegment& own : pages) {
    if (!segments.empty() && own.end - segments.back().begin <= most) {
      segments.back().end = own.end;
    } else {
      segments.push_back(own);
    }
  }
  return segments;
}

GgufMapping::Wrapped& GgufMapping::wrapped_for(const GgufPart& part,
                                               const std::shared_ptr<DeviceState>& device) {
  std::erase_if(wrapped_, [](const Wrapped& known) { return known.device.expired(); });
  for (Wrapped& known : wrapped_) {
    if (!known.device.owner_before(device) && !device.owner_before(known.device)) return known;
  }
  // A device that takes memory from any byte on does not map it and has no limit to what it takes.
  const backend::Capabilities& device_has = device->capabilities();
  const std::uint64_t step = device_has.wrap_alignment;
  const std::uint64_t most =
      step == 1 ? std::numeric_limits<std::uint64_t>::max() : device_has.max_buffer_bytes;
  Wrapped& added = wrapped_.emplace_back();
  added.device = device;
  added.segments = plan_segments(part.tensors, step, most);
  added.storages.resize(added.segments.size());
  return added;
}

Buffer GgufMapping::buffer_of(const GgufTensor& tensor, const GgufPart& part,
                              const std::shared_ptr<DeviceState>& device) {
  // Pages of the system's are what is mapped of the file, whole, also at its end.
  const auto system_page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (tensor.offset % find_ggml_type(tensor.ggml_type)->alignment != 0 ||
      system_page % device->capabilities().wrap_alignment != 0) {
    return {};
  }
  const std::lock_guard lock(mappings_mutex);
  Wrapped& wrapped = wrapped_for(part, device);
  // The last one that begins in time: where a tensor lies in two, on the page that they share, either will
  // do.
  const auto after = std::upper_bound(
      wrapped.segments.begin(), wrapped.segments.end(), tensor.offset,
      [](std::uint64_t offset, const GgufSegment& segment) { return offset < segment.begin; });
  if (after == wrapped.segments.begin()) return {};
  const GgufSegment& segment = *std::prev(after);
  if (tensor.offset + tensor.byte_len > segment.end) return {};

  std::weak_ptr<Storage>& kept =
      wrapped.storages[static_cast<std::size_t>(&segment - wrapped.segments.data())];
  std::shared_ptr<Storage> storage = kept.lock();
  if (storage == nullptr) {
    backend::Allocation allocation;
    try {
      allocation =
          device->backend().wrap(part.pages.get() + segment.begin, segment.end - segment.begin, true);
    } catch (const ArgumentError&) {
      return {};
    }
    storage = std::make_shared<Storage>(device, allocation, true, true, part.pages, part.file);
    kept = storage;
  }
  return Buffer(std::move(storage), tensor.offset - segment.begin, tensor.byte_len, tensor.buffer_shape(),
                tensor.buffer_dtype(), true, true);
}

}  // namespace metalane::core
