// SPDX-License-Identifier: Apache-2.0
// What moving objects costs beside what the machine can do: bytes a second of streams and objects
// over TCP on the loopback interface, next to plain sockets (with and without the CRCs that the
// protocol makes) and memcpy in the same run; the time of small calls next to a plain ping-pong;
// and whether emulated links keep what they promise in real time. Bytes are checked before anything
// is timed; the best of some rounds is printed, and the median of latencies.
//
//   transfer_bench [--quick] [--only SUBSTRING]
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "transfer/loopback.h"
#include "transfer/object_client.h"
#include "transfer/tcp.h"
#include "transfer/testing/fake_pool.h"

namespace kvik::transfer {
namespace {

using testing::BytesOf;
using testing::FakePool;
using testing::KeyOf;

constexpr size_t kMiB = size_t{1} << 20;

class Bench {
 public:
  explicit Bench(const kvik::testing::BenchOptions& options)
      : options_(options),
        rounds_(options.quick ? 3 : 7),
        total_bytes_((options.quick ? 128 : 512) * kMiB) {}

  void Run() {
    std::printf("%-44s %10s\n", "bytes a second", "GB/s");
    Memcpy();
    for (const bool crc : {false, true}) {
      for (const size_t size : {64 * 1024UL, kMiB}) {
        RawSockets(size, crc);
      }
    }
    Objects(Way::kTcp, kMiB, 1);
    Objects(Way::kTcp, kMiB, 4);
    Objects(Way::kTcp, 8 * kMiB, 1);
    Objects(Way::kTcp, 8 * kMiB, 4);
    Objects(Way::kLoopback, 8 * kMiB, 4);
    Puts(8 * kMiB);
    std::printf("\n%-44s %10s %10s\n", "round trips of 64 bytes", "median us", "p99 us");
    RawPingPong();
    Calls();
    std::printf("\n%-44s %10s %10s %10s\n", "emulated links, in real time", "promised", "measured",
                "peer says");
    for (const double mbit : {100.0, 1000.0, 5000.0}) {
      EmulatedRate(mbit);
    }
    EmulatedDelay();
  }

 private:
  enum class Way { kTcp, kLoopback };

  [[nodiscard]] bool Wanted(const std::string& name) const {
    return options_.only.empty() || name.find(options_.only) != std::string::npos;
  }

  void PrintRate(const std::string& name, const std::function<double()>& seconds, size_t bytes) {
    if (!Wanted(name)) {
      return;
    }
    double best = 1e30;
    for (int round = 0; round < rounds_; ++round) {
      best = std::min(best, seconds());
    }
    std::printf("%-44s %10.2f\n", name.c_str(), static_cast<double>(bytes) / best * 1e-9);
    std::fflush(stdout);
  }

  static void PrintTimes(const std::string& name, std::vector<double> times_us) {
    std::sort(times_us.begin(), times_us.end());
    std::printf("%-44s %10.1f %10.1f\n", name.c_str(), times_us[times_us.size() / 2],
                times_us[times_us.size() * 99 / 100]);
    std::fflush(stdout);
  }

  void Memcpy() {
    const std::vector<std::byte> from = BytesOf(1, 64 * kMiB);
    std::vector<std::byte> to(from.size());
    PrintRate(
        "memcpy, 64 MiB",
        [&] {
          const double start = clock_.NowSeconds();
          std::memcpy(to.data(), from.data(), from.size());
          return clock_.NowSeconds() - start;
        },
        from.size());
    KVIK_CHECK(to == from || options_.only != "");
    PrintRate(
        "CRC32C, 128 KiB in cache",
        [&] {
          const double start = clock_.NowSeconds();
          for (int i = 0; i < 64; ++i) {
            sum_ += Crc32c(std::span(from).first(128 * 1024));
          }
          return clock_.NowSeconds() - start;
        },
        64 * 128 * 1024);
  }

