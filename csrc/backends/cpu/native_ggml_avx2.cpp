// GGML products with AVX2, FMA and F16C: 16 floats in two registers.
#include "backends/cpu/native_ggml.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "backends/cpu/native_ggml_products.h"

namespace metalane::cpu {
namespace {

struct Avx2 {
  struct Floats {
    __m256 low, high;
  };
  struct Ints {
    __m256i low, high;
  };
  struct Bytes {
    __m256i first, second;
  };
  static constexpr Isa isa = Isa::avx2;
  static constexpr std::uint32_t mv_rows(std::uint32_t inputs) { return 4 / inputs; }
  static constexpr std::uint32_t mm_rows = 2, mm_inputs = 3;  // 12 of 16 registers hold sums

  static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Floats load_first(const float* p, std::uint32_t n) {
    return {_mm256_maskload_ps(p, first(n, 0)),
            n > 8 ? _mm256_maskload_ps(p + 8, first(n, 8)) : _mm256_setzero_ps()};
  }
  static void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static void store_first(float* p, std::uint32_t n, Floats x) {
    _mm256_maskstore_ps(p, first(n, 0), x.low);
    if (n > 8) _mm256_maskstore_ps(p + 8, first(n, 8), x.high);
  }
  static Floats load_half(const std::uint8_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
  }
  static Floats load_bf16(const std::uint8_t* p) { return {upper_halves(p), upper_halves(p + 16)}; }
  static float half(const std::uint8_t* p) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
  }
  static Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats multiply_subtract(Floats a, Floats b, Floats c) {
    return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
  }
  static Floats multiply(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Floats multiply_add(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static float sum(Floats x) {  // halves, quarters, eighths, pairs
    const __m256 eight = _mm256_add_ps(x.low, x.high);
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
    alignas(16) std::uint8_t halves[16];
    for (std::uint32_t i = 0; i < 8; ++i) __builtin_memcpy(halves + 2 * i, p + i * stride, 2);
    _mm256_store_ps(to, _mm256_cvtph_ps(load128(halves)));
  }
  static Floats eights(const std::uint8_t* p) {
    return {_mm256_set1_ps(half(p)), _mm256_set1_ps(half(p + 2))};
  }
  static Floats repeat4(Floats x, std::uint32_t i) {
    alignas(32) float all[16];
    store(all, x);
    const float* four = all + 4 * i;
    return {_mm256_set_m128(_mm_set1_ps(four[1]), _mm_set1_ps(four[0])),
            _mm256_set_m128(_mm_set1_ps(four[3]), _mm_set1_ps(four[2]))};
  }

  static Ints bytes(const std::uint8_t* p) {
    const __m128i x = load128(p);
    return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(x, x))};
  }
  static Ints fields(const std::uint8_t* p, const BitField& first, const BitField& second) {
    const __m256i bytes = _mm256_broadcastsi128_si256(load128(p));
    return {_mm256_or_si256(field(bytes, first, 0), field(bytes, second, 0)),
            _mm256_or_si256(field(bytes, first, 8), field(bytes, second, 8))};
  }
  static Ints down(Ints x, std::uint32_t bits) {
    const int count = static_cast<int>(bits);
    return {_mm256_srli_epi32(x.low, count), _mm256_srli_epi32(x.high, count)};
  }
  static Ints low(Ints x, std::uint32_t bits) {
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    return {_mm256_and_si256(x.low, mask), _mm256_and_si256(x.high, mask)};
  }
  static Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }

  static Floats look_up16(Floats table, Ints i) {
    return {look_up16(table, i.low), look_up16(table, i.high)};
  }
  static Floats look_up32(Floats first, Floats second, Ints i, const std::uint8_t* fifth) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, fifth, sizeof bits);
    const __m256i all = _mm256_set1_epi32(bits);
    // Bit j of the sixteen at the top of element j.
    const __m256i low = _mm256_sllv_epi32(all, _mm256_set_epi32(24, 25, 26, 27, 28, 29, 30, 31));
    const __m256i high = _mm256_sllv_epi32(all, _mm256_set_epi32(16, 17, 18, 19, 20, 21, 22, 23));
    return {_mm256_blendv_ps(look_up16(first, i.low), look_up16(second, i.low), _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(look_up16(first, i.high), look_up16(second, i.high), _mm256_castsi256_ps(high))};
  }
  static Floats look_up4(const float* p, Ints i) {
    const __m256 table = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
    return {_mm256_permutevar_ps(table, i.low), _mm256_permutevar_ps(table, i.high)};
  }

  static Bytes load64(const std::uint8_t* p) { return {load256(p), load256(p + 32)}; }
  static Bytes load32_twice(const std::uint8_t* p) { return {load256(p), load256(p)}; }
  static Bytes down(Bytes x, int first, int second) {
    return {moved(x.first, first), moved(x.second, second)};
  }
  static Bytes keep(Bytes x, std::uint8_t mask) {
    const __m256i bits = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(x.first, bits), _mm256_and_si256(x.second, bits)};
  }
  static Bytes select(std::uint8_t mask, Bytes a, Bytes b) {
    const __m256i bits = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_or_si256(_mm256_and_si256(bits, a.first), _mm256_andnot_si256(bits, b.first)),
            _mm256_or_si256(_mm256_and_si256(bits, a.second), _mm256_andnot_si256(bits, b.second))};
  }
  static Bytes minus(Bytes x, std::uint8_t byte) {
    const __m256i bytes = _mm256_set1_epi8(static_cast<char>(byte));
    return {_mm256_sub_epi8(x.first, bytes), _mm256_sub_epi8(x.second, bytes)};
  }
  static void store64(std::int8_t* p, Bytes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.second);
  }
  static Floats signed_floats(const std::int8_t* p) {
    const __m128i x = load128(reinterpret_cast<const std::uint8_t*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)))};
  }

 private:
  static __m256i moved(__m256i x, int down) {
    return down < 0 ? _mm256_slli_epi16(x, -down) : _mm256_srli_epi16(x, down);
  }
  // Permutations know eight elements; bit 3 of an index chooses between two of them.
  static __m256 look_up16(Floats table, __m256i i) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, i), _mm256_permutevar8x32_ps(table.high, i),
                            _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
  }
  static __m256i first(std::uint32_t n, int from) {
    const __m256i place = _mm256_add_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(from));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), place);
  }
  static __m256i eight_of(const Lanes& lanes, int from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes.of + from));
  }
  static __m256i field(__m256i bytes, const BitField& field, int from) {
    const __m256i x = _mm256_shuffle_epi8(bytes, eight_of(field.byte, from)),
                  bits = eight_of(field.bits, from);
    const __m256i up = _mm256_sllv_epi32(x, _mm256_sub_epi32(_mm256_set1_epi32(32), bits));
    return _mm256_and_si256(_mm256_or_si256(_mm256_srlv_epi32(x, bits), up), eight_of(field.mask, from));
  }
  static __m256 upper_halves(const std::uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
  }
  static __m128i load128(const std::uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m256i load256(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

}  // namespace

std::span<const NativeKernel> ggml_native_kernels_avx2() { return ggml_kernels_of<Avx2>; }

}  // namespace metalane::cpu
#endif
