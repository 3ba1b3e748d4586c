// Programs as a user runs them: arguments in, output and exit code out.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/os/unique_fd.h"

namespace vswitch::testing {

struct ProcessResult {
  int exit_code = -1;  // 128 + the signal's number for one that was ended by a signal
  std::string out;
  std::string err;
};

// A running child. Killed, at the latest, when the object goes.
class Process {
 public:
  // `environment` is added to ours, as "NAME=value".
  explicit Process(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    int out[2];
    int err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) return;
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(err[1], STDERR_FILENO);
      for (std::string& variable : environment) ::putenv(variable.data());
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = UniqueFd(out[0]);
    err_ = UniqueFd(err[0]);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) { ::kill(pid_, number); }

  // Reads what it writes until it ends.
  ProcessResult wait() {
    pollfd fds[2] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    std::string* texts[2] = {&result_.out, &result_.err};
    for (int open = 2; open > 0;) {
      ::poll(fds, 2, -1);
      for (int i = 0; i < 2; ++i) {
        if (fds[i].fd < 0 || fds[i].revents == 0) continue;
        char buffer[4096];
        const ssize_t count = ::read(fds[i].fd, buffer, sizeof buffer);
        if (count > 0) {
          texts[i]->append(buffer, static_cast<std::size_t>(count));
        } else {
          fds[i].fd = -1;
          --open;
        }
      }
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result_;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd out_;
  UniqueFd err_;
  ProcessResult result_;
};

inline ProcessResult run_process(std::vector<std::string> arguments,
                                 std::vector<std::string> environment = {}) {
  return Process(std::move(arguments), std::move(environment)).wait();
}

// Waits until `condition` holds; false if it does not in time.
template <typename Condition>
bool wait_until(Condition condition, std::chrono::seconds limit = std::chrono::seconds(30)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace vswitch::testing
