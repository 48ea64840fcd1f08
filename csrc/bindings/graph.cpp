// Captured graphs and their nodes.
#include <nanobind/stl/vector.h>

#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

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

}  // namespace

void bind_graph(nb::module_& module) {
  bind_node(module);
  nb::class_<ComputeGraph>(module, "ComputeGraph", nb::is_final(), nb::type_slots(made_by_runtime),
                           "A captured sequence of launches; keeps its buffers alive.")
      .def_prop_ro("nodes", [](const ComputeGraph& self) { return self.nodes(); })
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
}

}  // namespace metalane::python
