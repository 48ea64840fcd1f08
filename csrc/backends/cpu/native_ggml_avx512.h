// The vector type of the AVX-512 GGML kernels (F, BW, DQ, VL): 16 floats a register. Internal linkage: see
// native_ggml_blocks.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  using Bytes = __m512i;
  static constexpr Isa isa = Isa::avx512;
  static constexpr std::uint32_t mv_sums = 16;
  static constexpr std::uint32_t mm_rows = 4,
                                 mm_inputs = 6;  // 24 sums, 4 weights and an input of 32 registers

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats splat(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static Floats load_first(const float* p, std::uint32_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static void store_first(float* p, std::uint32_t n, Floats x) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Floats load_half(const std::uint8_t* p) { return _mm512_cvtph_ps(load256(p)); }
  static Floats load_bf16(const std::uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
  }
  static float half(const std::uint8_t* p) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
  }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Floats x) {  // halves, quarters, eighths, pairs
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static Floats repeat4(Floats x, std::uint32_t i) {
    const __m512i fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(fours, _mm512_set1_epi32(static_cast<int>(4 * i))), x);
  }

  static Ints bytes(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Ints down(Ints x, std::uint32_t bits) { return _mm512_srli_epi32(x, bits); }
  static Ints low(Ints x, std::uint32_t bits) {
    return _mm512_and_si512(x, _mm512_set1_epi32((1 << bits) - 1));
  }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }

  // Permutations look at the lowest bits of an index only.
  static Floats look_up16(Floats table, Ints i) { return _mm512_permutexvar_ps(i, table); }
  static Floats look_up32(Floats first, Floats second, Ints i, const std::uint8_t* fifth) {
    __mmask16 bits;
    __builtin_memcpy(&bits, fifth, sizeof bits);
    return _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(i, first), bits, i, second);
  }
  static Floats look_up4(const float* p, Ints i) {
    return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(p)), i);
  }

  static Bytes load64(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static Bytes load32_twice(const std::uint8_t* p) { return _mm512_broadcast_i64x4(load256(p)); }
  static Bytes down(Bytes x, std::uint32_t first, std::uint32_t second) {
    if (first == second) return _mm512_srli_epi16(x, first);
    const __m256i low = _mm256_set1_epi16(static_cast<short>(first));
    const __m256i high = _mm256_set1_epi16(static_cast<short>(second));
    return _mm512_srlv_epi16(x, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
  static Bytes keep(Bytes x, std::uint8_t mask) {
    return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static Bytes up(Bytes x, std::uint32_t bits) { return _mm512_slli_epi16(x, bits); }
  static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes minus(Bytes x, std::uint8_t byte) {
    return _mm512_sub_epi8(x, _mm512_set1_epi8(static_cast<char>(byte)));
  }
  static void store64(std::int8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
  static Floats signed_floats(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

 protected:
  static __mmask16 first(std::uint32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static __m256i load256(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

}  // namespace
}  // namespace metalane::cpu
