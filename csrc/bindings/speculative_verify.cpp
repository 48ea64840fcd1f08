// The buffers and the operator of lossless verification.
#include <metalane/ops/speculative_verify.h>

#include <array>

#include "bindings/buffers_class.h"
#include "bindings/params_argument.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

using Buffers = SpeculativeVerifyBuffers;

constexpr std::array<BufferField<Buffers>, 11> kBufferFields = {{
    {"logits", &Buffers::logits},
    {"verify_rows", &Buffers::verify_rows},
    {"temperature", &Buffers::temperature},
    {"tokens", &Buffers::tokens},
    {"candidates", &Buffers::candidates},
    {"proposal_probabilities", &Buffers::proposal_probabilities},
    {"uniforms", &Buffers::uniforms},
    {"partial_ids", &Buffers::partial_ids},
    {"partial_sums", &Buffers::partial_sums},
    {"accepted", &Buffers::accepted},
    {"next_tokens", &Buffers::next_tokens},
}};

Buffers alloc_buffers(nb::handle device, nb::handle lanes, nb::handle rows_per_lane, nb::handle vocabulary,
                      nb::handle candidates, nb::handle dtype) {
  constexpr const char* op = "SpeculativeVerifyBuffers.alloc";
  const auto& on = object_from<Device>(device, op, "device", "a Device");
  const std::uint64_t lane_count = u64_from(lanes, op, "lanes");
  const std::uint64_t row_count = u64_from(rows_per_lane, op, "rows_per_lane");
  const std::uint64_t tokens = u64_from(vocabulary, op, "vocabulary");
  const std::uint64_t each = u64_from(candidates, op, "candidates");
  const DType logits = dtype_from(dtype, op);
  Unlocked unlocked;
  return Buffers::alloc(on, lane_count, row_count, tokens, each, logits);
}

void dispatch_verify(nb::handle encoder, nb::handle buffers, nb::handle params) {
  constexpr const char* op = "dispatch_speculative_verify";
  dispatch_speculative_verify(object_from<Encoder>(encoder, op, "encoder", "a CommandEncoder").core,
                              object_from<Buffers>(buffers, op, "buffers", "SpeculativeVerifyBuffers"),
                              params_from<SpeculativeVerifyParams>(params, op, "SpeculativeVerifyParams"));
}

}  // namespace

void bind_speculative_verify(nb::module_& module) {
  buffers_class(
      module, "SpeculativeVerifyBuffers",
      "All buffers of one verification, for L lanes, R rows a lane, P = R - 1 drafted tokens, a vocabulary "
      "of V, "
      "K candidates a token and S = ceil(V / SPECULATIVE_SHARD):\n\n"
      "read: logits f32, f16 or bf16 [L, R, V], verify_rows u32 [L], temperature f32 [L], tokens u32 [L, P], "
      "candidates u32 and proposal_probabilities f32 [L, P, K], uniforms f32 [L, R];\n"
      "written: partial_ids u32 and partial_sums f32 [L, R, S], accepted u32 [L], next_tokens u32 [L].",
      kBufferFields)
      .def_static("alloc", &alloc_buffers, "device"_a.none(), "lanes"_a.none(), "rows_per_lane"_a.none(),
                  "vocabulary"_a.none(), "candidates"_a.none() = 16, "dtype"_a.none() = "float32",
                  nb::sig("def alloc(device: Device, lanes: int, rows_per_lane: int, vocabulary: int, "
                          "candidates: int = 16, dtype: typing.Any = 'float32') -> SpeculativeVerifyBuffers"),
                  "Eleven zero-filled buffers for these sizes; `dtype` is that of the logits.");
  module.attr("SPECULATIVE_MAX_ROWS") = SPECULATIVE_MAX_ROWS;
  module.attr("SPECULATIVE_MAX_CANDIDATES") = SPECULATIVE_MAX_CANDIDATES;
  module.attr("SPECULATIVE_SHARD") = SPECULATIVE_SHARD;
  module.attr("SPECULATIVE_NO_TOKEN") = SPECULATIVE_NO_TOKEN;
  module.def("dispatch_speculative_verify", &dispatch_verify, "encoder"_a.none(), "buffers"_a.none(),
             "params"_a.none(),
             nb::sig("def dispatch_speculative_verify(encoder: CommandEncoder, buffers: "
                     "SpeculativeVerifyBuffers, params: typing.Any) -> None"),
             "Records the verification of drafted tokens; see metalane.ops.speculative_verify.");
}

}  // namespace metalane::python
