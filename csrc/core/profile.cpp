// Profile: the handle that starts and stops, and the trace as JSON.
#include <metalane/error.h>
#include <metalane/profile.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include "core/device_state.h"
#include "core/profiling.h"

namespace metalane {

namespace {

void append_string(std::string& json, std::string_view text) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      json += escape;
    } else {
      json += c;
    }
  }
  json += '"';
}

// The format's tracks: a process with two threads.
enum class Track : int { device = 1, host = 2 };

// Writes events one after another. Times are whole nanoseconds from the first commit on, so that what nests
// by time still does so after rounding.
class TraceWriter {
 public:
  explicit TraceWriter(double origin) : origin_(origin) {}

  void name(const char* kind, Track track, std::string_view name) {
    begin(kind, "M", track);
    json_ += ",\"args\":{\"name\":";
    append_string(json_, name);
    json_ += "}}";
  }
  // `arguments`: JSON's members.
  void slice(std::string_view name, const char* category, double start, double end,
             const std::string& arguments) {
    begin(name, "X", Track::device);
    time(",\"ts\":", nanoseconds(start));
    time(",\"dur\":", std::max<long long>(0, nanoseconds(end) - nanoseconds(start)));
    finish(category, arguments);
  }
  // Slices that may overlap.
  void asynchronous(std::string_view name, std::uint64_t id, double start, double end) {
    for (const auto& [phase, at] : {std::pair("b", start), std::pair("e", end)}) {
      begin(name, phase, Track::host);
      time(",\"ts\":", nanoseconds(at));
      json_ += ",\"id\":" + std::to_string(id);
      finish("in flight", "");
    }
  }
  std::string text() && { return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + json_ + "\n]}\n"; }

 private:
  long long nanoseconds(double seconds) const { return std::llround((seconds - origin_) * 1e9); }
  void begin(std::string_view name, const char* phase, Track track) {
    if (!json_.empty()) json_ += ",\n";
    json_ += "{\"name\":";
    append_string(json_, name);
    json_ +=
        std::string(",\"ph\":\"") + phase + "\",\"pid\":1,\"tid\":" + std::to_string(static_cast<int>(track));
  }
  // The format counts microseconds.
  void time(const char* key, long long nanoseconds) {
    char text[40];
    std::snprintf(text, sizeof text, "%lld.%03lld", nanoseconds / 1000, nanoseconds % 1000);
    json_ += key;
    json_ += text;
  }
  void finish(const char* category, const std::string& arguments) {
    json_ += std::string(",\"cat\":\"") + category + "\",\"args\":{" + arguments + "}}";
  }

  double origin_;
  std::string json_;
};

std::string bytes_of(std::uint64_t bytes_read, std::uint64_t bytes_written) {
  return "\"bytes read\":" + std::to_string(bytes_read) +
         ",\"bytes written\":" + std::to_string(bytes_written);
}

std::string name_of(const ProfiledSubmission& submission) {
  if (submission.launches.empty()) return "submission";
  const ProfiledLaunch& first = submission.launches.front();
  return first.label.empty() ? first.kernel : first.label;
}

bool timed(const ProfiledLaunch& launch) { return launch.end_seconds != 0; }

// A label range or a launch; `depth` says how many ranges are round it.
struct Slice {
  std::string_view name;
  const char* category;
  double start, end;
  std::size_t depth;
  std::string arguments;
};

// The launches that were timed, and the label ranges round them. What begins at one time comes from the
// outside in, as readers of the format nest it.
std::vector<Slice> slices_of(const std::vector<ProfiledLaunch>& launches) {
  struct Range {
    std::size_t begin, end;  // of the name, in the path
    double start;
  };
  std::vector<Range> open;
  std::vector<Slice> slices;
  const ProfiledLaunch* before = nullptr;
  const auto close_down_to = [&](std::size_t path_size) {
    while (!open.empty() && open.back().end > path_size) {
      const Range range = open.back();
      open.pop_back();
      const auto name = std::string_view(before->label).substr(range.begin, range.end - range.begin);
      slices.push_back({name, "label", range.start, before->end_seconds, open.size(), ""});
    }
  };
  for (const ProfiledLaunch& launch : launches) {
    if (!timed(launch)) break;
    close_down_to(launch.continued);
    std::size_t begin = open.empty() ? 0 : open.back().end + 1;
    while (begin < launch.label.size()) {
      const std::size_t end = std::min(launch.label.find('/', begin), launch.label.size());
      open.push_back({begin, end, launch.start_seconds});
      begin = end + 1;
    }
    slices.push_back({launch.kernel, "launch", launch.start_seconds, launch.end_seconds, open.size(),
                      "," + bytes_of(launch.bytes_read, launch.bytes_written)});
    before = &launch;
  }
  close_down_to(0);
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::pair(a.start, a.depth) < std::pair(b.start, b.depth);
  });
  return slices;
}

}  // namespace

Profile::Profile(const Device& device, ProfileOptions options)
    : device_(device), state_(std::make_shared<core::ProfileState>(options)) {
  device_.state()->check_process();
  if (!device_.state()->profiling().start(state_)) {
    throw ArgumentError("Profile", "device", "one without a running profile", "one that is being profiled");
  }
}

Profile::~Profile() { stop(); }

void Profile::stop() noexcept {
  if (!std::exchange(running_, false) || device_.state()->in_other_process()) return;
  device_.state()->profiling().stop(*state_);
  state_->stop();
}

bool Profile::wait_done(double seconds) const {
  device_.state()->check_process();
  return state_->wait_done(seconds);
}

ProfileCounters Profile::counters() const {
  device_.state()->check_process();
  return state_->counters();
}

std::vector<ProfiledSubmission> Profile::submissions() const {
  device_.state()->check_process();
  return state_->submissions();
}

std::string Profile::trace_json() const {
  const std::vector<ProfiledSubmission> all = submissions();
  TraceWriter trace(all.empty() ? 0 : all.front().commit_seconds);
  trace.name("process_name", Track::device, "metalane " + device_.kind() + ": " + device_.name());
  trace.name("thread_name", Track::device, "device");
  trace.name("thread_name", Track::host, "host: in flight");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ProfiledSubmission& submission = all[i];
    if (!submission.done) continue;
    trace.asynchronous(name_of(submission), i, submission.commit_seconds, submission.done_seconds);
    if (submission.end_seconds == 0) continue;
    trace.slice(name_of(submission), "submission", submission.start_seconds, submission.end_seconds,
                "\"submission\":" + std::to_string(i) +
                    ",\"launches\":" + std::to_string(submission.launch_count) +
                    ",\"barriers\":" + std::to_string(submission.barrier_count) + "," +
                    bytes_of(submission.bytes_read, submission.bytes_written) +
                    ",\"failed\":" + (submission.failed ? "true" : "false"));
    for (const Slice& slice : slices_of(submission.launches)) {
      trace.slice(slice.name, slice.category, slice.start, slice.end,
                  "\"depth\":" + std::to_string(slice.depth) + slice.arguments);
    }
  }
  return std::move(trace).text();
}

}  // namespace metalane
