// See graph_order.h. Addresses are cut into pieces that have been touched alike, so that the work grows with
// the pieces and not with the pairs of nodes.
#include "core/graph_order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/graph_state.h"
#include "core/hazard_tracker.h"

namespace metalane::core {

namespace {

// An explicit barrier inside an operator orders its own launches; any other is a fence for all.
bool is_inside_a_call(std::span<const GraphNode> nodes, std::size_t node) {
  return node != 0 && nodes[node].call == nodes[node - 1].call;
}

// Nothing is known of what it touches.
bool is_unannotated(const GraphNode& node) {
  return node.reads.empty() && node.writes.empty() &&
         std::any_of(node.bindings.begin(), node.bindings.end(),
                     [](const GraphBinding& binding) { return static_cast<bool>(binding.buffer); });
}

// The newest writer and reader of each byte, as some number that grows: a level or a node's place.
class LastTouched {
 public:
  static constexpr std::int64_t nobody = -1;
  struct Users {
    std::int64_t writer = nobody;
    std::int64_t reader = nobody;
  };

  // Calls `look` with the users of each piece of `range`.
  template <typename Look>
  void visit(const AddressRange& range, const Look& look) const {
    if (range.empty()) return;
    auto piece = pieces_.upper_bound(range.begin);
    if (piece != pieces_.begin()) --piece;
    for (; piece != pieces_.end() && piece->first < range.end; ++piece) {
      if (piece->second.end > range.begin) look(piece->second.users);
    }
  }

  // Changes the users of each piece of `range`, untouched ones included.
  template <typename Change>
  void update(const AddressRange& range, const Change& change) {
    if (range.empty()) return;
    cut(range.begin);
    cut(range.end);
    std::uint64_t at = range.begin;
    for (auto piece = pieces_.lower_bound(range.begin); at < range.end;) {
      if (piece == pieces_.end() || piece->first > at) {
        const std::uint64_t end = piece == pieces_.end() ? range.end : std::min(range.end, piece->first);
        piece = pieces_.emplace_hint(piece, at, Piece{end, {}});
      }
      change(piece->second.users);
      at = piece->second.end;
      ++piece;
    }
  }

 private:
  struct Piece {
    std::uint64_t end = 0;
    Users users;
  };

  // No piece lies across `address` any more.
  void cut(std::uint64_t address) {
    auto piece = pieces_.upper_bound(address);
    if (piece == pieces_.begin()) return;
    --piece;
    if (piece->first == address || piece->second.end <= address) return;
    Piece upper = piece->second;
    piece->second.end = address;
    pieces_.emplace_hint(std::next(piece), address, upper);
  }

  std::map<std::uint64_t, Piece> pieces_;  // by begin, apart from one another
};

// The newest number that a node must be behind.
std::int64_t newest_conflict(const LastTouched& touched, const GraphNode& node) {
  std::int64_t newest = LastTouched::nobody;
  for (const AddressRange& range : node.reads) {
    touched.visit(range, [&](const LastTouched::Users& users) { newest = std::max(newest, users.writer); });
  }
  for (const AddressRange& range : node.writes) {
    touched.visit(range, [&](const LastTouched::Users& users) {
      newest = std::max({newest, users.writer, users.reader});
    });
  }
  return newest;
}

void add(LastTouched& touched, const GraphNode& node, std::int64_t number) {
  for (const AddressRange& range : node.reads) {
    touched.update(range, [&](LastTouched::Users& users) { users.reader = std::max(users.reader, number); });
  }
  for (const AddressRange& range : node.writes) {
    touched.update(range, [&](LastTouched::Users& users) { users.writer = std::max(users.writer, number); });
  }
}

// A node as its signature and bindings have it, whatever was said of its ranges.
GraphNode as_bound(const GraphNode& node) {
  GraphNode bound;
  for (const GraphBinding& binding : node.bindings) {
    if (!binding.buffer || binding.buffer.released()) continue;
    if (reads(binding.access)) bound.reads.push_back(binding.buffer.range());
    if (writes(binding.access)) bound.writes.push_back(binding.buffer.range());
  }
  if (node.grid.kind == Grid::Kind::indirect && !node.grid.counts.released()) {
    const std::uint64_t begin = node.grid.counts.address();
    bound.reads.push_back({begin, begin + 3 * sizeof(std::uint32_t)});
  }
  return bound;
}

std::string name_of(std::span<const GraphNode> nodes, std::size_t node) {
  std::string name = "node " + std::to_string(node) + " (" + nodes[node].pipeline.signature().name;
  if (!nodes[node].label.empty()) name += ", '" + nodes[node].label + "'";
  return name + ")";
}

void find_unordered_conflicts(std::span<const GraphNode> nodes, std::vector<GraphProblem>& problems) {
  const std::vector<bool> barriers = barriers_in_order(nodes);
  LastTouched since_barrier;  // numbers are nodes
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (barriers[i]) since_barrier = {};
    const GraphNode bound = as_bound(nodes[i]);
    if (const std::int64_t other = newest_conflict(since_barrier, bound); other != LastTouched::nobody) {
      problems.push_back({GraphProblem::Kind::unordered_conflict, static_cast<std::uint32_t>(i),
                          static_cast<std::uint32_t>(other),
                          name_of(nodes, i) + " and " + name_of(nodes, static_cast<std::size_t>(other)) +
                              " have the same bytes bound, one writes them, and nothing orders the two"});
    }
    add(since_barrier, bound, static_cast<std::int64_t>(i));
  }
}

}  // namespace

