// See profiling.h. What is recorded lies in the observer until the commit, so that recording takes no lock.
#include "core/profiling.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "core/host_clock.h"

namespace metalane::core {

namespace {

// How many characters two label paths have in common, in whole labels, `most` at most.
std::size_t shared_labels(std::string_view a, std::string_view b, std::size_t most) {
  const std::size_t end = std::min({a.size(), b.size(), most});
  std::size_t same = 0;
  while (same < end && a[same] == b[same]) ++same;
  const auto ends_label = [&](std::string_view path) { return same == path.size() || path[same] == '/'; };
  if (ends_label(a) && ends_label(b)) return same;
  const std::size_t slash = a.substr(0, same).rfind('/');
  return slash == std::string_view::npos ? 0 : slash;
}

class ObservedSubmission final : public backend::Submission {
 public:
  ObservedSubmission(std::unique_ptr<backend::Submission> inner, std::shared_ptr<ProfileState> profile)
      : inner_(std::move(inner)), profile_(std::move(profile)) {
    inner_->time_launches();
  }

  void dispatch(const backend::Launch& launch) override {
    inner_->dispatch(launch);
    std::uint64_t bytes_read = 0, bytes_written = 0;
    for (const backend::BufferBinding& buffer : launch.buffers) {
      if (reads(buffer.access)) bytes_read += buffer.nbytes;
      if (writes(buffer.access)) bytes_written += buffer.nbytes;
    }
    ProfiledSubmission& submission = recorded_.front();
    ++submission.launch_count;
    submission.bytes_read += bytes_read;
    submission.bytes_written += bytes_written;
    if (profile_->keep_launch()) {
      std::vector<ProfiledLaunch>& launches = submission.launches;
      ProfiledLaunch& kept = launches.emplace_back();
      kept.kernel = launch.pipeline->signature.name;
      kept.label = launch.label;
      if (launches.size() > 1) {
        kept.continued = shared_labels(launches[launches.size() - 2].label, kept.label, still_open_);
      }
      kept.bytes_read = bytes_read;
      kept.bytes_written = bytes_written;
      kept.after_barrier = barrier_;
    }
    still_open_ = std::string_view::npos;
    barrier_ = false;
  }
  void barrier() override {
    inner_->barrier();
    ++recorded_.front().barrier_count;
    barrier_ = true;
  }
  // A launch's label is the whole path; that a range has ended and an equal one begun only shows here.
  void push_label(std::string_view label) override {
    inner_->push_label(label);
    // A path that comes whole is a replayed graph's, whose ranges go on where the names do.
    const bool whole_path = label.find('/') != std::string_view::npos;
    still_open_ = whole_path ? std::string_view::npos : std::min(still_open_, path_size_);
    outer_sizes_.push_back(path_size_);
    path_size_ += (path_size_ == 0 ? 0 : 1) + label.size();
  }
  void pop_label() override {
    inner_->pop_label();
    path_size_ = outer_sizes_.back();
    outer_sizes_.pop_back();
    still_open_ = std::min(still_open_, path_size_);
  }
  void time_launches() override { inner_->time_launches(); }
  void commit(std::optional<double> time_limit, std::function<void(backend::Completion)> done) override {
    ProfiledSubmission& submission = recorded_.front();
    if (!profile_->begin(recorded_)) {
      inner_->commit(time_limit, std::move(done));
      return;
    }
    inner_->commit(time_limit,
                   [profile = profile_, &submission, done = std::move(done)](backend::Completion completion) {
                     profile->finish(submission, completion);
                     done(std::move(completion));
                   });
  }

 private:
  std::unique_ptr<backend::Submission> inner_;
  std::shared_ptr<ProfileState> profile_;
  std::list<ProfiledSubmission> recorded_{1};  // a list, since the commit must not fail
  bool barrier_ = false;
  std::size_t path_size_ = 0;                        // of the labels that are open now
  std::vector<std::size_t> outer_sizes_;             // and of those around each
  std::size_t still_open_ = std::string_view::npos;  // so much of the last launch's path has not ended since
};

}  // namespace

bool ProfileState::begin(std::list<ProfiledSubmission>& recorded) noexcept {
  std::lock_guard lock(mutex_);
  if (stopped_) return false;
  recorded.front().commit_seconds = host_seconds();
  submissions_.splice(submissions_.end(), recorded);
  ++running_;
  return true;
}

void ProfileState::finish(ProfiledSubmission& submission, backend::Completion& completion) noexcept {
  const std::vector<backend::LaunchTime> times = std::exchange(completion.launches, {});
  {
    std::lock_guard lock(mutex_);
    submission.done_seconds = host_seconds();
    submission.done = true;
    submission.failed = completion.error != nullptr;
    submission.start_seconds = completion.start_seconds;
    submission.end_seconds = completion.end_seconds;
    const std::size_t timed = std::min(submission.launches.size(), times.size());
    for (std::size_t i = 0; i < timed; ++i) {
      submission.launches[i].start_seconds = times[i].start_seconds;
      submission.launches[i].end_seconds = times[i].end_seconds;
    }
    --running_;
  }
  all_done_.notify_all();
}

void ProfileState::stop() noexcept {
  std::lock_guard lock(mutex_);
  stopped_ = true;
}

bool ProfileState::wait_done(double seconds) const {
  std::unique_lock lock(mutex_);
  // Past about 30 years, "for ever" on every clock's arithmetic.
  return all_done_.wait_for(lock, std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9)),
                            [this] { return running_ == 0; });
}

ProfileCounters ProfileState::counters() const {
  ProfileCounters total;
  std::lock_guard lock(mutex_);
  for (const ProfiledSubmission& submission : submissions_) {
    ++total.submissions;
    total.launches += submission.launch_count;
    total.barriers += submission.barrier_count;
    total.bytes_read += submission.bytes_read;
    total.bytes_written += submission.bytes_written;
    total.failed_submissions += submission.failed ? 1 : 0;
    total.device_seconds += submission.end_seconds - submission.start_seconds;
  }
  return total;
}

std::vector<ProfiledSubmission> ProfileState::submissions() const {
  std::lock_guard lock(mutex_);
  return {submissions_.begin(), submissions_.end()};
}

bool Profiling::start(std::shared_ptr<ProfileState> profile) {
  std::lock_guard lock(mutex_);
  if (running_ != nullptr) return false;
  running_ = std::move(profile);
  runs_.store(true, std::memory_order_release);
  return true;
}

void Profiling::stop(const ProfileState& profile) noexcept {
  std::lock_guard lock(mutex_);
  if (running_.get() != &profile) return;
  running_.reset();
  runs_.store(false, std::memory_order_release);
}

std::unique_ptr<backend::Submission> Profiling::observer_of(std::unique_ptr<backend::Submission> submission) {
  std::shared_ptr<ProfileState> profile;
  {
    std::lock_guard lock(mutex_);
    profile = running_;
  }
  if (profile == nullptr) return submission;  // it has just stopped
  return std::make_unique<ObservedSubmission>(std::move(submission), std::move(profile));
}

}  // namespace metalane::core
