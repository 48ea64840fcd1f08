// Expert-routed GGML products: check -> bind -> dispatch.
#include <metalane/error.h>
#include <metalane/ops/quantized_matmul_id_ggml.h>

#include <algorithm>
#include <array>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/ggml_decode.h"
#include "core/storage.h"
#include "ops/host_ids.h"
#include "ops/operator_arguments.h"
#include "ops/quantized_matmul_launches.h"

namespace metalane {

static_assert(sizeof(GgmlQuantizedMatmulIdParams) == 40);
static_assert(offsetof(GgmlQuantizedMatmulIdParams, expert_stride) == 24);

// One threadgroup of the sorting kernels an expert, and one more: below 2^32 threads.
constexpr std::uint64_t kMostExperts = 0x007fffff;

namespace ops {

GgmlVariant routed_variant(const char* op, GgmlAlgorithm algorithm, bool slotted) {
  switch (algorithm) {
    case GgmlAlgorithm::mv:
      return {GgmlKernel::id_mv, algorithm, 4 * GGML_MV_SIMDGROUPS, 1};
    case GgmlAlgorithm::mm_simd:
      return {slotted ? GgmlKernel::id_mm_slotted : GgmlKernel::id_mm, algorithm, GGML_MM_ROWS,
              GGML_MM_INPUTS};
    case GgmlAlgorithm::mm:
    case GgmlAlgorithm::automatic:
      break;
  }
  throw ArgumentError(op, "algorithm", "auto, mv or mm_simd", std::string(name_of(algorithm)));
}

const GgmlTypeInfo& check_routed(const char* op, const GgmlQuantizedMatmulIdParams& params) {
  const GgmlTypeInfo& type = core::require_decodable(op, static_cast<GgmlType>(params.ggml_type));
  check_count(op, "n_tokens", params.n_tokens, 0x7fffffff);
  check_count(op, "top_k", params.top_k, 0x7fffffff);
  check_count(op, "n_tokens * top_k", std::uint64_t{params.n_tokens} * params.top_k, 0x7fffffff);
  check_count(op, "n", params.n, 0x0fffffff);
  check_row_length(op, "k", type, params.k);
  check_count(op, "n_experts", params.n_experts, kMostExperts);
  const std::uint64_t expert_bytes = params.n * ggml_row_bytes(type, params.k);
  if (params.expert_stride < expert_bytes || params.expert_stride % type.alignment != 0) {
    throw ArgumentError(op, "expert_stride",
                        "at least the " + std::to_string(expert_bytes) +
                            " bytes of an expert, and a multiple of " + std::to_string(type.alignment),
                        std::to_string(params.expert_stride));
  }
  return type;
}

}  // namespace ops

namespace {

using Params = GgmlQuantizedMatmulIdParams;

// One weight and where its product goes.
struct Product {
  const char* weight_name;
  const Buffer& weight;
  const char* output_name;
  const Buffer& output;
};

void check_operands(const char* op, const core::DeviceState& device, const Buffer& input, const Buffer& ids,
                    std::span<const Product> products, const Params& params, const GgmlTypeInfo& type,
                    bool slotted) {
  constexpr std::array<DType, 1> floats = {DType::float32};
  constexpr std::array<DType, 1> id_types = {DType::uint32};
  const std::array<DType, 2> packed = ops::ggml_weight_dtypes(type);
  const std::uint64_t routes = ops::routes_of(params);
  const std::uint64_t expert_bytes = params.n * ops::ggml_row_bytes(type, params.k);
  std::uint64_t weight_bytes = 0, input_bytes = 0, output_bytes = 0;
  if (__builtin_mul_overflow(params.n_experts - 1, params.expert_stride, &weight_bytes) ||
      __builtin_add_overflow(weight_bytes, expert_bytes, &weight_bytes) ||
      __builtin_mul_overflow((slotted ? routes : params.n_tokens) * params.k, sizeof(float), &input_bytes) ||
      __builtin_mul_overflow(routes * params.n, sizeof(float), &output_bytes)) {
    throw ArgumentError(op, "params", "sizes of less than 2^64 bytes", "larger ones");
  }
  const Product& first = products.front();
  const Product& last = products.back();  // the same, or the other of a pair
  const std::array<ops::BufferArgument, 6> arguments = {{
      {"input", input, floats, input_bytes, sizeof(float), false},
      {"ids", ids, id_types, routes * sizeof(std::uint32_t), sizeof(std::uint32_t), false},
      {first.weight_name, first.weight, packed, weight_bytes, type.alignment, false},
      {first.output_name, first.output, floats, output_bytes, sizeof(float), true},
      {last.weight_name, last.weight, packed, weight_bytes, type.alignment, false},
      {last.output_name, last.output, floats, output_bytes, sizeof(float), true},
  }};
  ops::check_buffers(op, device, std::span(arguments).first(2 + 2 * products.size()));
}

template <typename MakeAgain>
void multiply_by_vectors(const char* op, CommandEncoder& encoder, core::DeviceState& device,
                         const Buffer& input, const Buffer& weight, const Buffer& ids, const Buffer& output,
                         const Params& params, const GgmlTypeInfo& type, const MakeAgain& make_again) {
  const Pipeline& pipeline = ops::ggml_kernel(ops::GgmlKernel::id_mv, type.type).on(device);
  const ops::GgmlVariant variant = ops::routed_variant(op, GgmlAlgorithm::mv, false);
  core::OperatorScope launches(*encoder.state(), op, op);
  launches.on_replay(params, make_again);
  launches.dispatch(pipeline, {{0, input}, {1, weight}, {2, ids}, {3, output}, {5, params}},
                    Grid::threadgroups({ops::tiles(params.n, variant.weight_rows), ops::routes_of(params), 1},
                                       {GGML_MM_THREADS, 1, 1}));
}

// Sorts the routes by expert into `schedule`, then multiplies along it.
template <typename MakeAgain>
void multiply_by_tiles(const char* op, CommandEncoder& encoder, core::DeviceState& device,
                       const Buffer& input, const Buffer& ids, std::span<const Product> products,
                       const Buffer& schedule, const Params& params, const GgmlTypeInfo& type, bool slotted,
                       const MakeAgain& make_again) {
  static const core::BuiltinPipeline count_kernel("quantized_matmul_id_count");
  static const core::BuiltinPipeline route_kernel("quantized_matmul_id_route");
  const ops::GgmlVariant variant = ops::routed_variant(op, GgmlAlgorithm::mm_simd, slotted);
  const Pipeline& count = count_kernel.on(device);
  const Pipeline& route = route_kernel.on(device);
  const Pipeline& multiply = ops::ggml_kernel(variant.kernel, type.type).on(device);
  const std::uint64_t routes = ops::routes_of(params);
  const std::uint64_t classes = std::uint64_t{params.n_experts} + 1;  // and ids out of range
  // Each class can leave one tile unfilled.
  const std::uint64_t most_tiles = routes / variant.input_rows + std::min(classes, routes);

  core::OperatorScope launches(*encoder.state(), op, op);
  launches.on_replay(params, make_again);
  launches.dispatch(count, {{0, ids}, {1, schedule}, {3, params}},
                    Grid::threadgroups({classes, 1, 1}, {GGML_ROUTE_THREADS, 1, 1}));
  launches.barrier();
  launches.dispatch(route, {{0, ids}, {1, schedule}, {2, params}},
                    Grid::threadgroups({classes, 1, 1}, {GGML_ROUTE_THREADS, 1, 1}));
  launches.barrier();
  for (const Product& product : products) {
    launches.dispatch(multiply,
                      {{0, input}, {1, product.weight}, {2, schedule}, {3, product.output}, {4, params}},
                      Grid::threadgroups({ops::tiles(params.n, variant.weight_rows), most_tiles, 1},
                                         {GGML_MM_THREADS, 1, 1}));
  }
}

void check_scratch(const char* op, const core::DeviceState& device, const IdMmScratch& scratch,
                   const Params& params) {
  const core::Storage* const storage = scratch.schedule().storage().get();
  if (storage->released() || storage->device().get() != &device) {
    throw ArgumentError(op, "scratch", "scratch of the encoder's device",
                        storage->released() ? "released scratch" : "scratch of another device");
  }
  if (params.n_experts > scratch.n_experts()) {
    throw ArgumentError(op, "scratch", "room for " + std::to_string(params.n_experts) + " experts",
                        "room for " + std::to_string(scratch.n_experts()));
  }
  if (ops::routes_of(params) > scratch.routes()) {
    throw ArgumentError(op, "scratch",
                        "room for " + std::to_string(ops::routes_of(params)) + " routes (n_tokens * top_k)",
                        "room for " + std::to_string(scratch.routes()));
  }
}

template <typename MakeAgain>
void multiply_pooled(const char* op, CommandEncoder& encoder, const Buffer& input, const Buffer& ids,
                     std::span<const Product> products, const IdMmScratch& scratch, const Params& params,
                     bool slotted, const MakeAgain& make_again) {
  core::DeviceState& device = ops::device_of(op, encoder);
  const GgmlTypeInfo& type = ops::check_routed(op, params);
  check_operands(op, device, input, ids, products, params, type, slotted);
  check_scratch(op, device, scratch, params);
  ops::check_ids(op, encoder, ids, ops::routes_of(params), params.n_experts, "n_experts");
  multiply_by_tiles(op, encoder, device, input, ids, products, scratch.schedule(), params, type, slotted,
                    make_again);
}

}  // namespace

IdMmScratch IdMmScratch::alloc(const Device& device, std::uint64_t n_experts, std::uint64_t n_tokens,
                               std::uint64_t top_k) {
  constexpr const char* op = "IdMmScratch.alloc";
  ops::check_count(op, "n_experts", n_experts, kMostExperts);
  ops::check_count(op, "n_tokens", n_tokens, 0x7fffffff);
  ops::check_count(op, "top_k", top_k, 0x7fffffff);
  ops::check_count(op, "n_tokens * top_k", n_tokens * top_k, 0x7fffffff);
  const std::uint64_t routes = n_tokens * top_k;
  return IdMmScratch(device.zeros(Shape({ops::schedule_words(n_experts, routes)}), DType::uint32),
                     static_cast<std::uint32_t>(n_experts), static_cast<std::uint32_t>(routes));
}

IdMmScratch IdMmScratch::over(const Buffer& schedule, std::uint64_t n_experts, std::uint64_t routes) {
  constexpr const char* op = "IdMmScratch.over";
  ops::check_count(op, "n_experts", n_experts, kMostExperts);
  ops::check_count(op, "routes", routes, 0x7fffffff);
  if (schedule.dtype() != DType::uint32) {
    throw DTypeError(op, "schedule", "uint32", std::string(name_of(schedule.dtype())));
  }
  const std::uint64_t needed = ops::schedule_words(n_experts, routes) * sizeof(std::uint32_t);
  if (schedule.nbytes() < needed) {
    throw ArgumentError(op, "schedule", "at least " + std::to_string(needed) + " bytes",
                        std::to_string(schedule.nbytes()));
  }
  return IdMmScratch(schedule, static_cast<std::uint32_t>(n_experts), static_cast<std::uint32_t>(routes));
}

std::string IdMmScratch::status() const {
  const Buffer count = schedule_.view(0, Shape({1}));
  count.synchronize();
  const std::uint32_t out_of_range = *static_cast<const std::uint32_t*>(count.data());
  return out_of_range == 0 ? "done" : std::to_string(out_of_range) + " ids out of range";
}

void quantized_matmul_id_ggml(CommandEncoder& encoder, const Buffer& input, const Buffer& weight,
                              const Buffer& ids, const Buffer& output, const Params& params,
                              GgmlAlgorithm algorithm, const GgmlPolicy& policy) {
  constexpr const char* op = "quantized_matmul_id_ggml";
  core::DeviceState& device = ops::device_of(op, encoder);
  const GgmlTypeInfo& type = ops::check_routed(op, params);
  const Product product = {"weight", weight, "output", output};
  check_operands(op, device, input, ids, {&product, 1}, params, type, false);
  const ops::GgmlVariant variant = ops::routed_variant(
      op, algorithm == GgmlAlgorithm::automatic ? policy.choose(params) : algorithm, false);
  ops::check_ids(op, encoder, ids, ops::routes_of(params), params.n_experts, "n_experts");
  const auto make_again = [&] {
    return [input, weight, ids, output, algorithm, policy](CommandEncoder& again, const core::Rebinding& to,
                                                           const Params& new_params) {
      quantized_matmul_id_ggml(again, to(input), to(weight), to(ids), to(output), new_params, algorithm,
                               policy);
    };
  };
  if (variant.algorithm == GgmlAlgorithm::mv) {
    multiply_by_vectors(op, encoder, device, input, weight, ids, output, params, type, make_again);
    return;
  }
  const Buffer schedule =
      device.scratch_pool().take(ops::schedule_words(params.n_experts, ops::routes_of(params)));
  multiply_by_tiles(op, encoder, device, input, ids, {&product, 1}, schedule, params, type, false,
                    make_again);
}

void quantized_matmul_id_ggml_pooled(CommandEncoder& encoder, const Buffer& input, const Buffer& weight,
                                     const Buffer& ids, const Buffer& output, const IdMmScratch& scratch,
                                     const Params& params) {
  const Product product = {"weight", weight, "output", output};
  multiply_pooled("quantized_matmul_id_ggml_pooled", encoder, input, ids, {&product, 1}, scratch, params,
                  false, [&] {
                    return [=](CommandEncoder& again, const core::Rebinding& to, const Params& new_params) {
                      quantized_matmul_id_ggml_pooled(again, to(input), to(weight), to(ids), to(output),
                                                      scratch, new_params);
                    };
                  });
}

void quantized_matmul_id_ggml_pooled_pair(CommandEncoder& encoder, const Buffer& input,
                                          const Buffer& weight_a, const Buffer& weight_b, const Buffer& ids,
                                          const Buffer& output_a, const Buffer& output_b,
                                          const IdMmScratch& scratch, const Params& params) {
  const std::array<Product, 2> products = {
      {{"weight_a", weight_a, "output_a", output_a}, {"weight_b", weight_b, "output_b", output_b}}};
  multiply_pooled(
      "quantized_matmul_id_ggml_pooled_pair", encoder, input, ids, products, scratch, params, false, [&] {
        return [=](CommandEncoder& again, const core::Rebinding& to, const Params& new_params) {
          quantized_matmul_id_ggml_pooled_pair(again, to(input), to(weight_a), to(weight_b), to(ids),
                                               to(output_a), to(output_b), scratch, new_params);
        };
      });
}

void quantized_matmul_id_ggml_pooled_slotted(CommandEncoder& encoder, const Buffer& input,
                                             const Buffer& weight, const Buffer& ids, const Buffer& output,
                                             const IdMmScratch& scratch, const Params& params) {
  const Product product = {"weight", weight, "output", output};
  multiply_pooled("quantized_matmul_id_ggml_pooled_slotted", encoder, input, ids, {&product, 1}, scratch,
                  params, true, [&] {
                    return [=](CommandEncoder& again, const core::Rebinding& to, const Params& new_params) {
                      quantized_matmul_id_ggml_pooled_slotted(again, to(input), to(weight), to(ids),
                                                              to(output), scratch, new_params);
                    };
                  });
}

}  // namespace metalane
