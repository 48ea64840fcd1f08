// How a profile comes to see submissions: one that is opened while it runs goes through an observer.
#pragma once

#include <metalane/profile.h>

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "core/backend.h"

namespace metalane::core {

// What one profile has seen. Thread-safe.
class ProfileState {
 public:
  explicit ProfileState(const ProfileOptions& options) : max_launches_(options.max_launches) {}

  // Whether the launch that is being recorded may be kept by itself.
  bool keep_launch() noexcept {
    return kept_launches_.load(std::memory_order_relaxed) < max_launches_ &&
           kept_launches_.fetch_add(1, std::memory_order_relaxed) < max_launches_;
  }
  // Takes the one submission on the list over; false where the profile has stopped.
  bool begin(std::list<ProfiledSubmission>& recorded) noexcept;
  // Takes the launches' times.
  void finish(ProfiledSubmission& submission, backend::Completion& completion) noexcept;

  void stop() noexcept;
  bool wait_done(double seconds) const;
  ProfileCounters counters() const;
  std::vector<ProfiledSubmission> submissions() const;

 private:
  const std::uint64_t max_launches_;
  std::atomic<std::uint64_t> kept_launches_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable all_done_;
  bool stopped_ = false;
  std::uint64_t running_ = 0;
  std::list<ProfiledSubmission> submissions_;
};

// The profile that runs on a device, if there is one.
class Profiling {
 public:
  // False where one runs already.
  bool start(std::shared_ptr<ProfileState> profile);
  void stop(const ProfileState& profile) noexcept;

  // The submission itself, or an observer of it.
  std::unique_ptr<backend::Submission> observed(std::unique_ptr<backend::Submission> submission) {
    return runs_.load(std::memory_order_acquire) ? observer_of(std::move(submission)) : std::move(submission);
  }

 private:
  std::unique_ptr<backend::Submission> observer_of(std::unique_ptr<backend::Submission> submission);

  std::atomic<bool> runs_{false};
  std::mutex mutex_;
  std::shared_ptr<ProfileState> running_;
};

}  // namespace metalane::core