  // Two connected, waiting sockets over the loopback interface.
  static std::pair<int, int> Sockets() {
    const auto address = Resolve(HostPort{"127.0.0.1", "0"}, false);
    KVIK_CHECK(address.has_value());
    const auto listener = TcpListen(*address);
    KVIK_CHECK(listener.has_value());
    const SocketAddress local = LocalAddress(listener->get());
    const int near = socket(AF_INET, SOCK_STREAM, 0);
    KVIK_CHECK(connect(near, reinterpret_cast<const sockaddr*>(&local.storage), local.size_bytes) ==
               0);
    const int far = accept(listener->get(), nullptr, nullptr);
    KVIK_CHECK(far >= 0);
    const int on = 1;
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return {near, far};
  }

  void RawSockets(size_t size, bool crc) {
    const auto [near, far] = Sockets();
    const std::vector<std::byte> data = BytesOf(1, size);
    std::vector<std::byte> got(size);
    const std::string name = "plain sockets, " + std::to_string(size / 1024) + " KiB" +
                             (crc ? ", CRC on both sides" : "");
    PrintRate(
        name,
        [&, near = near, far = far] {
          const double start = clock_.NowSeconds();
          std::thread writer([&] {
            for (size_t sent = 0; sent < total_bytes_; sent += size) {
              if (crc) {
                writer_sum_ += Crc32c(data);
              }
              for (size_t at = 0; at < size;) {
                const ssize_t n = send(near, data.data() + at, size - at, MSG_NOSIGNAL);
                KVIK_CHECK(n > 0);
                at += static_cast<size_t>(n);
              }
            }
          });
          for (size_t received = 0; received < total_bytes_; received += size) {
            for (size_t at = 0; at < size;) {
              const ssize_t n = recv(far, got.data() + at, size - at, 0);
              KVIK_CHECK(n > 0);
              at += static_cast<size_t>(n);
            }
            if (crc) {
              sum_ += Crc32c(got);
            }
          }
          writer.join();
          return clock_.NowSeconds() - start;
        },
        total_bytes_);
    KVIK_CHECK(got == data || !Wanted(name));
    close(near);
    close(far);
  }

  // A pool and a client of it.
  struct Pair {
    explicit Pair(Way way, const std::string& link = "") {
      server_handler = MakeObjectServer(pool);
      EndpointOptions options;
      options.hello.role = Role::kPool;
      if (!link.empty()) {
        auto spec = LinkSpec::Parse(link);
        KVIK_CHECK(spec.has_value(), "%s", spec.error().message.c_str());
        options.link = std::make_shared<EmulatedLink>(*spec, clock);
      }
      auto made = Endpoint::Create(options, clock, server_handler.get());
      KVIK_CHECK(made.has_value());
      server = std::move(*made);
      EndpointOptions plain;
      made = Endpoint::Create(plain, clock, nullptr);
      KVIK_CHECK(made.has_value());
      endpoint = std::move(*made);
      ObjectClient::Options client_options;
      if (way == Way::kTcp) {
        auto address = server->Listen("127.0.0.1:0");
        KVIK_CHECK(address.has_value());
        client_options.address = *address;
      } else {
        client_options.dial = [this](int64_t deadline_us, Endpoint::Connected done) {
          ConnectLoopback(*endpoint, *server, deadline_us, std::move(done));
        };
      }
      client = ObjectClient::Create(*endpoint, client_options);
    }
    ~Pair() {
      client.reset();
      endpoint->Close();
      server->Close();
    }
    SystemClock clock;
    FakePool pool;
    std::unique_ptr<StreamHandler> server_handler;
    std::unique_ptr<Endpoint> server;
    std::unique_ptr<Endpoint> endpoint;
    std::unique_ptr<ObjectClient> client;
  };

