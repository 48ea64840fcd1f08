// Embedding gather of GGML types: check -> bind -> dispatch.
#include <metalane/error.h>
#include <metalane/ops/embedding_ggml.h>

#include <array>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/ggml_decode.h"
#include "ops/ggml_kernels.h"
#include "ops/host_ids.h"
#include "ops/operator_arguments.h"

namespace metalane {

static_assert(sizeof(EmbeddingGgmlParams) == 16);

namespace {

constexpr const char* kOp = "embedding_gather_ggml";

const GgmlTypeInfo& check_params(const EmbeddingGgmlParams& params) {
  const GgmlTypeInfo& type = core::require_decodable(kOp, static_cast<GgmlType>(params.ggml_type));
  ops::check_count(kOp, "vocab_size", params.vocab_size, 0xffffffff);
  ops::check_row_length(kOp, "embed_dim", type, params.embed_dim);
  ops::check_count(kOp, "n_tokens", params.n_tokens, 0xffffffff);
  return type;
}

}  // namespace

void embedding_gather_ggml(CommandEncoder& encoder, const Buffer& weight, const Buffer& ids,
                           const Buffer& output, const EmbeddingGgmlParams& params) {
  core::DeviceState& device = ops::device_of(kOp, encoder);
  const GgmlTypeInfo& type = check_params(params);
  constexpr std::array<DType, 1> id_types = {DType::uint32};
  constexpr std::array<DType, 1> floats = {DType::float32};
  const std::array<DType, 2> packed = ops::ggml_weight_dtypes(type);
  std::uint64_t weight_bytes = 0, output_bytes = 0;
  if (__builtin_mul_overflow(params.vocab_size, ops::ggml_row_bytes(type, params.embed_dim), &weight_bytes) ||
      __builtin_mul_overflow(std::uint64_t{params.n_tokens} * params.embed_dim, sizeof(float),
                             &output_bytes)) {
    throw ArgumentError(kOp, "params", "sizes of less than 2^64 bytes", "larger ones");
  }
  const std::array<ops::BufferArgument, 3> arguments = {{
      {"weight", weight, packed, weight_bytes, type.alignment, false},
      {"ids", ids, id_types, std::uint64_t{params.n_tokens} * sizeof(std::uint32_t), sizeof(std::uint32_t),
       false},
      {"output", output, floats, output_bytes, sizeof(float), true},
  }};
  ops::check_buffers(kOp, device, arguments);
  ops::check_ids(kOp, encoder, ids, params.n_tokens, params.vocab_size, "vocab_size");
  const Pipeline& pipeline = ops::ggml_kernel(ops::GgmlKernel::gather, type.type).on(device);

  core::OperatorScope launches(*encoder.state(), kOp, kOp);
  launches.on_replay(params, [&] {
    return [weight, ids, output](CommandEncoder& again, const core::Rebinding& rebinding,
                                 const EmbeddingGgmlParams& new_params) {
      embedding_gather_ggml(again, rebinding(weight), rebinding(ids), rebinding(output), new_params);
    };
  });
  launches.dispatch(
      pipeline, {{0, weight}, {1, ids}, {2, output}, {4, params}},
      Grid::threads({(std::uint64_t{params.embed_dim} + 15) / 16, params.n_tokens, 1}, {64, 1, 1}));
}

}  // namespace metalane
