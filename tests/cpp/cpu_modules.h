// Hand-written kernel modules against module_abi.h, so that the CPU backend's tests need neither reader nor
// compiler.
#pragma once

#include <metalane/error.h>

#include <bit>
#include <condition_variable>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_pipeline.h"
#include "backends/cpu/threadgroup.h"

namespace cpu_modules {

using namespace metalane;

METALANE_NO_TSAN inline const metalane_runtime& runtime() { return cpu::module_runtime(); }

// The loop that adapted modules have, round `kernel`. As little instrumented as they are.
template <void (*kernel)(metalane_group*)>
METALANE_NO_TSAN void entry(metalane_group* group) {
  while (group->next_thread < group->end_thread) {
    group->current_thread = group->next_thread++;
    group->path = nullptr;
    kernel(group);
    ++group->finished_threads;
  }
}

inline const metalane_site sites[] = {{"threadgroup_barrier", "k.metal", 10, 3},
                                      {"threadgroup_barrier", "k.metal", 20, 5},
                                      {"simd_sum", "k.metal", 30, 7},
                                      {"simd_sum", "k.metal", 40, 9}};

template <void (*kernel)(metalane_group*), bool keeps_paths = false>
std::shared_ptr<cpu::CpuPipeline> pipeline(const std::string& name) {
  static const metalane_module module = {
      METALANE_MODULE_ABI_VERSION, "k", sites, 4, nullptr, nullptr, &entry<kernel>, keeps_paths};
  auto result = std::make_shared<cpu::CpuPipeline>();
  result->signature.name = name;
  result->module = &module;
  return result;
}

inline std::uint32_t global_thread(const metalane_group* group) {
  return group->position[0] * group->launch->nominal_threads[0] + group->current_thread;
}

template <typename T>
METALANE_NO_TSAN T* buffer(const metalane_group* group, int index = 0) {
  return static_cast<T*>(group->launch->buffers[index]);
}

template <typename T>
void sum_lanes(const metalane_lanes* lanes) {
  T total = 0;
  for (std::uint32_t rest = lanes->active; rest != 0; rest &= rest - 1)
    total += *static_cast<const T*>(lanes->operands[std::countr_zero(rest)]);
  for (std::uint32_t rest = lanes->active; rest != 0; rest &= rest - 1)
    *static_cast<T*>(lanes->operands[std::countr_zero(rest)]) = total;
}

template <typename T>
T simd_sum(metalane_group* group, std::uint32_t site, T value) {
  runtime().simd_collective(group, site, &sum_lanes<T>, &value);
  return value;
}

struct Dispatch {
  const cpu::CpuPipeline* pipeline;
  std::vector<std::pair<void*, std::uint64_t>> buffers;
  Grid::Kind kind = Grid::Kind::threadgroups;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t threads[3] = {1, 1, 1};
  const void* counts = nullptr;
  std::string label = {};
};

// One submission under way.
class Pending {
 public:
  Pending(backend::Device& device, const std::vector<Dispatch>& dispatches,
          std::optional<double> time_limit = std::nullopt)
      : state_(std::make_shared<State>()) {
    const auto submission = device.open({});
    for (const Dispatch& dispatch : dispatches) {
      backend::Launch launch;
      std::vector<backend::BufferBinding> bindings;
      for (std::size_t i = 0; i < dispatch.buffers.size(); ++i) {
        backend::BufferBinding binding;
        binding.index = static_cast<std::uint32_t>(i);
        binding.address = static_cast<std::uint8_t*>(dispatch.buffers[i].first);
        binding.nbytes = dispatch.buffers[i].second;
        bindings.push_back(binding);
      }
      launch.pipeline = dispatch.pipeline;
      launch.buffers = bindings;
      launch.grid_kind = dispatch.kind;
      for (int axis = 0; axis < 3; ++axis) {
        launch.grid[axis] = dispatch.grid[axis];
        launch.threads_per_threadgroup[axis] = dispatch.threads[axis];
      }
      launch.indirect.address = static_cast<std::uint8_t*>(const_cast<void*>(dispatch.counts));
      launch.label = dispatch.label;
      submission->dispatch(launch);
    }
    submission->commit(time_limit, [state = state_](backend::Completion completion) {
      const std::lock_guard lock(state->mutex);
      state->completion = std::move(completion);
      state->done = true;
      state->changed.notify_all();
    });
  }

  // The error's code; empty where it succeeded. what() goes to `message`.
  std::string wait(std::string* message = nullptr) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->done; });
    if (!state_->completion.error) return {};
    try {
      std::rethrow_exception(state_->completion.error);
    } catch (const CommandBufferError& error) {
      if (message != nullptr) *message = error.what();
      return error.code();
    }
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    backend::Completion completion;
  };
  std::shared_ptr<State> state_;
};

}  // namespace cpu_modules