std::vector<TouchedRange> touched_by(const GraphNode& node) {
  std::vector<TouchedRange> ranges;
  ranges.reserve(node.reads.size() + node.writes.size());
  for (const AddressRange& range : node.reads) {
    const bool also_written = std::find(node.writes.begin(), node.writes.end(), range) != node.writes.end();
    ranges.push_back({range, also_written ? Access::read_write : Access::read});
  }
  for (const AddressRange& range : node.writes) ranges.push_back({range, Access::write});
  return ranges;
}

std::vector<bool> barriers_in_order(std::span<const GraphNode> nodes) {
  std::vector<bool> barriers(nodes.size(), false);
  HazardTracker hazards;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<TouchedRange> touched = touched_by(nodes[i]);
    if ((nodes[i].barrier_before && i != 0) || hazards.conflicts(touched)) {
      barriers[i] = true;
      hazards.clear();
    }
    hazards.add(touched);
  }
  return barriers;
}

std::vector<std::uint32_t> levels_of(std::span<const GraphNode> nodes) {
  std::vector<std::uint32_t> levels(nodes.size(), 0);
  LastTouched touched;  // numbers are levels
  std::int64_t fence = 0, highest = -1, highest_of_call = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const bool inside = is_inside_a_call(nodes, i), alone = is_unannotated(nodes[i]);
    if (!inside) highest_of_call = -1;
    if (alone || (nodes[i].barrier_before && !inside)) fence = highest + 1;
    std::int64_t level = std::max(fence, newest_conflict(touched, nodes[i]) + 1);
    if (nodes[i].barrier_before && inside) level = std::max(level, highest_of_call + 1);
    add(touched, nodes[i], level);
    levels[i] = static_cast<std::uint32_t>(level);
    if (alone) fence = level + 1;
    highest = std::max(highest, level);
    highest_of_call = std::max(highest_of_call, level);
  }
  return levels;
}

std::vector<GraphProblem> problems_of(std::span<const GraphNode> nodes) {
  std::vector<GraphProblem> problems;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = nodes[i];
    const auto number = static_cast<std::uint32_t>(i);
    for (const GraphBinding& binding : node.bindings) {
      if (binding.buffer && binding.buffer.released()) {
        problems.push_back(
            {GraphProblem::Kind::released, number, 0,
             name_of(nodes, i) + ": the buffer at index " + std::to_string(binding.index) + " was released"});
      }
    }
    if (node.grid.kind == Grid::Kind::indirect && node.grid.counts.released()) {
      problems.push_back({GraphProblem::Kind::released, number, 0,
                          name_of(nodes, i) + ": the buffer of its threadgroup counts was released"});
    }
    if (is_unannotated(node)) {
      problems.push_back({GraphProblem::Kind::unannotated, number, 0,
                          name_of(nodes, i) + " has buffers bound and no ranges"});
    }
  }
  find_unordered_conflicts(nodes, problems);
  return problems;
}

std::shared_ptr<const GraphState> reordered(const GraphState& graph) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  const std::vector<std::uint32_t> levels = levels_of(nodes);
  std::vector<std::uint32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return levels[a] < levels[b]; });
  std::vector<GraphNode> sorted;
  std::vector<std::uint32_t> place(nodes.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<std::uint32_t>(i);
    sorted.push_back(nodes[order[i]]);
    sorted.back().barrier_before = i != 0 && levels[order[i]] != levels[order[i - 1]];
  }
  std::vector<RecordedCall> calls = graph.calls();
  for (RecordedCall& call : calls) {
    for (std::uint32_t& node : call.nodes) node = place[node];
  }
  return std::make_shared<const GraphState>(graph.device(), std::move(sorted), std::move(calls));
}

}  // namespace metalane::core
