// One submission of a whole graph: patches -> pins -> launches -> timeline.
#include <metalane/error.h>
#include <metalane/ticket.h>

#include <algorithm>
#include <array>

#include "core/call_recheck.h"
#include "core/device_state.h"
#include "core/graph_program.h"
#include "core/graph_state.h"
#include "core/launch_status.h"
#include "core/registry.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

constexpr const char* kReplay = "ComputeGraph.replay";

// Bytes for one binding of a node: the caller's, or those that `Patches` keeps.
struct Patch {
  std::uint32_t node = 0;
  std::uint32_t index = 0;
  std::span<const std::uint8_t> bytes;
};

struct Patches {
  std::vector<Patch> list;
  std::vector<std::vector<CallRecheck::Patch>> kept;
};

// Holds a program's pages, and the program itself.
class PinnedProgram {
 public:
  explicit PinnedProgram(std::shared_ptr<const GraphProgram> program) : program_(std::move(program)) {
    for (const std::shared_ptr<Storage>& storage : program_->storages()) {
      if (!storage->try_pin()) {
        unpin();
        throw ArgumentError(kReplay, "the graph's buffers", "live", "a released one (see validate())");
      }
      ++pinned_;
    }
  }
  ~PinnedProgram() { unpin(); }
  PinnedProgram(const PinnedProgram&) = delete;
  PinnedProgram& operator=(const PinnedProgram&) = delete;

 private:
  void unpin() noexcept {
    for (std::size_t i = 0; i < pinned_; ++i) program_->storages()[i]->unpin();
  }

  std::shared_ptr<const GraphProgram> program_;
  std::size_t pinned_ = 0;
};

std::string quoted(const std::string& label) { return "params['" + label + "']"; }

[[noreturn]] void fail_ambiguous(const std::string& label, const std::string& given) {
  throw ArgumentError(kReplay, quoted(label),
                      "the label of one operator call, or of launches that bind the same bytes", given);
}

// Of plain launches: the bindings that hold what is replaced.
void patch_launches(const GraphState& graph, std::span<const std::uint32_t> nodes, const GraphParams& params,
                    Patches& patches) {
  const GraphBinding* captured = nullptr;
  std::uint64_t other_size = 0;
  for (const std::uint32_t number : nodes) {
    std::uint32_t found = 0;
    for (const GraphBinding& binding : graph.nodes()[number].bindings) {
      if (binding.bytes.empty() || (params.index && binding.index != *params.index)) continue;
      if (binding.bytes.size() != params.bytes.size()) {
        other_size = binding.bytes.size();
        continue;
      }
      if (++found > 1)
        fail_ambiguous(params.label, "a launch that binds bytes of this size at several indices");
      if (captured != nullptr && captured->bytes != binding.bytes) {
        fail_ambiguous(params.label, "launches that bind different bytes");
      }
      captured = &binding;
      patches.list.push_back({number, binding.index, params.bytes});
    }
  }
  if (captured != nullptr) return;
  const std::string given = std::to_string(params.bytes.size()) + " bytes";
  if (other_size != 0) {
    throw ArgumentError(kReplay, quoted(params.label), std::to_string(other_size) + " bytes as captured",
                        given);
  }
  throw ArgumentError(kReplay, quoted(params.label),
                      params.index
                          ? "the label of launches with bytes bound at index " + std::to_string(*params.index)
                          : "the label of launches with bytes bound",
                      given + " for launches that have none");
}

void patch(const GraphState& graph, const GraphParams& params, Patches& patches) {
  const std::vector<std::uint32_t>* const nodes = graph.nodes_under(params.label);
  if (nodes == nullptr) {
    throw ArgumentError(kReplay, "params", "by labels of the graph (" + graph.some_labels() + ")",
                        "'" + params.label + "'");
  }
  const RecordedCall* call = nullptr;
  bool several = false;
  for (const std::uint32_t number : *nodes) {
    const RecordedCall& other = graph.calls()[graph.nodes()[number].call];
    if (call != nullptr && &other != call && (other.again != nullptr || call->again != nullptr))
      several = true;
    call = &other;
  }
  if (several) fail_ambiguous(params.label, "that of several calls");
  if (call->op == "copy" || call->op == "fill") {
    throw ArgumentError(kReplay, quoted(params.label), "the label of an operator call or of plain launches",
                        "that of a " + call->op + ", whose sizes belong to its buffers");
  }
  if (call->again == nullptr) {
    patch_launches(graph, *nodes, params, patches);
    return;
  }
  if (params.index) {
    throw ArgumentError(kReplay, quoted(params.label), "the struct of " + call->op,
                        "bytes for index " + std::to_string(*params.index));
  }
  if (params.bytes.size() != call->params.size()) {
    throw ArgumentError(kReplay, quoted(params.label),
                        "the struct of " + call->op + " (" + std::to_string(call->params.size()) + " bytes)",
                        std::to_string(params.bytes.size()) + " bytes");
  }
  patches.kept.push_back(CallRecheck(graph, *call, params.label, params.bytes).run());
  for (const CallRecheck::Patch& one : patches.kept.back()) {
    patches.list.push_back({one.node, one.index, one.bytes});
  }
}

