// See quantized_matmul_policy.h.
#include <metalane/error.h>
#include <metalane/ops/quantized_matmul_policy.h>

#include <algorithm>

#include "core/ggml_decode.h"
#include "ops/ggml_kernels.h"
#include "ops/quantized_matmul_launches.h"

namespace metalane {

namespace {

constexpr std::uint32_t kMvRows = 8;  // up to here a matrix of inputs is read with mat-vec's accuracy
constexpr std::uint32_t kRoutedMvTokens = 32;

void check_rule(const GgmlRule& rule) {
  constexpr const char* op = "GgmlPolicy";
  if (rule.first_rows == 0 || rule.first_rows > rule.last_rows) {
    throw ArgumentError(op, "rules", "1 <= first_rows <= last_rows",
                        std::to_string(rule.first_rows) + " to " + std::to_string(rule.last_rows));
  }
  const bool routed_has_it = rule.algorithm == GgmlAlgorithm::mv || rule.algorithm == GgmlAlgorithm::mm_simd;
  const bool dense_has_it = routed_has_it || rule.algorithm == GgmlAlgorithm::mm;
  if (rule.routed ? !routed_has_it : !dense_has_it) {
    throw ArgumentError(op, "rules", rule.routed ? "algorithm mv or mm_simd" : "algorithm mv, mm or mm_simd",
                        std::string(name_of(rule.algorithm)));
  }
  if (!rule.routed && !rule.top_k.empty()) {
    throw ArgumentError(op, "rules", "top_k of routed products only", "top_k of a dense one");
  }
  if (rule.ggml_type) core::require_decodable(op, *rule.ggml_type);
}

bool fits(const GgmlRule& rule, bool routed, std::uint32_t ggml_type, std::uint32_t rows,
          std::uint32_t top_k) {
  return rule.routed == routed && rows >= rule.first_rows && rows <= rule.last_rows &&
         (!rule.ggml_type || static_cast<std::uint32_t>(*rule.ggml_type) == ggml_type) &&
         (rule.top_k.empty() || std::find(rule.top_k.begin(), rule.top_k.end(), top_k) != rule.top_k.end());
}

GgmlAlgorithm first_fitting(const std::vector<GgmlRule>& rules, bool routed, std::uint32_t ggml_type,
                            std::uint32_t rows, std::uint32_t top_k) {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const GgmlRule& candidate) {
    return fits(candidate, routed, ggml_type, rows, top_k);
  });
  return rule == rules.end() ? GgmlAlgorithm::mv : rule->algorithm;
}

}  // namespace

std::string_view name_of(GgmlAlgorithm algorithm) noexcept {
  switch (algorithm) {
    case GgmlAlgorithm::automatic:
      return "auto";
    case GgmlAlgorithm::mv:
      return "mv";
    case GgmlAlgorithm::mm:
      return "mm";
    case GgmlAlgorithm::mm_simd:
      return "mm_simd";
  }
  return "unknown";
}

GgmlPolicy::GgmlPolicy() {
  GgmlRule few, many, few_tokens, favoured, others;
  few.last_rows = kMvRows;
  many.algorithm = GgmlAlgorithm::mm_simd;
  few_tokens.routed = favoured.routed = others.routed = true;
  few_tokens.last_rows = kRoutedMvTokens;
  favoured.top_k = {1, 6, 8};
  favoured.algorithm = GgmlAlgorithm::mm_simd;
  rules_ = {few, many, few_tokens, favoured, others};
}

GgmlPolicy::GgmlPolicy(std::vector<GgmlRule> rules) : rules_(std::move(rules)) {
  for (const GgmlRule& rule : rules_) check_rule(rule);
}

GgmlAlgorithm GgmlPolicy::choose(const GgmlQuantizedMatmulParams& params) const noexcept {
  return first_fitting(rules_, false, params.ggml_type, params.m, 0);
}

GgmlAlgorithm GgmlPolicy::choose(const GgmlQuantizedMatmulIdParams& params) const noexcept {
  return first_fitting(rules_, true, params.ggml_type, params.n_tokens, params.top_k);
}

GgmlPlan GgmlPolicy::plan(const GgmlQuantizedMatmulParams& params, GgmlAlgorithm algorithm) const {
  constexpr const char* op = "GgmlPolicy.plan";
  const GgmlTypeInfo& type = ops::check_dense(op, params);
  const ops::GgmlVariant variant =
      ops::dense_variant(op, params, algorithm == GgmlAlgorithm::automatic ? choose(params) : algorithm);
  return {ops::ggml_kernel_name(variant.kernel, type.type), variant.algorithm, variant.weight_rows,
          variant.input_rows, 0};
}

GgmlPlan GgmlPolicy::plan(const GgmlQuantizedMatmulIdParams& params, GgmlAlgorithm algorithm) const {
  constexpr const char* op = "GgmlPolicy.plan";
  const GgmlTypeInfo& type = ops::check_routed(op, params);
  const ops::GgmlVariant variant =
      ops::routed_variant(op, algorithm == GgmlAlgorithm::automatic ? choose(params) : algorithm, false);
  const bool sorts = variant.algorithm != GgmlAlgorithm::mv;
  return {ops::ggml_kernel_name(variant.kernel, type.type), variant.algorithm, variant.weight_rows,
          variant.input_rows,
          sorts ? sizeof(std::uint32_t) * ops::schedule_words(params.n_experts, ops::routes_of(params)) : 0};
}

const GgmlPolicy& default_ggml_policy() {
  static const GgmlPolicy policy;
  return policy;
}

}  // namespace metalane
