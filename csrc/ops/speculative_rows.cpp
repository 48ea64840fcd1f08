// Rows of a verification packed and put back: check -> bind -> dispatch.
#include <metalane/error.h>
#include <metalane/ops/speculative_rows.h>

#include <array>
#include <string>
#include <vector>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "ops/operator_arguments.h"
#include "ops/quantized_matmul_launches.h"

namespace metalane {

static_assert(sizeof(SpeculativeRowsParams) == 144);
static_assert(sizeof(ScatterRowsParams) == 8);

namespace {

constexpr const char* kRows = "dispatch_speculative_rows";
constexpr const char* kScatter = "scatter_rows";
constexpr std::uint64_t kMostLanes = 4096;
constexpr std::uint64_t kMostPlaces = 1 << 20;
constexpr std::array<DType, 1> kIds = {DType::uint32};
constexpr std::array<DType, 1> kFloats = {DType::float32};

void check_params(const SpeculativeRowsParams& params) {
  ops::check_count(kRows, "lanes", params.lanes, kMostLanes);
  ops::check_count(kRows, "rows_per_lane", params.rows_per_lane, kMostPlaces);
  ops::check_count(kRows, "lanes * rows_per_lane", std::uint64_t{params.lanes} * params.rows_per_lane,
                   kMostPlaces);
  ops::check_count(kRows, "n_grids", params.n_grids, SPECULATIVE_ROWS_MAX_GRIDS);
  for (std::uint32_t i = 0; i < params.n_grids; ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    ops::check_count(kRows, ("weight_tiles" + index).c_str(), params.weight_tiles[i], 0x00ffffff);
    ops::check_count(kRows, ("input_rows" + index).c_str(), params.input_rows[i], 0x00ffffff);
  }
}

}  // namespace

RowGrid row_grid(const GgmlQuantizedMatmulParams& params, GgmlAlgorithm algorithm, const GgmlPolicy& policy) {
  const GgmlPlan plan = policy.plan(params, algorithm);
  return {static_cast<std::uint32_t>(ops::tiles(params.n, plan.weight_rows)), plan.input_rows};
}

RowGrid scatter_grid(std::uint32_t row_length) {
  return {static_cast<std::uint32_t>(ops::tiles(row_length, SCATTER_ROWS_ELEMENTS)), 1};
}

void dispatch_speculative_rows(CommandEncoder& encoder, const Buffer& verify_rows, const Buffer& anchors,
                               const Buffer& tokens, const Buffer& row_tokens, const Buffer& row_places,
                               const Buffer& grids, const SpeculativeRowsParams& params) {
  core::DeviceState& device = ops::device_of(kRows, encoder);
  check_params(params);
  constexpr std::uint64_t word = sizeof(std::uint32_t);
  const std::uint64_t lanes = params.lanes, places = lanes * params.rows_per_lane;
  const std::array<ops::BufferArgument, 6> arguments = {{
      {"verify_rows", verify_rows, kIds, lanes * word, word, false},
      {"anchors", anchors, kIds, lanes * word, word, false},
      {"tokens", tokens, kIds, (places - lanes) * word, word, false},
      {"row_tokens", row_tokens, kIds, places * word, word, true},
      {"row_places", row_places, kIds, places * word, word, true},
      {"grids", grids, kIds, 3 * params.n_grids * word, word, true},
  }};
  ops::check_buffers(kRows, device, arguments);
  static const core::BuiltinPipeline kernel("speculative_rows");
  const Pipeline& pipeline = kernel.on(device);

  core::OperatorScope launches(*encoder.state(), kRows, kRows);
  launches.on_replay(params, [&] {
    return [=](CommandEncoder& again, const core::Rebinding& to, const SpeculativeRowsParams& new_params) {
      dispatch_speculative_rows(again, to(verify_rows), to(anchors), to(tokens), to(row_tokens),
                                to(row_places), to(grids), new_params);
    };
  });
  launches.dispatch(pipeline,
                    {{0, verify_rows},
                     {1, anchors},
                     {2, tokens},
                     {3, row_tokens},
                     {4, row_places},
                     {5, grids},
                     {6, params}},
                    Grid::threadgroups({1, 1, 1}, {SPECULATIVE_ROWS_THREADS, 1, 1}));
}

void scatter_rows(CommandEncoder& encoder, const Buffer& input, const Buffer& places, const Buffer& output,
                  const ScatterRowsParams& params, const Buffer& grid) {
  core::DeviceState& device = ops::device_of(kScatter, encoder);
  ops::check_count(kScatter, "row_length", params.row_length, 0x7fffffff);
  ops::check_count(kScatter, "rows", params.rows, kMostPlaces);
  const std::uint64_t nbytes = std::uint64_t{params.row_length} * params.rows * sizeof(float);
  std::vector<ops::BufferArgument> arguments = {
      {"input", input, kFloats, nbytes, sizeof(float), false},
      {"places", places, kIds, params.rows * sizeof(std::uint32_t), sizeof(std::uint32_t), false},
      {"output", output, kFloats, nbytes, sizeof(float), true},
  };
  if (grid) arguments.push_back(ops::grid_argument(grid));
  ops::check_buffers(kScatter, device, arguments);
  static const core::BuiltinPipeline kernel("scatter_rows");
  const Pipeline& pipeline = kernel.on(device);

  core::OperatorScope launches(*encoder.state(), kScatter, kScatter);
  launches.on_replay(params, [&] {
    return [=](CommandEncoder& again, const core::Rebinding& to, const ScatterRowsParams& new_params) {
      scatter_rows(again, to(input), to(places), to(output), new_params, grid ? to(grid) : grid);
    };
  });
  const RowGrid all = scatter_grid(params.row_length);
  launches.dispatch(pipeline, {{0, input}, {1, places}, {2, output}, {3, params}},
                    ops::grid_of(grid, {all.weight_tiles, params.rows, 1}, SPECULATIVE_ROWS_THREADS));
}

}  // namespace metalane
