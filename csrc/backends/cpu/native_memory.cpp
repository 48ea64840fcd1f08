// metalane_copy and metalane_fill at memory bandwidth: see shaders/memory.metal for what they compute.
#include <algorithm>
#include <cstring>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {
namespace {

// As in shaders/memory.metal.
struct FillParams {
  std::uint64_t nbytes;
  std::uint32_t element_bytes;
  std::uint8_t element[8];
  std::uint32_t padding;
};

// One piece a thread from 256 KiB on: a piece is then long enough for libc's streaming stores, and waking a
// thread costs less than its piece.
constexpr std::uint64_t smallest_piece = 256 * 1024;
constexpr std::uint64_t piece_alignment = 4096;

std::uint32_t pieces(std::uint64_t nbytes, std::uint32_t threads) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(nbytes / smallest_piece, 1, threads));
}

struct Range {
  std::uint64_t begin, end;
};

Range piece(std::uint64_t nbytes, std::uint32_t threads, std::uint32_t task) {
  const std::uint32_t count = pieces(nbytes, threads);
  const std::uint64_t step = (nbytes / count + piece_alignment - 1) / piece_alignment * piece_alignment;
  return {std::min(step * task, nbytes), task + 1 == count ? nbytes : std::min(step * (task + 1), nbytes)};
}

// Never past what is bound, whatever the parameters say.
std::uint64_t copy_bytes(const NativeLaunch& launch) {
  return std::min({launch.params<std::uint64_t>(2), launch.sizes[0], launch.sizes[1]});
}

std::uint32_t copy_tasks(const NativeLaunch& launch) { return pieces(copy_bytes(launch), launch.threads); }

void run_copy(const NativeLaunch& launch, std::uint32_t task) {
  const Range range = piece(copy_bytes(launch), launch.threads, task);
  std::memcpy(launch.buffer<std::uint8_t>(1) + range.begin,
              launch.buffer<const std::uint8_t>(0) + range.begin, range.end - range.begin);
}

std::uint64_t fill_bytes(const NativeLaunch& launch) {
  return std::min(launch.params<FillParams>(1).nbytes, launch.sizes[0]);
}

std::uint32_t fill_tasks(const NativeLaunch& launch) {
  const std::uint32_t element_bytes = launch.params<FillParams>(1).element_bytes;
  if (element_bytes == 0 || element_bytes > 8) return 0;
  return pieces(fill_bytes(launch), launch.threads);
}

void run_fill(const NativeLaunch& launch, std::uint32_t task) {
  const auto& params = launch.params<FillParams>(1);
  const Range range = piece(fill_bytes(launch), launch.threads, task);
  std::uint8_t* const destination = launch.buffer<std::uint8_t>(0);
  const std::uint32_t element_bytes = params.element_bytes;
  const bool uniform = std::all_of(params.element, params.element + element_bytes,
                                   [&params](std::uint8_t byte) { return byte == params.element[0]; });
  if (uniform) {
    std::memset(destination + range.begin, params.element[0], range.end - range.begin);
    return;
  }
  // A block of whole elements and whole cache lines, turned to where the piece begins in the pattern.
  constexpr std::uint64_t lines = 64;
  std::uint8_t block[lines * 8];
  const std::uint64_t block_bytes = lines * element_bytes;
  for (std::uint64_t i = 0; i < block_bytes; ++i)
    block[i] = params.element[(range.begin + i) % element_bytes];
  for (std::uint64_t at = range.begin; at < range.end; at += block_bytes) {
    std::memcpy(destination + at, block, std::min(block_bytes, range.end - at));
  }
}

constexpr NativeKernel kernels[] = {
    {"metalane_copy", Isa::baseline, &copy_tasks, &run_copy},
    {"metalane_fill", Isa::baseline, &fill_tasks, &run_fill},
};

}  // namespace

std::span<const NativeKernel> memory_native_kernels() { return kernels; }

}  // namespace metalane::cpu
