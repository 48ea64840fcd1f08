// GGML products with AVX-512: 16 floats in one register.
#include "backends/cpu/native_ggml.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "backends/cpu/native_ggml_products.h"

namespace metalane::cpu {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  using Bytes = __m512i;
  static constexpr Isa isa = Isa::avx512;
  static constexpr std::uint32_t mv_rows(std::uint32_t inputs) { return inputs <= 2 ? 4 : 2; }
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
  static Floats multiply_subtract(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Floats x) {  // halves, quarters, eighths, pairs
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static void two_halves(const std::uint8_t* p, float* to) {
    int two;
    __builtin_memcpy(&two, p, sizeof two);
    _mm_storeu_ps(to, _mm_cvtph_ps(_mm_cvtsi32_si128(two)));
  }
  static void eight_halves(const std::uint8_t* p, std::uint32_t stride, float* to) {
    __m128i halves = _mm_setzero_si128();
    halves = _mm_insert_epi16(halves, bits16(p), 0);
    halves = _mm_insert_epi16(halves, bits16(p + stride), 1);
    halves = _mm_insert_epi16(halves, bits16(p + 2 * stride), 2);
    halves = _mm_insert_epi16(halves, bits16(p + 3 * stride), 3);
    halves = _mm_insert_epi16(halves, bits16(p + 4 * stride), 4);
    halves = _mm_insert_epi16(halves, bits16(p + 5 * stride), 5);
    halves = _mm_insert_epi16(halves, bits16(p + 6 * stride), 6);
    halves = _mm_insert_epi16(halves, bits16(p + 7 * stride), 7);
    _mm256_store_ps(to, _mm256_cvtph_ps(halves));
  }
  static Floats eights(const std::uint8_t* p) {
    int two;
    __builtin_memcpy(&two, p, sizeof two);
    const __m512i places = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(places, _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(two))));
  }
  static Floats repeat4(Floats x, std::uint32_t i) {
    const __m512i fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(fours, _mm512_set1_epi32(static_cast<int>(4 * i))), x);
  }

  static Ints bytes(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Ints fields(const std::uint8_t* p, const BitField& first, const BitField& second) {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const auto rotated = [bytes](const BitField& field) {
      return _mm512_rorv_epi32(_mm512_shuffle_epi8(bytes, _mm512_load_si512(&field.byte)),
                               _mm512_load_si512(&field.bits));
    };
    const __m512i above = _mm512_and_si512(rotated(second), _mm512_load_si512(&second.mask));
    return _mm512_ternarylogic_epi32(rotated(first), _mm512_load_si512(&first.mask), above, 0xea);
  }
  static Ints down(Ints x, std::uint32_t bits) { return _mm512_srli_epi32(x, bits); }
  static Ints low(Ints x, std::uint32_t bits) {
    return _mm512_and_si512(x, _mm512_set1_epi32((1 << bits) - 1));
  }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }

  // Permutations look at the lowest bits of an index only.
  static Floats look_up16(Floats table, Ints i) { return _mm512_permutexvar_ps(i, table); }
  // Four bytes may be read from `fifth` on. Lane l's bit comes to bit 4 of its index.
  static Floats look_up32(Floats first, Floats second, Ints i, const std::uint8_t* fifth) {
    int bits;
    __builtin_memcpy(&bits, fifth, sizeof bits);
    const __m512i places = _mm512_set_epi32(11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 31, 30, 29, 28);
    const __m512i moved = _mm512_rorv_epi32(_mm512_set1_epi32(bits), places);
    return _mm512_permutex2var_ps(first, _mm512_ternarylogic_epi32(_mm512_set1_epi32(16), moved, i, 0xca),
                                  second);
  }
  static Floats look_up4(const float* p, Ints i) {
    return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(p)), i);
  }

  static Bytes load64(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static Bytes load32_twice(const std::uint8_t* p) { return _mm512_broadcast_i64x4(load256(p)); }
  static Bytes down(Bytes x, int first, int second) {
    if (first == second) return _mm512_srli_epi16(x, static_cast<unsigned>(first));
    return _mm512_rorv_epi64(x, _mm512_set_epi64(second, second, second, second, first, first, first, first));
  }
  static Bytes keep(Bytes x, std::uint8_t mask) {
    return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static Bytes select(std::uint8_t mask, Bytes a, Bytes b) {
    return _mm512_ternarylogic_epi64(_mm512_set1_epi8(static_cast<char>(mask)), a, b, 0xca);
  }
  static Bytes minus(Bytes x, std::uint8_t byte) {
    return _mm512_sub_epi8(x, _mm512_set1_epi8(static_cast<char>(byte)));
  }
  static void store64(std::int8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
  static Floats signed_floats(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

 private:
  static int bits16(const std::uint8_t* p) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
  }
  static __mmask16 first(std::uint32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static __m256i load256(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

}  // namespace

std::span<const NativeKernel> ggml_native_kernels_avx512() { return ggml_kernels_of<Avx512>; }

}  // namespace metalane::cpu
#endif
