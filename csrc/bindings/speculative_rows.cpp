// Rows of a verification packed and put back.
#include <metalane/ops/speculative_rows.h>

#include "bindings/checked_arguments.h"
#include "bindings/params_argument.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

const Buffer& buffer_from(nb::handle value, const char* op, const char* argument) {
  return object_from<Buffer>(value, op, argument, "a Buffer");
}

void pack_rows(nb::handle encoder, nb::handle verify_rows, nb::handle anchors, nb::handle tokens,
               nb::handle row_tokens, nb::handle row_places, nb::handle grids, nb::handle params) {
  constexpr const char* op = "dispatch_speculative_rows";
  dispatch_speculative_rows(object_from<Encoder>(encoder, op, "encoder", "a CommandEncoder").core,
                            buffer_from(verify_rows, op, "verify_rows"), buffer_from(anchors, op, "anchors"),
                            buffer_from(tokens, op, "tokens"), buffer_from(row_tokens, op, "row_tokens"),
                            buffer_from(row_places, op, "row_places"), buffer_from(grids, op, "grids"),
                            params_from<SpeculativeRowsParams>(params, op, "SpeculativeRowsParams"));
}

void put_back(nb::handle encoder, nb::handle input, nb::handle places, nb::handle output, nb::handle params,
              nb::handle grid) {
  constexpr const char* op = "scatter_rows";
  scatter_rows(object_from<Encoder>(encoder, op, "encoder", "a CommandEncoder").core,
               buffer_from(input, op, "input"), buffer_from(places, op, "places"),
               buffer_from(output, op, "output"),
               params_from<ScatterRowsParams>(params, op, "ScatterRowsParams"),
               grid.is_none() ? Buffer() : buffer_from(grid, op, "grid"));
}

}  // namespace

void bind_speculative_rows(nb::module_& module) {
  module.attr("SPECULATIVE_ROWS_MAX_GRIDS") = SPECULATIVE_ROWS_MAX_GRIDS;
  module.attr("SPECULATIVE_ROWS_NOWHERE") = SPECULATIVE_ROWS_NOWHERE;
  module.attr("SCATTER_ROWS_ELEMENTS") = SCATTER_ROWS_ELEMENTS;
  module.def("dispatch_speculative_rows", &pack_rows, "encoder"_a.none(), "verify_rows"_a.none(),
             "anchors"_a.none(), "tokens"_a.none(), "row_tokens"_a.none(), "row_places"_a.none(),
             "grids"_a.none(), "params"_a.none(),
             nb::sig("def dispatch_speculative_rows(encoder: CommandEncoder, verify_rows: Buffer, anchors: "
                     "Buffer, tokens: Buffer, row_tokens: Buffer, row_places: Buffer, grids: Buffer, params: "
                     "typing.Any) -> None"),
             "Records the packing of a verification's rows; see metalane.ops.speculative_rows.");
  module.def(
      "scatter_rows", &put_back, "encoder"_a.none(), "input"_a.none(), "places"_a.none(), "output"_a.none(),
      "params"_a.none(), "grid"_a.none() = nb::none(),
      nb::sig("def scatter_rows(encoder: CommandEncoder, input: Buffer, places: Buffer, output: Buffer, "
              "params: typing.Any, grid: Buffer | None = None) -> None"),
      "Records output[places[i]] = input[i]; see metalane.ops.speculative_rows.");
}

}  // namespace metalane::python
