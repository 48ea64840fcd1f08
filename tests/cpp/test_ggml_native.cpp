// Native GGML kernels of every instruction set against double sums of the weights as core decodes them. Under
// the emulation of arm64 this is where NEON is tested; Python's tests reach the sets of the machine.
#include <metalane/params/embedding_ggml.h>
#include <metalane/params/ggml_types.h>
#include <metalane/params/quantized_matmul_ggml.h>
#include <metalane/params/quantized_matmul_id_ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/instruction_set.h"
#include "backends/cpu/native_ggml.h"
#include "check.h"
#include "core/ggml_decode.h"

namespace {

using namespace metalane;
using cpu::NativeKernel;
using cpu::NativeLaunch;

constexpr float kPoison = -12345.0f;

struct Type {
  GgmlType type;
  std::string name;
  std::uint32_t block_length, block_bytes;
};

const std::vector<Type>& types() {
#define ENTRY(name, id, length, bytes) {GgmlType::name, #name, length, bytes},
  static const std::vector<Type> all = {METALANE_GGML_WEIGHT_TYPES(ENTRY)};
#undef ENTRY
  return all;
}

// Bytes at random, with scales that are neither infinite nor NaN: their exponents lose a bit.
std::vector<std::uint8_t> random_rows(const Type& type, std::uint32_t rows, std::uint32_t k,
                                      std::mt19937& random) {
  const std::uint64_t blocks = std::uint64_t{rows} * k / type.block_length;
  std::vector<std::uint8_t> bytes(blocks * type.block_bytes);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  std::vector<float> decoded(std::max<std::uint32_t>(type.block_length, 1));
  std::normal_distribution<float> normal;
  for (std::uint64_t block = 0; block < blocks; ++block) {
    std::uint8_t* const at = bytes.data() + block * type.block_bytes;
    if (type.type == GgmlType::F32) {
      const float value = normal(random);
      std::memcpy(at, &value, sizeof value);
    }
    const auto usable = [&] {
      core::decode_blocks(type.type, at, 1, decoded.data());
      return std::all_of(decoded.begin(), decoded.end(), [](float w) { return std::abs(w) < 1e6f; });
    };
    while (!usable()) {
      for (std::uint32_t i = 0; i < type.block_bytes; ++i) at[i] = static_cast<std::uint8_t>(random());
      if (type.type == GgmlType::MXFP4) at[0] = static_cast<std::uint8_t>(118 + random() % 12);
    }
  }
  return bytes;
}

std::vector<float> decoded(const Type& type, const std::vector<std::uint8_t>& bytes) {
  const std::uint64_t blocks = bytes.size() / type.block_bytes;
  std::vector<float> values(blocks * type.block_length);
  core::decode_blocks(type.type, bytes.data(), blocks, values.data());
  return values;
}

std::vector<float> random_floats(std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<NativeKernel> variants(const std::string& name) {
  std::vector<NativeKernel> result;
  for (const NativeKernel& kernel : cpu::ggml_native_kernels()) {
    if (kernel.name == name && cpu::supports(kernel.isa)) result.push_back(kernel);
  }
  return result;
}

// What a launch binds, by index.
class Bindings {
 public:
  template <typename T>
  Bindings& add(std::vector<T>& values) {
    return add(values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  Bindings& add(T* values, std::uint64_t nbytes) {
    buffers_.push_back(values);
    sizes_.push_back(nbytes);
    return *this;
  }
  void run(const NativeKernel& kernel, std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t tg_x,
           std::uint32_t tg_y = 1) {
    NativeLaunch launch;
    launch.buffers = buffers_.data();
    launch.sizes = sizes_.data();
    launch.grid[0] = x, launch.grid[1] = y, launch.grid[2] = z;
    launch.threads_per_threadgroup[0] = tg_x, launch.threads_per_threadgroup[1] = tg_y;
    for (std::uint32_t task = kernel.tasks(launch); task-- > 0;) kernel.run(launch, task);
  }

 private:
  std::vector<void*> buffers_;
  std::vector<std::uint64_t> sizes_;
};

// Row `i` of `x` times row `r` of `w`, and the sum of the sizes of its products.
struct Product {
  double sum = 0, size = 0;
  Product(const float* x, const float* w, std::uint32_t k) {
    for (std::uint32_t j = 0; j < k; ++j) {
      const double term = double{x[j]} * w[j];
      sum += term;
      size += std::abs(term);
    }
  }
  bool accepts(float value) const { return std::abs(value - sum) <= 1e-6 * size + 1e-30; }
};

std::uint32_t divided_up(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

TEST_CASE(dense_products) {
  std::mt19937 random(1);
  struct Kernel {
    const char *before, *behind;
    std::uint32_t weight_rows, input_rows;
  };
  const Kernel kernels[] = {{"mv_", "_1", 16, 1}, {"mv_", "_2", 16, 2}, {"mv_", "_4", 8, 4},
                            {"mv_", "_8", 8, 8},  {"mm_", "", 64, 32},  {"mm_simd_", "", 64, 32}};
  for (const Type& type : types()) {
    for (const std::uint32_t k :
         {type.block_length == 1 ? 77u : 3 * type.block_length, type.block_length == 32 ? 1696u : 1280u}) {
      const std::uint32_t m = 11, n = 37;
      std::vector<std::uint8_t> weight = random_rows(type, n, k, random);
      const std::vector<float> w = decoded(type, weight);
      std::vector<float> x = random_floats(std::size_t{m} * k, random);
      x[3 * k + 5] = 1e7f;  // among small ones, which must not be lost where the weight is zero
      std::fill_n(&x[4 * k], k, 0.0f);
      for (std::uint32_t j = 0; j < k; ++j) x[6 * k + j] *= 1e-33f;
      std::vector<float> broken = x;  // but for some rows the same
      broken[2 * k] = std::numeric_limits<float>::quiet_NaN();
      broken[9 * k + 3] = std::numeric_limits<float>::infinity();
      for (const Kernel& one : kernels) {
        const auto found = variants(std::string("quantized_matmul_") + one.before + type.name + one.behind);
        CHECK(!found.empty());
        for (const NativeKernel& kernel : found) {
          std::vector<float> output(m * n + 8, kPoison);
          GgmlQuantizedMatmulParams params = {m, n, k, static_cast<std::uint32_t>(type.type)};
          Bindings()
              .add(x)
              .add(weight)
              .add(output.data(), m * n * sizeof(float))
              .add(&params, sizeof params)
              .run(kernel, divided_up(n, one.weight_rows), divided_up(m, one.input_rows), 1, 128);
          for (std::uint32_t i = 0; i < m; ++i) {
            for (std::uint32_t r = 0; r < n; ++r)
              CHECK(Product(&x[i * k], &w[std::size_t{r} * k], k).accepts(output[i * n + r]));
          }
          CHECK(std::all_of(output.end() - 8, output.end(), [](float value) { return value == kPoison; }));
          std::vector<float> second(m * n, kPoison);
          Bindings()
              .add(broken)
              .add(weight)
              .add(second)
              .add(&params, sizeof params)
              .run(kernel, divided_up(n, one.weight_rows), divided_up(m, one.input_rows), 1, 128);
          for (std::uint32_t i = 0; i < m * n; ++i) {
            const bool is_broken = i / n == 2 || i / n == 9;
            CHECK(is_broken ? !std::isfinite(second[i]) : second[i] == output[i]);
          }
        }
      }
    }
  }
}

TEST_CASE(gathers) {
  std::mt19937 random(2);
  for (const Type& type : types()) {
    const std::uint32_t rows = 5, k = type.block_length == 1 ? 35 : 2 * type.block_length;
    std::vector<std::uint8_t> weight = random_rows(type, rows, k, random);
    const std::vector<float> w = decoded(type, weight);
    for (const NativeKernel& kernel : variants("embedding_gather_" + type.name)) {
      std::vector<std::uint32_t> ids = {4, 0, rows, 2, 0xffffffff};
      std::vector<std::uint32_t> status = {7};
      std::vector<float> output(ids.size() * k, kPoison);
      EmbeddingGgmlParams params = {rows, k, static_cast<std::uint32_t>(ids.size()),
                                    static_cast<std::uint32_t>(type.type)};
      Bindings()
          .add(weight)
          .add(ids)
          .add(output)
          .add(status)
          .add(&params, sizeof params)
          .run(kernel, 1, static_cast<std::uint32_t>(ids.size()), 1, 32);
      CHECK_EQ(status[0], 9u);
      for (std::size_t t = 0; t < ids.size(); ++t) {
        const std::vector<float> zeros(k, 0.0f);
        const float* expected = ids[t] < rows ? &w[ids[t] * k] : zeros.data();
        CHECK(std::memcmp(&output[t * k], expected, k * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE(routed_products) {
  std::mt19937 random(3);
  constexpr std::uint32_t tokens = 21, top_k = 3, n = 37, n_experts = 4, routes = tokens * top_k;
  std::vector<std::uint32_t> ids(routes);
  for (std::uint32_t& id : ids) id = random() % (n_experts + 1);  // the last one does not exist
  const auto past = static_cast<std::uint32_t>(std::count(ids.begin(), ids.end(), n_experts));
  for (const Type& type : types()) {
    const std::uint32_t k = type.block_length == 1 ? 77 : 2 * type.block_length;
    const std::uint64_t stride = std::uint64_t{n} * k / type.block_length * type.block_bytes;
    std::vector<std::uint8_t> weight = random_rows(type, n_experts * n, k, random);
    const std::vector<float> w = decoded(type, weight);
    std::vector<float> x = random_floats(std::size_t{routes} * k, random);
    GgmlQuantizedMatmulIdParams params = {
        tokens, top_k, n, k, n_experts, 0, stride, static_cast<std::uint32_t>(type.type), 0};
    const auto check = [&](const std::vector<float>& output, bool slotted) {
      for (std::uint32_t route = 0; route < routes; ++route) {
        for (std::uint32_t r = 0; r < n; ++r) {
          const float got = output[route * n + r];
          if (ids[route] == n_experts) {
            CHECK_EQ(got, 0.0f);
            continue;
          }
          const std::uint32_t input = slotted ? route : route / top_k;
          CHECK(
              Product(&x[std::size_t{input} * k], &w[(std::size_t{ids[route]} * n + r) * k], k).accepts(got));
        }
      }
    };
    for (const NativeKernel& kernel : variants("quantized_matmul_id_mv_" + type.name)) {
      std::vector<std::uint32_t> status = {0};
      std::vector<float> output(routes * n, kPoison);
      Bindings()
          .add(x)
          .add(weight)
          .add(ids)
          .add(output)
          .add(status)
          .add(&params, sizeof params)
          .run(kernel, divided_up(n, 16), routes, 1, 128);
      CHECK_EQ(status[0], past);
      check(output, false);
    }
    std::vector<std::uint32_t> schedule(6 + 3 * n_experts + routes, 0xdeadbeef), status = {0};
    Bindings()
        .add(ids)
        .add(schedule)
        .add(status)
        .add(&params, sizeof params)
        .run(variants("quantized_matmul_id_count").front(), n_experts + 1, 1, 1, 256);
    CHECK_EQ(status[0], past);
    Bindings()
        .add(ids)
        .add(schedule)
        .add(&params, sizeof params)
        .run(variants("quantized_matmul_id_route").front(), n_experts + 1, 1, 1, 256);
    for (const bool slotted : {false, true}) {
      for (const NativeKernel& kernel :
           variants("quantized_matmul_id_mm_" + type.name + (slotted ? "_slotted" : ""))) {
        std::vector<float> output(routes * n, kPoison);
        Bindings()
            .add(x)
            .add(weight)
            .add(schedule)
            .add(output)
            .add(&params, sizeof params)
            .run(kernel, divided_up(n, 64), divided_up(routes, 32) + n_experts, 1, 128);
        check(output, slotted);
      }
    }
  }
}

// Launched by hand, a kernel whose parameters say more than is bound does nothing.
TEST_CASE(less_bound_than_said) {
  for (const NativeKernel& kernel : variants("quantized_matmul_mv_Q8_0_1")) {
    std::vector<float> x(64), output(8, kPoison);
    std::vector<std::uint8_t> weight(8 * 68);
    GgmlQuantizedMatmulParams params = {1, 8, 64, static_cast<std::uint32_t>(GgmlType::Q8_0)};
    Bindings()
        .add(x)
        .add(weight.data(), weight.size() - 1)
        .add(output)
        .add(&params, sizeof params)
        .run(kernel, 1, 1, 1, 128);
    CHECK(std::all_of(output.begin(), output.end(), [](float value) { return value == kPoison; }));
  }
}

}  // namespace

CHECK_MAIN()
