// Which kernel multiplies with GGML-quantized weights, as data that can be asked and replaced.
#pragma once

#include <metalane/export.h>
#include <metalane/ggml_type.h>
#include <metalane/params/quantized_matmul_ggml.h>
#include <metalane/params/quantized_matmul_id_ggml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace metalane {

// mv: a simdgroup a few weight rows, float products; the bits of a row depend on nothing but its own inputs,
// whatever m. mm: tiles of 64 weight rows and 32 inputs, by scalars. mm_simd: the same by 8x8 matrices.
enum class GgmlAlgorithm : std::uint32_t { automatic, mv, mm, mm_simd };

METALANE_API std::string_view name_of(GgmlAlgorithm algorithm) noexcept;

// Products of this kind take this algorithm.
struct GgmlRule {
  bool routed = false;                          // expert-routed products; else dense ones
  std::optional<GgmlType> ggml_type;            // none: all types
  std::uint32_t first_rows = 1;                 // m of dense, n_tokens of routed products, from this
  std::uint32_t last_rows = 0xffffffffu;        // to this
  std::vector<std::uint32_t> top_k;             // of routed products; empty: any
  GgmlAlgorithm algorithm = GgmlAlgorithm::mv;  // not automatic; routed products have no mm

  bool operator==(const GgmlRule&) const = default;
};

// What a product would run.
struct GgmlPlan {
  std::string kernel;  // as KernelRegistry knows it
  GgmlAlgorithm algorithm = GgmlAlgorithm::mv;
  std::uint32_t weight_rows = 0;    // that one threadgroup takes
  std::uint32_t input_rows = 0;     // for which it reads them once
  std::uint64_t scratch_bytes = 0;  // of device memory beside the arguments

  bool operator==(const GgmlPlan&) const = default;
};

// Rules in order: the first that fits decides, mv where none does.
class METALANE_API GgmlPolicy {
 public:
  // metalane's own: mv for m <= 8, and for routed products with n_tokens <= 32 or top_k other than 1, 6 and
  // 8; else mm_simd.
  GgmlPolicy();
  // Throws ArgumentError for a rule without rows, without an algorithm, or of a type that has no kernels.
  explicit GgmlPolicy(std::vector<GgmlRule> rules);

  const std::vector<GgmlRule>& rules() const noexcept { return rules_; }
  // Throw ArgumentError for params that no kernel takes.
  GgmlPlan plan(const GgmlQuantizedMatmulParams& params,
                GgmlAlgorithm algorithm = GgmlAlgorithm::automatic) const;
  GgmlPlan plan(const GgmlQuantizedMatmulIdParams& params,
                GgmlAlgorithm algorithm = GgmlAlgorithm::automatic) const;
  GgmlAlgorithm choose(const GgmlQuantizedMatmulParams& params) const noexcept;
  GgmlAlgorithm choose(const GgmlQuantizedMatmulIdParams& params) const noexcept;

 private:
  std::vector<GgmlRule> rules_;
};

// The policy without rules of one's own.
METALANE_API const GgmlPolicy& default_ggml_policy();

}  // namespace metalane