  // Counts the bytes of one object and drops them; then goes for the next one.
  struct Reader final : GetSink, std::enable_shared_from_this<Reader> {
    Pair* pair = nullptr;
    std::atomic<size_t>* left = nullptr;  // objects still to be asked for
    std::promise<void> done;
    uint64_t number = 0;
    size_t bytes = 0;
    void Next() {
      size_t before = left->load();
      while (before > 0 && !left->compare_exchange_weak(before, before - 1)) {
      }
      if (before == 0) {
        done.set_value();
        return;
      }
      pair->client->Get(GetRequest{{KeyOf(number)}, ""}, kNever, shared_from_this());
    }
    void OnObject(size_t /*index*/, const kv::ObjectInfo& /*info*/) override {}
    void OnBytes(size_t /*index*/, SharedBytes part) override { bytes += part.size_bytes(); }
    void OnObjectEnd(size_t /*index*/, const Result<void>& outcome) override {
      KVIK_CHECK(outcome.has_value(), "%s", outcome.error().message.c_str());
    }
    void OnDone(const Result<void>& /*outcome*/, const StreamStats& /*stats*/) override { Next(); }
  };

  void Objects(Way way, size_t size, int in_flight) {
    const std::string name =
        std::string("get over ") + (way == Way::kTcp ? "TCP" : "the loopback") + ", " +
        std::to_string(size / kMiB) + " MiB, " + std::to_string(in_flight) + " in flight";
    if (!Wanted(name)) {
      return;
    }
    Pair pair(way);
    pair.pool.Store(1, size);
    const auto got = pair.client->GetWait(KeyOf(1), kNever);
    KVIK_CHECK(got.has_value() && *got == BytesOf(1, size));
    PrintRate(
        name, [&] { return Read(pair, total_bytes_ / size, in_flight); }, total_bytes_);
  }

  double Read(Pair& pair, size_t objects, int in_flight) {
    std::atomic<size_t> left{objects};
    std::vector<std::shared_ptr<Reader>> readers;
    const double start = clock_.NowSeconds();
    for (int i = 0; i < in_flight; ++i) {
      auto reader = std::make_shared<Reader>();
      reader->pair = &pair;
      reader->left = &left;
      reader->number = 1;
      readers.push_back(reader);
      reader->Next();
    }
    for (const auto& reader : readers) {
      reader->done.get_future().wait();
    }
    return clock_.NowSeconds() - start;
  }

  void Puts(size_t size) {
    Pair pair(Way::kTcp);
    const SharedBytes bytes = SharedBytes::Own(BytesOf(1, size));
    const size_t objects = total_bytes_ / size / 4;
    uint64_t number = 0;
    PrintRate(
        "put over TCP, 8 MiB, one after the other",
        [&] {
          const double start = clock_.NowSeconds();
          for (size_t i = 0; i < objects; ++i) {
            PutRequest put;
            put.info.key = KeyOf(++number);
            put.info.num_blocks = 1;
            put.info.size_bytes = size;
            const auto stored = pair.client->PutWait(put, bytes, kNever);
            KVIK_CHECK(stored.has_value(), "%s", stored.error().message.c_str());
          }
          const double took = clock_.NowSeconds() - start;
          for (uint64_t n = number - objects + 1; n <= number; ++n) {
            KVIK_CHECK(pair.client->RemoveWait(RemoveRequest{{KeyOf(n)}, ""}, kNever).has_value());
          }
          return took;
        },
        objects * size);
  }

