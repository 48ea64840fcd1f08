// DFlash2 selector kernels with AVX-512.
#include "backends/cpu/native_dflash2_selector.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "backends/cpu/native_dflash2_selector_simd.h"

namespace metalane::cpu {
namespace {

// FirstSixteen in two registers. Shifting arrays in memory mispredicts its way to 14 ns an insertion; this
// takes 4.
class FirstSixteenInRegisters {
 public:
  float last() const { return _mm512_cvtss_f32(_mm512_permutexvar_ps(_mm512_set1_epi32(15), values_)); }
  bool takes(float value, std::uint32_t id) const { return (precede(value, id) >> 15) == 0; }
  void insert(float value, std::uint32_t id) {
    const __mmask16 stay = precede(value, id);
    const __mmask16 shift = static_cast<__mmask16>(~(stay << 1 | 1));  // places behind the new one's
    const __mmask16 place = static_cast<__mmask16>(~stay & ~shift);
    const __m512i left = _mm512_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    values_ = _mm512_mask_permutexvar_ps(values_, shift, left, values_);
    ids_ = _mm512_mask_permutexvar_epi32(ids_, shift, left, ids_);
    values_ = _mm512_mask_mov_ps(values_, place, _mm512_set1_ps(value));
    ids_ = _mm512_mask_mov_epi32(ids_, place, _mm512_set1_epi32(static_cast<int>(id)));
  }
  Sixteen sixteen() const {
    Sixteen result;
    _mm512_storeu_ps(result.values, values_);
    _mm512_storeu_si512(result.ids, ids_);
    return result;
  }

 private:
  // Bit i: place i stands before (value, id).
  __mmask16 precede(float value, std::uint32_t id) const {
    const __m512 values = _mm512_set1_ps(value);
    const __mmask16 equal = _mm512_cmp_ps_mask(values_, values, _CMP_EQ_OQ);
    const __m512i ids = _mm512_set1_epi32(static_cast<int>(id));
    return static_cast<__mmask16>(_mm512_cmp_ps_mask(values_, values, _CMP_GT_OQ) |
                                  _mm512_mask_cmplt_epu32_mask(equal, ids_, ids));
  }

  __m512 values_ = _mm512_set1_ps(kNegativeInfinity);
  __m512i ids_ = _mm512_set1_epi32(static_cast<int>(kNoId));
};

struct Avx512 {
  using Floats = __m512;
  using List = FirstSixteenInRegisters;
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
};

}  // namespace

void dflash2_top16_avx512(const NativeLaunch& launch, std::uint32_t task) { top16<Avx512>(launch, task); }
void dflash2_edges_avx512(const NativeLaunch& launch, std::uint32_t task) { edges<Avx512>(launch, task); }

}  // namespace metalane::cpu
#endif
