// See call_recheck.h.
#include "core/call_recheck.h"

#include <metalane/encoder.h>
#include <metalane/error.h>

#include <algorithm>
#include <cstring>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/graph_program.h"
#include "core/graph_state.h"
#include "core/launch_check.h"
#include "core/registry.h"

namespace metalane::core {

namespace {

constexpr const char* kReplay = "ComputeGraph.replay";

// The layout of the struct that the operator's kernels take, from their sources.
const StructLayout* layout_of(const GraphState& graph, const RecordedCall& call, std::size_t nbytes) {
  for (const std::uint32_t node : call.nodes) {
    for (const KernelArgument& argument : graph.nodes()[node].pipeline.signature().arguments) {
      if (argument.space == AddressSpace::constant && argument.type.layout != nullptr &&
          argument.type.layout->size == nbytes) {
        return argument.type.layout.get();
      }
    }
  }
  return nullptr;
}

bool same_sizes(std::span<const backend::BytesBinding> bytes, const GraphNode& node) {
  const auto captured = std::count_if(node.bindings.begin(), node.bindings.end(),
                                      [](const GraphBinding& binding) { return !binding.bytes.empty(); });
  if (static_cast<std::size_t>(captured) != bytes.size()) return false;
  return std::all_of(bytes.begin(), bytes.end(), [&](const backend::BytesBinding& given) {
    return std::any_of(node.bindings.begin(), node.bindings.end(), [&](const GraphBinding& binding) {
      return binding.index == given.index && binding.bytes.size() == given.nbytes;
    });
  });
}

}  // namespace

CallRecheck::CallRecheck(const GraphState& graph, const RecordedCall& call, std::string label,
                         std::span<const std::uint8_t> params)
    : graph_(graph), call_(call), label_(std::move(label)), params_(params) {}

std::vector<CallRecheck::Patch> CallRecheck::run() {
  CommandEncoder encoder(EncoderState::open(graph_.device(), {}));
  encoder.state()->compare_with(this);
  call_.again(encoder, call_.rebinding, params_.data());
  if (met_ != call_.nodes.size()) fail("the captured launches (" + std::to_string(call_.nodes.size()) + ")");
  return std::move(patches_);
}

void CallRecheck::meet(const Pipeline& pipeline, const CheckedLaunch& launch) {
  if (met_ == call_.nodes.size()) {
    fail("the captured launches (" + std::to_string(call_.nodes.size()) + ")");
  }
  const std::uint32_t number = call_.nodes[met_++];
  const GraphNode& node = graph_.nodes()[number];
  const backend::Launch& captured = graph_.program()->steps()[number].launch;
  const std::string& kernel = node.pipeline.signature().name;
  if (pipeline.state() != node.pipeline.state()) {
    fail("the captured kernel (" + kernel + ", not " + pipeline.signature().name + ")");
  }
  const bool same_grid =
      launch.launch.grid_kind == captured.grid_kind &&
      std::ranges::equal(launch.launch.grid, captured.grid) &&
      std::ranges::equal(launch.launch.threads_per_threadgroup, captured.threads_per_threadgroup);
  if (!same_grid) fail("the captured grid of " + kernel);
  const auto same_memory = [](const backend::ThreadgroupBinding& a, const backend::ThreadgroupBinding& b) {
    return a.index == b.index && a.nbytes == b.nbytes;
  };
  if (!std::ranges::equal(launch.launch.threadgroup_memory, captured.threadgroup_memory, same_memory)) {
    fail("the captured threadgroup memory of " + kernel);
  }
  if (!same_sizes(launch.launch.bytes, node)) fail("the captured sizes of the bytes bound to " + kernel);
  for (const backend::BytesBinding& bytes : launch.launch.bytes) {
    patches_.push_back({number, bytes.index, {bytes.data, bytes.data + bytes.nbytes}});
  }
}

void CallRecheck::fail(const std::string& kept) const {
  throw ArgumentError(kReplay, "params['" + label_ + "']", "such that " + call_.op + " keeps " + kept,
                      changed_fields());
}

std::string CallRecheck::changed_fields() const {
  const StructLayout* const layout = layout_of(graph_, call_, params_.size());
  std::string fields;
  if (layout != nullptr) {
    for (const StructField& field : layout->fields) {
      if (std::memcmp(params_.data() + field.offset, call_.params.data() + field.offset, field.size) == 0) {
        continue;
      }
      fields += (fields.empty() ? "" : ", ") + field.name;
    }
  }
  return "another " + (fields.empty() ? std::string("struct") : fields);
}

}  // namespace metalane::core
