// Fewer launches for the same bits: calls of a graph that another operator does together.
#pragma once

#include <metalane/export.h>
#include <metalane/graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace metalane {

struct Fusion {
  std::string rule;                  // "id_pooled_pair" or "batched_mv"
  std::vector<std::uint32_t> nodes;  // that it replaced, of the graph as it was
};

struct FusedGraph {
  ComputeGraph graph;
  std::vector<Fusion> fusions;
};

// Replaces, where nothing in between conflicts:
// - id_pooled_pair: two quantized_matmul_id_ggml_pooled calls of equal input, ids, scratch and params by one
//   quantized_matmul_id_ggml_pooled_pair, which sorts the routes once;
// - batched_mv: quantized_matmul_ggml calls of one input row each, of equal type and sizes, whose inputs,
//   weights and outputs lie one behind another, by one quantized_matmul_batched_mv.
// Both give the same bits. The new calls have the labels around the old ones and their own names. An explicit
// barrier between calls, ranges given by hand, and a memory conflict with what lies between keep calls apart;
// reorder() sets barriers, so fuse first.
METALANE_API FusedGraph fuse(const ComputeGraph& graph);

}  // namespace metalane
