// Captured graphs and their nodes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/checked_arguments.h"
#include "bindings/struct_type.h"
#include "core/graph_calls.h"
#include "core/storage.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

constexpr const char* kReplay = "ComputeGraph.replay";

nb::list range_list(const std::vector<AddressRange>& ranges) {
  nb::list list;
  for (const AddressRange& range : ranges) list.append(nb::make_tuple(range.begin, range.end));
  return list;
}

nb::dict binding_dict(const GraphNode& node) {
  nb::dict bindings;
  for (const GraphBinding& binding : node.bindings) {
    nb::object bound = nb::cast(binding.buffer);
    if (!binding.buffer) {
      bound = nb::bytes(reinterpret_cast<const char*>(binding.bytes.data()), binding.bytes.size());
    }
    bindings[nb::int_(binding.index)] = bound;
  }
  return bindings;
}

nb::object grid_of(const GraphNode& node, Grid::Kind kind) {
  if (node.grid.kind != kind) return nb::none();
  if (kind == Grid::Kind::indirect) return nb::cast(node.grid.counts);
  return size3_tuple(node.grid.size);
}

void bind_node(nb::module_& module) {
  nb::class_<GraphNode>(module, "GraphNode", nb::is_final(), nb::type_slots(made_by_runtime),
                        "One captured launch.")
      .def_prop_ro("kernel", [](const GraphNode& self) { return self.pipeline.signature().name; })
      .def_ro("pipeline", &GraphNode::pipeline)
      .def_ro("op", &GraphNode::op, "The operator's name, or 'dispatch', 'copy' or 'fill'.")
      .def_ro("call", &GraphNode::call, "Launches of one call share its number.")
      .def_ro("label", &GraphNode::label, "Nested labels joined by '/'.")
      .def_prop_ro("bindings", &binding_dict, nb::sig("def bindings(self) -> dict[int, Buffer | bytes]"),
                   "What is bound at each buffer index.")
      .def_prop_ro(
          "threadgroups",
          [](const GraphNode& self) {
            return self.grid.kind == Grid::Kind::indirect ? grid_of(self, Grid::Kind::indirect)
                                                          : grid_of(self, Grid::Kind::threadgroups);
          },
          nb::sig("def threadgroups(self) -> tuple[int, int, int] | Buffer | None"),
          "Threadgroups, or the buffer that holds their counts; None where threads are given.")
      .def_prop_ro(
          "threads", [](const GraphNode& self) { return grid_of(self, Grid::Kind::threads); },
          nb::sig("def threads(self) -> tuple[int, int, int] | None"))
      .def_prop_ro(
          "threads_per_threadgroup",
          [](const GraphNode& self) { return size3_tuple(self.grid.threads_per_threadgroup); },
          nb::sig("def threads_per_threadgroup(self) -> tuple[int, int, int]"))
      .def_prop_ro(
          "threadgroup_memory",
          [](const GraphNode& self) {
            nb::dict sizes;
            for (const ThreadgroupMemory& memory : self.threadgroup_memory) {
              sizes[nb::int_(memory.index)] = memory.nbytes;
            }
            return sizes;
          },
          nb::sig("def threadgroup_memory(self) -> dict[int, int]"), "Bytes by [[threadgroup(index)]].")
      .def_prop_ro(
          "reads", [](const GraphNode& self) { return range_list(self.reads); },
          nb::sig("def reads(self) -> list[tuple[int, int]]"), "Address ranges that the launch reads.")
      .def_prop_ro(
          "writes", [](const GraphNode& self) { return range_list(self.writes); },
          nb::sig("def writes(self) -> list[tuple[int, int]]"), "Address ranges that the launch writes.")
      .def_ro("ranges_overridden", &GraphNode::ranges_overridden)
      .def_ro("barrier_before", &GraphNode::barrier_before)
      .def("__repr__", [](const GraphNode& self) {
        return "<GraphNode " + self.pipeline.signature().name +
               (self.label.empty() ? "" : " '" + self.label + "'") + ", " +
               std::to_string(self.bindings.size()) + " bindings>";
      });
}

