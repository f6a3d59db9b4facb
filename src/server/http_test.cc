// SPDX-License-Identifier: Apache-2.0
#include "server/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <string>
#include <thread>

#include "server/testing/running_server.h"

namespace kvik::server {
namespace {

using Running = testing::RunningServer;

HttpResponse Echo(const HttpRequest& request) {
  HttpResponse response;
  response.body = request.method + " " + request.path + " " + request.body;
  return response;
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

TEST(Http, AnswersOnAKeptConnection) {
  Running running(Echo);
  auto client = HttpClient::Create(running.url() + "/base/").value();
  EXPECT_EQ(client->Get("/x").value().body, "GET /base/x ");
  EXPECT_EQ(client->Post("/y", "{}").value().body, "POST /base/y {}");
  EXPECT_EQ(client->Get("/z").value().body, "GET /base/z ");
}

TEST(Http, ATakenPortIsAnError) {
  Running running(Echo);
  HttpServerOptions options;
  options.port = running.port();
  const auto second = HttpServer::Bind(options, Echo);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, ::testing::HasSubstr(std::to_string(running.port())));
}

TEST(Http, StreamsPiecesAsTheyAreWritten) {
  Running running([](const HttpRequest&) {
    HttpResponse response;
    response.stream = [](HttpStream& out) {
      out.Write("one ");
      out.Write("");
      out.Write("two");
    };
    return response;
  });
  auto client = HttpClient::Create(running.url()).value();
  std::string all;
  const HttpReply reply = client
                              ->PostStreaming("/", "{}",
                                              [&](std::string_view bytes) {
                                                all += bytes;
                                                return true;
                                              })
                              .value();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(all, "one two");
}

TEST(Http, ATooLargeBodyIsRefusedWithoutReadingItAll) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  std::atomic<int> handled{0};
  Running running(
      [&](const HttpRequest& request) {
        ++handled;
        return Echo(request);
      },
      options);
  auto client = HttpClient::Create(running.url()).value();
  EXPECT_EQ(client->Post("/", std::string(1001, 'x')).value().status, 413);
  EXPECT_EQ(client->Post("/", std::string(1000, 'x')).value().status, 200);
  EXPECT_EQ(handled, 1);
}

TEST(Http, GarbageIsABadRequestAndNotACrash) {
  Running running(Echo);
  for (const char* text :
       {"\r\n\r\n", "GET\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "\x16\x03\x01\x02", "GET / HTTP/9.9\r\n\r\n"}) {
    const int fd = Connect(running.port());
    send(fd, text, std::strlen(text), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    char reply[512];
    while (recv(fd, reply, sizeof(reply), 0) > 0) {
    }
    close(fd);
  }
  auto client = HttpClient::Create(running.url()).value();
  EXPECT_EQ(client->Get("/").value().status, 200);
}

TEST(Http, HandlersSeeThatAClientLeft) {
  std::latch entered(1);
  std::latch left(1);
  std::atomic<bool> before{true};
  std::atomic<bool> after{false};
  {
    Running running([&](const HttpRequest& request) {
      before = request.client_gone();
      entered.count_down();
      left.wait();
      after = request.client_gone();
      return HttpResponse();
    });
    const int fd = Connect(running.port());
    const std::string text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    send(fd, text.data(), text.size(), 0);
    entered.wait();
    close(fd);
    left.count_down();
  }  // joins the handler
  EXPECT_FALSE(before);
  EXPECT_TRUE(after);
}

TEST(Http, ShutdownLetsARunningStreamFinish) {
  std::latch streaming(1);
  std::latch go_on(1);
  std::string all;
  {
    Running running([&](const HttpRequest&) {
      HttpResponse response;
      response.stream = [&](HttpStream& out) {
        out.Write("begin ");
        streaming.count_down();
        go_on.wait();
        out.Write("end");
      };
      return response;
    });
    std::thread reader([&, url = running.url()] {
      auto client = HttpClient::Create(url).value();
      const auto reply = client->PostStreaming("/", "{}", [&](std::string_view bytes) {
        all += bytes;
        return true;
      });
      EXPECT_TRUE(reply.has_value());
    });
    streaming.wait();
    running.server().Shutdown();
    go_on.count_down();
    reader.join();
  }
  EXPECT_EQ(all, "begin end");
}

TEST(Http, ACallIsBrokenFromAnotherThread) {
  std::latch entered(1);
  Running running([&](const HttpRequest& request) {
    entered.count_down();
    while (!request.client_gone()) {
      std::this_thread::yield();
    }
    return HttpResponse();
  });
  auto client = HttpClient::Create(running.url()).value();
  std::thread breaker([&] {
    entered.wait();
    client->Cancel();
  });
  HttpExchange exchange;
  exchange.path = "/";
  exchange.on_bytes = [](std::string_view) { return true; };
  const Result<int> status = client->Send(exchange);
  breaker.join();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

TEST(Http, AnExchangeSeesHeadAndBodyOfAnyStatus) {
  Running running([](const HttpRequest& request) {
    HttpResponse response;
    response.status = 418;
    response.body = request.method + " " + *request.Header("X-One");
    return response;
  });
  auto client = HttpClient::Create(running.url(), "key").value();
  HttpExchange exchange;
  exchange.method = "DELETE";
  exchange.path = "/";
  exchange.headers = {{"X-One", "1"}};
  std::string head;
  std::string body;
  exchange.on_start = [&](int status, const std::string& type) {
    head = std::to_string(status) + " " + type;
  };
  exchange.on_bytes = [&](std::string_view bytes) {
    body += bytes;
    return true;
  };
  EXPECT_EQ(client->Send(exchange).value(), 418);
  EXPECT_EQ(head, "418 application/json");
  EXPECT_EQ(body, "DELETE 1");
}

TEST(Http, RefusesWhatIsNoUrl) {
  EXPECT_FALSE(HttpClient::Create("localhost:8000").has_value());
  EXPECT_FALSE(HttpClient::Create("ftp://x").has_value());
  for (const char* url : {"",
                          "http://",
                          "http:///path",
                          "http://:8000",
                          "http://host:",
                          "http://host:0",
                          "http://host:65536",
                          "http://host:80x",
                          "http://host:-1",
                          "http://host:1:2",
                          "http://::1:80",
                          "http://[::1",
                          "http://[::1:80",
                          "http://[::1]80",
                          "http://[]:80",
                          "http://user@host:80",
                          "http://host/?x=1",
                          "http://host#x",
                          "http://a host",
                          "http://host\n"}) {
    EXPECT_FALSE(NormalUrl(url).has_value()) << url;
    EXPECT_FALSE(HttpClient::Create(url).has_value()) << url;
  }
}

TEST(Http, AServerHasOneUrl) {
  for (const char* url : {"http://host", "http://host:1", "http://host:65535/base",
                          "http://[::1]:80", "https://10.0.0.7:8000"}) {
    EXPECT_EQ(NormalUrl(url).value(), url);
    EXPECT_EQ(NormalUrl(std::string(url) + "/").value(), url);
    EXPECT_EQ(NormalUrl(std::string(url) + "//").value(), url);
  }
}

TEST(Http, NoServerIsUnavailable) {
  int port = 0;
  { port = HttpServer::Bind({}, Echo).value()->port(); }
  auto client = HttpClient::Create("http://127.0.0.1:" + std::to_string(port)).value();
  EXPECT_EQ(client->Get("/").error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvik::server
