// Mat-vec with GGML weights by AVX-512's dot products of bytes.
#include "backends/cpu/native_ggml.h"

#if defined(__x86_64__)
#include "backends/cpu/native_ggml_avx512.h"
#include "backends/cpu/native_ggml_planes.h"

namespace metalane::cpu {
namespace {

struct Avx512Vnni : Avx512 {
  static constexpr Isa isa = Isa::avx512_vnni;

  static Bytes load64(const void* p) { return _mm512_loadu_si512(p); }
  static Bytes load16s(const std::uint8_t* p, std::uint32_t stride) {
    __m512i x = _mm512_castsi128_si512(load128(p));
    x = _mm512_inserti32x4(x, load128(p + stride), 1);
    x = _mm512_inserti32x4(x, load128(p + 2 * stride), 2);
    return _mm512_inserti32x4(x, load128(p + 3 * stride), 3);
  }
  static Bytes repeat16(const std::uint8_t* p) { return _mm512_broadcast_i32x4(load128(p)); }
  static Bytes every(std::uint8_t byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static Bytes even_quarters(Bytes a, Bytes b) { return _mm512_shuffle_i64x2(a, b, 0x88); }
  static Bytes odd_quarters(Bytes a, Bytes b) { return _mm512_shuffle_i64x2(a, b, 0xdd); }
  template <int a, int b, int c, int d>
  static Bytes rotate(Bytes x) {
    return _mm512_rorv_epi64(x, _mm512_set_epi64(d, d, c, c, b, b, a, a));
  }
  static Bytes select(std::uint8_t mask, Bytes a, Bytes b) {
    return _mm512_ternarylogic_epi64(every(mask), a, b, 0xca);
  }
  static Bytes flip(Bytes x, std::uint8_t mask) { return _mm512_xor_si512(x, every(mask)); }
  static Bytes add_where(std::uint64_t bits, Bytes x, std::uint8_t byte) {
    return _mm512_mask_add_epi8(x, bits, x, every(byte));
  }
  static Bytes look_up(const std::uint8_t* table, Bytes i) { return _mm512_shuffle_epi8(repeat16(table), i); }
  static void transpose(Bytes (&x)[4]) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
  }

  template <int words>
  static Bytes turned(Bytes x) {
    return _mm512_shuffle_epi32(
        x, static_cast<_MM_PERM_ENUM>((0b11100100 >> 2 * words | 0b11100100 << (8 - 2 * words)) & 255));
  }
  static Bytes rotate_words(Bytes x, const Lanes& bits) {
    return _mm512_rorv_epi32(x, _mm512_load_si512(&bits));
  }

  static Floats spread4(const float* p) {
    const __m512i fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(p)), fours);
  }
  static Floats permuted(Floats x, const Lanes& places) {
    return _mm512_permutexvar_ps(_mm512_load_si512(&places), x);
  }
  static Ints picked(const std::uint8_t* p, const Lanes& places) {
    const __m512i zeros_above = _mm512_set1_epi32(static_cast<int>(0x80808000));
    return _mm512_shuffle_epi8(repeat16(p), _mm512_or_si512(_mm512_load_si512(&places), zeros_above));
  }
  static Ints fields(const std::uint8_t* p, const BitField& first, const BitField& second) {
    const auto rotated = [p](const BitField& field) {
      return _mm512_rorv_epi32(picked(p, field.byte), _mm512_load_si512(&field.bits));
    };
    const __m512i above = _mm512_and_si512(rotated(second), _mm512_load_si512(&second.mask));
    return _mm512_ternarylogic_epi32(rotated(first), _mm512_load_si512(&first.mask), above, 0xea);
  }
  static Floats half_powers(const std::uint8_t* p) {  // subnormal for bytes of 0 and 1
    const __m512i e = bytes(p), small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 is_small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
  }
  static Floats eights(float a, float b) {
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(a), _mm512_set1_ps(b));
  }

  static Ints no_ints() { return _mm512_setzero_si512(); }
  static Ints dot(Ints sums, Bytes a, Bytes b) { return _mm512_dpbusd_epi32(sums, a, b); }
  template <int bits>
  static Ints raised(Ints x) {
    return _mm512_slli_epi32(x, bits);
  }
  static Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints negative(Ints x) { return _mm512_sub_epi32(no_ints(), x); }
  static Ints load_ints(const std::int32_t* p) { return _mm512_load_si512(p); }
  static void store_ints(std::int32_t* p, Ints x) { _mm512_storeu_si512(p, x); }

  static Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
  static Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static float largest(Floats x) { return _mm512_reduce_max_ps(x); }
  static void digits(Floats x, float scale, std::int8_t* high, std::int8_t* middle, std::int8_t* low) {
    __m512i all = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(scale)));
    for (std::int8_t* digit : {low, middle, high}) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(digit), _mm512_cvtepi32_epi8(all));
      all = _mm512_srai_epi32(_mm512_add_epi32(all, _mm512_set1_epi32(128)), 8);
    }
  }

 private:
  static __m128i load128(const std::uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
};

}  // namespace

std::span<const NativeKernel> ggml_native_kernels_avx512_vnni() { return plane_kernels_of<Avx512Vnni>; }

}  // namespace metalane::cpu
#endif
