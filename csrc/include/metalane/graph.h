// A captured sequence of launches.
#pragma once

#include <metalane/buffer.h>
#include <metalane/export.h>
#include <metalane/kernel.h>
#include <metalane/launch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace metalane {

class CommandEncoder;

namespace core {
class GraphState;
}

struct GraphBinding {
  std::uint32_t index = 0;
  Access access = Access::read;
  Buffer buffer;                    // empty where bytes are bound
  std::vector<std::uint8_t> bytes;  // empty where a buffer is bound
};

struct GraphNode {
  Pipeline pipeline;
  std::string label;  // nested labels joined by '/'
  std::vector<GraphBinding> bindings;
  std::vector<ThreadgroupMemory> threadgroup_memory;
  Grid grid;
  std::vector<AddressRange> reads;
  std::vector<AddressRange> writes;
  bool ranges_overridden = false;  // set_pending_buffer_ranges gave the ranges
  bool barrier_before = false;     // an explicit memory_barrier() stands before it
};

// Immutable; keeps its buffers alive. Cheap to copy, thread-safe.
class METALANE_API ComputeGraph {
 public:
  explicit ComputeGraph(std::shared_ptr<const std::vector<GraphNode>> nodes) : nodes_(std::move(nodes)) {}
  // Never empty: a move copies.
  ComputeGraph(const ComputeGraph&) = default;
  ComputeGraph& operator=(const ComputeGraph&) = default;
  const std::vector<GraphNode>& nodes() const noexcept { return *nodes_; }
  std::size_t size() const noexcept { return nodes_->size(); }
  // Encodes every node, as the eager calls would have been; throws before the first launch where a buffer
  // of the graph was released.
  void encode(CommandEncoder& encoder) const;

 private:
  std::shared_ptr<const std::vector<GraphNode>> nodes_;
};

}  // namespace metalane
