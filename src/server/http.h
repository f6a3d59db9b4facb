// SPDX-License-Identifier: Apache-2.0
// server/http.h: HTTP/1.1 for the server and for the load client, in kvik's own types.
//
// cpp-httplib stays behind this header. What the wrapper adds: a port in use is an error (httplib
// would share it), handlers can see that a client has left, shutdown lets running replies finish,
// threads come on demand, and headers and bodies are bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvik::server {

// Whether a server listens there on every address, so that it is no place to send others to.
[[nodiscard]] inline bool IsWildcardHost(std::string_view host) {
  return host == "0.0.0.0" || host == "::" || host == "[::]" || host.empty();
}

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without query
  HttpHeaders headers;
  std::string body;
  // True once the client has closed its side. Costs a system call; any thread.
  std::function<bool()> client_gone;

  // The first value of a header, case does not matter; nullptr when absent.
  [[nodiscard]] const std::string* Header(std::string_view name) const;
};

// The open reply of a streaming handler.
class HttpStream {
 public:
  virtual ~HttpStream() = default;
  // False when the client has left or does not read; nothing more will be written then.
  virtual bool Write(std::string_view bytes) = 0;
  [[nodiscard]] virtual bool client_gone() const = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
  // When set, the reply is chunked: called once after the headers are sent, on the same thread;
  // `body` is ignored.
  std::function<void(HttpStream&)> stream;
};

// Called concurrently from connection threads. Must not throw.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0 = any free one
  size_t max_body_bytes = size_t{32} << 20;
  int max_connections = 1024;  // each has a thread; further ones wait
  int idle_timeout_s = 60;     // of a kept-alive connection between requests
  int io_timeout_s = 30;       // of a single read or write
  // Bodies of replies that the transport itself gives.
  std::function<std::string(int status)> error_body;
};

class HttpServer {
 public:
  // Takes the port. kUnavailable: it is in use, or not ours to take.
  static Result<std::unique_ptr<HttpServer>> Bind(HttpServerOptions options, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;
  // Accepts connections until Shutdown, then returns when the last running reply is finished.
  void Serve();
  // Takes no new connections and no new requests on open ones. Returns at once; any thread; also
  // before Serve.
  void Shutdown();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct HttpReply {
  int status = 0;
  std::string body;
};

// A call whose reply is taken as it comes, whatever its status.
struct HttpExchange {
  std::string method = "POST";
  std::string path;
  HttpHeaders headers;
  std::string body;  // JSON
  // The head of the reply is there. May be empty.
  std::function<void(int status, const std::string& content_type)> on_start;
  // Pieces of the body; false closes the connection and is no error.
  std::function<bool(std::string_view)> on_bytes;
};

// "http://host[:port][/path]" without slashes at its end, so that one server has one name.
// kInvalidInput: not such a URL; the message says what is wrong with it.
[[nodiscard]] Result<std::string> NormalUrl(const std::string& url);

// One kept-alive connection. Thread-compatible, but for Cancel.
class HttpClient {
 public:
  // `base_url`: "http://host[:port]", maybe with a path to put before every path. No connection is
  // made yet. kInvalidInput: not such a URL.
  static Result<std::unique_ptr<HttpClient>> Create(const std::string& base_url,
                                                    const std::string& api_key = "",
                                                    int timeout_s = 600,
                                                    int connect_timeout_s = 10);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // kUnavailable: no connection, or it broke. Any HTTP status is a success here.
  Result<HttpReply> Get(const std::string& path);
  Result<HttpReply> Post(const std::string& path, const std::string& json);
  // `on_bytes` gets the pieces of a 2xx reply as they come; false from it closes the connection
  // and is no error. The body of other replies is returned.
  Result<HttpReply> PostStreaming(const std::string& path, const std::string& json,
                                  const std::function<bool(std::string_view)>& on_bytes);
  // The status. kUnavailable: no connection, or it broke before the reply's end.
  Result<int> Send(const HttpExchange& exchange);
  // Breaks the call that is under way, from any thread; none: no effect. May wait for a connection
  // that is being made.
  void Cancel();

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::server
