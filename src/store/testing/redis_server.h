// SPDX-License-Identifier: Apache-2.0
// store/testing/redis_server.h: redis-server processes of a test's own, on free ports.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/temporary_folder.h"

namespace kvik::store::testing {

// A child process with its output on a pipe; killed and reaped with the object.
class Child {
 public:
  explicit Child(const std::vector<std::string>& args) {
    int out[2] = {-1, -1};
    KVIK_CHECK(::pipe(out) == 0);
    pid_ = ::fork();
    KVIK_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      std::vector<char*> argv;
      for (const std::string& arg : args) {
        argv.push_back(const_cast<char*>(arg.c_str()));
      }
      argv.push_back(nullptr);
      ::dup2(out[1], 1);
      ::dup2(out[1], 2);
      ::close(out[0]);
      ::close(out[1]);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    out_ = out[0];
  }
  ~Child() {
    Kill();
    ::close(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // kill -9, and gone when this returns.
  void Kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }
  void Freeze() const { ::kill(pid_, SIGSTOP); }
  void Thaw() const { ::kill(pid_, SIGCONT); }
  // Reads until the output holds `text`; false when it ends first.
  bool WaitFor(const std::string& text) {
    char buffer[4096];
    while (output_.find(text) == std::string::npos) {
      const ssize_t n = ::read(out_, buffer, sizeof buffer);
      if (n <= 0) {
        return false;
      }
      output_.append(buffer, static_cast<size_t>(n));
    }
    return true;
  }
  [[nodiscard]] const std::string& output() const { return output_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string output_;
};

// Below the range of ephemeral ports, and with one 10,000 above for the cluster's own talk.
inline int FreePort() {
  static int next = 10000 + static_cast<int>(::getpid() % 6000) * 2;
  for (;; ++next) {
    if (next > 22000) {
      next = 10000;
    }
    bool free = true;
    for (const int port : {next, next + 10000}) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      free = free && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
      ::close(fd);
    }
    if (free) {
      return next++;
    }
  }
}

class RedisServer {
 public:
  static bool Available() {
    Child child({"redis-server", "--version"});
    return child.WaitFor("v=");
  }

  explicit RedisServer(std::vector<std::string> flags = {}, int port = FreePort())
      : port_(port),
        folder_(TemporaryFolder::Create("kvik-redis").value()),
        flags_(std::move(flags)) {
    Start();
  }
  // On the same address, with nothing of what it held.
  void Start() {
    std::vector<std::string> args = {"redis-server",
                                     "--port",
                                     std::to_string(port_),
                                     "--bind",
                                     "127.0.0.1",
                                     "--save",
                                     "",
                                     "--appendonly",
                                     "no",
                                     "--dir",
                                     folder_.path(),
                                     "--unixsocket",
                                     socket()};
    args.insert(args.end(), flags_.begin(), flags_.end());
    child_ = std::make_unique<Child>(args);
    KVIK_CHECK(child_->WaitFor("Ready to accept connections"), "redis-server: %s",
               child_->output().c_str());
  }
  void Kill() { child_->Kill(); }
  [[nodiscard]] Child& child() { return *child_; }
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::string url() const { return "redis://" + address(); }
  [[nodiscard]] std::string socket() const { return folder_.path() + "/socket"; }

 private:
  int port_;
  TemporaryFolder folder_;
  std::vector<std::string> flags_;
  std::unique_ptr<Child> child_;
};

// What redis-cli prints.
inline std::string RedisCli(const std::vector<std::string>& args) {
  std::vector<std::string> command = {"redis-cli"};
  command.insert(command.end(), args.begin(), args.end());
  Child child(command);
  (void)child.WaitFor("\x01");  // never: until its end
  return child.output();
}

// Lets other processes get on. Servers have their own clock: what they do in their time can only be
// awaited.
inline void LetServersWork() { ::poll(nullptr, 0, 20); }

// Three primaries, each with `replicas` replicas; waits until they agree.
class RedisCluster {
 public:
  explicit RedisCluster(int replicas) {
    std::vector<std::string> create = {"--cluster", "create"};
    for (int i = 0; i < 3 * (1 + replicas); ++i) {
      nodes_.push_back(std::make_unique<RedisServer>(std::vector<std::string>{
          "--cluster-enabled", "yes", "--cluster-node-timeout", "500",
          "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"}));
      create.push_back(nodes_.back()->address());
    }
    create.insert(create.end(), {"--cluster-replicas", std::to_string(replicas), "--cluster-yes"});
    const std::string said = RedisCli(create);
    KVIK_CHECK(said.find("All 16384 slots covered") != std::string::npos, "%s", said.c_str());
    for (const auto& node : nodes_) {
      while (RedisCli({"-p", std::to_string(node->port()), "cluster", "info"})
                 .find("cluster_state:ok") == std::string::npos) {
        LetServersWork();
      }
    }
  }
  [[nodiscard]] RedisServer& node(size_t i) { return *nodes_[i]; }
  [[nodiscard]] size_t size() const { return nodes_.size(); }
  [[nodiscard]] std::string url() const {
    return nodes_[0]->url() + "," + nodes_[1]->address() + "," + nodes_[2]->address();
  }

 private:
  std::vector<std::unique_ptr<RedisServer>> nodes_;
};

}  // namespace kvik::store::testing
