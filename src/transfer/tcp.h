// SPDX-License-Identifier: Apache-2.0
// transfer/tcp.h: TCP sockets as channels.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "transfer/byte_channel.h"

namespace kvik::transfer {

// Owns a file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;
  [[nodiscard]] std::string ToString() const;  // "127.0.0.1:4711", "[::1]:4711"
};

struct HostPort {
  std::string host;
  std::string port;
};
// "host:port", "[v6]:port", either behind "kvik://". kInvalidInput: it is none of them.
[[nodiscard]] Result<HostPort> ParseAddress(const std::string& address);

// Numbers only when `may_wait` is false: names may take seconds. kNotFound: no such host, or it is
// a name and would have to be waited for.
[[nodiscard]] Result<SocketAddress> Resolve(const HostPort& address, bool may_wait);

// Begins to connect; the channel reports when that fails. kUnavailable, kExhausted (descriptors).
[[nodiscard]] Result<std::unique_ptr<ByteChannel>> TcpConnect(const SocketAddress& address);

// A listening socket, not waiting. kUnavailable: the address is in use, or not of this machine.
[[nodiscard]] Result<FileDescriptor> TcpListen(const SocketAddress& address);
[[nodiscard]] SocketAddress LocalAddress(int fd);
// The next connection; null when nobody waits. kExhausted: no descriptors; try later.
[[nodiscard]] Result<std::unique_ptr<ByteChannel>> TcpAccept(int fd);

}  // namespace kvik::transfer
