// ComputeGraph: the public handle on a GraphState.
#include <metalane/device.h>
#include <metalane/encoder.h>
#include <metalane/error.h>
#include <metalane/graph.h>

#include <algorithm>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/graph_calls.h"
#include "core/graph_order.h"
#include "core/graph_program.h"
#include "core/graph_state.h"

namespace metalane {

namespace core {

GraphState::GraphState(std::shared_ptr<DeviceState> device, std::vector<GraphNode> nodes,
                       std::vector<RecordedCall> calls)
    : device_(std::move(device)), nodes_(std::move(nodes)), calls_(std::move(calls)) {}

GraphState::~GraphState() = default;

const GraphState::LabelMap& GraphState::labels() const {
  std::call_once(labels_made_, [&] {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::string& label = nodes_[i].label;
      for (std::size_t end = label.find('/'); !label.empty(); end = label.find('/', end + 1)) {
        labels_[label.substr(0, end)].push_back(static_cast<std::uint32_t>(i));
        if (end == std::string::npos) break;
      }
    }
  });
  return labels_;
}

const std::vector<std::uint32_t>* GraphState::nodes_under(std::string_view label) const {
  const auto found = labels().find(label);
  return found == labels().end() ? nullptr : &found->second;
}

std::string GraphState::some_labels() const {
  constexpr std::size_t most = 8;
  std::string text;
  std::size_t count = 0;
  for (const auto& [label, nodes] : labels()) {
    if (++count > most) return text + ", ...";
    text += (text.empty() ? "'" : ", '") + label + "'";
  }
  return text.empty() ? "no labels" : text;
}

std::shared_ptr<const GraphProgram> GraphState::program() const {
  std::lock_guard lock(mutex_);
  if (program_ == nullptr) program_ = std::make_shared<const GraphProgram>(*this);
  return program_;
}

ComputeGraph with_calls(const ComputeGraph& graph, std::span<const std::string> ops,
                        std::span<const std::uint32_t> call_of_node) {
  std::vector<GraphNode> nodes = graph.nodes();
  std::vector<RecordedCall> calls(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) calls[i].op = ops[i];
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    nodes[i].call = call_of_node[i];
    nodes[i].op = ops[nodes[i].call];
    calls[nodes[i].call].nodes.push_back(i);
  }
  return ComputeGraph(
      std::make_shared<const GraphState>(graph.state()->device(), std::move(nodes), std::move(calls)));
}

}  // namespace core

const std::vector<GraphNode>& ComputeGraph::nodes() const noexcept { return state_->nodes(); }

Device ComputeGraph::device() const { return Device(state_->device()); }

void ComputeGraph::encode(CommandEncoder& encoder) const {
  if (encoder.state() == nullptr) throw ArgumentError("CommandEncoder: it was moved from");
  encoder.state()->encode_graph(*state_);
}

std::vector<std::uint32_t> ComputeGraph::nodes_under(std::string_view label) const {
  const std::vector<std::uint32_t>* const found = state_->nodes_under(label);
  return found == nullptr ? std::vector<std::uint32_t>{} : *found;
}

std::vector<GraphProblem> ComputeGraph::validate() const { return core::problems_of(nodes()); }

std::vector<std::uint32_t> ComputeGraph::levels() const { return core::levels_of(nodes()); }

ReorderedGraph ComputeGraph::reorder() const {
  const auto count = [](const ComputeGraph& graph) {
    const std::vector<bool> barriers = core::barriers_in_order(graph.nodes());
    return static_cast<std::uint64_t>(std::count(barriers.begin(), barriers.end(), true));
  };
  const ComputeGraph graph(core::reordered(*state_));
  return {graph, count(*this), count(graph)};
}

ComputeGraph ComputeGraph::rebind(std::span<const GraphRebinding> buffers) const {
  return ComputeGraph(core::rebind(*state_, buffers));
}

Ticket ComputeGraph::replay(std::span<const GraphParams> params, std::optional<double> time_limit) const {
  return core::replay(*state_, params, time_limit);
}

}  // namespace metalane
