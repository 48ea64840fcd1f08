// Costs of the CPU executor's parts in nanoseconds of processor time, as JSON: a fiber switch beside
// swapcontext, and a threadgroup barrier and a simdgroup collective as kernel modules call them.
//
// Built by executor.py together with the executor's own sources.
#include <time.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backends/cpu/fiber.h"
#include "backends/cpu/threadgroup.h"

namespace {

using namespace metalane::cpu;

constexpr unsigned kFibers = METALANE_SIMD_WIDTH;

// Processor time of this thread: what others do with the processor does not count.
double thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

template <typename Body>
double nanoseconds(const Body& body) {
  const double begin = thread_nanoseconds();
  body();
  return thread_nanoseconds() - begin;
}

// A cycle of the processor in its present state: half of what a shift and an exclusive or take that wait for
// each other. (Sums of small constants take none on some.)
double cycle() {
  constexpr long steps = 100000;
  std::uint64_t value = 1;
  const double time = nanoseconds([&] {
    for (long i = 0; i < steps; i += 4) {
      for (int k = 0; k < 4; ++k) {
        value ^= value >> 7;
        asm volatile("" : "+r"(value));
      }
    }
  });
  return time / (2 * steps);
}

// A ring of 32 fibers. Each knows the next one, as a scheduler does that has looked it up in time: what is
// measured is the switch, not the search.
struct FiberRing {
  Fiber main;
  std::vector<Fiber*> fibers;
  unsigned started = 0;
  unsigned last = 0;  // who handed over to the main fiber
  long left = 0;

  static void run(void* argument) {
    auto& ring = *static_cast<FiberRing*>(argument);
    finish_first_switch();
    const unsigned index = ring.started++;
    Fiber& self = *ring.fibers[index];
    Fiber& next = *ring.fibers[(index + 1) % kFibers];
    for (;;) {
      if (ring.left-- == 0) {
        ring.last = index;
        switch_fiber(self, ring.main);
      } else {
        switch_fiber(self, next);
      }
    }
  }
};

double fiber_switch(long switches) {
  FiberRing ring;
  FiberPool pool(&FiberRing::run, &ring);
  adopt_current_thread(ring.main);
  if (!pool.grow()) std::exit(1);
  for (unsigned i = 0; i < kFibers; ++i) ring.fibers.push_back(pool.take());
  const auto turn = [&](long count) {
    ring.left = count;
    switch_fiber(ring.main, *ring.fibers[ring.last]);
  };
  turn(2 * kFibers);  // every fiber has begun
  return nanoseconds([&] { turn(switches); }) / static_cast<double>(switches);
}

ucontext_t main_context;
ucontext_t ring_contexts[kFibers];
unsigned context_current = 0;
long contexts_left = 0;

void context_main() {
  for (;;) {
    ucontext_t& self = ring_contexts[context_current];
    if (contexts_left-- == 0) {
      swapcontext(&self, &main_context);
    } else {
      context_current = (context_current + 1) % kFibers;
      swapcontext(&self, &ring_contexts[context_current]);
    }
  }
}

double context_switch(long switches) {
  static std::vector<std::uint8_t> stacks(kFibers * 65536);
  context_current = 0;
  for (unsigned i = 0; i < kFibers; ++i) {
    getcontext(&ring_contexts[i]);
    ring_contexts[i].uc_stack = {};
    ring_contexts[i].uc_stack.ss_sp = stacks.data() + i * 65536;
    ring_contexts[i].uc_stack.ss_size = 65536;
    makecontext(&ring_contexts[i], &context_main, 0);
  }
  const auto turn = [&](long count) {
    contexts_left = count;
    swapcontext(&main_context, &ring_contexts[context_current]);
  };
  turn(2 * kFibers);
  return nanoseconds([&] { turn(switches); }) / static_cast<double>(switches);
}

std::uint32_t rounds = 0;  // of the kernels below

void barrier_kernel(metalane_group* group) {
  for (std::uint32_t i = 0; i < rounds; ++i) module_runtime().threadgroup_barrier(group, 0);
}

// As the headers' simd_sum, all lanes active: operands side by side, halves folded upon each other.
void sum_lanes(const metalane_lanes* lanes) {
  float values[METALANE_SIMD_WIDTH];
  for (int lane = 0; lane < METALANE_SIMD_WIDTH; ++lane) {
    values[lane] = *static_cast<const float*>(lanes->operands[lane]);
  }
  for (int stride = METALANE_SIMD_WIDTH / 2; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) values[i] += values[i + stride];
  }
  for (int lane = 0; lane < METALANE_SIMD_WIDTH; ++lane) {
    *static_cast<float*>(lanes->operands[lane]) = values[0];
  }
}

