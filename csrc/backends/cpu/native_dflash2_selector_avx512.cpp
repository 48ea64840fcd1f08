// DFlash2 selector kernels with AVX-512.
#include "backends/cpu/native_dflash2_selector.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "backends/cpu/native_dflash2_selector_simd.h"

namespace metalane::cpu {
namespace {

struct Avx512 {
  using Floats = __m512;
  static constexpr std::uint32_t width = 16;
  static constexpr std::uint32_t tile_rows = 4;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats splat(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static Floats load_bf16(const std::uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static Floats max(Floats fresh, Floats bound) { return _mm512_max_ps(fresh, bound); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Floats x) { return _mm512_reduce_add_ps(x); }  // halves, quarters, pairs
  static float largest(Floats x) { return _mm512_reduce_max_ps(x); }
  static std::uint32_t at_least(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ); }
  static std::uint32_t above(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ); }
};

}  // namespace

void dflash2_top16_avx512(const NativeLaunch& launch, std::uint32_t task) { top16<Avx512>(launch, task); }
void dflash2_edges_avx512(const NativeLaunch& launch, std::uint32_t task) { edges<Avx512>(launch, task); }

}  // namespace metalane::cpu
#endif
