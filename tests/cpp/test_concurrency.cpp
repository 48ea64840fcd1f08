// Threads that compile, submit and read on one CPU device at once, and random programs against a serial
// model.
#include <metalane/metalane.h>

#include <array>
#include <random>
#include <thread>

#include "check.h"

using namespace metalane;

namespace {

// Writes kernel's own number and the element's place: y[i] = 1000 * number + i + x[i].
std::string kernel_source(int number) {
  return "#include <metal_stdlib>\nusing namespace metal;\nkernel void k" + std::to_string(number) +
         "(device const uint* x, device uint* y, uint i [[thread_position_in_grid]]) {\n  y[i] = " +
         std::to_string(number) + "u * 1000u + i + x[i];\n}\n";
}

}  // namespace

TEST_CASE(eight_threads_compile_fifty_kernels_at_once_and_submit) {
  constexpr int threads = 8, kernels = 50;
  Device device("cpu");
  for (int k = 0; k < kernels; ++k)
    device.registry().register_source("k" + std::to_string(k), kernel_source(k));
  std::array<int, threads> wrong{};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      Buffer x = device.zeros({100}, DType::uint32), y = device.zeros({100}, DType::uint32);
      static_cast<std::uint32_t*>(x.data())[7] = static_cast<std::uint32_t>(t);
      for (int i = 0; i < kernels; ++i) {
        const int k = (i + t * 7) % kernels;  // some start together, some apart
        const Pipeline pipeline = device.registry().pipeline("k" + std::to_string(k));
        CommandEncoder encoder = device.command_encoder();
        encoder.dispatch(pipeline, {{0, x}, {1, y}}, Grid::threads({100}, {32}));
        encoder.commit_and_wait();
        const auto* values = static_cast<const std::uint32_t*>(y.data());
        for (std::uint32_t e = 0; e < 100; ++e) {
          wrong[t] += values[e] != static_cast<std::uint32_t>(k) * 1000 + e + (e == 7 ? t : 0u);
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  for (int t = 0; t < threads; ++t) CHECK_EQ(wrong[t], 0);
}

// Programs of mixing kernels over overlapping views of one buffer: concurrent with automatic barriers,
// captured and encoded, and several submissions must all give what one launch after another gives.
TEST_CASE(random_programs_over_aliasing_views_equal_their_serial_run) {
  Device device("cpu");
  device.registry().register_source("mix", R"(
    kernel void mix(device const uint* x, device uint* y, constant uint& salt, constant uint& n,
                    uint i [[thread_position_in_grid]]) {
      if (i < n) y[i] = y[i] * 1664525u + x[i] + salt;
    })");
  const Pipeline mix = device.registry().pipeline("mix");
  constexpr std::uint32_t size = 256;
  std::mt19937 random(20260707);
  struct Step {
    std::uint32_t from, to, count, salt;
  };
  int different = 0;
  for (int program = 0; program < 150; ++program) {
    std::vector<Step> steps(1 + random() % 20);
    for (Step& step : steps) {
      step.count = 1 + random() % 64;
      step.to = random() % (size - step.count);
      do {  // within one launch threads would race where input and output overlap
        step.from = random() % (size - step.count);
      } while (step.from < step.to + step.count && step.to < step.from + step.count);
      step.salt = static_cast<std::uint32_t>(random());
    }
    std::vector<std::uint32_t> model(size);
    for (std::uint32_t i = 0; i < size; ++i) model[i] = i;
    for (const Step& step : steps) {
      for (std::uint32_t i = 0; i < step.count; ++i) {
        model[step.to + i] = model[step.to + i] * 1664525u + model[step.from + i] + step.salt;
      }
    }
    for (int mode = 0; mode < 4; ++mode) {
      Buffer data = device.zeros({size}, DType::uint32);
      auto* values = static_cast<std::uint32_t*>(data.data());
      for (std::uint32_t i = 0; i < size; ++i) values[i] = i;
      CommandEncoder encoder = device.command_encoder({mode != 1, true});
      if (mode == 2) encoder.start_capture();
      for (const Step& step : steps) {
        encoder.dispatch(mix,
                         {{0, data.view(step.from * 4, {step.count})},
                          {1, data.view(step.to * 4, {step.count})},
                          {2, step.salt},
                          {3, step.count}},
                         Grid::threadgroups({4}, {16}));
        if (mode == 3) {  // one submission a launch, none waited for
          encoder.commit();
          encoder = device.command_encoder();
        }
      }
      if (mode == 2) encoder.take_capture().encode(encoder);
      encoder.commit_and_wait();
      different += !std::equal(model.begin(), model.end(), static_cast<const std::uint32_t*>(data.data()));
    }
  }
  CHECK_EQ(different, 0);
}

TEST_CASE(a_failing_kernel_among_threads_fails_its_own_ticket_only) {
  Device device("cpu");
  device.registry().register_source("wild",
                                    "kernel void wild(device uint* y) { *(device uint*)64 = 1; y[0] = 1; }");
  device.registry().register_source("k3", kernel_source(3));
  const Pipeline wild = device.registry().pipeline("wild"), good = device.registry().pipeline("k3");
  std::array<int, 4> failures{}, successes{};
  std::vector<std::thread> running;
  for (int t = 0; t < 4; ++t) {
    running.emplace_back([&, t] {
      Buffer x = device.zeros({64}, DType::uint32), y = device.zeros({64}, DType::uint32);
      for (int i = 0; i < 100; ++i) {
        CommandEncoder encoder = device.command_encoder();
        if (t == 0) {
          encoder.dispatch(wild, {{0, y}}, Grid::threads({1}, {1}));
        } else {
          encoder.dispatch(good, {{0, x}, {1, y}}, Grid::threads({64}, {32}));
        }
        try {
          encoder.commit_and_wait();
          ++successes[t];
        } catch (const CommandBufferError&) {
          ++failures[t];
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  CHECK_EQ(failures[0], 100);
  for (int t = 1; t < 4; ++t) CHECK_EQ(successes[t], 100);
}

CHECK_MAIN()
