// See graph_program.h.
#include "core/graph_program.h"

#include <algorithm>

#include "core/device_state.h"
#include "core/graph_order.h"
#include "core/graph_state.h"
#include "core/launch_check.h"
#include "core/registry.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

// What a node binds, as a dispatch is given it.
std::vector<KernelArg> arguments_of(const GraphNode& node) {
  std::vector<KernelArg> args;
  args.reserve(node.bindings.size());
  for (const GraphBinding& binding : node.bindings) {
    args.push_back(binding.bytes.empty()
                       ? KernelArg(binding.index, binding.buffer)
                       : KernelArg(binding.index, binding.bytes.data(), binding.bytes.size()));
  }
  return args;
}

// A sorted list that has each thing once.
template <typename Thing, typename Key>
void keep_each_once(std::vector<Thing>& things, const Key& key) {
  std::sort(things.begin(), things.end(), [&](const Thing& a, const Thing& b) { return key(a) < key(b); });
  things.erase(std::unique(things.begin(), things.end(),
                           [&](const Thing& a, const Thing& b) { return key(a) == key(b); }),
               things.end());
}

}  // namespace

GraphProgram::GraphProgram(const GraphState& graph) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  const std::vector<bool> barriers = barriers_in_order(nodes);
  struct Counts {
    std::size_t buffers, bytes, threadgroup_memory;
  };
  std::vector<Counts> counts;
  CheckedLaunch checked;
  steps_.resize(nodes.size());
  labels_.reserve(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = nodes[i];
    const PipelineState& pipeline = *node.pipeline.state();
    checked.buffer_count = checked.bytes_count = checked.threadgroup_count = 0;
    checked.touched_count = checked.handle_count = 0;
    const std::vector<KernelArg> args = arguments_of(node);
    check_launch(*graph.device(), pipeline, args, node.grid, node.threadgroup_memory, checked);
    buffers_.insert(buffers_.end(), checked.buffers.begin(), checked.buffers.begin() + checked.buffer_count);
    bytes_.insert(bytes_.end(), checked.bytes.begin(), checked.bytes.begin() + checked.bytes_count);
    threadgroup_memory_.insert(threadgroup_memory_.end(), checked.threadgroup_memory.begin(),
                               checked.threadgroup_memory.begin() + checked.threadgroup_count);
    counts.push_back({checked.buffer_count, checked.bytes_count, checked.threadgroup_count});
    for (std::size_t h = 0; h < checked.handle_count; ++h) {
      storages_.push_back(checked.handles[h]->storage());
    }
    pipelines_.push_back(node.pipeline);
    const std::vector<TouchedRange> touched = touched_by(node);
    touched_.insert(touched_.end(), touched.begin(), touched.end());

    Step& step = steps_[i];
    step.launch = checked.launch;
    step.barrier_before = barriers[i];
    step.status_argument = pipeline.status_argument;
    if (i == 0 || node.label != nodes[i - 1].label) {
      labels_.push_back(node.label);
      step.labels_pushed = node.label.empty() ? 0 : 1;
    }
    step.launch.label = labels_.back();
  }
  // The arrays have stopped moving.
  Counts first = {0, 0, 0};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    backend::Launch& launch = steps_[i].launch;
    launch.buffers = {buffers_.data() + first.buffers, counts[i].buffers};
    launch.bytes = {bytes_.data() + first.bytes, counts[i].bytes};
    launch.threadgroup_memory = {threadgroup_memory_.data() + first.threadgroup_memory,
                                 counts[i].threadgroup_memory};
    first = {first.buffers + counts[i].buffers, first.bytes + counts[i].bytes,
             first.threadgroup_memory + counts[i].threadgroup_memory};
  }
  keep_each_once(storages_, [](const std::shared_ptr<Storage>& storage) { return storage.get(); });
  keep_each_once(pipelines_, [](const Pipeline& pipeline) { return pipeline.state().get(); });
  merge_touched(touched_);
}

}  // namespace metalane::core