const char* kind_name(GraphProblem::Kind kind) {
  switch (kind) {
    case GraphProblem::Kind::unannotated:
      return "unannotated";
    case GraphProblem::Kind::released:
      return "released";
    case GraphProblem::Kind::unordered_conflict:
      return "unordered_conflict";
  }
  return "";
}

void bind_results(nb::module_& module) {
  nb::class_<GraphProblem>(module, "GraphProblem", nb::is_final(), nb::type_slots(made_by_runtime),
                           "Something that makes a graph unfit for a replay, or not what it seems.")
      .def_prop_ro(
          "kind", [](const GraphProblem& self) { return kind_name(self.kind); },
          "'unannotated', 'released' or 'unordered_conflict'.")
      .def_ro("node", &GraphProblem::node)
      .def_prop_ro(
          "other",
          [](const GraphProblem& self) -> std::optional<std::uint32_t> {
            if (self.kind != GraphProblem::Kind::unordered_conflict) return std::nullopt;
            return self.other;
          },
          "The earlier node of an unordered conflict; None otherwise.")
      .def_ro("message", &GraphProblem::message)
      .def("__repr__", [](const GraphProblem& self) {
        return std::string("<GraphProblem ") + kind_name(self.kind) + ": " + self.message + ">";
      });
  nb::class_<ReorderedGraph>(module, "ReorderedGraph", nb::is_final(), nb::type_slots(made_by_runtime),
                             "A graph by levels, and the barriers that this saves.")
      .def_ro("graph", &ReorderedGraph::graph)
      .def_ro("barriers_before", &ReorderedGraph::barriers_before)
      .def_ro("barriers_after", &ReorderedGraph::barriers_after)
      .def("__repr__", [](const ReorderedGraph& self) {
        return "<ReorderedGraph of " + std::to_string(self.graph.size()) + " launches, " +
               std::to_string(self.barriers_before) + " -> " + std::to_string(self.barriers_after) +
               " barriers>";
      });
}

void bind_fusions(nb::module_& module) {
  nb::class_<Fusion>(module, "Fusion", nb::is_final(), nb::type_slots(made_by_runtime),
                     "Calls that one launch sequence replaced.")
      .def_ro("rule", &Fusion::rule, "'id_pooled_pair' or 'batched_mv'.")
      .def_ro("nodes", &Fusion::nodes, "The replaced nodes, of the graph as it was.")
      .def("__repr__", [](const Fusion& self) {
        return "<Fusion " + self.rule + " of " + std::to_string(self.nodes.size()) + " launches>";
      });
  nb::class_<FusedGraph>(module, "FusedGraph", nb::is_final(), nb::type_slots(made_by_runtime),
                         "A graph with calls fused, and what was fused.")
      .def_ro("graph", &FusedGraph::graph)
      .def_ro("fusions", &FusedGraph::fusions)
      .def("__repr__", [](const FusedGraph& self) {
        return "<FusedGraph of " + std::to_string(self.graph.size()) + " launches, " +
               std::to_string(self.fusions.size()) + " fusions>";
      });
}

// (key, value) of each item of a mapping or of a sequence of pairs; None has none.
nb::list items_of(nb::handle value, const char* argument, const char* expected) {
  if (value.is_none()) return nb::list();
  if (PyDict_Check(value.ptr()) != 0) return nb::steal<nb::list>(PyDict_Items(value.ptr()));
  throw DTypeError(kReplay, argument, expected, repr_of(value) + " (" + type_name_of(value) + ")");
}

// Where the first of `nodes` that binds bytes does so: at the one place there is, or the one of `nbytes`.
std::optional<std::pair<std::uint32_t, std::uint32_t>> place_of_bytes(const ComputeGraph& graph,
                                                                      const std::vector<std::uint32_t>& nodes,
                                                                      std::uint64_t nbytes) {
  for (const std::uint32_t node : nodes) {
    const GraphBinding* only = nullptr;
    const GraphBinding* fitting = nullptr;
    bool several = false;
    for (const GraphBinding& binding : graph.nodes()[node].bindings) {
      if (binding.bytes.empty()) continue;
      several = only != nullptr;
      only = &binding;
      if (binding.bytes.size() == nbytes) fitting = &binding;
    }
    if (fitting != nullptr) return std::pair(node, fitting->index);
    if (only != nullptr && !several) return std::pair(node, only->index);
  }
  return std::nullopt;
}

