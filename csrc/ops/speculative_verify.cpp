// Lossless verification of drafted tokens: check -> bind -> dispatch.
#include <metalane/error.h>
#include <metalane/ops/speculative_verify.h>

#include <array>
#include <cstddef>
#include <string>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/registry.h"
#include "ops/exact_arguments.h"
#include "ops/operator_arguments.h"

namespace metalane {

static_assert(sizeof(SpeculativeVerifyParams) == 16);

namespace {

constexpr const char* kOp = "dispatch_speculative_verify";
constexpr std::size_t kReads = 7;

void check_range(const char* op, const char* argument, std::uint64_t value, std::uint64_t least,
                 std::uint64_t most) {
  if (value < least || value > most) {
    throw ArgumentError(op, argument, std::to_string(least) + " to " + std::to_string(most),
                        std::to_string(value));
  }
}

std::uint64_t shards_of(std::uint64_t vocabulary) {
  return (vocabulary + SPECULATIVE_SHARD - 1) / SPECULATIVE_SHARD;
}

void check_sizes(const char* op, std::uint64_t lanes, std::uint64_t rows_per_lane, std::uint64_t vocabulary,
                 std::uint64_t candidates) {
  check_range(op, "lanes", lanes, 1, 0xffff);
  check_range(op, "rows_per_lane", rows_per_lane, 2, SPECULATIVE_MAX_ROWS);
  check_range(op, "vocabulary", vocabulary, 1, 0x7fffffff);
  check_range(op, "candidates", candidates, 1, SPECULATIVE_MAX_CANDIDATES);
  // The kernels count threadgroups and candidates in 32 bits.
  check_range(op, "lanes * rows_per_lane * shards", lanes * rows_per_lane * shards_of(vocabulary), 1,
              UINT32_MAX);
}

// Which instance of the kernels reads logits of this dtype.
std::size_t instance_of(const char* op, const char* argument, DType logits) {
  constexpr std::array dtypes = {DType::float32, DType::float16, DType::bfloat16};
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i] == logits) return i;
  }
  throw DTypeError(op, argument, "float32, float16 or bfloat16", std::string(name_of(logits)));
}

std::array<ops::ExactArgument, 11> arguments_of(const SpeculativeVerifyBuffers& b, DType logits,
                                                std::uint64_t lanes, std::uint64_t rows,
                                                std::uint64_t vocabulary, std::uint64_t candidates) {
  const std::uint64_t shards = shards_of(vocabulary);
  const std::uint64_t positions = rows - 1;
  return {{
      {"logits", b.logits, logits, 3, {lanes, rows, vocabulary}, false},
      {"verify_rows", b.verify_rows, DType::uint32, 1, {lanes}, false},
      {"temperature", b.temperature, DType::float32, 1, {lanes}, false},
      {"tokens", b.tokens, DType::uint32, 2, {lanes, positions}, false},
      {"candidates", b.candidates, DType::uint32, 3, {lanes, positions, candidates}, false},
      {"proposal_probabilities",
       b.proposal_probabilities,
       DType::float32,
       3,
       {lanes, positions, candidates},
       false},
      {"uniforms", b.uniforms, DType::float32, 2, {lanes, rows}, false},
      {"partial_ids", b.partial_ids, DType::uint32, 3, {lanes, rows, shards}, true},
      {"partial_sums", b.partial_sums, DType::float32, 3, {lanes, rows, shards}, true},
      {"accepted", b.accepted, DType::uint32, 1, {lanes}, true},
      {"next_tokens", b.next_tokens, DType::uint32, 1, {lanes}, true},
  }};
}

// In the order of arguments_of().
std::array<Buffer*, 11> fields_of(SpeculativeVerifyBuffers& b) {
  return {&b.logits,   &b.verify_rows, &b.temperature,  &b.tokens,   &b.candidates, &b.proposal_probabilities,
          &b.uniforms, &b.partial_ids, &b.partial_sums, &b.accepted, &b.next_tokens};
}

}  // namespace

