// Reads memory as fast as the machine lets several threads do it: the yardstick of the bandwidth figures.
//
// Built as a shared library and called by harness.py. Threads live between calls and spin for their next one,
// as a device's workers do, so that a measurement contains no thread creation.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

typedef std::uint64_t Words __attribute__((vector_size(64), may_alias));  // one cache line

constexpr std::size_t kLine = 64;
constexpr std::size_t kUnroll = 8;        // independent chains: hides the latency of the sums
constexpr std::size_t kAhead = 32;        // lines between a load and its prefetch; 16 to 64 measure the same
constexpr std::size_t kPiece = 64 << 10;  // bytes that a thread takes at a time, about a top-16 task's share

// A sum that depends on every byte, so that no load can be left out.
std::uint64_t read_lines(const Words* lines, std::size_t count) {
  Words sums[kUnroll] = {};
  std::size_t i = 0;
  for (; i + kUnroll <= count; i += kUnroll) {
    for (std::size_t k = 0; k < kUnroll; ++k) {
      __builtin_prefetch(lines + i + k + kAhead);
      sums[k] += lines[i + k];
    }
  }
  for (; i < count; ++i) sums[0] += lines[i];
  Words all = {};
  for (const Words& sum : sums) all += sum;
  std::uint64_t result = 0;
  for (std::size_t k = 0; k < kLine / sizeof(std::uint64_t); ++k) result += all[k];
  return result;
}

class Reader {
 public:
  explicit Reader(unsigned threads) {
    for (unsigned i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  }
  ~Reader() {
    quit_.store(true, std::memory_order_release);
    for (std::thread& helper : helpers_) helper.join();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Seconds to read `nbytes` (a multiple of 64) at `data` (aligned to 64) once.
  double read(const void* data, std::size_t nbytes) {
    data_ = static_cast<const std::uint8_t*>(data);
    nbytes_ = nbytes;
    next_.store(0, std::memory_order_relaxed);
    left_.store(helpers_.size(), std::memory_order_relaxed);
    const auto begin = std::chrono::steady_clock::now();
    round_.fetch_add(1, std::memory_order_release);
    take_pieces();
    while (left_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  void clear_sum() { sum_.store(0, std::memory_order_relaxed); }

 private:
  void take_pieces() {
    std::uint64_t sum = 0;
    for (std::size_t at; (at = next_.fetch_add(kPiece, std::memory_order_relaxed)) < nbytes_;) {
      const std::size_t piece = nbytes_ - at < kPiece ? nbytes_ - at : kPiece;
      sum += read_lines(reinterpret_cast<const Words*>(data_ + at), piece / kLine);
    }
    sum_.fetch_add(sum, std::memory_order_relaxed);
  }

  // Spins for about a measurement's pause, then gives the processor to whom it is due.
  void help() {
    std::uint64_t seen = 0;
    unsigned idle = 0;
    while (!quit_.load(std::memory_order_acquire)) {
      const std::uint64_t round = round_.load(std::memory_order_acquire);
      if (round == seen) {
        if (++idle > 100000) std::this_thread::yield();
        continue;
      }
      idle = 0;
      seen = round;
      take_pieces();
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  const std::uint8_t* data_ = nullptr;
  std::size_t nbytes_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> left_{0};
  std::atomic<std::uint64_t> round_{0};
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<bool> quit_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace

// `repeats` reads of consecutive slices of `nbytes` each; seconds of each into `seconds`. Helpers exist only
// during the call: spinning ones would disturb the other side. Returns the sum of all 64-bit words read.
extern "C" std::uint64_t read_bandwidth(const void* data, std::size_t nbytes, std::size_t repeats,
                                        unsigned threads, double* seconds) {
  Reader reader(threads);
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  for (int warm_up = 0; warm_up < 2; ++warm_up) reader.read(data, nbytes < kPiece ? nbytes : kPiece);
  reader.clear_sum();
  for (std::size_t i = 0; i < repeats; ++i) seconds[i] = reader.read(bytes + i * nbytes, nbytes);
  return reader.sum();
}
