// Dense GGML products: check -> bind -> dispatch.
#include <metalane/error.h>
#include <metalane/ops/quantized_matmul_ggml.h>

#include <array>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/ggml_decode.h"
#include "ops/operator_arguments.h"
#include "ops/quantized_matmul_launches.h"

namespace metalane {

static_assert(sizeof(GgmlQuantizedMatmulParams) == 16);

namespace ops {

namespace {

constexpr std::uint64_t kMostRows = 0x0fffffff;  // of weights: 8 threads each stay below 2^32

GgmlVariant mv_variant(std::uint32_t m) {
  if (m == 1) return {GgmlKernel::mv_1, GgmlAlgorithm::mv, 4 * GGML_MV_SIMDGROUPS, 1};
  if (m == 2) return {GgmlKernel::mv_2, GgmlAlgorithm::mv, 4 * GGML_MV_SIMDGROUPS, 2};
  if (m <= 4) return {GgmlKernel::mv_4, GgmlAlgorithm::mv, 2 * GGML_MV_SIMDGROUPS, 4};
  return {GgmlKernel::mv_8, GgmlAlgorithm::mv, 2 * GGML_MV_SIMDGROUPS, GGML_MV_MAX_INPUTS};
}

}  // namespace

GgmlVariant dense_variant(const char* op, const GgmlQuantizedMatmulParams& params, GgmlAlgorithm algorithm) {
  switch (algorithm) {
    case GgmlAlgorithm::mv:
      return mv_variant(params.m);
    case GgmlAlgorithm::mm:
      return {GgmlKernel::mm, algorithm, GGML_MM_ROWS, GGML_MM_INPUTS};
    case GgmlAlgorithm::mm_simd:
      return {GgmlKernel::mm_simd, algorithm, GGML_MM_ROWS, GGML_MM_INPUTS};
    case GgmlAlgorithm::automatic:
      break;
  }
  throw ArgumentError(op, "algorithm", "auto, mv, mm or mm_simd",
                      std::to_string(static_cast<std::uint32_t>(algorithm)));
}

const GgmlTypeInfo& check_dense(const char* op, const GgmlQuantizedMatmulParams& params) {
  const GgmlTypeInfo& type = core::require_decodable(op, static_cast<GgmlType>(params.ggml_type));
  check_count(op, "m", params.m, 0x7fffffff);
  check_count(op, "n", params.n, kMostRows);
  check_row_length(op, "k", type, params.k);
  return type;
}

}  // namespace ops

namespace {

// `what` is what n and m are multiplied with: batches of the same product.
void check_operands(const char* op, const core::DeviceState& device, const Buffer& input,
                    const Buffer& weight, const Buffer& output, const GgmlQuantizedMatmulParams& params,
                    const GgmlTypeInfo& type, std::uint64_t batches, const Buffer& grid) {
  constexpr std::array<DType, 1> floats = {DType::float32};
  const std::array<DType, 2> packed = ops::ggml_weight_dtypes(type);
  std::uint64_t input_bytes = 0, weight_bytes = 0, output_bytes = 0;
  const std::uint64_t row_bytes = ops::ggml_row_bytes(type, params.k);
  if (__builtin_mul_overflow(batches * params.m, std::uint64_t{params.k} * sizeof(float), &input_bytes) ||
      __builtin_mul_overflow(batches * params.n, row_bytes, &weight_bytes) ||
      __builtin_mul_overflow(batches * params.m, std::uint64_t{params.n} * sizeof(float), &output_bytes)) {
    throw ArgumentError(op, "params", "sizes of less than 2^64 bytes", "larger ones");
  }
  const std::array<ops::BufferArgument, 4> arguments = {{
      {"input", input, floats, input_bytes, sizeof(float), false},
      {"weight", weight, packed, weight_bytes, type.alignment, false},
      {"output", output, floats, output_bytes, sizeof(float), true},
      ops::grid_argument(grid),
  }};
  ops::check_buffers(op, device, std::span(arguments).first(grid ? 4 : 3));
}

// Batches one behind another, by one launch. `make_again()` gives the operator's call as a function of
// (encoder, input, weight, output, params, grid), for replays.
template <typename MakeAgain>
void multiply(const char* op, std::string_view label, CommandEncoder& encoder, const Buffer& input,
              const Buffer& weight, const Buffer& output, const GgmlQuantizedMatmulParams& params,
              const GgmlTypeInfo& type, const ops::GgmlVariant& variant, std::uint64_t batches,
              const Buffer& grid, const MakeAgain& make_again) {
  core::DeviceState& device = ops::device_of(op, encoder);
  check_operands(op, device, input, weight, output, params, type, batches, grid);
  const Pipeline& pipeline = ops::ggml_kernel(variant.kernel, type.type).on(device);
  core::OperatorScope launches(*encoder.state(), op, label);
  launches.on_replay(params, [&] {
    return
        [input, weight, output, grid, again = make_again()](CommandEncoder& other, const core::Rebinding& to,
                                                            const GgmlQuantizedMatmulParams& new_params) {
          again(other, to(input), to(weight), to(output), new_params, grid ? to(grid) : grid);
        };
  });
  launches.dispatch(pipeline, {{0, input}, {1, weight}, {2, output}, {3, params}},
                    ops::grid_of(grid,
                                 {ops::tiles(params.n, variant.weight_rows),
                                  ops::tiles(params.m, variant.input_rows), batches},
                                 GGML_MM_THREADS));
}

}  // namespace

void quantized_matmul_ggml(CommandEncoder& encoder, const Buffer& input, const Buffer& weight,
                           const Buffer& output, const GgmlQuantizedMatmulParams& params,
                           GgmlAlgorithm algorithm, const GgmlPolicy& policy, const Buffer& grid) {
  constexpr const char* op = "quantized_matmul_ggml";
  const GgmlTypeInfo& type = ops::check_dense(op, params);
  const ops::GgmlVariant variant = ops::dense_variant(
      op, params, algorithm == GgmlAlgorithm::automatic ? policy.choose(params) : algorithm);
  multiply(op, op, encoder, input, weight, output, params, type, variant, 1, grid, [&] {
    return [algorithm, policy](CommandEncoder& other, const Buffer& new_input, const Buffer& new_weight,
                               const Buffer& new_output, const GgmlQuantizedMatmulParams& new_params,
                               const Buffer& new_grid) {
      quantized_matmul_ggml(other, new_input, new_weight, new_output, new_params, algorithm, policy,
                            new_grid);
    };
  });
}

void quantized_matmul_batched_mv(CommandEncoder& encoder, const Buffer& input, const Buffer& weight,
                                 const Buffer& output, std::uint32_t batches, std::uint32_t m,
                                 std::uint32_t n, std::uint32_t k, GgmlType ggml_type) {
  constexpr const char* op = "quantized_matmul_batched_mv";
  const GgmlQuantizedMatmulParams params = {m, n, k, static_cast<std::uint32_t>(ggml_type)};
  const GgmlTypeInfo& type = ops::check_dense(op, params);
  ops::check_count(op, "batches", batches, 0x7fffffff);
  multiply(op, op, encoder, input, weight, output, params, type,
           ops::dense_variant(op, params, GgmlAlgorithm::mv), batches, {}, [&] {
             return [batches](CommandEncoder& other, const Buffer& new_input, const Buffer& new_weight,
                              const Buffer& new_output, const GgmlQuantizedMatmulParams& p, const Buffer&) {
               quantized_matmul_batched_mv(other, new_input, new_weight, new_output, batches, p.m, p.n, p.k,
                                           static_cast<GgmlType>(p.ggml_type));
             };
           });
}

}  // namespace metalane
