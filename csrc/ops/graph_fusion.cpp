// See graph_fusion.h. A rule says of two calls whether they go together, and calls the operator that does
// both.
#include <metalane/device.h>
#include <metalane/encoder.h>
#include <metalane/ops/graph_fusion.h>
#include <metalane/ops/quantized_matmul_ggml.h>
#include <metalane/ops/quantized_matmul_id_ggml.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "core/device_state.h"
#include "core/graph_state.h"
#include "ops/ggml_kernels.h"
#include "ops/quantized_matmul_launches.h"

namespace metalane {

namespace {

using core::GraphState;
using core::RecordedCall;

const Buffer& bound(const GraphNode& node, std::uint32_t index) {
  return std::find_if(node.bindings.begin(), node.bindings.end(),
                      [&](const GraphBinding& binding) { return binding.index == index; })
      ->buffer;
}

template <typename Params>
Params params_of(const RecordedCall& call) {
  Params params;
  std::memcpy(&params, call.params.data(), sizeof params);
  return params;
}

bool same_place(const Buffer& a, const Buffer& b) { return a.range() == b.range(); }

bool follows(const Buffer& a, const Buffer& b) {
  return a.storage() == b.storage() && a.range().end == b.range().begin;
}

// From the first byte of `first` to the last of `last`, one behind another in one allocation.
Buffer joined(const Buffer& first, const Buffer& last) {
  const std::uint64_t nbytes = last.range().end - first.range().begin;
  return Buffer(first.storage(), first.byte_offset(), nbytes, Shape({nbytes / size_of(first.dtype())}),
                first.dtype(), first.readonly(), true);
}

// One row of the table. `calls` are the group so far, of one rule.
struct Rule {
  const char* name;
  bool (*starts)(const GraphState& graph, const RecordedCall& call);
  bool (*joins)(const GraphState& graph, std::span<const std::uint32_t> calls, const RecordedCall& next);
  std::size_t most;  // calls of a group
  void (*call)(CommandEncoder& encoder, const GraphState& graph, std::span<const std::uint32_t> calls);
};

// id_pooled_pair --------------------------------------------------------------------------------------------

// The launches of a pooled call: count, route, multiply.
struct PooledCall {
  const Buffer &ids, &schedule, &input, &weight, &output;
  PooledCall(const GraphState& graph, const RecordedCall& call)
      : ids(bound(graph.nodes()[call.nodes[0]], 0)),
        schedule(bound(graph.nodes()[call.nodes[0]], 1)),
        input(bound(graph.nodes()[call.nodes[2]], 0)),
        weight(bound(graph.nodes()[call.nodes[2]], 1)),
        output(bound(graph.nodes()[call.nodes[2]], 3)) {}
};

bool starts_pair(const GraphState&, const RecordedCall& call) {
  return call.op == "quantized_matmul_id_ggml_pooled" && call.nodes.size() == 3;
}

bool joins_pair(const GraphState& graph, std::span<const std::uint32_t> calls, const RecordedCall& next) {
  const RecordedCall& first = graph.calls()[calls.front()];
  if (first.params != next.params) return false;
  const PooledCall a(graph, first), b(graph, next);
  const bool same =
      same_place(a.input, b.input) && same_place(a.ids, b.ids) && same_place(a.schedule, b.schedule);
  return same && !a.output.range().overlaps(b.output.range()) &&
         !a.output.range().overlaps(b.weight.range()) && !b.output.range().overlaps(a.weight.range()) &&
         !a.output.range().overlaps(b.input.range()) && !a.output.range().overlaps(b.ids.range());
}

void call_pair(CommandEncoder& encoder, const GraphState& graph, std::span<const std::uint32_t> calls) {
  const RecordedCall &first = graph.calls()[calls[0]], &second = graph.calls()[calls[1]];
  const auto params = params_of<GgmlQuantizedMatmulIdParams>(first);
  const PooledCall a(graph, first), b(graph, second);
  const IdMmScratch scratch =
      IdMmScratch::over(a.schedule, params.n_experts, std::uint64_t{params.n_tokens} * params.top_k);
  quantized_matmul_id_ggml_pooled_pair(encoder, a.input, a.weight, b.weight, a.ids, a.output, b.output,
                                       scratch, params);
}

// batched_mv ------------------------------------------------------------------------------------------------

const GraphNode& launch_of(const GraphState& graph, const RecordedCall& call) {
  return graph.nodes()[call.nodes.front()];
}

bool starts_batch(const GraphState& graph, const RecordedCall& call) {
  if (call.op != "quantized_matmul_ggml" || call.nodes.size() != 1) return false;
  const auto params = params_of<GgmlQuantizedMatmulParams>(call);
  const auto variant = ops::dense_variant("fuse", params, GgmlAlgorithm::mv);
  const Pipeline& mv =
      ops::ggml_kernel(variant.kernel, static_cast<GgmlType>(params.ggml_type)).on(*graph.device());
  // Weights must lie row on row, without a gap behind the last that a longer buffer has.
  const GraphNode& node = launch_of(graph, call);
  const GgmlTypeInfo& type = ops::check_dense("fuse", params);
  return params.m == 1 && node.pipeline.state() == mv.state() &&
         bound(node, 0).nbytes() == std::uint64_t{params.k} * sizeof(float) &&
         bound(node, 1).nbytes() == params.n * ops::ggml_row_bytes(type, params.k) &&
         bound(node, 2).nbytes() == std::uint64_t{params.n} * sizeof(float);
}

bool joins_batch(const GraphState& graph, std::span<const std::uint32_t> calls, const RecordedCall& next) {
  const RecordedCall& last = graph.calls()[calls.back()];
  if (last.params != next.params) return false;
  const GraphNode &a = launch_of(graph, last), &b = launch_of(graph, next);
  const auto adjacent = [&](std::uint32_t index) {
    return follows(bound(a, index), bound(b, index)) && bound(a, index).dtype() == bound(b, index).dtype();
  };
  // A call that reads what one of the group writes must come behind it.
  const bool apart = std::all_of(calls.begin(), calls.end(), [&](std::uint32_t call) {
    const GraphNode& earlier = launch_of(graph, graph.calls()[call]);
    return !bound(earlier, 2).range().overlaps(bound(b, 0).range()) &&
           !bound(earlier, 2).range().overlaps(bound(b, 1).range()) &&
           !bound(b, 2).range().overlaps(bound(earlier, 0).range()) &&
           !bound(b, 2).range().overlaps(bound(earlier, 1).range());
  });
  return adjacent(0) && adjacent(1) && adjacent(2) && apart;
}

void call_batch(CommandEncoder& encoder, const GraphState& graph, std::span<const std::uint32_t> calls) {
  const RecordedCall &first = graph.calls()[calls.front()], &last = graph.calls()[calls.back()];
  const auto params = params_of<GgmlQuantizedMatmulParams>(first);
  const GraphNode &a = launch_of(graph, first), &b = launch_of(graph, last);
  quantized_matmul_batched_mv(encoder, joined(bound(a, 0), bound(b, 0)), joined(bound(a, 1), bound(b, 1)),
                              joined(bound(a, 2), bound(b, 2)), static_cast<std::uint32_t>(calls.size()), 1,
                              params.n, params.k, static_cast<GgmlType>(params.ggml_type));
}

constexpr std::array<Rule, 2> rules = {{
    {"id_pooled_pair", &starts_pair, &joins_pair, 2, &call_pair},
    {"batched_mv", &starts_batch, &joins_batch, 0x7fffffff, &call_batch},
}};

// ---------------------------------------------------------------------------------------------------------

bool overlap(std::span<const AddressRange> a, std::span<const AddressRange> b) {
  return std::any_of(a.begin(), a.end(), [&](const AddressRange& one) {
    return std::any_of(b.begin(), b.end(), [&](const AddressRange& other) { return one.overlaps(other); });
  });
}

bool conflict(const GraphNode& a, const GraphNode& b) {
  return overlap(a.writes, b.reads) || overlap(a.writes, b.writes) || overlap(a.reads, b.writes);
}

// Whether `next` may run as early as the first call of its group.
bool can_move_up(const GraphState& graph, std::span<const std::uint32_t> group, const RecordedCall& next) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  const std::uint32_t own = nodes[next.nodes.front()].call;
  for (std::uint32_t i = graph.calls()[group.front()].nodes.front() + 1; i <= next.nodes.back(); ++i) {
    const bool inside = nodes[i].call == nodes[i - 1].call;
    if (nodes[i].barrier_before && !inside) return false;
    const bool in_group =
        nodes[i].call == own || std::find(group.begin(), group.end(), nodes[i].call) != group.end();
    if (in_group) continue;
    for (const std::uint32_t node : next.nodes) {
      if (conflict(nodes[i], nodes[node])) return false;
    }
  }
  return true;
}

bool is_as_recorded(const GraphState& graph, const RecordedCall& call) {
  return call.again != nullptr && std::none_of(call.nodes.begin(), call.nodes.end(), [&](std::uint32_t node) {
           return graph.nodes()[node].ranges_overridden;
         });
}

struct Group {
  const Rule* rule = nullptr;
  std::vector<std::uint32_t> calls;
};

// The calls in the order of their first launches.
std::vector<std::uint32_t> calls_in_order(const GraphState& graph) {
  std::vector<std::uint32_t> order;
  std::vector<bool> seen(graph.calls().size(), false);
  for (const GraphNode& node : graph.nodes()) {
    if (!seen[node.call]) order.push_back(node.call);
    seen[node.call] = true;
  }
  return order;
}

std::vector<Group> groups_of(const GraphState& graph) {
  // How many calls may lie between two that go together.
  constexpr std::size_t reach = 64;
  const std::vector<std::uint32_t> order = calls_in_order(graph);
  std::vector<bool> taken(graph.calls().size(), false);
  std::vector<Group> groups;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RecordedCall& first = graph.calls()[order[i]];
    if (taken[order[i]] || !is_as_recorded(graph, first)) continue;
    for (const Rule& rule : rules) {
      if (!rule.starts(graph, first)) continue;
      Group group{&rule, {order[i]}};
      std::size_t last = i;
      for (std::size_t j = i + 1; j < order.size() && j <= last + reach; ++j) {
        const RecordedCall& next = graph.calls()[order[j]];
        if (group.calls.size() == rule.most) break;
        if (taken[order[j]] || !is_as_recorded(graph, next) || !rule.starts(graph, next)) continue;
        if (!rule.joins(graph, group.calls, next) || !can_move_up(graph, group.calls, next)) continue;
        group.calls.push_back(order[j]);
        last = j;
      }
      if (group.calls.size() < 2) continue;
      for (const std::uint32_t call : group.calls) taken[call] = true;
      groups.push_back(std::move(group));
      break;
    }
  }
  return groups;
}

