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

extern char** environ;

namespace metalane::cpu {
namespace {

constexpr std::size_t max_output = 1 << 20;

std::mutex shared_mutex;
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { shared_mutex.lock(); }, [] { shared_mutex.unlock(); }, [] { shared_mutex.unlock(); });

// Reads until the end of the pipe, the end of the process or the deadline; false at the deadline. The pipe
// may stay open behind the process: compiler caches start servers, which keep it. `process` is negative where
// the kernel has no descriptors of processes.
bool read_all(int pipe, int process, std::chrono::steady_clock::time_point deadline, std::string& output) {
  char buffer[4096];
  fcntl(pipe, F_SETFL, O_NONBLOCK);
  for (bool ended = false;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    if (left <= 0) return false;
    pollfd waited[2] = {{pipe, POLLIN, 0}, {process, POLLIN, 0}};
    const int ready = poll(waited, 2, static_cast<int>(std::min<long long>(left, 1000)));
    if (ready < 0 && errno != EINTR) return true;
    if (ready <= 0) continue;
    ended = ended || waited[1].revents != 0;
    const ssize_t count = read(pipe, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN && !ended) continue;
    if (count <= 0) return true;
    if (output.size() < max_output) output.append(buffer, static_cast<std::size_t>(count));
  }
}

int wait_for_exit(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    // A program that ignores SIGCHLD has its children reaped by the kernel: the outcome shows in the output
    // file.
    if (errno != EINTR) return errno == ECHILD ? 0 : -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

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

void limit(int resource, std::uint64_t most) {
  rlimit limits;
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limits) != 0) return;
  limits.rlim_max = std::min<rlim_t>(limits.rlim_max, most);
  limits.rlim_cur = std::min(limits.rlim_cur, limits.rlim_max);
  setrlimit(static_cast<__rlimit_resource>(resource), &limits);
}

// In a program that runs without standard streams they may be the same already.
void give(int descriptor, int as) {
  if (descriptor == as) {
    fcntl(descriptor, F_SETFD, 0);
  } else {
    dup2(descriptor, as);
  }
}

// In the child, on the parent's memory: system calls only. posix_spawn, which does the same, can set neither
// limits nor the parent's death signal.
[[noreturn]] void become(const Start& start) {
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
  limit(RLIMIT_CPU, static_cast<std::uint64_t>(start.limits->seconds) + 1);
  limit(RLIMIT_AS, start.limits->memory_bytes);
  limit(RLIMIT_FSIZE, start.limits->file_bytes);
  limit(RLIMIT_CORE, 0);
  give(start.input, STDIN_FILENO);
  give(start.output, STDOUT_FILENO);
  give(start.output, STDERR_FILENO);
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
  std::vector<std::string> words = argv;
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
  const pid_t child = start_process(
      {path.c_str(), arguments.data(), environment.data(), pipe_ends[1], input, getpid(), &limits});
  if (child < 0) result.error = std::strerror(errno);
  close(input);
  close(pipe_ends[1]);
  if (child > 0) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                               std::chrono::duration<double>(limits.seconds));
    const int process = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    result.timed_out = !read_all(pipe_ends[0], process, deadline, result.output);
    if (process >= 0) close(process);
    if (result.timed_out) kill(-child, SIGKILL);
    result.exit_code = wait_for_exit(child);
    if (result.exit_code == cannot_execute && result.output.empty()) result.error = "it cannot be executed";
  }
  close(pipe_ends[0]);
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
