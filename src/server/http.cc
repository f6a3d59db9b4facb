// SPDX-License-Identifier: Apache-2.0
#include "server/http.h"

#include <fcntl.h>
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/mutex.h"
#include "base/wake_fd.h"

namespace kvik::server {
namespace {

// Headers of a request, its line included. A body comes on top.
constexpr size_t kMaxHeaderBytes = size_t{256} << 10;
// Accepted connections that nobody has picked up yet; httplib's own 5 makes bursts wait for
// retransmissions.
constexpr int kListenBacklog = 1024;
// How often the accepting thread looks whether it should stop.
constexpr time_t kStopPollMicros = 50'000;

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           const auto lower = [](char c) {
             return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
           };
           return lower(x) == lower(y);
         });
}

// Polls one descriptor, or two; the revents of the first. 0 = timeout.
short PollFor(int fd, short events, int timeout_ms, int wake_fd = -1) {
  pollfd fds[2] = {{fd, events, 0}, {wake_fd, POLLIN, 0}};
  int n = 0;
  do {
    n = poll(fds, wake_fd < 0 ? 1 : 2, timeout_ms);
  } while (n < 0 && errno == EINTR);
  return n <= 0 ? short{0} : fds[0].revents;
}

// The peer closed: an orderly end with nothing left to read, or an error.
bool PeerClosed(int fd) {
  char byte = 0;
  const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// A connection as httplib reads and writes it, with a limit on what one request may send.
class Connection final : public httplib::Stream {
 public:
  Connection(int fd, int io_timeout_ms, size_t max_request_bytes)
      : fd_(fd), io_timeout_ms_(io_timeout_ms), max_request_bytes_(max_request_bytes) {}

  void StartRequest() { request_bytes_ = buffered(); }
  [[nodiscard]] size_t buffered() const { return end_ - begin_; }
  [[nodiscard]] int fd() const { return fd_; }
  // Lets a handler come back to its connection.
  static thread_local Connection* current;

  bool is_readable() const override {
    return buffered() > 0 || PollFor(fd_, POLLIN, io_timeout_ms_) != 0;
  }
  bool is_writable() const override {
    return (PollFor(fd_, POLLOUT, io_timeout_ms_) & POLLOUT) != 0 && !PeerClosed(fd_);
  }
  ssize_t read(char* data, size_t size) override {
    if (buffered() == 0) {
      if (request_bytes_ >= max_request_bytes_ || PollFor(fd_, POLLIN, io_timeout_ms_) == 0) {
        return -1;
      }
      const size_t want = std::min(sizeof(buffer_), max_request_bytes_ - request_bytes_);
      ssize_t n = 0;
      do {
        n = recv(fd_, buffer_, want, 0);
      } while (n < 0 && errno == EINTR);
      if (n <= 0) {
        return n;
      }
      request_bytes_ += static_cast<size_t>(n);
      begin_ = 0;
      end_ = static_cast<size_t>(n);
    }
    const size_t n = std::min(size, buffered());
    std::memcpy(data, buffer_ + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* data, size_t size) override {
    size_t done = 0;
    while (done < size) {
      const ssize_t n = send(fd_, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        if ((PollFor(fd_, POLLOUT, io_timeout_ms_) & POLLOUT) == 0) {
          return -1;
        }
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else {
        return -1;
      }
    }
    return static_cast<ssize_t>(done);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return fd_; }

 private:
  int fd_;
  int io_timeout_ms_;
  size_t max_request_bytes_;
  size_t request_bytes_ = 0;  // received for the current request
  size_t begin_ = 0;
  size_t end_ = 0;
  char buffer_[16384];
};

thread_local Connection* Connection::current = nullptr;

// Threads on demand: a connection never waits behind a long stream while there is room.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  // `on_idle` runs on the accepting thread a few times a second.
  ConnectionThreads(int max_threads, std::function<void()> on_idle)
      : max_threads_(static_cast<size_t>(max_threads)), on_idle_(std::move(on_idle)) {}

  void on_idle() override { on_idle_(); }

  void enqueue(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
      if (idle_ < tasks_.size() && threads_.size() < max_threads_) {
        threads_.emplace_back([this] { Work(); });
      }
    }
    wake_.NotifyOne();
  }
  void shutdown() override {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      threads.swap(threads_);
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

 private:
  void Work() {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        ++idle_;
        while (tasks_.empty() && !stopping_) {
          wake_.Wait(mutex_);
        }
        --idle_;
        if (tasks_.empty()) {
          return;
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  const size_t max_threads_;
  const std::function<void()> on_idle_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> tasks_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ KVIK_GUARDED_BY(mutex_);
  size_t idle_ KVIK_GUARDED_BY(mutex_) = 0;
  bool stopping_ KVIK_GUARDED_BY(mutex_) = false;
};

// httplib's server over our own Connection.
class Listener final : public httplib::Server {
 public:
  explicit Listener(const HttpServerOptions& options) : options_(options) {}
  ~Listener() override {
    if (svr_sock_ != INVALID_SOCKET) {  // bound and never served
      close(svr_sock_);
    }
  }

  // Connections end after their running request, and OnIdle closes the listening socket.
  void RequestStop() {
    stopping_ = true;
    wake_.Wake();
  }
  // Only the accepting thread calls stop(): from elsewhere it would be lost if it came before the
  // first accept.
  void OnIdle() {
    if (stopping_) {
      stop();
    }
  }

  Result<void> Listen() {
    if (::listen(svr_sock_, kListenBacklog) != 0) {
      return Err(ErrorCode::kUnavailable, "cannot listen on port %d: %s", options_.port,
                 std::strerror(errno));
    }
    return {};
  }

 private:
  bool process_and_close_socket(socket_t fd) override {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    Connection connection(fd, options_.io_timeout_s * 1000,
                          kMaxHeaderBytes + options_.max_body_bytes);
    Connection::current = &connection;
    bool ok = true;
    bool closed = false;
    while (ok && !closed) {
      if (connection.buffered() == 0 &&
          (PollFor(fd, POLLIN, options_.idle_timeout_s * 1000, wake_.fd()) & POLLIN) == 0) {
        break;  // idle too long, gone, or we are shutting down
      }
      connection.StartRequest();
      ok = process_request(connection, stopping_, closed, [](httplib::Request&) {});
      closed = closed || stopping_;
    }
    Connection::current = nullptr;
    ::shutdown(fd, SHUT_RDWR);
    close(fd);
    return ok;
  }

  const HttpServerOptions& options_;
  const WakeFd wake_;
  std::atomic<bool> stopping_{false};
};

class ChunkedStream final : public HttpStream {
 public:
  ChunkedStream(httplib::DataSink& sink, int fd) : sink_(sink), fd_(fd) {}
  bool Write(std::string_view bytes) override {
    if (bytes.empty()) {  // an empty chunk would end the reply
      return !failed_;
    }
    failed_ = failed_ || !sink_.write(bytes.data(), bytes.size());
    return !failed_;
  }
  [[nodiscard]] bool client_gone() const override { return failed_ || PeerClosed(fd_); }

 private:
  httplib::DataSink& sink_;
  int fd_;
  bool failed_ = false;
};

}  // namespace

const std::string* HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoringCase(key, name)) {
      return &value;
    }
  }
  return nullptr;
}