// By node.
Patches patches_of(const GraphState& graph, std::span<const GraphParams> params) {
  Patches patches;
  for (const GraphParams& one : params) patch(graph, one, patches);
  std::sort(patches.list.begin(), patches.list.end(), [](const Patch& a, const Patch& b) {
    return std::pair(a.node, a.index) < std::pair(b.node, b.index);
  });
  const auto twice = std::adjacent_find(
      patches.list.begin(), patches.list.end(),
      [](const Patch& a, const Patch& b) { return a.node == b.node && a.index == b.index; });
  if (twice != patches.list.end()) {
    throw ArgumentError(kReplay, "params", "labels that name each launch once",
                        "two for '" + graph.nodes()[twice->node].label + "'");
  }
  return patches;
}

// A launch that differs from the program's, on the stack. One serves a whole replay: its arrays are 2 KiB.
class PatchedLaunch {
 public:
  void start(const backend::Launch& launch) { launch_ = launch; }
  void bind(const Patch& patch) {
    if (launch_.bytes.data() != bytes_.data()) {
      std::ranges::copy(launch_.bytes, bytes_.begin());
      launch_.bytes = {bytes_.data(), launch_.bytes.size()};
    }
    for (backend::BytesBinding& binding : std::span(bytes_).first(launch_.bytes.size())) {
      if (binding.index == patch.index) binding.data = patch.bytes.data();
    }
  }
  void bind(const backend::BufferBinding& word) {
    std::ranges::copy(launch_.buffers, buffers_.begin());
    buffers_[launch_.buffers.size()] = word;
    launch_.buffers = {buffers_.data(), launch_.buffers.size() + 1};
  }
  const backend::Launch& launch() const noexcept { return launch_; }

 private:
  backend::Launch launch_;
  std::array<backend::BytesBinding, max_buffers> bytes_;
  std::array<backend::BufferBinding, max_buffers> buffers_;
};

void encode(const GraphState& graph, const GraphProgram& program, std::span<const Patch> patches,
            Flight& flight) {
  backend::Submission& submission = *flight.submission;
  PatchedLaunch launch;
  bool labelled = false;
  std::uint32_t number = 0;
  for (const GraphProgram::Step& step : program.steps()) {
    if (step.barrier_before) submission.barrier();
    if (step.labels_pushed >= 0) {
      if (labelled) submission.pop_label();
      labelled = step.labels_pushed > 0;
      if (labelled) submission.push_label(step.launch.label);
    }
    const bool patched = !patches.empty() && patches.front().node == number;
    if (!patched && step.status_argument < 0) {
      submission.dispatch(step.launch);
    } else {
      launch.start(step.launch);
      for (; !patches.empty() && patches.front().node == number; patches = patches.subspan(1)) {
        launch.bind(patches.front());
      }
      if (step.status_argument >= 0) {
        if (flight.status == nullptr) flight.status = std::make_unique<LaunchStatus>(*graph.device());
        const KernelSignature& signature = step.launch.pipeline->signature;
        launch.bind(flight.status->word(step.launch.label,
                                        signature.arguments[static_cast<std::size_t>(step.status_argument)]));
      }
      submission.dispatch(launch.launch());
    }
    ++number;
  }
  if (labelled) submission.pop_label();
}

}  // namespace

Ticket replay(const GraphState& graph, std::span<const GraphParams> params,
              std::optional<double> time_limit) {
  const std::shared_ptr<DeviceState>& device = graph.device();
  device->check_process();
  check_time_limit(kReplay, time_limit);
  const std::shared_ptr<const GraphProgram> program = graph.program();
  const Patches patches = patches_of(graph, params);
  auto flight = std::make_shared<Flight>();
  flight->held = std::make_shared<const PinnedProgram>(program);
  flight->touched = program->touched();
  flight->time_limit = time_limit;
  flight->submission = device->open_submission({});
  encode(graph, *program, patches.list, *flight);
  flight->ticket = std::make_shared<TicketState>(device);
  Ticket ticket(flight->ticket);
  device->timeline().submit(std::move(flight));
  return ticket;
}

}  // namespace metalane::core
