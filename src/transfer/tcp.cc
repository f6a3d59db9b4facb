// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/host_port.h"

namespace kvik::transfer {
namespace {

// What the kernel may hold back unsent. More would only be a queue in front of urgent messages, and
// hide from the sender that the wire is the slower part.
constexpr int kUnsentBytes = 256 << 10;

Error Gone(const std::string& peer, int error) {
  return Err(ErrorCode::kUnavailable, "%s: %s", peer.c_str(), std::strerror(error));
}

class TcpChannel final : public ByteChannel {
 public:
  TcpChannel(FileDescriptor fd, std::string peer, bool connecting)
      : fd_(std::move(fd)), peer_(std::move(peer)), connecting_(connecting) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
  }

  Result<size_t> Write(std::span<const iovec> parts) override {
    KVIK_ASSIGN(const bool up, Connected());
    if (!up) {
      return size_t{0};
    }
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    for (;;) {
      const ssize_t size = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (size >= 0) {
        return static_cast<size_t>(size);
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return size_t{0};
      }
      if (errno != EINTR) {
        return Gone(peer_, errno);
      }
    }
  }

  Result<size_t> Read(std::span<const iovec> parts) override {
    KVIK_ASSIGN(const bool up, Connected());
    if (!up) {
      return size_t{0};
    }
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    for (;;) {
      const ssize_t size = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
      if (size > 0) {
        return static_cast<size_t>(size);
      }
      if (size == 0) {
        return Err(ErrorCode::kUnavailable, "%s has closed the connection", peer_.c_str());
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return size_t{0};
      }
      if (errno != EINTR) {
        return Gone(peer_, errno);
      }
    }
  }

  size_t BacklogBytes() override {
    int unsent = 0;
    return fd_.valid() && ioctl(fd_.get(), SIOCOUTQNSD, &unsent) == 0 && unsent > 0
               ? static_cast<size_t>(unsent)
               : 0;
  }

  [[nodiscard]] int fd() const override { return fd_.get(); }
  void SetWake(std::function<void()> /*wake*/) override {}  // polled
  [[nodiscard]] std::string PeerName() const override { return peer_; }
  void Close() override { fd_ = FileDescriptor(); }

 private:
  // False while the connection is being made.
  Result<bool> Connected() {
    if (!fd_.valid()) {
      return Err(ErrorCode::kUnavailable, "%s: closed", peer_.c_str());
    }
    if (connecting_) {
      pollfd poll_fd{fd_.get(), POLLOUT, 0};
      if (poll(&poll_fd, 1, 0) <= 0) {
        return false;
      }
      int error = 0;
      socklen_t size_bytes = sizeof error;
      if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size_bytes) != 0) {
        error = errno;
      }
      if (error != 0) {
        return Gone(peer_, error);
      }
      connecting_ = false;
    }
    return true;
  }

  FileDescriptor fd_;
  const std::string peer_;
  bool connecting_;
};

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

std::string SocketAddress::ToString() const {
  char host[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &storage, sizeof v6);
    inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
    return JoinHostPort(host, std::to_string(ntohs(v6.sin6_port)));
  }
  sockaddr_in v4;
  std::memcpy(&v4, &storage, sizeof v4);
  inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
  return JoinHostPort(host, std::to_string(ntohs(v4.sin_port)));
}

Result<HostPort> ParseAddress(const std::string& address) {
  std::string_view text = address;
  if (text.starts_with("kvik://")) {
    text.remove_prefix(7);
  }
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon > 0) {
    std::string_view host = text.substr(0, colon);
    const std::string_view port = text.substr(colon + 1);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
      host = {};  // a bare IPv6 address: where the port begins cannot be told
    }
    const bool digits =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
    if (!host.empty() && digits && std::stoi(std::string(port)) <= 65535) {
      return HostPort{std::string(host), std::string(port)};
    }
  }
  return Err(ErrorCode::kInvalidInput, "\"%s\" is not host:port", address.c_str());
}

Result<SocketAddress> Resolve(const HostPort& address, bool may_wait) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (may_wait ? 0 : AI_NUMERICHOST);
  addrinfo* list = nullptr;
  const int status = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  if (status != 0) {
    return Err(ErrorCode::kNotFound, "%s: %s", address.host.c_str(), gai_strerror(status));
  }
  SocketAddress found;
  std::memcpy(&found.storage, list->ai_addr, list->ai_addrlen);
  found.size_bytes = list->ai_addrlen;
  freeaddrinfo(list);
  return found;
}

Result<std::unique_ptr<ByteChannel>> TcpConnect(const SocketAddress& address) {
  const std::string name = address.ToString();
  FileDescriptor fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return Err(ErrorCode::kExhausted, "no socket: %s", std::strerror(errno));
  }
  const int status =
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size_bytes);
  if (status != 0 && errno != EINPROGRESS) {
    return Gone(name, errno);
  }
  return std::unique_ptr<ByteChannel>(
      std::make_unique<TcpChannel>(std::move(fd), name, status != 0));
}

Result<FileDescriptor> TcpListen(const SocketAddress& address) {
  FileDescriptor fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return Err(ErrorCode::kExhausted, "no socket: %s", std::strerror(errno));
  }
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size_bytes) !=
          0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return Gone("listening on " + address.ToString(), errno);
  }
  return fd;
}

SocketAddress LocalAddress(int fd) {
  SocketAddress address;
  address.size_bytes = sizeof address.storage;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size_bytes);
  return address;
}

Result<std::unique_ptr<ByteChannel>> TcpAccept(int fd) {
  for (;;) {
    SocketAddress address;
    address.size_bytes = sizeof address.storage;
    FileDescriptor accepted(accept4(fd, reinterpret_cast<sockaddr*>(&address.storage),
                                    &address.size_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.valid()) {
      return std::unique_ptr<ByteChannel>(
          std::make_unique<TcpChannel>(std::move(accepted), address.ToString(), false));
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return std::unique_ptr<ByteChannel>();
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return Err(ErrorCode::kExhausted, "no descriptor for a connection: %s", std::strerror(errno));
    }
    // Anything else concerns the connection that was to be accepted: the next one.
  }
}

}  // namespace kvik::transfer