// `value` as the kernel's signature types the argument, packed.
std::vector<std::uint8_t> packed(const GraphNode& node, std::uint32_t index, nb::handle value) {
  if (is_buffer(value)) throw DTypeError(kReplay, "params", "structs, numbers or bytes", "a buffer");
  nb::dict argument;
  argument[nb::int_(index)] = nb::borrow(value);
  ArgumentList list;
  list.read(node.pipeline, argument);
  const auto* const first = static_cast<const std::uint8_t*>(list.args().front().bytes);
  return {first, first + list.args().front().nbytes};
}

void add_params(const ComputeGraph& graph, const std::string& label, nb::handle value,
                std::vector<GraphParams>& params) {
  const std::vector<std::uint32_t> nodes = graph.nodes_under(label);
  if (PyDict_Check(value.ptr()) != 0) {
    nb::object items = nb::steal(PyDict_Items(value.ptr()));
    for (Py_ssize_t i = 0; i < PyList_Size(items.ptr()); ++i) {
      PyObject* const item = PyList_GetItem(items.ptr(), i);
      const std::uint64_t index = u64_from(PyTuple_GetItem(item, 0), kReplay, "params: a buffer index");
      if (index > ArgumentList::kMaxArguments) {
        throw ArgumentError(kReplay, "params: a buffer index", "below 31", std::to_string(index));
      }
      const auto at = static_cast<std::uint32_t>(index);
      std::vector<std::uint8_t> bytes;
      if (!nodes.empty()) bytes = packed(graph.nodes()[nodes.front()], at, PyTuple_GetItem(item, 1));
      params.push_back({label, std::move(bytes), at});
    }
    return;
  }
  const StructView view = struct_view(value);
  std::uint64_t nbytes = 0;
  if (view.spec != nullptr) nbytes = view.spec->defaults.size();
  if (PyBytes_Check(value.ptr()) != 0) nbytes = static_cast<std::uint64_t>(PyBytes_Size(value.ptr()));
  std::vector<std::uint8_t> bytes(nbytes);
  if (const auto place = place_of_bytes(graph, nodes, nbytes)) {
    bytes = packed(graph.nodes()[place->first], place->second, value);
  } else if (nbytes == 0 && !nodes.empty()) {
    throw DTypeError(kReplay, "params['" + label + "']",
                     "a struct, or {index: value} where the launch binds bytes at several indices",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  params.push_back({label, std::move(bytes), std::nullopt});
}

std::vector<GraphParams> params_from(const ComputeGraph& graph, nb::handle value) {
  std::vector<GraphParams> params;
  const nb::list items = items_of(value, "params", "a dict {label: struct}");
  for (Py_ssize_t i = 0; i < PyList_Size(items.ptr()); ++i) {
    PyObject* const item = PyList_GetItem(items.ptr(), i);
    add_params(graph, text_from(PyTuple_GetItem(item, 0), kReplay, "params"), PyTuple_GetItem(item, 1),
               params);
  }
  return params;
}

std::vector<GraphRebinding> rebindings_from(nb::handle value) {
  std::vector<GraphRebinding> buffers;
  const nb::list items = items_of(value, "buffers", "a dict {old buffer: new buffer}");
  for (Py_ssize_t i = 0; i < PyList_Size(items.ptr()); ++i) {
    PyObject* const item = PyList_GetItem(items.ptr(), i);
    buffers.push_back({object_from<Buffer>(PyTuple_GetItem(item, 0), kReplay, "buffers", "a buffer"),
                       object_from<Buffer>(PyTuple_GetItem(item, 1), kReplay, "buffers", "a buffer")});
  }
  return buffers;
}

Ticket replay(const ComputeGraph& self, nb::handle params, nb::handle buffers, nb::handle timeout) {
  const std::optional<double> limit = seconds_from(timeout, kReplay, "timeout", false);
  const std::vector<GraphParams> new_params = params_from(self, params);
  const std::vector<GraphRebinding> rebindings = rebindings_from(buffers);
  drain_deferred();
  Ticket ticket = [&] {
    Unlocked unlocked;
    return rebindings.empty() ? self.replay(new_params, limit) : self.replay(new_params, rebindings, limit);
  }();
  track_ticket(ticket);
  return ticket;
}

// A method without arguments, run while other Python threads go on.
template <auto method>
auto unlocked(const ComputeGraph& self) {
  Unlocked unlocked;
  return std::invoke(method, self);
}

// What becomes a file or a picture is text, made by Python.
nb::object python_function(const char* module, const char* name) {
  return nb::module_::import_(module).attr(name);
}

void bind_files(nb::class_<ComputeGraph>& graph) {
  graph
      .def(
          "save",
          [](nb::handle self, nb::handle path, nb::handle names) {
            python_function("metalane.graph_file", "save")(self, path, names);
          },
          "path"_a.none(), "names"_a = nb::none(),
          nb::sig("def save(self, path: str | os.PathLike[str], names: Mapping[str, Buffer] | None = None) "
                  "-> None"),
          "Writes the graph's structure as JSON; not what its buffers hold.\n\n"
          "names: buffers (or views, apart from one another) by the names under which load() takes their "
          "like. "
          "Other allocations are numbered from 0, in the order in which launches bind them.\n\n"
          "Raises ArgumentError where a buffer was released, or a range lies across the end of a named one.")
      .def_static(
          "load",
          [](nb::handle path, nb::handle device, nb::handle buffers) {
            return python_function("metalane.graph_file", "load")(path, device, buffers);
          },
          "path"_a.none(), "device"_a.none(), "buffers"_a.none(),
          nb::sig("def load(path: str | os.PathLike[str], device: Device, buffers: Mapping[str | int, "
                  "Buffer]) -> ComputeGraph"),
          "A saved graph on a device and on these buffers, by name or number.\n\n"
          "A named buffer must have the dtype and shape that it was saved with, a numbered one at least as "
          "many "
          "bytes. Kernels are those of the same source, built in or registered on the device under any "
          "name.\n\n"
          "What operators check of their structs is not in a file: a replay patches their launches like "
          "plain "
          "ones, byte by byte, and fuse() leaves them alone. The structs in a file go to the kernels as they "
          "are: replay only files that you trust.\n\n"
          "Raises ArgumentError, which names the field, for files that are malformed or of another version, "
          "for "
          "kernels whose source is not there, and for buffers that do not fit.")
      .def(
          "dot",
          [](nb::handle self, nb::handle names) {
            return python_function("metalane.graph_picture", "dot")(self, names);
          },
          "names"_a = nb::none(), nb::sig("def dot(self, names: Mapping[str, Buffer] | None = None) -> str"),
          "The graph in Graphviz's language: launches by level, and what each must wait for.\n\n"
          "names: as save() takes them, for the ranges.")
      .def(
          "svg",
          [](nb::handle self, nb::handle names) {
            return python_function("metalane.graph_picture", "svg")(self, names);
          },
          "names"_a = nb::none(), nb::sig("def svg(self, names: Mapping[str, Buffer] | None = None) -> str"),
          "The same as an SVG document; ranges and conflicts show under the pointer.");
}

void bind_file_helpers(nb::module_& module) {
  module.def(
      "_graph_with_calls",
      [](const ComputeGraph& graph, const std::vector<std::string>& ops,
         const std::vector<std::uint32_t>& call_of_node) {
        return core::with_calls(graph, ops, call_of_node);
      },
      "graph"_a, "ops"_a, "call_of_node"_a,
      "The graph with its nodes in these calls: ops by call, and each node's call.");
  module.def(
      "_allocation",
      [](const Buffer& buffer) {
        const std::uint64_t begin = buffer.address() - buffer.byte_offset();
        return nb::make_tuple(begin, begin + buffer.storage()->nbytes());
      },
      "buffer"_a, nb::sig("def _allocation(buffer: Buffer) -> tuple[int, int]"),
      "Begin and end of the allocation that the buffer lies in.");
}

void bind_replay(nb::class_<ComputeGraph>& graph) {
  graph
      .def("validate", &unlocked<&ComputeGraph::validate>,
           nb::sig("def validate(self) -> list[GraphProblem]"),
           "Unannotated nodes, released buffers, conflicts that nothing orders; empty where all is well.")
      .def("levels", &unlocked<&ComputeGraph::levels>, nb::sig("def levels(self) -> list[int]"),
           "Of each node, how many others must have run before it, one behind another.")
      .def("reorder", &unlocked<&ComputeGraph::reorder>,
           "The same nodes by level, a barrier between levels, and the barriers before and after.")
      .def("fuse", &unlocked<&fuse>,
           "Replaces calls by operators that do them together, with the same bits:\n\n"
           "id_pooled_pair: two quantized_matmul_id_ggml_pooled of equal input, ids, scratch and params.\n"
           "batched_mv: quantized_matmul_ggml of one input row each, of equal type and sizes, on adjacent "
           "inputs, weights and outputs.\n\n"
           "The new calls have the labels around the old ones and their own names. Explicit barriers, ranges "
           "given by hand and conflicts in between keep calls apart; reorder() sets barriers, so fuse first.")
      .def(
          "rebind",
          [](const ComputeGraph& self, nb::handle buffers) {
            const std::vector<GraphRebinding> rebindings = rebindings_from(buffers);
            Unlocked unlocked;
            return self.rebind(rebindings);
          },
          "buffers"_a.none(), nb::sig("def rebind(self, buffers: Mapping[Buffer, Buffer]) -> ComputeGraph"),
          "The same launches on other memory: where an old buffer, or a view into it, was bound, the same "
          "place of the new one is.\n\n"
          "Raises ArgumentError or DTypeError: another dtype or shape, a buffer that the graph does not "
          "bind, "
          "one that is bound in part, or what the checks of launches and operators refuse.")
      .def("replay", &replay, "params"_a = nb::none(), "buffers"_a = nb::none(), "timeout"_a = nb::none(),
           nb::sig("def replay(self, params: Mapping[str, typing.Any] | None = None, "
                   "buffers: Mapping[Buffer, Buffer] | None = None, timeout: float | None = None) -> Ticket"),
           "Commits the whole graph as one submission.\n\n"
           "params: by label, a struct (or bytes, a number, {index: value}) in place of what was captured. A "
           "label is a path ('layer3/quantized_matmul_ggml') or its beginning, and names one operator call, "
           "or "
           "plain launches that bind the same bytes.\n"
           "buffers: {old: new}, as rebind() takes it.\n"
           "timeout: as in CommandEncoder.commit.\n\n"
           "The operator's checks run again. Raises ArgumentError, with nothing committed, for unknown and "
           "ambiguous labels and for params that would need another kernel, grid or size of a binding.");
}

}  // namespace

void bind_graph(nb::module_& module) {
  bind_node(module);
  bind_results(module);
  bind_fusions(module);
  nb::class_<ComputeGraph> graph(module, "ComputeGraph", nb::is_final(), nb::type_slots(made_by_runtime),
                                 "A captured sequence of launches; keeps its buffers alive.");
  graph.def_prop_ro("nodes", [](const ComputeGraph& self) { return self.nodes(); })
      .def_prop_ro("device", &ComputeGraph::device, nb::sig("def device(self) -> Device"))
      .def(
          "nodes_under",
          [](const ComputeGraph& self, nb::handle label) {
            return self.nodes_under(text_from(label, "ComputeGraph.nodes_under", "label"));
          },
          "label"_a.none(), nb::sig("def nodes_under(self, label: str) -> list[int]"),
          "Nodes whose label is this path, or begins with it and goes on behind a '/'.")
      .def(
          "encode",
          [](const ComputeGraph& self, nb::handle encoder) {
            self.encode(
                object_from<Encoder>(encoder, "ComputeGraph.encode", "encoder", "a CommandEncoder").core);
          },
          "encoder"_a.none(), nb::sig("def encode(self, encoder: CommandEncoder) -> None"),
          "Encodes every node, as the eager calls would have been.\n\n"
          "Raises before the first launch where a buffer of the graph was released.")
      .def("__len__", &ComputeGraph::size)
      .def("__repr__", [](const ComputeGraph& self) {
        return "<ComputeGraph of " + std::to_string(self.size()) + " launches>";
      });
  bind_replay(graph);
  bind_files(graph);
  bind_file_helpers(module);
}

}  // namespace metalane::python
