// Graphs that come from files: launches grouped into calls that nobody can repeat.
#pragma once

#include <metalane/export.h>
#include <metalane/graph.h>

#include <cstdint>
#include <span>
#include <string>

namespace metalane::core {

// The graph with its nodes in these calls: `ops` by call, and each node's call, below the number of `ops`.
METALANE_API ComputeGraph with_calls(const ComputeGraph& graph, std::span<const std::string> ops,
                                     std::span<const std::uint32_t> call_of_node);

}  // namespace metalane::core
