// The tensors of one mapped file as views of few buffers.
#pragma once

#include <metalane/buffer.h>
#include <metalane/gguf.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace metalane::core {

class DeviceState;
class Storage;
struct GgufPart;

// Bytes of a file.
struct GgufSegment {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The fewest segments, of at most `most` bytes, whose bounds are multiples of `step` and which hold every
// tensor whole that one such segment can hold, in the order of the file. Neighbours may share a page.
std::vector<GgufSegment> plan_segments(std::span<const GgufTensor> tensors, std::uint64_t step,
                                       std::uint64_t most);

// What devices have of one part's pages. A segment is wrapped when a tensor of it is asked for, and
// unwrapped when the last of its tensors lets go. Thread-safe.
class GgufMapping {
 public:
  // Empty where no segment of the device's can hold the tensor, or the device refuses to map it.
  Buffer buffer_of(const GgufTensor& tensor, const GgufPart& part,
                   const std::shared_ptr<DeviceState>& device);

 private:
  struct Wrapped {
    std::weak_ptr<DeviceState> device;
    std::vector<GgufSegment> segments;
    std::vector<std::weak_ptr<Storage>> storages;  // of `segments`
  };
  Wrapped& wrapped_for(const GgufPart& part, const std::shared_ptr<DeviceState>& device);

  std::vector<Wrapped> wrapped_;
};

}  // namespace metalane::core
