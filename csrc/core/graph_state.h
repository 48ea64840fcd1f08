// What a ComputeGraph holds: its nodes, the calls that recorded them, and the program that replays run.
#pragma once

#include <metalane/graph.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace metalane {
class CommandEncoder;
}

namespace metalane::core {

class DeviceState;
class GraphProgram;

// Which memory stands for which, by one or more steps: each replaces what the one before gave.
class Rebinding {
 public:
  using Step = std::vector<GraphRebinding>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  // The same place of the new memory, or the buffer itself. Throws ArgumentError where it lies across the end
  // of a replaced one.
  Buffer operator()(const Buffer& buffer) const;

 private:
  std::vector<Step> steps_;
};

// Calls an operator as it was called, with buffers rebound and with `params` (its struct's bytes).
using CallAgain =
    std::function<void(CommandEncoder& encoder, const Rebinding& rebinding, const std::uint8_t* params)>;

// One call that recorded launches: an operator's, or a plain dispatch, copy or fill.
struct RecordedCall {
  std::string op;
  std::vector<std::uint8_t> params;  // of an operator
  CallAgain again;                   // null for plain launches
  Rebinding rebinding;
  std::vector<std::uint32_t> nodes;  // in the order of the call's launches
};

class GraphState {
 public:
  GraphState(std::shared_ptr<DeviceState> device, std::vector<GraphNode> nodes,
             std::vector<RecordedCall> calls);
  ~GraphState();

  const std::shared_ptr<DeviceState>& device() const noexcept { return device_; }
  const std::vector<GraphNode>& nodes() const noexcept { return nodes_; }
  const std::vector<RecordedCall>& calls() const noexcept { return calls_; }
  // Nodes under a label, each by its whole path or the path's beginning; null where there is none.
  const std::vector<std::uint32_t>* nodes_under(std::string_view label) const;
  // For errors: some of the labels that there are.
  std::string some_labels() const;
  // Built by the first call, from then on shared. Throws what the checks of a launch throw.
  std::shared_ptr<const GraphProgram> program() const;

 private:
  std::shared_ptr<DeviceState> device_;
  std::vector<GraphNode> nodes_;
  std::vector<RecordedCall> calls_;
  using LabelMap = std::map<std::string, std::vector<std::uint32_t>, std::less<>>;
  const LabelMap& labels() const;

  mutable std::once_flag labels_made_;
  mutable LabelMap labels_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const GraphProgram> program_;
};

// graph_rebind.cpp
std::shared_ptr<const GraphState> rebind(const GraphState& graph, std::span<const GraphRebinding> buffers);

// graph_replay.cpp
Ticket replay(const GraphState& graph, std::span<const GraphParams> params, std::optional<double> time_limit);

}  // namespace metalane::core
