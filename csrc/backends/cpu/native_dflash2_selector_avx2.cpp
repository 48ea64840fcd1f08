// DFlash2 selector kernels with AVX2 and FMA.
#include "backends/cpu/native_dflash2_selector.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "backends/cpu/native_dflash2_selector_simd.h"

namespace metalane::cpu {
namespace {

struct Avx2 {
  using Floats = __m256;
  using List = FirstSixteen;
  static constexpr std::uint32_t width = 8;
  static constexpr std::uint32_t tile_rows = 2;  // 8 sums and 4 columns fit the 16 registers

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats splat(float x) { return _mm256_set1_ps(x); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  static Floats load_bf16(const std::uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static Floats max(Floats fresh, Floats bound) { return _mm256_max_ps(fresh, bound); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Floats x) {  // halves, quarters, pairs
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(Floats x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static std::uint32_t at_least(Floats x, Floats y) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GE_OQ)));
  }
};

}  // namespace

void dflash2_top16_avx2(const NativeLaunch& launch, std::uint32_t task) { top16<Avx2>(launch, task); }
void dflash2_edges_avx2(const NativeLaunch& launch, std::uint32_t task) { edges<Avx2>(launch, task); }

}  // namespace metalane::cpu
#endif
