// DFlash2 selector operators: check -> bind -> dispatch. Every check comes before the first launch, and
// message texts are built only where one fails.
#include <metalane/error.h>
#include <metalane/ops/dflash2_selector.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/registry.h"
#include "ops/exact_arguments.h"
#include "ops/operator_arguments.h"

namespace metalane {

static_assert(sizeof(DFlash2SelectorParams) == 48);
static_assert(offsetof(DFlash2SelectorParams, lanes) == 32);
static_assert(sizeof(DFlash2VerifyRowsParams) == 352);
static_assert(offsetof(DFlash2VerifyRowsParams, cost_64) == 320);

namespace {

constexpr const char* kSelector = "dispatch_dflash2_selector";  // in errors, as callers spell it
constexpr const char* kVerifyRows = "dispatch_dflash2_verify_rows";
constexpr std::uint32_t kMaxRows = DFLASH2_MAX_POSITIONS + 1;

[[noreturn]] void fail_indexed(const char* op, const char* argument, std::uint32_t index,
                               const std::string& expected, const std::string& given) {
  throw ArgumentError(op, std::string(argument) + "[" + std::to_string(index) + "]", expected, given);
}

std::string text_of(float value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", static_cast<double>(value));
  return text.data();
}

void check_lanes_and_rows(const char* op, std::uint64_t lanes, std::uint64_t rows_per_lane) {
  if (lanes == 0 || lanes > DFLASH2_MAX_LANES)
    throw ArgumentError(op, "lanes", "1 to 4", std::to_string(lanes));
  if (rows_per_lane < 2 || rows_per_lane > kMaxRows) {
    throw ArgumentError(op, "rows_per_lane", "2 to 16", std::to_string(rows_per_lane));
  }
}

void check_vocabulary(const char* op, std::uint64_t vocabulary) {
  if (vocabulary < DFLASH2_CANDIDATES || vocabulary > UINT32_MAX) {
    throw ArgumentError(op, "vocabulary", "16 to 4294967295", std::to_string(vocabulary));
  }
}

void check_selector_params(const DFlash2SelectorParams& params) {
  check_lanes_and_rows(kSelector, params.lanes, params.rows_per_lane);
  check_vocabulary(kSelector, params.vocabulary);
  if (params.sampling_mask >> params.lanes != 0) {
    throw ArgumentError(kSelector, "sampling_mask",
                        "a bit mask of " + std::to_string(params.lanes) + " lanes",
                        std::to_string(params.sampling_mask));
  }
  for (std::uint32_t lane = 0; lane < params.lanes; ++lane) {
    if (params.anchor[lane] >= params.vocabulary) {
      fail_indexed(kSelector, "anchor", lane, "below the vocabulary " + std::to_string(params.vocabulary),
                   std::to_string(params.anchor[lane]));
    }
    const float temperature = params.temperature[lane];
    if ((params.sampling_mask >> lane & 1) != 0 && !(std::isfinite(temperature) && temperature > 0)) {
      fail_indexed(kSelector, "temperature", lane, "finite and positive, because the lane samples",
                   text_of(temperature));
    }
  }
}

// The cost table as one: the last value is a field of its own.
float cost_of(const DFlash2VerifyRowsParams& params, std::uint32_t rows) {
  return rows < DFLASH2_VERIFY_COSTS - 1 ? params.cost[rows] : params.cost_64;
}

// The model that row choice rests on: finite, and a positive cost for every total that can be chosen.
void check_acceptance_model(const DFlash2VerifyRowsParams& params, std::uint32_t most_rows) {
  if (!std::isfinite(params.slope))
    throw ArgumentError(kVerifyRows, "slope", "finite", text_of(params.slope));
  for (std::uint32_t position = 0; position + 1 < params.rows_per_lane; ++position) {
    if (!std::isfinite(params.intercept[position])) {
      fail_indexed(kVerifyRows, "intercept", position, "finite", text_of(params.intercept[position]));
    }
  }
  for (std::uint32_t rows = params.lanes; rows <= most_rows; ++rows) {
    const float cost = cost_of(params, rows);
    if (!(std::isfinite(cost) && cost > 0)) {
      if (rows == DFLASH2_VERIFY_COSTS - 1) {
        throw ArgumentError(kVerifyRows, "cost_64", "finite and positive", text_of(cost));
      }
      fail_indexed(kVerifyRows, "cost", rows, "finite and positive", text_of(cost));
    }
  }
}

void check_verify_rows_params(const DFlash2VerifyRowsParams& params) {
  check_lanes_and_rows(kVerifyRows, params.lanes, params.rows_per_lane);
  if (params.every_row > 1)
    throw ArgumentError(kVerifyRows, "every_row", "0 or 1", std::to_string(params.every_row));
  std::uint32_t most_rows = 0;
  for (std::uint32_t lane = 0; lane < params.lanes; ++lane) {
    const std::uint32_t maximum = params.maximum[lane];
    if (maximum == 0 || maximum > params.rows_per_lane) {
      fail_indexed(kVerifyRows, "maximum", lane,
                   "1 to rows_per_lane (" + std::to_string(params.rows_per_lane) + ")",
                   std::to_string(maximum));
    }
    most_rows += maximum;
  }
  if (params.every_row == 0) check_acceptance_model(params, most_rows);
}

std::array<ops::ExactArgument, 13> selector_arguments(const DFlash2SelectorBuffers& b, std::uint64_t lanes,
                                                      std::uint64_t rows, std::uint64_t vocabulary) {
  constexpr std::uint64_t shards = DFLASH2_SHARDS;
  constexpr std::uint64_t each = DFLASH2_CANDIDATES;
  constexpr std::uint64_t rank = DFLASH2_SELECTOR_RANK;
  const std::uint64_t positions = rows - 1;
  return {{
      {"logits", b.logits, DType::float32, 3, {lanes, rows, vocabulary}, false},
      {"selector_hidden", b.selector_hidden, DType::bfloat16, 3, {lanes, rows, rank}, false},
      {"predecessor_codebook", b.predecessor_codebook, DType::bfloat16, 2, {vocabulary, rank}, false},
      {"successor_codebook", b.successor_codebook, DType::bfloat16, 2, {vocabulary, rank}, false},
      {"uniforms", b.uniforms, DType::float32, 2, {lanes, positions}, false},
      {"partial_ids", b.partial_ids, DType::uint32, 4, {lanes, positions, shards, each}, true},
      {"partial_values", b.partial_values, DType::float32, 4, {lanes, positions, shards, each}, true},
      {"candidates", b.candidates, DType::uint32, 3, {lanes, positions, each}, true},
      {"unary", b.unary, DType::float32, 3, {lanes, positions, each}, true},
      {"edges", b.edges, DType::float32, 4, {lanes, positions, each, each}, true},
      {"tokens", b.tokens, DType::uint32, 2, {lanes, positions}, true},
      {"proposal_probabilities", b.proposal_probabilities, DType::float32, 3, {lanes, positions, each}, true},
      {"confidence", b.confidence, DType::float32, 2, {lanes, positions}, true},
  }};
}

constexpr std::size_t kSelectorReads = 5;

// In the order of selector_arguments().
std::array<Buffer*, 13> fields_of(DFlash2SelectorBuffers& buffers) {
  return {&buffers.logits,
          &buffers.selector_hidden,
          &buffers.predecessor_codebook,
          &buffers.successor_codebook,
          &buffers.uniforms,
          &buffers.partial_ids,
          &buffers.partial_values,
          &buffers.candidates,
          &buffers.unary,
          &buffers.edges,
          &buffers.tokens,
          &buffers.proposal_probabilities,
          &buffers.confidence};
}

}  // namespace

DFlash2SelectorBuffers DFlash2SelectorBuffers::alloc(const Device& device, std::uint64_t lanes,
                                                     std::uint64_t rows_per_lane, std::uint64_t vocabulary) {
  constexpr const char* op = "DFlash2SelectorBuffers.alloc";
  check_lanes_and_rows(op, lanes, rows_per_lane);
  check_vocabulary(op, vocabulary);
  DFlash2SelectorBuffers buffers;
  const std::array<Buffer*, 13> fields = fields_of(buffers);
  const auto arguments = selector_arguments(buffers, lanes, rows_per_lane, vocabulary);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    *fields[i] = device.zeros(ops::shape_of(arguments[i]), arguments[i].dtype);
  }
  return buffers;
}

