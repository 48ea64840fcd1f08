// The same launches on other memory.
#include <metalane/device.h>
#include <metalane/error.h>

#include <algorithm>

#include "core/call_recheck.h"
#include "core/device_state.h"
#include "core/graph_program.h"
#include "core/graph_state.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

constexpr const char* kRebind = "ComputeGraph.rebind";

bool contains(const AddressRange& outer, const AddressRange& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

[[noreturn]] void fail_across(const Shape& shape) {
  throw ArgumentError(kRebind, "buffers", "such that what the graph binds lies inside one of them or outside",
                      "a buffer of shape " + shape.str() + " that is bound in part");
}

// The place of `range` behind one step, or where it is.
AddressRange moved(const AddressRange& range, const Rebinding::Step& step) {
  for (const GraphRebinding& pair : step) {
    const AddressRange from = pair.from.range();
    if (!from.overlaps(range)) continue;
    if (!contains(from, range)) fail_across(pair.from.shape());
    const std::uint64_t to = pair.to.address();
    return {to + (range.begin - from.begin), to + (range.end - from.begin)};
  }
  return range;
}

// The pair that replaces `buffer`; the end where none does.
Rebinding::Step::const_iterator pair_for(const Buffer& buffer, const Rebinding::Step& step) {
  return std::find_if(step.begin(), step.end(), [&](const GraphRebinding& pair) {
    if (pair.from.storage() != buffer.storage()) return false;
    const AddressRange from = {pair.from.byte_offset(), pair.from.byte_offset() + pair.from.nbytes()};
    const AddressRange range = {buffer.byte_offset(), buffer.byte_offset() + buffer.nbytes()};
    if (contains(from, range)) return true;
    if (from.overlaps(range)) fail_across(pair.from.shape());
    return false;
  });
}

Buffer moved(const Buffer& buffer, const GraphRebinding& pair) {
  const Buffer place =
      pair.to.view(buffer.byte_offset() - pair.from.byte_offset(), buffer.shape(), buffer.dtype());
  return buffer.readonly() ? place.as_readonly() : place;
}

void check(const GraphState& graph, std::span<const GraphRebinding> buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto& [from, to] = buffers[i];
    const std::string name = "buffers[" + std::to_string(i) + "]";
    if (!from || from.released()) throw ArgumentError(kRebind, name, "a buffer", "a released buffer");
    if (!to || to.released()) throw ArgumentError(kRebind, name, "another buffer", "a released buffer");
    if (to.storage()->device() != graph.device()) {
      throw ArgumentError(kRebind, name, "a buffer of the graph's device", "a buffer of another device");
    }
    if (to.dtype() != from.dtype()) {
      throw DTypeError(kRebind, name, std::string(name_of(from.dtype())), std::string(name_of(to.dtype())));
    }
    if (!(to.shape() == from.shape())) {
      throw ArgumentError(kRebind, name, "of shape " + from.shape().str(), to.shape().str());
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (buffers[j].from.range().overlaps(from.range())) {
        throw ArgumentError(kRebind, name, "apart from the other buffers that are replaced",
                            "one that overlaps buffers[" + std::to_string(j) + "]");
      }
    }
  }
}

}  // namespace

Buffer Rebinding::operator()(const Buffer& buffer) const {
  Buffer place = buffer;
  for (const Step& step : steps_) {
    const auto pair = pair_for(place, step);
    if (pair != step.end()) place = moved(place, *pair);
  }
  return place;
}

std::shared_ptr<const GraphState> rebind(const GraphState& graph, std::span<const GraphRebinding> buffers) {
  check(graph, buffers);
  const Rebinding::Step step(buffers.begin(), buffers.end());
  std::vector<bool> used(step.size(), false);
  std::vector<GraphNode> nodes = graph.nodes();
  std::vector<bool> call_changed(graph.calls().size(), false);
  const auto replace = [&](Buffer& buffer, std::uint32_t call) {
    const auto pair = pair_for(buffer, step);
    if (pair == step.end()) return;
    used[static_cast<std::size_t>(pair - step.begin())] = true;
    call_changed[call] = true;
    buffer = moved(buffer, *pair);
  };
  for (GraphNode& node : nodes) {
    for (GraphBinding& binding : node.bindings) {
      if (binding.buffer) replace(binding.buffer, node.call);
    }
    if (node.grid.kind == Grid::Kind::indirect) replace(node.grid.counts, node.call);
    for (AddressRange& range : node.reads) range = moved(range, step);
    for (AddressRange& range : node.writes) range = moved(range, step);
  }
  if (const auto unused = std::find(used.begin(), used.end(), false); unused != used.end()) {
    throw ArgumentError(kRebind, "buffers[" + std::to_string(unused - used.begin()) + "]",
                        "a buffer that the graph binds", "one that it does not bind");
  }
  std::vector<RecordedCall> calls = graph.calls();
  for (RecordedCall& call : calls) call.rebinding.add(step);
  auto rebound = std::make_shared<const GraphState>(graph.device(), std::move(nodes), std::move(calls));
  static_cast<void>(rebound->program());
  for (std::size_t i = 0; i < rebound->calls().size(); ++i) {
    const RecordedCall& call = rebound->calls()[i];
    if (call_changed[i] && call.again != nullptr) CallRecheck(*rebound, call, call.op, call.params).run();
  }
  return rebound;
}

}  // namespace metalane::core
