// What a device did while somebody looked: its submissions and launches, when they ran and what they had
// bound.
#pragma once

#include <metalane/device.h>
#include <metalane/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace metalane {

namespace core {
class ProfileState;
}

// Times are seconds of one clock, std::chrono::steady_clock's (on macOS that of mach_absolute_time).
//
// Bytes are those of the buffers that were bound, by declared access: what a kernel can have read and written
// at most.
struct ProfiledLaunch {
  std::string kernel;
  std::string label;          // nested labels joined by '/'
  std::size_t continued = 0;  // so many characters of `label` name ranges that go on from the launch before
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  bool after_barrier = false;
  double start_seconds =
      0;  // both 0 where the device does not time single launches, and where it never started
  double end_seconds = 0;
};

struct ProfiledSubmission {
  double commit_seconds = 0;  // when it was handed to the device
  double start_seconds = 0;   // when the device began and ended; both 0 where it runs nothing
  double end_seconds = 0;
  double done_seconds = 0;  // when the host knew
  bool done = false;
  bool failed = false;
  std::uint64_t launch_count = 0;
  std::uint64_t barrier_count = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::vector<ProfiledLaunch> launches;  // fewer than launch_count past ProfileOptions::max_launches
};

struct ProfileCounters {
  std::uint64_t submissions = 0;
  std::uint64_t launches = 0;
  std::uint64_t barriers = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t failed_submissions = 0;
  double device_seconds = 0;  // in which the device ran something
};

struct ProfileOptions {
  std::uint64_t max_launches = std::uint64_t{1} << 20;  // that are kept one by one; the rest are counted only
};

// Sees the submissions whose encoders are opened and committed while it runs. One at a time runs on a device.
// Thread-safe, but for stop() and destruction, which are the owner's.
class METALANE_API Profile {
 public:
  // Throws ArgumentError where another one runs.
  explicit Profile(const Device& device, ProfileOptions options = {});
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Later commits are not seen any more; those before still report their end.
  void stop() noexcept;
  bool running() const noexcept { return running_; }
  // True once everything that was seen is done, within `seconds`.
  bool wait_done(double seconds) const;

  const Device& device() const noexcept { return device_; }
  ProfileCounters counters() const;
  // In the order of commits, those still running included.
  std::vector<ProfiledSubmission> submissions() const;
  // What has finished as JSON of the Trace Event Format, which Perfetto and Chrome (chrome://tracing) show:
  // submissions, and within them label ranges and launches, on the device's track; from commit to completion
  // on the host's.
  std::string trace_json() const;

 private:
  Device device_;
  std::shared_ptr<core::ProfileState> state_;
  bool running_ = true;
};

}  // namespace metalane