  void RawPingPong() {
    const std::string name = "plain sockets, two threads";
    if (!Wanted(name)) {
      return;
    }
    const auto [near, far] = Sockets();
    const int count = options_.quick ? 2000 : 10000;
    std::thread echo([far = far, count] {
      char bytes[64];
      for (int i = 0; i < count; ++i) {
        KVIK_CHECK(recv(far, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        KVIK_CHECK(send(far, bytes, sizeof bytes, 0) == sizeof bytes);
      }
    });
    std::vector<double> times_us;
    char bytes[64] = {};
    for (int i = 0; i < count; ++i) {
      const double start = clock_.NowSeconds();
      KVIK_CHECK(send(near, bytes, sizeof bytes, 0) == sizeof bytes);
      KVIK_CHECK(recv(near, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
      times_us.push_back((clock_.NowSeconds() - start) * 1e6);
    }
    echo.join();
    close(near);
    close(far);
    PrintTimes(name, std::move(times_us));
  }

  void Calls() {
    const int count = options_.quick ? 2000 : 10000;
    const SharedBytes request = SharedBytes::Own(BytesOf(1, 64));
    for (const Way way : {Way::kTcp, Way::kLoopback}) {
      const std::string over = way == Way::kTcp ? " over TCP" : " over the loopback";
      Pair pair(way);
      KVIK_CHECK(pair.client->CallWait(1, request, kNever).has_value());
      if (Wanted("call" + over)) {
        // From callback to callback: the threads are the endpoints'.
        std::vector<double> times_us;
        std::promise<void> done;
        double start = 0;
        std::function<void()> next = [&] {
          start = clock_.NowSeconds();
          pair.client->Call(1, request, kNever, [&](const Result<SharedBytes>& answer) {
            KVIK_CHECK(answer.has_value());
            times_us.push_back((clock_.NowSeconds() - start) * 1e6);
            if (times_us.size() < static_cast<size_t>(count)) {
              next();
            } else {
              done.set_value();
            }
          });
        };
        next();
        done.get_future().wait();
        PrintTimes("call" + over, std::move(times_us));
      }
      if (Wanted("call and wait" + over)) {
        std::vector<double> times_us;
        for (int i = 0; i < count; ++i) {
          const double start = clock_.NowSeconds();
          KVIK_CHECK(pair.client->CallWait(1, request, kNever).has_value());
          times_us.push_back((clock_.NowSeconds() - start) * 1e6);
        }
        PrintTimes("call and wait" + over, std::move(times_us));
      }
    }
  }

  void EmulatedRate(double mbit) {
    char link[64];
    std::snprintf(link, sizeof link, "rate=%.0fMbit,delay=1ms", mbit);
    if (!Wanted(link)) {
      return;
    }
    Pair pair(Way::kTcp, link);
    // Streams of one priority take turns and so end together; what then is on the way back and
    // forth has to be small beside the objects.
    const size_t size = std::max<size_t>(kMiB, static_cast<size_t>(mbit * 1e6 / 8 * 0.1));
    pair.pool.Store(1, size);
    KVIK_CHECK(pair.client->GetWait(KeyOf(1), kNever).has_value());
    const auto before = pair.client->stats().connection;
    const size_t objects = 6;
    const double seconds = Read(pair, objects, 3);
    const auto after = pair.client->stats().connection;
    std::printf("%-44s %7.0f Mb %7.0f Mb %7.0f Mb\n", link, mbit,
                static_cast<double>(objects * size) * 8e-6 / seconds,
                static_cast<double>(after.wire_bytes - before.wire_bytes) * 8 /
                    static_cast<double>(after.wire_us - before.wire_us));
    std::fflush(stdout);
  }

  void EmulatedDelay() {
    const std::string link = "delay=2ms";
    if (!Wanted(link)) {
      return;
    }
    Pair pair(Way::kTcp, link);
    const SharedBytes request = SharedBytes::Own(BytesOf(1, 64));
    KVIK_CHECK(pair.client->CallWait(1, request, kNever).has_value());
    std::vector<double> times_us;
    for (int i = 0; i < 100; ++i) {
      const double start = clock_.NowSeconds();
      KVIK_CHECK(pair.client->CallWait(1, request, kNever).has_value());
      times_us.push_back((clock_.NowSeconds() - start) * 1e6);
    }
    std::sort(times_us.begin(), times_us.end());
    std::printf("%-44s %7d us %7.0f us %7.0f us\n", "delay=2ms, there and back", 4000,
                times_us[times_us.size() / 2],
                static_cast<double>(pair.client->stats().connection.rtt_us));
  }

  const kvik::testing::BenchOptions options_;
  const int rounds_;
  const size_t total_bytes_;
  const kvik::testing::BenchClock clock_{/*cpu_time=*/false};
  uint32_t sum_ = 0;
  uint32_t writer_sum_ = 0;
};

}  // namespace
}  // namespace kvik::transfer

int main(int argc, char** argv) {
  const auto options = kvik::testing::ParseBenchOptions(argc, argv, /*takes_model=*/false);
  if (!options) {
    return 2;
  }
  kvik::transfer::Bench(*options).Run();
  return 0;
}
