// A child started with limits, two pipes and a deadline.
#include "backends/cpu/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "backends/cpu/fiber.h"
#include "backends/cpu/process_watch.h"
#include "core/interrupt.h"

extern char** environ;

namespace metalane::cpu {
namespace {

constexpr std::size_t max_output = 1 << 20;

std::mutex shared_mutex;
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { shared_mutex.lock(); }, [] { shared_mutex.unlock(); }, [] { shared_mutex.unlock(); });

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { drop(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const noexcept { return number_; }
  void drop() noexcept {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

// Both ends closed on exec.
bool make_pipe(int (&ends)[2]) {
#if defined(__linux__)
  return pipe2(ends, O_CLOEXEC) == 0;
#else
  // A process that another thread starts in between gets the ends, too: it keeps them open while it runs.
  if (pipe(ends) != 0) return false;
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  return true;
#endif
}

// A child that leads a process group, and the read end of a pipe that it writes to. Whoever leaves early
// kills the group.
class Child {
 public:
  Child(pid_t id, int pipe) : id_(id), pipe_(pipe), descriptor_(watch_process(id)) {
    fcntl(pipe_, F_SETFL, O_NONBLOCK);
  }
  ~Child() {
    if (!collected_) collect(true);
    if (descriptor_ >= 0) close(descriptor_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Reads what it writes until it has ended; false at the deadline. The pipe may stay open behind it:
  // compiler caches start servers, which keep it.
  bool read_until_end(Clock::time_point deadline, std::string& output) {
    for (;;) {
      core::check_interrupt();
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return false;
      pollfd waited[2] = {{open_ ? pipe_ : -1, POLLIN, 0}, {descriptor_, POLLIN, 0}};
      poll(waited, 2, static_cast<int>(std::min<long long>(left, core::interrupt_interval.count())));
      const bool ended = has_ended(waited[1].revents != 0);
      drain(output);
      if (ended) return true;
    }
  }

  // Its exit code, or 128 + the signal that ended it.
  int collect(bool kill_first) {
    if (kill_first) kill(-id_, SIGKILL);
    collected_ = true;
    int status = 0;
    while (waitpid(id_, &status, 0) < 0) {
      // A program that ignores SIGCHLD has its children reaped by the kernel: the outcome shows in the output
      // file.
      if (errno != EINTR) return errno == ECHILD ? 0 : -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  bool has_ended(bool descriptor_says_so) const {
    if (descriptor_ >= 0) return descriptor_says_so;
    siginfo_t info = {};
    const int asked = waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT);
    return asked != 0 ? errno != EINTR : info.si_pid != 0;
  }

  void drain(std::string& output) {
    char buffer[4096];
    while (open_) {
      const ssize_t count = read(pipe_, buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      open_ = count > 0;
      if (open_ && output.size() < max_output) output.append(buffer, static_cast<std::size_t>(count));
    }
  }

  const pid_t id_;
  const int pipe_;
  const int descriptor_;
  bool open_ = true;
  bool collected_ = false;
};

// What the child needs, made before it exists.
struct Start {
  const char* path;
  char* const* argv;
  char* const* environment;
  int output;  // descriptors
  int input;
  int lifeline;
  const ProcessLimits* limits;
};

constexpr int cannot_execute = 126;

// The type of RLIMIT_... is the C library's own.
template <typename Resource>
METALANE_NO_TSAN void limit(Resource resource, std::uint64_t most) {
  rlimit limits;
  if (getrlimit(resource, &limits) != 0) return;
  limits.rlim_max = std::min<rlim_t>(limits.rlim_max, most);
  limits.rlim_cur = std::min(limits.rlim_cur, limits.rlim_max);
  setrlimit(resource, &limits);
}

// In a program that runs without standard streams they may be the same already.
METALANE_NO_TSAN void give(int descriptor, int as) {
  if (descriptor == as) {
    fcntl(descriptor, F_SETFD, 0);
  } else {
    dup2(descriptor, as);
  }
}

// What the shell reads until this process ends.
constexpr int lifeline_in_child = 3;

// In the child, on the parent's memory: system calls only. posix_spawn, which does the same, cannot set
// limits. They come last: a sanitizer's runtime needs more memory.
[[noreturn]] METALANE_NO_TSAN void become(const Start& start) {
  setpgid(0, 0);
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  give(start.input, STDIN_FILENO);
  give(start.output, STDOUT_FILENO);
  give(start.output, STDERR_FILENO);
  give(start.lifeline, lifeline_in_child);
  limit(RLIMIT_CPU, static_cast<std::uint64_t>(start.limits->seconds) + 1);
#if !defined(__APPLE__)  // where the system's shared libraries count, and alone may be more
  limit(RLIMIT_AS, start.limits->memory_bytes);
#endif
  limit(RLIMIT_FSIZE, start.limits->file_bytes);
  limit(RLIMIT_CORE, 0);
  execve(start.path, start.argv, start.environment);
  _exit(cannot_execute);
}

// A function of its own: nothing of the caller's frame lives across vfork. No signal handler may run in the
// child while it shares the parent's memory.
__attribute__((noinline)) pid_t start_process(const Start& start) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
#if defined(__APPLE__)  // where vfork is deprecated
  const pid_t child = fork();
#else
  const pid_t child = vfork();
#endif
  if (child == 0) become(start);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return child;
}

// A shell stands between, so that the group ends when this process dies: part of it reads a pipe that this
// process alone writes to, and kills the group at its end. (A process forked meanwhile holds that pipe open;
// the program then runs to its own end.) The arguments pass the shell untouched.
constexpr const char* shell = "/bin/sh";
constexpr const char* supervision =
    "{ read -r line <&3; kill -s KILL 0; } >/dev/null 2>&1 & reader=$!; "
    "\"$@\" 3<&- & wait \"$!\"; code=$?; "
    "exec 2>/dev/null; kill -s KILL \"$reader\"; exit \"$code\"";
std::vector<std::string> supervised(const std::string& path, const std::vector<std::string>& argv) {
  std::vector<std::string> words;
  if (access(shell, X_OK) == 0) words = {shell, "-c", supervision, "metalane"};
  words.push_back(path);
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return words;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::string& temporary_directory) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "TMPDIR=", 7) != 0) result.emplace_back(*variable);
  }
  result.push_back("TMPDIR=" + temporary_directory);
  return result;
}

}  // namespace

std::mutex& process_mutex() { return shared_mutex; }

ProcessResult run_process(const std::vector<std::string>& argv, const std::string& temporary_directory,
                          const ProcessLimits& limits) {
  ProcessResult result;
  const std::string path = find_program(argv[0]);
  if (path.empty()) {
    result.error = "no such program";
    return result;
  }
  std::vector<std::string> words = supervised(path, argv);
  std::vector<std::string> variables = environment_with(temporary_directory);
  const std::vector<char*> arguments = pointers(words);
  const std::vector<char*> environment = pointers(variables);
  const Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  // In this order: a program without standard streams gets their numbers here, and the last two keep clear of
  // them.
  int output_ends[2] = {-1, -1}, lifeline_ends[2] = {-1, -1};
  const bool made = input.number() >= 0 && make_pipe(output_ends) && make_pipe(lifeline_ends);
  const int reason = errno;
  const Descriptor output(output_ends[0]), lifeline(lifeline_ends[1]);
  Descriptor output_of_child(output_ends[1]), lifeline_of_child(lifeline_ends[0]);
  if (!made) {
    result.error = std::strerror(reason);
    return result;
  }
  const pid_t id =
      start_process({words[0].c_str(), arguments.data(), environment.data(), output_of_child.number(),
                     input.number(), lifeline_of_child.number(), &limits});
  if (id < 0) {
    result.error = std::strerror(errno);
    return result;
  }
  output_of_child.drop();
  lifeline_of_child.drop();
  Child child(id, output.number());
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(limits.seconds));
  result.timed_out = !child.read_until_end(deadline, result.output);
  result.exit_code = child.collect(result.timed_out);
  if (result.exit_code == cannot_execute && result.output.empty()) result.error = "it cannot be executed";
  return result;
}

std::string find_program(const std::string& program) {
  if (program.empty()) return {};
  if (program.find('/') != std::string::npos)
    return access(program.c_str(), X_OK) == 0 ? program : std::string();
  const char* path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  for (std::size_t begin = 0; begin <= rest.size();) {
    const std::size_t end = std::min(rest.find(':', begin), rest.size());
    const std::string candidate = rest.substr(begin, end - begin) + "/" + program;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return {};
}

}  // namespace metalane::cpu
