// vfork with limits set in the child, a pipe and a deadline.
#include "backends/cpu/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "backends/cpu/fiber.h"
#include "core/interrupt.h"

extern char** environ;

namespace metalane::cpu {
namespace {

constexpr std::size_t max_output = 1 << 20;

std::mutex shared_mutex;
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { shared_mutex.lock(); }, [] { shared_mutex.unlock(); }, [] { shared_mutex.unlock(); });

using Clock = std::chrono::steady_clock;

struct Descriptor {
  const int number;
  ~Descriptor() { close(number); }
};

// A child that leads a process group, and the read end of a pipe that it writes to. Whoever leaves early
// kills the group.
class Child {
 public:
  Child(pid_t id, int pipe)
      : id_(id), pipe_(pipe), descriptor_(static_cast<int>(syscall(SYS_pidfd_open, id, 0))) {
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
  // Kernels before Linux 5.3 have no descriptors of processes.
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
  int output;  // descriptor
  int input;
  pid_t parent;
  const ProcessLimits* limits;
};

constexpr int cannot_execute = 126;

METALANE_NO_TSAN void limit(int resource, std::uint64_t most) {
  rlimit limits;
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limits) != 0) return;
  limits.rlim_max = std::min<rlim_t>(limits.rlim_max, most);
  limits.rlim_cur = std::min(limits.rlim_cur, limits.rlim_max);
  setrlimit(static_cast<__rlimit_resource>(resource), &limits);
}

// In a program that runs without standard streams they may be the same already.
METALANE_NO_TSAN void give(int descriptor, int as) {
  if (descriptor == as) {
    fcntl(descriptor, F_SETFD, 0);
  } else {
    dup2(descriptor, as);
  }
}

// In the child, on the parent's memory: system calls only. posix_spawn, which does the same, can set neither
// limits nor the parent's death signal. The limits come last: a sanitizer's runtime needs more memory.
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
  // The parent may have died before the request.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != start.parent) _exit(cannot_execute);
  give(start.input, STDIN_FILENO);
  give(start.output, STDOUT_FILENO);
  give(start.output, STDERR_FILENO);
  limit(RLIMIT_CPU, static_cast<std::uint64_t>(start.limits->seconds) + 1);
  limit(RLIMIT_AS, start.limits->memory_bytes);
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
  const pid_t child = vfork();
  if (child == 0) become(start);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return child;
}

// Compilers start programs of their own, which the death signal does not reach: a shell waits between, and
// when it gets the signal (that of the thread that started it, which waits here) it kills the group. The
// arguments pass it untouched.
constexpr const char* shell = "/bin/sh";
std::vector<std::string> supervised(const std::string& path, const std::vector<std::string>& argv) {
  std::vector<std::string> words;
  if (access(shell, X_OK) == 0)
    words = {shell, "-c", "trap 'kill -s KILL 0' TERM; \"$@\" & wait \"$!\"", "metalane"};
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
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int pipe_ends[2];
  if (input < 0 || pipe2(pipe_ends, O_CLOEXEC) != 0) {
    result.error = std::strerror(errno);
    if (input >= 0) close(input);
    return result;
  }
  const pid_t id = start_process(
      {words[0].c_str(), arguments.data(), environment.data(), pipe_ends[1], input, getpid(), &limits});
  if (id < 0) result.error = std::strerror(errno);
  close(input);
  close(pipe_ends[1]);
  const Descriptor pipe{pipe_ends[0]};
  if (id < 0) return result;
  Child child(id, pipe.number);
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
