// The DFlash2 selector's buffers and operators.
#include <array>

#include "bindings/buffers_class.h"
#include "bindings/params_argument.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

using Buffers = DFlash2SelectorBuffers;

constexpr std::array<BufferField<Buffers>, 13> kBufferFields = {{
    {"logits", &Buffers::logits},
    {"selector_hidden", &Buffers::selector_hidden},
    {"predecessor_codebook", &Buffers::predecessor_codebook},
    {"successor_codebook", &Buffers::successor_codebook},
    {"uniforms", &Buffers::uniforms},
    {"partial_ids", &Buffers::partial_ids},
    {"partial_values", &Buffers::partial_values},
    {"candidates", &Buffers::candidates},
    {"unary", &Buffers::unary},
    {"edges", &Buffers::edges},
    {"tokens", &Buffers::tokens},
    {"proposal_probabilities", &Buffers::proposal_probabilities},
    {"confidence", &Buffers::confidence},
}};

void dispatch_selector(Encoder& encoder, const Buffers& buffers, nb::handle params) {
  dispatch_dflash2_selector(
      encoder.core, buffers,
      params_from<DFlash2SelectorParams>(params, "dispatch_dflash2_selector", "DFlash2SelectorParams"));
}

void dispatch_verify_rows(Encoder& encoder, const Buffer& confidence, const Buffer& verify_rows,
                          nb::handle params) {
  dispatch_dflash2_verify_rows(encoder.core, confidence, verify_rows,
                               params_from<DFlash2VerifyRowsParams>(params, "dispatch_dflash2_verify_rows",
                                                                    "DFlash2VerifyRowsParams"));
}

Buffers alloc_buffers(nb::handle device, nb::handle lanes, nb::handle rows_per_lane, nb::handle vocabulary) {
  constexpr const char* op = "DFlash2SelectorBuffers.alloc";
  const auto& on = object_from<Device>(device, op, "device", "a Device");
  const std::uint64_t lane_count = u64_from(lanes, op, "lanes");
  const std::uint64_t row_count = u64_from(rows_per_lane, op, "rows_per_lane");
  const std::uint64_t tokens = u64_from(vocabulary, op, "vocabulary");
  Unlocked unlocked;
  return Buffers::alloc(on, lane_count, row_count, tokens);
}

void bind_buffers(nb::module_& module) {
  buffers_class(
      module, "DFlash2SelectorBuffers",
      "All buffers of one selector step, for L lanes, R rows a lane, P = R - 1 positions and a vocabulary of "
      "V:\n\n"
      "read: logits f32 [L, R, V], selector_hidden bf16 [L, R, 256], predecessor_codebook and "
      "successor_codebook "
      "bf16 [V, 256], uniforms f32 [L, P];\n"
      "written: partial_ids u32 and partial_values f32 [L, P, 8, 16], candidates u32 and unary f32 [L, P, "
      "16], edges "
      "f32 [L, P, 16, 16], tokens u32 [L, P], proposal_probabilities f32 [L, P, 16], confidence f32 [L, P].",
      kBufferFields)
      .def_static("alloc", &alloc_buffers, "device"_a.none(), "lanes"_a.none(), "rows_per_lane"_a.none(),
                  "vocabulary"_a.none(),
                  nb::sig("def alloc(device: Device, lanes: int, rows_per_lane: int, vocabulary: int) -> "
                          "DFlash2SelectorBuffers"),
                  "Thirteen zero-filled buffers for these sizes.");
}

}  // namespace

void bind_dflash2_selector(nb::module_& module) {
  bind_buffers(module);
  module.attr("DFLASH2_MAX_LANES") = DFLASH2_MAX_LANES;
  module.attr("DFLASH2_SHARDS") = DFLASH2_SHARDS;
  module.attr("DFLASH2_CANDIDATES") = DFLASH2_CANDIDATES;
  module.attr("DFLASH2_SELECTOR_RANK") = DFLASH2_SELECTOR_RANK;
  module.attr("DFLASH2_MAX_POSITIONS") = DFLASH2_MAX_POSITIONS;
  module.attr("DFLASH2_VERIFY_COSTS") = DFLASH2_VERIFY_COSTS;
  module.def(
      "dispatch_dflash2_selector", &dispatch_selector, "encoder"_a, "buffers"_a, "params"_a.none(),
      nb::sig("def dispatch_dflash2_selector(encoder: CommandEncoder, buffers: DFlash2SelectorBuffers, "
              "params: typing.Any) -> None"),
      "Records the three launches of one selector step; see metalane.ops.dflash2_selector.");
  module.def("dispatch_dflash2_verify_rows", &dispatch_verify_rows, "encoder"_a, "confidence"_a,
             "verify_rows"_a, "params"_a.none(),
             nb::sig("def dispatch_dflash2_verify_rows(encoder: CommandEncoder, confidence: Buffer, "
                     "verify_rows: Buffer, params: typing.Any) -> None"),
             "Records the choice of verification rows; see metalane.ops.dflash2_selector.");
}

}  // namespace metalane::python
