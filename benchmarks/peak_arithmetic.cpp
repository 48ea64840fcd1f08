// Multiplies and adds floats as fast as the machine lets several threads do it: the roof of the products.
//
// Built as a shared library and called by harness.py.
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));

// Sums that wait for themselves only: as many as two units of four cycles need. (16 registers of AVX2 hold
// them.)
constexpr std::size_t kChains = 12;

double chains(std::size_t steps) {
  Floats sums[kChains] = {};
  Floats factor = Floats{} + 0.999f;
  Floats addend = Floats{} + 0.5f;
  for (std::size_t i = 0; i < steps; ++i) {
    // Else the compiler might see through the constants.
#if defined(__x86_64__)
    asm volatile("" : "+x"(factor), "+x"(addend));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(factor), "+w"(addend));
#endif
    for (Floats& sum : sums) sum = sum * factor + addend;
  }
  double total = 0;
  for (const Floats& sum : sums) total += static_cast<double>(sum[0]);
  return total;
}

}  // namespace

// Floating-point operations a second of `threads` threads, each of which takes `steps` steps. `sink` gets
// what they added up, so that nothing can be left out.
extern "C" double peak_arithmetic(unsigned threads, std::size_t steps, double* sink) {
  std::vector<double> totals(threads);
  std::vector<std::thread> helpers;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back([&, i] { totals[i] = chains(steps); });
  totals[0] = chains(steps);
  for (std::thread& helper : helpers) helper.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const double total : totals) *sink += total;
  return 2.0 * static_cast<double>(kChains * kLanes * steps) * threads / seconds;
}
