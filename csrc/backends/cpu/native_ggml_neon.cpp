// GGML products with NEON: 16 floats in four registers.
#include "backends/cpu/native_ggml.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "backends/cpu/native_ggml_fours.h"
#include "backends/cpu/native_ggml_products.h"

namespace metalane::cpu {
namespace {

struct Neon : Fours {
  static constexpr Isa isa = Isa::neon;
  static constexpr std::uint32_t mv_rows(std::uint32_t inputs) {
    return inputs == 1 ? 4 : inputs == 2 ? 2 : 1;
  }
  static constexpr std::uint32_t mm_rows = 2, mm_inputs = 2;  // 16 of 32 registers hold sums

  static Floats multiply_add(Floats a, Floats b, Floats c) {
    for (int i = 0; i < 4; ++i) c.of[i] = vfmaq_f32(c.of[i], a.of[i], b.of[i]);
    return c;
  }
  static float half(const std::uint8_t* p) {
    __fp16 one;
    __builtin_memcpy(&one, p, sizeof one);
    return one;
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
    Floats x;
    for (int i = 0; i < 4; ++i) x.of[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)));
    return x;
  }
  static Floats load_bf16(const std::uint8_t* p) {
    Floats x;
    for (int i = 0; i < 4; ++i)
      x.of[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * i)), 16));
    return x;
  }

  static Ints bytes(const std::uint8_t* p) {
    const uint8x16_t all = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_high_u8(all);
    return {{vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)),
             vmovl_high_u16(high)}};
  }
  static Floats signed_floats(const std::int8_t* p) {
    const int8x16_t all = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_high_s8(all);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
  }

  // The 64 bytes of a table are looked up byte by byte: those of entry e are 4 * e to 4 * e + 3.
  static Floats look_up16(Floats table, Ints i) {
    const uint8x16x4_t entries = bytes_of(table);
    Floats found;
    for (int j = 0; j < 4; ++j) found.of[j] = look_up(entries, vandq_u32(i.of[j], vdupq_n_u32(15)));
    return found;
  }
  static Floats look_up32(Floats first, Floats second, Ints i, const std::uint8_t* fifth) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, fifth, sizeof bits);
    const uint8x16x4_t low = bytes_of(first), high = bytes_of(second);
    Floats found;
    for (int j = 0; j < 4; ++j) {
      const uint32x4_t index = vandq_u32(i.of[j], vdupq_n_u32(15));
      const uint32x4_t place = vshlq_u32(vdupq_n_u32(1), int32x4_t{4 * j, 4 * j + 1, 4 * j + 2, 4 * j + 3});
      found.of[j] = vbslq_f32(vtstq_u32(vdupq_n_u32(bits), place), look_up(high, index), look_up(low, index));
    }
    return found;
  }
  static Floats look_up4(const float* p, Ints i) {
    const uint8x16_t entries = vreinterpretq_u8_f32(vld1q_f32(p));
    Floats found;
    for (int j = 0; j < 4; ++j) {
      const uint8x16_t at = places_of(vandq_u32(i.of[j], vdupq_n_u32(3)));
      found.of[j] = vreinterpretq_f32_u8(vqtbl1q_u8(entries, at));
    }
    return found;
  }

 private:
  static uint8x16x4_t bytes_of(Floats table) {
    return {{vreinterpretq_u8_f32(table.of[0]), vreinterpretq_u8_f32(table.of[1]),
             vreinterpretq_u8_f32(table.of[2]), vreinterpretq_u8_f32(table.of[3])}};
  }
  static uint8x16_t places_of(uint32x4_t index) {
    return vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x03020100), index, 0x04040404));
  }
  static float32x4_t look_up(uint8x16x4_t entries, uint32x4_t index) {
    return vreinterpretq_f32_u8(vqtbl4q_u8(entries, places_of(index)));
  }
};

}  // namespace

std::span<const NativeKernel> ggml_native_kernels_neon() { return ggml_kernels_of<Neon>; }

}  // namespace metalane::cpu
#endif
