// What the portable and the NEON vector type of the GGML kernels share: 16 floats as four of the compiler's
// vectors of four. Internal linkage: see native_ggml_blocks.h.
#pragma once

#include <cstdint>

#include "backends/cpu/native_ggml_blocks.h"

namespace metalane::cpu {
namespace {

struct Fours {
  typedef float Float4 __attribute__((vector_size(16)));
  typedef float LooseFloat4 __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::uint32_t Int4 __attribute__((vector_size(16)));
  typedef std::int32_t Signed4 __attribute__((vector_size(16)));
  typedef std::uint64_t Long2 __attribute__((vector_size(16)));
  typedef std::uint8_t Byte16 __attribute__((vector_size(16)));
  typedef std::uint16_t Short8 __attribute__((vector_size(16)));

  struct Floats {
    Float4 of[4];
  };
  struct Ints {
    Int4 of[4];
  };
  struct Bytes {
    Short8 of[4];
  };

  static Floats zero() { return splat(0.0f); }
  static Floats splat(float x) {
    const Float4 four = {x, x, x, x};
    return {{four, four, four, four}};
  }
  static Floats load(const float* p) {
    Floats x;
    for (int i = 0; i < 4; ++i) x.of[i] = *reinterpret_cast<const LooseFloat4*>(p + 4 * i);
    return x;
  }
  static Floats load_first(const float* p, std::uint32_t n) {
    float all[16] = {};
    __builtin_memcpy(all, p, n * sizeof *p);
    return load(all);
  }
  static void store(float* p, Floats x) {
    for (int i = 0; i < 4; ++i) *reinterpret_cast<LooseFloat4*>(p + 4 * i) = x.of[i];
  }
  static void store_first(float* p, std::uint32_t n, Floats x) {
    float all[16];
    store(all, x);
    __builtin_memcpy(p, all, n * sizeof *p);
  }
  static Floats load_bf16(const std::uint8_t* p) {
    Floats x;
    for (int i = 0; i < 4; ++i) {
      std::uint16_t four[4];
      __builtin_memcpy(four, p + 8 * i, sizeof four);
      const Int4 bits = {std::uint32_t{four[0]} << 16, std::uint32_t{four[1]} << 16,
                         std::uint32_t{four[2]} << 16, std::uint32_t{four[3]} << 16};
      x.of[i] = reinterpret_cast<Float4>(bits);
    }
    return x;
  }
  static Floats add(Floats a, Floats b) {
    for (int i = 0; i < 4; ++i) a.of[i] += b.of[i];
    return a;
  }
  // Two roundings: for products that are exact.
  static Floats multiply_subtract(Floats a, Floats b, Floats c) {
    for (int i = 0; i < 4; ++i) a.of[i] = a.of[i] * b.of[i] - c.of[i];
    return a;
  }
  static Floats multiply(Floats a, Floats b) {
    for (int i = 0; i < 4; ++i) a.of[i] *= b.of[i];
    return a;
  }
  static float sum(Floats x) {  // halves, quarters, eighths, pairs
    const Float4 four = (x.of[0] + x.of[2]) + (x.of[1] + x.of[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
  static Floats repeat4(Floats x, std::uint32_t i) {
    Floats all;
    for (int j = 0; j < 4; ++j) {
      const float one = x.of[i][j];
      all.of[j] = Float4{one, one, one, one};
    }
    return all;
  }

  static Ints bytes(const std::uint8_t* p) {
    Ints x;
    for (int i = 0; i < 4; ++i) x.of[i] = Int4{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
    return x;
  }
  static Ints fields(const std::uint8_t* p, const BitField& first, const BitField& second) {
    const auto field = [p](const BitField& field, int lane) {
      const std::uint32_t byte = p[field.byte.of[lane]], bits = field.bits.of[lane];
      return (byte >> bits | byte << (32 - bits) % 32) & field.mask.of[lane];
    };
    Ints x;
    for (int lane = 0; lane < 16; ++lane) x.of[lane / 4][lane % 4] = field(first, lane) | field(second, lane);
    return x;
  }
  static Ints down(Ints x, std::uint32_t bits) {
    for (Int4& four : x.of) four >>= bits;
    return x;
  }
  static Ints low(Ints x, std::uint32_t bits) {
    for (Int4& four : x.of) four &= (1u << bits) - 1;
    return x;
  }
  static Floats to_floats(Ints x) {
    Floats all;
    for (int i = 0; i < 4; ++i)
      all.of[i] = __builtin_convertvector(reinterpret_cast<Signed4>(x.of[i]), Float4);
    return all;
  }

  static Bytes load64(const std::uint8_t* p) {
    Bytes x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static Bytes load32_twice(const std::uint8_t* p) {
    Bytes x;
    __builtin_memcpy(&x.of[0], p, 32);
    x.of[2] = x.of[0];
    x.of[3] = x.of[1];
    return x;
  }
  static Bytes down(Bytes x, int first, int second) {
    for (int i = 0; i < 4; ++i) {
      const int bits = i < 2 ? first : second;
      if (bits < 0)
        x.of[i] <<= static_cast<std::uint16_t>(-bits);
      else
        x.of[i] >>= static_cast<std::uint16_t>(bits);
    }
    return x;
  }
  static Bytes keep(Bytes x, std::uint8_t mask) {
    for (Short8& eight : x.of) eight &= static_cast<std::uint16_t>(mask * 0x0101);
    return x;
  }
  static Bytes select(std::uint8_t mask, Bytes a, Bytes b) {
    const auto bits = static_cast<std::uint16_t>(mask * 0x0101);
    for (int i = 0; i < 4; ++i) a.of[i] = (a.of[i] & bits) | (b.of[i] & static_cast<std::uint16_t>(~bits));
    return a;
  }
  static Bytes minus(Bytes x, std::uint8_t byte) {
    for (Short8& eight : x.of) eight = reinterpret_cast<Short8>(reinterpret_cast<Byte16>(eight) - byte);
    return x;
  }
  static void store64(std::int8_t* p, Bytes x) { __builtin_memcpy(p, &x, sizeof x); }
  static Floats signed_floats(const std::int8_t* p) {
    Floats x;
    for (int i = 0; i < 4; ++i) {
      const Signed4 four = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
      x.of[i] = __builtin_convertvector(four, Float4);
    }
    return x;
  }
};

}  // namespace
}  // namespace metalane::cpu