struct HttpServer::Impl {
  Impl(HttpServerOptions server_options, HttpHandler server_handler)
      : options(std::move(server_options)), handler(std::move(server_handler)), listener(options) {}

  void Answer(const httplib::Request& request, httplib::Response& response, std::string body) {
    HttpRequest native;
    native.method = request.method;
    native.path = request.path;
    for (const auto& [key, value] : request.headers) {
      native.headers.emplace_back(key, value);
    }
    native.body = std::move(body);
    const int fd = Connection::current->fd();
    native.client_gone = [fd] { return PeerClosed(fd); };
    HttpResponse answer = handler(native);
    response.status = answer.status;
    for (const auto& [key, value] : answer.headers) {
      response.set_header(key, value);
    }
    if (!answer.stream) {
      response.set_content(answer.body, answer.content_type);
      return;
    }
    // One call writes the whole reply: httplib looks at its stop flag between calls and would cut
    // a stream off at shutdown.
    response.set_chunked_content_provider(
        answer.content_type,
        [fd, stream = std::move(answer.stream)](size_t, httplib::DataSink& sink) {
          ChunkedStream out(sink, fd);
          stream(out);
          if (!out.Write({})) {
            return false;
          }
          sink.done();
          return true;
        });
  }

  void InstallRoutes() {
    const auto without_body = [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response, {});
    };
    const auto with_body = [this](const httplib::Request& request, httplib::Response& response,
                                  const httplib::ContentReader& reader) {
      std::string body;
      bool too_large = false;
      const bool read = reader([&](const char* data, size_t size) {
        // Counts inflated bytes when the body came compressed.
        too_large = size > options.max_body_bytes - body.size();
        if (!too_large) {
          body.append(data, size);
        }
        return !too_large;
      });
      if (too_large) {
        response.status = 413;
      } else if (!read) {
        if (response.status < 400) {
          response.status = 400;
        }
      } else {
        Answer(request, response, std::move(body));
      }
    };
    listener.Get(".*", without_body);
    listener.Options(".*", without_body);
    listener.Post(".*", with_body);
    listener.Put(".*", with_body);
    listener.Patch(".*", with_body);
    listener.Delete(".*", with_body);
    listener.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty() && options.error_body) {
        response.set_content(options.error_body(response.status), "application/json");
      }
    });
    listener.set_exception_handler([](const httplib::Request&, httplib::Response& response,
                                      const std::exception_ptr&) { response.status = 500; });
  }

  HttpServerOptions options;
  HttpHandler handler;
  Listener listener;
  int port = 0;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(HttpServerOptions options,
                                                     HttpHandler handler) {
  if (options.port < 0 || options.port > 65535) {
    return Err(ErrorCode::kInvalidInput, "port %d is not in 0..65535", options.port);
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  Listener& listener = impl->listener;
  const HttpServerOptions& opts = impl->options;
  listener.set_payload_max_length(opts.max_body_bytes);
  // Only SO_REUSEADDR: with httplib's SO_REUSEPORT two servers would share a port in silence.
  listener.set_socket_options([](socket_t fd) {
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  });
  listener.set_idle_interval(0, kStopPollMicros);
  listener.new_task_queue = [&listener, max = opts.max_connections] {
    return new ConnectionThreads(max, [&listener] { listener.OnIdle(); });
  };
  impl->InstallRoutes();
  errno = 0;
  if (opts.port == 0) {
    impl->port = listener.bind_to_any_port(opts.host);
  } else {
    impl->port = listener.bind_to_port(opts.host, opts.port) ? opts.port : -1;
  }
  if (impl->port < 0) {
    const int error = errno;
    return Err(ErrorCode::kUnavailable,
               "cannot listen on %s:%d: %s; choose another --port or --host", opts.host.c_str(),
               opts.port, error != 0 ? std::strerror(error) : "address not usable");
  }
  KVIK_TRY(listener.Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port; }

void HttpServer::Serve() { impl_->listener.listen_after_bind(); }

void HttpServer::Shutdown() { impl_->listener.RequestStop(); }

struct HttpClient::Impl {
  explicit Impl(const std::string& url_origin) : client(url_origin), origin(url_origin) {}
  httplib::Client client;
  std::string origin;
  std::string prefix;  // of every path
  httplib::Headers headers;

  [[nodiscard]] Error Failed(const std::string& path, httplib::Error error) const {
    return Err(ErrorCode::kUnavailable, "%s%s%s: %s", origin.c_str(), prefix.c_str(), path.c_str(),
               httplib::to_string(error).c_str());
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::string> NormalUrl(const std::string& url) {
  const auto wrong = [&](const char* what) {
    return Err(ErrorCode::kInvalidInput,
               "'%s' is not a URL%s: give http://host:port, as in http://127.0.0.1:8000",
               url.c_str(), what);
  };
  const size_t scheme_end = url.find("://");
  const std::string scheme = url.substr(0, scheme_end == std::string::npos ? 0 : scheme_end);
  if (scheme != "http" && scheme != "https") {
    return wrong("");
  }
  if (std::any_of(url.begin(), url.end(), [](char c) {
        return c <= ' ' || c == 127 || c == '?' || c == '#' || c == '@';
      })) {
    return wrong(" of a server (no blanks, no user, nothing behind ? or #)");
  }
  const size_t begin = scheme_end + 3;
  const size_t path = std::min(url.find('/', begin), url.size());
  const std::string_view authority = std::string_view(url).substr(begin, path - begin);
  const size_t host_end =
      authority.starts_with('[') ? authority.find(']') : std::min(authority.find(':'), path);
  if (host_end == std::string_view::npos) {
    return wrong(" (the [ has no ])");
  }
  const size_t host_size = std::min(host_end + (authority.starts_with('[') ? 1 : 0),  // with the ]
                                    authority.size());
  const std::string_view host = authority.substr(0, host_size);
  if (host.empty() || host == "[]") {
    return wrong(" (it has no host)");
  }
  const std::string_view port = authority.substr(host_size);
  if (!port.empty()) {
    uint32_t number = 0;
    const auto [rest, error] = std::from_chars(port.data() + 1, port.data() + port.size(), number);
    if (port.front() != ':' || error != std::errc() || rest != port.data() + port.size() ||
        number < 1 || number > 65535) {
      return wrong(" (its port is not a number of 1 to 65535)");
    }
  }
  return url.substr(0, url.find_last_not_of('/') + 1);
}

Result<std::unique_ptr<HttpClient>> HttpClient::Create(const std::string& base_url,
                                                       const std::string& api_key, int timeout_s,
                                                       int connect_timeout_s) {
  KVIK_ASSIGN(const std::string url, NormalUrl(base_url));
  const size_t path_begin = url.find('/', url.find("://") + 3);
  auto impl = std::make_unique<Impl>(url.substr(0, path_begin));
  if (!impl->client.is_valid()) {
    return Err(ErrorCode::kInvalidInput, "'%s' is not a usable URL", base_url.c_str());
  }
  if (path_begin != std::string::npos) {
    impl->prefix = url.substr(path_begin);
  }
  if (!api_key.empty()) {
    impl->headers.emplace("Authorization", "Bearer " + api_key);
  }
  impl->client.set_keep_alive(true);
  impl->client.set_tcp_nodelay(true);
  impl->client.set_connection_timeout(connect_timeout_s);
  impl->client.set_read_timeout(timeout_s);
  impl->client.set_write_timeout(timeout_s);
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

Result<HttpReply> HttpClient::Get(const std::string& path) {
  auto result = impl_->client.Get(impl_->prefix + path, impl_->headers);
  if (!result) {
    return impl_->Failed(path, result.error());
  }
  return HttpReply{result->status, result->body};
}

Result<HttpReply> HttpClient::Post(const std::string& path, const std::string& json) {
  auto result = impl_->client.Post(impl_->prefix + path, impl_->headers, json, "application/json");
  if (!result) {
    return impl_->Failed(path, result.error());
  }
  return HttpReply{result->status, result->body};
}

Result<HttpReply> HttpClient::PostStreaming(const std::string& path, const std::string& json,
                                            const std::function<bool(std::string_view)>& on_bytes) {
  httplib::Request request;
  request.method = "POST";
  request.path = impl_->prefix + path;
  request.headers = impl_->headers;
  request.set_header("Content-Type", "application/json");
  request.body = json;
  HttpReply reply;
  bool stopped = false;
  request.response_handler = [&](const httplib::Response& response) {
    reply.status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (reply.status >= 200 && reply.status < 300) {
      stopped = !on_bytes({data, size});
      return !stopped;
    }
    reply.body.append(data, size);
    return true;
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  if (!impl_->client.send(request, response, error) && !stopped) {
    return impl_->Failed(path, error);
  }
  return reply;
}

Result<int> HttpClient::Send(const HttpExchange& exchange) {
  httplib::Request request;
  request.method = exchange.method;
  request.path = impl_->prefix + exchange.path;
  request.headers = impl_->headers;
  for (const auto& [name, value] : exchange.headers) {
    request.headers.erase(name);
    request.headers.emplace(name, value);
  }
  if (exchange.method != "GET" && exchange.method != "HEAD") {
    request.set_header("Content-Type", "application/json");
    request.body = exchange.body;
  }
  int status = 0;
  bool stopped = false;
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    if (exchange.on_start) {
      exchange.on_start(status, response.get_header_value("Content-Type"));
    }
    return true;
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    stopped = !exchange.on_bytes({data, size});
    return !stopped;
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  if (!impl_->client.send(request, response, error) && !stopped) {
    return impl_->Failed(exchange.path, error);
  }
  return status;
}

void HttpClient::Cancel() { impl_->client.stop(); }

}  // namespace kvik::server
