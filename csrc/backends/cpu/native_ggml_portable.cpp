// GGML products with the compiler's vectors (SSE2 on x86-64): run everywhere.
#include "backends/cpu/native_ggml.h"
#include "backends/cpu/native_ggml_fours.h"
#include "backends/cpu/native_ggml_products.h"

namespace metalane::cpu {
namespace {

struct Portable : Fours {
  static constexpr Isa isa = Isa::baseline;
  static constexpr std::uint32_t mv_rows(std::uint32_t inputs) { return inputs == 1 ? 2 : 1; }
  static constexpr std::uint32_t mm_rows = 1, mm_inputs = 2;  // 8 of 16 registers hold sums

  static Floats multiply_add(Floats a, Floats b, Floats c) {  // two roundings
    for (int i = 0; i < 4; ++i) c.of[i] += a.of[i] * b.of[i];
    return c;
  }
  // A half's exponent and mantissa are a float's, 112 binary orders too small; subnormals become normal by
  // the product.
  static float half(const std::uint8_t* p) {
    std::uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    const std::uint32_t moved = (half & 0x7fffu) << 13;
    std::uint32_t bits = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, moved) * 0x1p112f);
    if ((half & 0x7c00) == 0x7c00) bits = moved | 0x7f800000;  // infinite or NaN
    return __builtin_bit_cast(float, bits | (half & 0x8000u) << 16);
  }
  static void two_halves(const std::uint8_t* p, float* to) {
    to[0] = half(p);
    to[1] = half(p + 2);
  }
  static void eight_halves(const std::uint8_t* p, std::uint32_t stride, float* to) {
    for (std::uint32_t i = 0; i < 8; ++i) to[i] = half(p + i * stride);
  }
  static Floats eights(const std::uint8_t* p) {
    const Float4 first = splat(half(p)).of[0], second = splat(half(p + 2)).of[0];
    return {{first, first, second, second}};
  }
  static Floats load_half(const std::uint8_t* p) {
    float all[16];
    for (int i = 0; i < 16; ++i) all[i] = half(p + 2 * i);
    return load(all);
  }

  static Floats look_up16(Floats table, Ints i) {
    float entries[16], found[16];
    store(entries, table);
    for (int j = 0; j < 16; ++j) found[j] = entries[i.of[j / 4][j % 4] & 15];
    return load(found);
  }
  static Floats look_up32(Floats first, Floats second, Ints i, const std::uint8_t* fifth) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, fifth, sizeof bits);
    float entries[32], found[16];
    store(entries, first);
    store(entries + 16, second);
    for (int j = 0; j < 16; ++j) found[j] = entries[(i.of[j / 4][j % 4] & 15) | (bits >> j & 1) << 4];
    return load(found);
  }
  static Floats look_up4(const float* p, Ints i) {
    float found[16];
    for (int j = 0; j < 16; ++j) found[j] = p[i.of[j / 4][j % 4] & 3];
    return load(found);
  }
};

}  // namespace

std::span<const NativeKernel> ggml_native_kernels_portable() { return ggml_kernels_of<Portable>; }

}  // namespace metalane::cpu