SpeculativeVerifyBuffers SpeculativeVerifyBuffers::alloc(const Device& device, std::uint64_t lanes,
                                                         std::uint64_t rows_per_lane,
                                                         std::uint64_t vocabulary, std::uint64_t candidates,
                                                         DType logits) {
  constexpr const char* op = "SpeculativeVerifyBuffers.alloc";
  check_sizes(op, lanes, rows_per_lane, vocabulary, candidates);
  instance_of(op, "dtype", logits);
  SpeculativeVerifyBuffers b;
  const std::array<Buffer*, 11> fields = fields_of(b);
  const auto arguments = arguments_of(b, logits, lanes, rows_per_lane, vocabulary, candidates);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    *fields[i] = device.zeros(ops::shape_of(arguments[i]), arguments[i].dtype);
  }
  return b;
}

void dispatch_speculative_verify(CommandEncoder& encoder, const SpeculativeVerifyBuffers& buffers,
                                 const SpeculativeVerifyParams& params) {
  core::DeviceState& device = ops::device_of(kOp, encoder);
  check_sizes(kOp, params.lanes, params.rows_per_lane, params.vocabulary, params.candidates);
  const std::size_t instance = buffers.logits ? instance_of(kOp, "logits", buffers.logits.dtype()) : 0;
  ops::check_exact_buffers(kOp, device,
                           arguments_of(buffers, buffers.logits.dtype(), params.lanes, params.rows_per_lane,
                                        params.vocabulary, params.candidates),
                           kReads);
  static const std::array<core::BuiltinPipeline, 3> rows_kernels = {
      core::BuiltinPipeline("speculative_verify_rows_F32"),
      core::BuiltinPipeline("speculative_verify_rows_F16"),
      core::BuiltinPipeline("speculative_verify_rows_BF16")};
  static const std::array<core::BuiltinPipeline, 3> tokens_kernels = {
      core::BuiltinPipeline("speculative_verify_tokens_F32"),
      core::BuiltinPipeline("speculative_verify_tokens_F16"),
      core::BuiltinPipeline("speculative_verify_tokens_BF16")};
  const Pipeline& rows = rows_kernels[instance].on(device);
  const Pipeline& tokens = tokens_kernels[instance].on(device);

  core::OperatorScope launches(*encoder.state(), kOp, "speculative_verify");
  launches.on_replay(params, [&] {
    return [buffers](CommandEncoder& again, const core::Rebinding& to,
                     const SpeculativeVerifyParams& new_params) {
      SpeculativeVerifyBuffers rebound = buffers;
      for (Buffer* buffer : fields_of(rebound)) *buffer = to(*buffer);
      dispatch_speculative_verify(again, rebound, new_params);
    };
  });
  launches.dispatch(
      rows,
      {{0, buffers.logits},
       {1, buffers.verify_rows},
       {2, buffers.temperature},
       {3, buffers.partial_ids},
       {4, buffers.partial_sums},
       {5, params}},
      Grid::threadgroups(
          {std::uint64_t{params.lanes} * params.rows_per_lane * shards_of(params.vocabulary), 1, 1},
          {SPECULATIVE_SHARD_THREADS, 1, 1}));
  launches.barrier();
  launches.dispatch(tokens,
                    {{0, buffers.logits},
                     {1, buffers.verify_rows},
                     {2, buffers.temperature},
                     {3, buffers.partial_ids},
                     {4, buffers.partial_sums},
                     {5, buffers.tokens},
                     {6, buffers.candidates},
                     {7, buffers.proposal_probabilities},
                     {8, buffers.uniforms},
                     {9, buffers.accepted},
                     {10, buffers.next_tokens},
                     {12, params}},
                    Grid::threadgroups({params.lanes, 1, 1}, {SPECULATIVE_LANE_THREADS, 1, 1}));
}

}  // namespace metalane