// What the rule's operator records for the group, under the labels around the old calls.
ComputeGraph captured(const GraphState& graph, const Group& group) {
  const std::string& label = graph.nodes()[graph.calls()[group.calls.front()].nodes.front()].label;
  CommandEncoder encoder = Device(graph.device()).command_encoder();
  CaptureScope capture(encoder);
  const std::size_t around = label.rfind('/');
  if (around != std::string::npos) encoder.push_label(label.substr(0, around));
  group.rule->call(encoder, graph, group.calls);
  return capture.take();
}

}  // namespace

FusedGraph fuse(const ComputeGraph& graph) {
  const GraphState& state = *graph.state();
  const std::vector<Group> groups = groups_of(state);
  if (groups.empty()) return {graph, {}};
  std::vector<Fusion> fusions;
  std::vector<const Group*> group_of_call(state.calls().size(), nullptr);
  for (const Group& group : groups) {
    Fusion fusion{group.rule->name, {}};
    for (const std::uint32_t call : group.calls) {
      group_of_call[call] = &group;
      const std::vector<std::uint32_t>& nodes = state.calls()[call].nodes;
      fusion.nodes.insert(fusion.nodes.end(), nodes.begin(), nodes.end());
    }
    fusions.push_back(std::move(fusion));
  }
  std::vector<GraphNode> nodes;
  std::vector<RecordedCall> calls = state.calls();
  for (RecordedCall& call : calls) call.nodes.clear();
  const auto append = [&](GraphNode node, std::uint32_t call) {
    node.call = call;
    calls[call].nodes.push_back(static_cast<std::uint32_t>(nodes.size()));
    nodes.push_back(std::move(node));
  };
  for (std::uint32_t i = 0; i < state.nodes().size(); ++i) {
    const GraphNode& node = state.nodes()[i];
    const Group* const group = group_of_call[node.call];
    if (group == nullptr) {
      append(node, node.call);
      continue;
    }
    if (i != state.calls()[group->calls.front()].nodes.front()) continue;
    const ComputeGraph replacement = captured(state, *group);
    const auto call = static_cast<std::uint32_t>(calls.size());
    calls.push_back(replacement.state()->calls().front());
    calls.back().nodes.clear();
    for (const GraphNode& launch : replacement.nodes()) append(launch, call);
    nodes[calls.back().nodes.front()].barrier_before = node.barrier_before;
  }
  return {
      ComputeGraph(std::make_shared<const GraphState>(state.device(), std::move(nodes), std::move(calls))),
      std::move(fusions)};
}

}  // namespace metalane