void dispatch_dflash2_selector(CommandEncoder& encoder, const DFlash2SelectorBuffers& buffers,
                               const DFlash2SelectorParams& params) {
  core::DeviceState& device = ops::device_of(kSelector, encoder);
  check_selector_params(params);
  ops::check_exact_buffers(kSelector, device,
                           selector_arguments(buffers, params.lanes, params.rows_per_lane, params.vocabulary),
                           kSelectorReads);
  static const core::BuiltinPipeline top16_kernel("dflash2_select_top16");
  static const core::BuiltinPipeline edges_kernel("dflash2_select_edges");
  static const core::BuiltinPipeline path_kernel("dflash2_select_path");
  const Pipeline& top16 = top16_kernel.on(device);
  const Pipeline& edges = edges_kernel.on(device);
  const Pipeline& path = path_kernel.on(device);
  const std::uint64_t positions = std::uint64_t{params.lanes} * (params.rows_per_lane - 1);

  core::OperatorScope launches(*encoder.state(), kSelector, "dflash2_selector");
  launches.on_replay(params, [&] {
    return [buffers](CommandEncoder& again, const core::Rebinding& rebinding,
                     const DFlash2SelectorParams& new_params) {
      DFlash2SelectorBuffers rebound = buffers;
      for (Buffer* buffer : fields_of(rebound)) *buffer = rebinding(*buffer);
      dispatch_dflash2_selector(again, rebound, new_params);
    };
  });
  launches.dispatch(top16,
                    {{0, buffers.logits}, {1, buffers.partial_ids}, {2, buffers.partial_values}, {3, params}},
                    Grid::threadgroups({positions * DFLASH2_SHARDS, 1, 1}, {256, 1, 1}));
  launches.barrier();
  launches.dispatch(edges,
                    {{0, buffers.partial_ids},
                     {1, buffers.partial_values},
                     {2, buffers.candidates},
                     {3, buffers.unary},
                     {4, buffers.edges},
                     {5, buffers.selector_hidden},
                     {6, buffers.predecessor_codebook},
                     {7, buffers.successor_codebook},
                     {8, params}},
                    Grid::threadgroups({positions, 1, 1}, {256, 1, 1}));
  launches.barrier();
  launches.dispatch(path,
                    {{0, buffers.candidates},
                     {1, buffers.unary},
                     {2, buffers.edges},
                     {3, buffers.uniforms},
                     {4, buffers.tokens},
                     {5, buffers.proposal_probabilities},
                     {6, buffers.confidence},
                     {7, params}},
                    Grid::threads({params.lanes, 1, 1}, {1, 1, 1}));
}

