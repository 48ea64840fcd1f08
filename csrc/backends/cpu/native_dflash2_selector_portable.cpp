// DFlash2 selector kernels with four-element vectors of the compiler (SSE2, NEON): run everywhere.
#include "backends/cpu/native_dflash2_selector.h"
#include "backends/cpu/native_dflash2_selector_simd.h"

namespace metalane::cpu {
namespace {

struct Portable {
  typedef float Floats __attribute__((vector_size(16)));
  typedef float Unaligned __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::uint32_t Bits __attribute__((vector_size(16)));
  using List = FirstSixteen;
  static constexpr std::uint32_t width = 4;
  static constexpr std::uint32_t tile_rows = 2;

  static Floats zero() { return splat(0.0f); }
  static Floats splat(float x) { return Floats{x, x, x, x}; }
  static Floats load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static void store(float* p, Floats x) { *reinterpret_cast<Unaligned*>(p) = x; }
  static Floats load_bf16(const std::uint16_t* p) {
    const Bits bits = {std::uint32_t{p[0]} << 16, std::uint32_t{p[1]} << 16, std::uint32_t{p[2]} << 16,
                       std::uint32_t{p[3]} << 16};
    return reinterpret_cast<Floats>(bits);
  }
  static Floats max(Floats fresh, Floats bound) { return fresh > bound ? fresh : bound; }
  static Floats multiply(Floats a, Floats b) { return a * b; }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }  // two roundings
  static float sum(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }            // halves, pairs
  static float largest(Floats x) {
    const float even = x[0] > x[2] ? x[0] : x[2];
    const float odd = x[1] > x[3] ? x[1] : x[3];
    return even > odd ? even : odd;
  }
  static std::uint32_t at_least(Floats x, Floats y) {
    const auto holds = x >= y;
    return (holds[0] & 1u) | (holds[1] & 2u) | (holds[2] & 4u) | (holds[3] & 8u);
  }
};

}  // namespace

void dflash2_top16_portable(const NativeLaunch& launch, std::uint32_t task) { top16<Portable>(launch, task); }
void dflash2_edges_portable(const NativeLaunch& launch, std::uint32_t task) { edges<Portable>(launch, task); }

}  // namespace metalane::cpu
