// A captured sequence of launches: looked at, checked, reordered, encoded again, or replayed with other
// parameters and buffers.
#pragma once

#include <metalane/buffer.h>
#include <metalane/export.h>
#include <metalane/kernel.h>
#include <metalane/launch.h>
#include <metalane/ticket.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace metalane {

class CommandEncoder;
class Device;

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
  std::string op;          // what the call was: an operator's name, "dispatch", "copy" or "fill"
  std::uint32_t call = 0;  // launches of one call share its number
  std::string label;       // nested labels joined by '/'
  std::vector<GraphBinding> bindings;
  std::vector<ThreadgroupMemory> threadgroup_memory;
  Grid grid;
  std::vector<AddressRange> reads;
  std::vector<AddressRange> writes;
  bool ranges_overridden = false;  // set_pending_buffer_ranges gave the ranges
  bool barrier_before = false;     // an explicit memory_barrier() stands before it
};

// Something that makes a graph unfit for a replay, or not what it seems.
struct GraphProblem {
  enum class Kind : std::uint8_t {
    unannotated,         // `node` has buffers bound, and neither reads nor writes are known of it
    released,            // a buffer of `node` was released
    unordered_conflict,  // `node` and `other` touch the same bytes as bound, one writes, and neither a
                         // barrier nor their ranges (given by hand) order them
  };
  Kind kind = Kind::unannotated;
  std::uint32_t node = 0;
  std::uint32_t other = 0;  // an earlier node, of unordered_conflict
  std::string message;
};

// Other bytes for what was captured under a label: a path of labels, "layer3/quantized_matmul_ggml" or just
// "layer3". It must name the launches of one operator call, or plain launches that all bind the same bytes.
struct GraphParams {
  std::string label;
  std::vector<std::uint8_t> bytes;
  std::optional<std::uint32_t> index;  // of plain launches: the bytes bound there only

  template <typename T, typename = std::enable_if_t<std::is_trivially_copyable_v<T>>>
  static GraphParams of(std::string label, const T& params,
                        std::optional<std::uint32_t> index = std::nullopt) {
    const auto* const first = reinterpret_cast<const std::uint8_t*>(&params);
    return {std::move(label), {first, first + sizeof(T)}, index};
  }
};

// Where `from` (or a view into it) was bound, the same place of `to` is.
struct GraphRebinding {
  Buffer from;
  Buffer to;
};

struct ReorderedGraph;

// Immutable; keeps its buffers alive. Cheap to copy, thread-safe.
class METALANE_API ComputeGraph {
 public:
  explicit ComputeGraph(std::shared_ptr<const core::GraphState> state) : state_(std::move(state)) {}
  // Never empty: a move copies.
  ComputeGraph(const ComputeGraph&) = default;
  ComputeGraph& operator=(const ComputeGraph&) = default;

  const std::vector<GraphNode>& nodes() const noexcept;
  std::size_t size() const noexcept { return nodes().size(); }
  Device device() const;

  // Encodes every node, as the eager calls would have been; throws before the first launch where a buffer
  // of the graph was released.
  void encode(CommandEncoder& encoder) const;

  // Nodes whose label is this path, or begins with it and goes on behind a '/'; empty where there are none.
  std::vector<std::uint32_t> nodes_under(std::string_view label) const;

  std::vector<GraphProblem> validate() const;
  // Of each node, how many others must have run before it, one behind another. Nodes of one level may run in
  // any order. Follows from the nodes' ranges and explicit barriers: one inside an operator orders its own
  // launches only. An unannotated node is alone on its level.
  std::vector<std::uint32_t> levels() const;
  // The same nodes by level, in their old order inside a level, a barrier before each level.
  ReorderedGraph reorder() const;

  // The same launches on other memory. A rebinding replaces a buffer by one of equal dtype and shape; throws
  // ArgumentError or DTypeError where nothing is bound to it, where a view or a range lies across its end, or
  // where a launch's or its operator's own checks refuse the new one.
  ComputeGraph rebind(std::span<const GraphRebinding> buffers) const;

  // Commits the whole graph as one submission and gives its ticket. The checks of an operator run again on
  // its new parameters; parameters that would need another kernel, grid or size of a binding throw
  // ArgumentError, which names the fields, and nothing is committed. Replays may be in flight at once; they
  // take effect in the order of the calls. `time_limit`: as in CommandEncoder::commit.
  Ticket replay(std::span<const GraphParams> params = {},
                std::optional<double> time_limit = std::nullopt) const;
  Ticket replay(std::span<const GraphParams> params, std::span<const GraphRebinding> buffers,
                std::optional<double> time_limit = std::nullopt) const {
    return rebind(buffers).replay(params, time_limit);
  }

  const std::shared_ptr<const core::GraphState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<const core::GraphState> state_;
};

struct ReorderedGraph {
  ComputeGraph graph;
  std::uint64_t barriers_before = 0;  // of the graph as it was, encoded in its order
  std::uint64_t barriers_after = 0;
};

}  // namespace metalane