void dispatch_dflash2_verify_rows(CommandEncoder& encoder, const Buffer& confidence,
                                  const Buffer& verify_rows, const DFlash2VerifyRowsParams& params) {
  core::DeviceState& device = ops::device_of(kVerifyRows, encoder);
  check_verify_rows_params(params);
  const std::uint64_t lanes = params.lanes;
  const std::uint64_t positions = params.rows_per_lane - 1;
  const std::array<ops::ExactArgument, 2> arguments = {{
      {"confidence", confidence, DType::float32, 2, {lanes, positions}, false},
      {"verify_rows", verify_rows, DType::uint32, 1, {lanes}, true},
  }};
  ops::check_exact_buffers(kVerifyRows, device, arguments, 1);
  static const core::BuiltinPipeline kernel("dflash2_select_verify_rows");
  const Pipeline& pipeline = kernel.on(device);

  core::OperatorScope launches(*encoder.state(), kVerifyRows, "dflash2_verify_rows");
  launches.on_replay(params, [&] {
    return [confidence, verify_rows](CommandEncoder& again, const core::Rebinding& rebinding,
                                     const DFlash2VerifyRowsParams& new_params) {
      dispatch_dflash2_verify_rows(again, rebinding(confidence), rebinding(verify_rows), new_params);
    };
  });
  launches.dispatch(pipeline, {{0, confidence}, {1, verify_rows}, {2, params}},
                    Grid::threads({1, 1, 1}, {1, 1, 1}));
}

}  // namespace metalane
