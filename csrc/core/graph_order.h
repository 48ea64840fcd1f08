// In which order the nodes of a graph may run, from the ranges that they touch.
#pragma once

#include <metalane/graph.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/timeline.h"

namespace metalane::core {

class GraphState;

// A node's ranges as the hazard tracker takes them. A range on both lists is one read-and-write range: what
// that means for a retry differs.
std::vector<TouchedRange> touched_by(const GraphNode& node);

// For each node, whether a barrier is due before it when the nodes are encoded in their order.
std::vector<bool> barriers_in_order(std::span<const GraphNode> nodes);

// See ComputeGraph.
std::vector<std::uint32_t> levels_of(std::span<const GraphNode> nodes);
std::vector<GraphProblem> problems_of(std::span<const GraphNode> nodes);
std::shared_ptr<const GraphState> reordered(const GraphState& graph);

}  // namespace metalane::core
