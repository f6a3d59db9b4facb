// SPDX-License-Identifier: Apache-2.0
#include "app/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace kvik::app {
namespace {

constexpr size_t kKeptOutputBytes = size_t{64} << 10;
constexpr int kTickMillis = 100;

}  // namespace

Result<ProcessResult> RunProcess(
    const std::vector<std::string>& argv,
    const std::vector<std::pair<std::string, std::string>>& environment,
    const std::function<void()>& on_tick) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) {
    return Err(ErrorCode::kUnavailable, "cannot make a pipe: %s", std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);

  std::vector<char*> args;
  for (const std::string& arg : argv) {
    args.push_back(const_cast<char*>(arg.c_str()));
  }
  args.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool replaced = false;
    for (const auto& [name, value] : environment) {
      replaced = replaced || std::strncmp(*variable, (name + "=").c_str(), name.size() + 1) == 0;
    }
    if (!replaced) {
      variables.emplace_back(*variable);
    }
  }
  for (const auto& [name, value] : environment) {
    variables.push_back(name + "=" + value);
  }
  std::vector<char*> envp;
  for (std::string& variable : variables) {
    envp.push_back(variable.data());
  }
  envp.push_back(nullptr);

  pid_t pid = 0;
  const int error = posix_spawnp(&pid, args[0], &actions, nullptr, args.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  if (error != 0) {
    close(out[0]);
    return Err(ErrorCode::kUnavailable, "cannot run %s: %s", argv[0].c_str(), std::strerror(error));
  }

  ProcessResult result;
  char buffer[4096];
  for (;;) {
    pollfd readable{out[0], POLLIN, 0};
    const int ready = poll(&readable, 1, kTickMillis);
    if (on_tick) {
      on_tick();
    }
    if (ready == 0 || (ready < 0 && errno == EINTR)) {
      continue;
    }
    const ssize_t n = read(out[0], buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      break;
    }
    result.output.append(buffer, static_cast<size_t>(n));
    if (result.output.size() > 2 * kKeptOutputBytes) {
      result.output.erase(0, result.output.size() - kKeptOutputBytes);
    }
  }
  close(out[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace kvik::app
