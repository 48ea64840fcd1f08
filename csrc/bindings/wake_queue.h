// Numbers that runtime threads hand to a Python thread which sleeps on a file descriptor.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>

namespace metalane::python {

// Readable while it holds numbers: one write wakes for all that come until they are taken. Thread-safe, takes
// no GIL.
class WakeQueue {
 public:
  // A list, so that who promises a number has the memory for it, and putting it in cannot fail.
  using Numbers = std::list<std::uint64_t>;

  WakeQueue();  // throws std::system_error
  ~WakeQueue();
  WakeQueue(const WakeQueue&) = delete;
  WakeQueue& operator=(const WakeQueue&) = delete;

  int descriptor() const noexcept { return read_end_; }
  void put(Numbers& numbers) noexcept;  // takes them out of `numbers`
  Numbers take() noexcept;

 private:
  int read_end_ = -1;
  int write_end_ = -1;
  std::mutex mutex_;
  Numbers numbers_;
};

}  // namespace metalane::python