void collective_kernel(metalane_group* group) {
  for (std::uint32_t i = 0; i < rounds; ++i) {
    float value = 1.0f;
    module_runtime().simd_collective(group, 0, &sum_lanes, &value);
  }
}

// In a loop within a call, each of which keeps an element of the path.
void path_kernel(metalane_group* group) {
  const metalane_path call = {nullptr, 1, 0, 0};
  metalane_path loop = {&call, 2, 1, 0};
  group->path = &loop;
  for (std::uint32_t i = 0; i < rounds; ++i) {
    ++loop.turn;
    float value = 1.0f;
    module_runtime().simd_collective(group, 0, &sum_lanes, &value);
  }
}

template <void (*kernel)(metalane_group*)>
void entry(metalane_group* group) {
  while (group->next_thread < group->end_thread) {
    group->current_thread = group->next_thread++;
    kernel(group);
    ++group->finished_threads;
  }
}

// What one more round of the kernel costs: the launch itself cancels out.
template <void (*kernel)(metalane_group*)>
double per_round(ThreadgroupRunner& runner, std::uint32_t threads) {
  static const metalane_site sites[] = {{"rendezvous", "executor.metal", 1, 1}};
  static const metalane_module module = {
      METALANE_MODULE_ABI_VERSION, "k", sites, 1, nullptr, nullptr, &entry<kernel>, kernel == &path_kernel};
  metalane_launch launch{};
  launch.grid_groups[0] = launch.grid_groups[1] = launch.grid_groups[2] = 1;
  launch.grid_threads[0] = launch.nominal_threads[0] = threads;
  launch.grid_threads[1] = launch.nominal_threads[1] = 1;
  launch.grid_threads[2] = launch.nominal_threads[2] = 1;
  const std::uint32_t position[3] = {0, 0, 0};
  const std::uint32_t shape[3] = {threads, 1, 1};
  const auto time = [&](std::uint32_t count) {
    rounds = count;
    return nanoseconds([&] {
      if (runner.run(module, launch, position, shape) != ThreadgroupRunner::Outcome::done) std::exit(1);
    });
  };
  time(4);  // stacks committed
  constexpr std::uint32_t few = 50, many = 450;
  const double base = time(few);
  return (time(many) - base) / (many - few);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 1;
  AtomicFlag stop{0};
  auto runner = std::make_unique<ThreadgroupRunner>(stop);
  if (!runner->prepare()) return 1;
  for (int i = 0; i < repeats; ++i) {
    std::printf("{\"cycle\": %.4f, \"fiber_switch\": %.4f, \"swapcontext\": %.4f, ", cycle(),
                fiber_switch(100000), context_switch(5000));
    std::printf("\"collective_32\": %.2f, ", per_round<&collective_kernel>(*runner, 32));
    std::printf("\"collective_on_path\": %.2f, ", per_round<&path_kernel>(*runner, 32));
    std::printf("\"barrier_32\": %.2f, ", per_round<&barrier_kernel>(*runner, 32));
    std::printf("\"barrier_256\": %.2f, ", per_round<&barrier_kernel>(*runner, 256));
    std::printf("\"barrier_1024\": %.2f}\n", per_round<&barrier_kernel>(*runner, 1024));
  }
  return 0;
}
