// SPDX-License-Identifier: Apache-2.0
// One cycle of the thread: take what users left (functions, woken connections), let every
// connection whose time has come or that has something do what it can, then wait in epoll_wait for
// sockets, a wake-up or the next moment at which something is due (timerfd, because epoll
// counts in milliseconds). Sockets are registered once and edge-triggered: a connection always goes
// on until nothing more can be done, or wakes itself.
#include "transfer/endpoint.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/wake_fd.h"
#include "transfer/connection.h"
#include "transfer/tcp.h"

namespace kvik::transfer {
namespace {

constexpr uint64_t kWakeNumber = 1;
constexpr uint64_t kTimerNumber = 2;
constexpr uint64_t kFirstNumber = 3;
constexpr int64_t kAcceptPauseMicros = 100'000;
constexpr size_t kKeptBuffers = 64;
constexpr int64_t kComplaintPauseMicros = 10'000'000;
// Of epoll: a manual clock may be set by anybody at any time, and nothing would tell.
constexpr int64_t kLongestWaitMicros = 60'000'000;

class EndpointImpl final : public Endpoint {
 public:
  EndpointImpl(EndpointOptions options, const Clock& clock, StreamHandler* handler)
      : options_(std::move(options)),
        clock_(clock),
        handler_(handler),
        pool_(std::make_shared<ReceivePool>(options_.limits.max_frame_bytes, kKeptBuffers)),
        hello_(options_.hello) {}

  ~EndpointImpl() override { EndpointImpl::Close(); }

  Result<void> Start() {
    epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
    timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!epoll_.valid() || !wake_.valid() || !timer_.valid()) {
      return Err(ErrorCode::kExhausted, "no descriptors for an endpoint: %s", std::strerror(errno));
    }
    Register(wake_.fd(), kWakeNumber, EPOLLIN);
    Register(timer_.get(), kTimerNumber, EPOLLIN);
    wakes_ = std::make_shared<WakeList>([this] { Signal(); });
    if (options_.own_thread) {
      thread_ = std::thread([this] { Run(); });
    }
    return {};
  }

  Result<std::string> Listen(const std::string& address) override {
    KVIK_ASSIGN(const HostPort host_port, ParseAddress(address));
    KVIK_ASSIGN(const SocketAddress resolved, Resolve(host_port, /*may_wait=*/true));
    KVIK_ASSIGN(FileDescriptor fd, TcpListen(resolved));
    const std::string name = LocalAddress(fd.get()).ToString();
    auto shared = std::make_shared<FileDescriptor>(std::move(fd));
    if (!Post([this, shared] {
          const uint64_t number = next_number_++;
          Register(shared->get(), number, EPOLLIN);  // level-triggered: none is forgotten
          listeners_.emplace(number, shared);
        })) {
      return Err(ErrorCode::kUnavailable, "the endpoint is closed");
    }
    return name;
  }

  void ConnectAsync(const std::string& address, int64_t deadline_us, Connected done) override {
    Result<HostPort> host_port = ParseAddress(address);
    if (!host_port) {
      FailLater(host_port.error(), done);
      return;
    }
    Result<SocketAddress> resolved = Resolve(*host_port, /*may_wait=*/false);
    if (resolved) {
      Dial(*resolved, deadline_us, std::move(done));
      return;
    }
    // A name: asking for it may take seconds, on a thread of its own.
    const bool posted = WithResolver([this, host_port = *host_port, deadline_us, done] {
      Result<SocketAddress> found = Resolve(host_port, /*may_wait=*/true);
      if (found) {
        Dial(*found, deadline_us, done);
      } else {
        FailLater(Error{ErrorCode::kUnavailable, found.error().message}, done);
      }
    });
    if (!posted) {
      done(Err(ErrorCode::kUnavailable, "the endpoint is closed"));
    }
  }

  Result<std::shared_ptr<Connection>> Connect(const std::string& address,
                                              int64_t deadline_us) override {
    KVIK_CHECK(options_.own_thread && std::this_thread::get_id() != thread_id_.load(),
               "waiting for a connection on the thread that makes it");
    using Outcome = Result<std::shared_ptr<Connection>>;
    auto promise = std::make_shared<std::promise<Outcome>>();
    std::future<Outcome> outcome = promise->get_future();
    ConnectAsync(address, deadline_us,
                 [promise](Outcome made) { promise->set_value(std::move(made)); });
    return outcome.get();
  }

  void Adopt(std::unique_ptr<ByteChannel> channel, bool connecting, int64_t deadline_us,
             Connected done) override {
    auto shared = std::make_shared<std::unique_ptr<ByteChannel>>(std::move(channel));
    const bool posted = Post([this, shared, connecting, deadline_us, done] {
      AddConnection(std::move(*shared), connecting, deadline_us, done);
    });
    if (!posted && done) {
      done(Err(ErrorCode::kUnavailable, "the endpoint is closed"));
    }
  }

  Result<void> SetHello(Hello hello) override {
    std::vector<std::byte> encoded;
    KVIK_TRY(EncodeHello(hello, encoded));
    MutexLock lock(mutex_);
    hello_ = std::move(hello);
    return {};
  }

  bool RunAt(int64_t time_us, std::function<void()> function) override {
    auto shared = std::make_shared<std::function<void()>>(std::move(function));
    return Post([this, time_us, shared] {
      if (time_us <= clock_.NowMicros()) {
        (*shared)();
      } else {
        timers_.emplace(time_us, shared);
      }
    });
  }

  bool Poll() override {
    KVIK_CHECK(!options_.own_thread);
    const bool any = Cycle();
    return Wait(/*may_wait=*/false) || any;
  }

  int64_t NextEventMicros() override {
    int64_t next_us = accept_again_us_;
    if (!timers_.empty()) {
      next_us = std::min(next_us, timers_.begin()->first);
    }
    for (const auto& [number, connection] : connections_) {
      next_us = std::min(next_us, connection->NextEventMicros());
    }
    return next_us;
  }

  [[nodiscard]] const Clock& clock() const override { return clock_; }
  [[nodiscard]] EndpointStats stats() const override {
    MutexLock lock(mutex_);
    return stats_;
  }
  [[nodiscard]] size_t live_buffers() const override { return pool_->live_buffers(); }

  void Close() override {
    std::vector<std::thread> resolvers;
    {
      MutexLock lock(mutex_);
      if (stopping_) {
        return;
      }
      stopping_ = true;
      resolvers.swap(resolvers_);
    }
    Signal();
    for (std::thread& resolver : resolvers) {
      resolver.join();
    }
    if (thread_.joinable()) {
      KVIK_CHECK(std::this_thread::get_id() != thread_.get_id());
      thread_.join();
    } else {
      Stop();
    }
  }

 private:
  void Register(int fd, uint64_t number, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    const int status = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    KVIK_CHECK(status == 0, "epoll: %s", std::strerror(errno));
  }

  void Signal() {
    if (std::this_thread::get_id() != thread_id_.load()) {
      wake_.Wake();
    }
  }

  // Runs on the endpoint's thread; false when there is none any more.
  bool Post(std::function<void()> function) {
    {
      MutexLock lock(mutex_);
      if (stopping_) {
        return false;
      }
      functions_.push_back(std::move(function));
    }
    Signal();
    return true;
  }

  // Runs on a thread of its own; false when the endpoint is closed.
  bool WithResolver(std::function<void()> function) {
    MutexLock lock(mutex_);
    if (!stopping_) {
      resolvers_.emplace_back(std::move(function));
    }
    return !stopping_;
  }

  void FailLater(const Error& error, const Connected& done) {
    if (!Post([error, done] { done(error); })) {
      done(error);
    }
  }

  void Dial(const SocketAddress& address, int64_t deadline_us, Connected done) {
    Result<std::unique_ptr<ByteChannel>> channel = TcpConnect(address);
    if (channel) {
      Adopt(std::move(*channel), /*connecting=*/true, deadline_us, std::move(done));
    } else {
      FailLater(channel.error(), done);
    }
  }

  // ---- the endpoint's thread

  void AddConnection(std::unique_ptr<ByteChannel> channel, bool connecting, int64_t deadline_us,
                     const Connected& done) {
    const Error too_many =
        Err(ErrorCode::kExhausted, "more than %zu connections", options_.max_connections);
    const bool full = connections_.size() >= options_.max_connections;
    {
      MutexLock lock(mutex_);
      stats_.accepted += connecting ? 0 : 1;
      stats_.over_limit += full ? 1 : 0;
    }
    if (full && !MakeRoom(too_many)) {
      if (!connecting) {
        Complain(channel->PeerName(), too_many);
      }
      if (done) {
        done(too_many);
      }
      return;
    }
    const int fd = channel->fd();
    if (options_.link != nullptr) {
      channel = EmulatedLink::Wrap(options_.link, std::move(channel), options_.link_direction);
    }
    Session::Options session;
    {
      MutexLock lock(mutex_);
      session.hello = hello_;
    }
    session.policy = options_.policy;
    session.limits = options_.limits;
    ConnectionImpl::Parts parts;
    parts.number = next_number_++;
    parts.channel = std::move(channel);
    parts.connecting = connecting;
    parts.deadline_us = deadline_us;
    parts.done = done;
    parts.handler = handler_;
    parts.wakes = wakes_;
    parts.pool = pool_;
    const uint64_t number = parts.number;
    if (fd >= 0) {
      Register(fd, number, EPOLLIN | EPOLLOUT | EPOLLRDHUP | static_cast<uint32_t>(EPOLLET));
    }
    connections_.emplace(number, ConnectionImpl::Create(session, clock_, std::move(parts)));
    MutexLock lock(mutex_);
    stats_.connections = connections_.size();
  }

  // Ends the oldest connection that came from outside and has said nothing yet; false: there is
  // none.
  bool MakeRoom(const Error& why) {
    for (const auto& [number, connection] : connections_) {
      if (!connection->connecting() && !connection->greeted()) {
        const std::shared_ptr<ConnectionImpl> oldest = connection;
        oldest->Abort(why);
        Forget(oldest);
        return true;
      }
    }
    return false;
  }

  // A connection that is over.
  void Forget(const std::shared_ptr<ConnectionImpl>& connection) {
    connections_.erase(connection->number());
    const Error& failure = connection->failure();
    const bool broken = connection->greeted() && failure.code == ErrorCode::kCorrupt;
    const bool strange = !connection->connecting() && !connection->greeted();
    {
      MutexLock lock(mutex_);
      stats_.connections = connections_.size();
      stats_.failed_handshakes += strange ? 1 : 0;
      stats_.broken += broken ? 1 : 0;
    }
    // Somebody who connects and leaves looks whether a port is open.
    if (broken || (strange && failure.code != ErrorCode::kUnavailable)) {
      Complain(connection->peer().address, failure);
    }
  }

  // Says what is wrong with a peer, but not so often that it fills the log.
  void Complain(const std::string& peer, const Error& error) {
    const int64_t now_us = clock_.NowMicros();
    if (now_us < complain_again_us_) {
      ++unsaid_;
      return;
    }
    const std::string others =
        unsaid_ == 0 ? "" : " (and " + std::to_string(unsaid_) + " connections like it)";
    LogWarning("KV port: %s: %s%s", peer.c_str(), error.message.c_str(), others.c_str());
    complain_again_us_ = now_us + kComplaintPauseMicros;
    unsaid_ = 0;
  }

  void AcceptAll() {
    accept_again_us_ = kNever;
    for (const auto& [number, listener] : listeners_) {
      for (;;) {
        Result<std::unique_ptr<ByteChannel>> channel = TcpAccept(listener->get());
        if (!channel) {
          // Descriptors may be there again later; until then the socket would report for ever.
          accept_again_us_ = clock_.NowMicros() + kAcceptPauseMicros;
          Pause(*listener, number, true);
          break;
        }
        if (*channel == nullptr) {
          break;
        }
        AddConnection(std::move(*channel), /*connecting=*/false, kNever, nullptr);
      }
    }
  }

  void Pause(const FileDescriptor& listener, uint64_t number, bool pause) {
    epoll_event event{};
    event.events = pause ? uint32_t{0} : uint32_t{EPOLLIN};
    event.data.u64 = number;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener.get(), &event);
  }

  bool RunTimers(int64_t now_us) {
    bool any = false;
    while (!timers_.empty() && timers_.begin()->first <= now_us) {
      const auto node = timers_.extract(timers_.begin());
      (*node.mapped())();
      any = true;
    }
    return any;
  }

  // Everything that can be done without waiting; whether anything was.
  bool Cycle() {
    bool any = false;
    std::vector<std::function<void()>> functions;
    {
      MutexLock lock(mutex_);
      functions.swap(functions_);
    }
    for (const auto& function : functions) {
      function();
      any = true;
    }
    const int64_t now_us = clock_.NowMicros();
    any = RunTimers(now_us) || any;
    if (accept_again_us_ <= now_us) {
      for (const auto& [number, listener] : listeners_) {
        Pause(*listener, number, false);
      }
      AcceptAll();
      any = true;
    }
    std::vector<std::shared_ptr<ConnectionImpl>> due = wakes_->Take();
    for (const uint64_t number : ready_) {
      const auto it = connections_.find(number);
      if (it != connections_.end()) {
        due.push_back(it->second);
      }
    }
    ready_.clear();
    for (const auto& [number, connection] : connections_) {
      if (connection->NextEventMicros() <= now_us) {
        due.push_back(connection);
      }
    }
    std::sort(due.begin(), due.end());
    due.erase(std::unique(due.begin(), due.end()), due.end());
    // In the order in which they were made, not of their addresses: runs repeat.
    std::sort(due.begin(), due.end(),
              [](const auto& a, const auto& b) { return a->number() < b->number(); });
    for (const auto& connection : due) {
      const bool greeted = connection->greeted();
      any = connection->Poll() || any;
      if (connection->greeted() && !greeted) {
        MutexLock lock(mutex_);
        ++stats_.greeted;
      }
      if (connection->finished() && connections_.contains(connection->number())) {
        Forget(connection);
      }
    }
    return any;
  }

  // Collects what sockets report, after waiting for it if asked to; whether there was anything.
  bool Wait(bool may_wait) {
    std::array<epoll_event, 64> events;
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), may_wait ? -1 : 0);
    bool any = false;
    bool accept = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[static_cast<size_t>(i)].data.u64;
      if (number == kWakeNumber) {
        wake_.Drain();
        any = true;
      } else if (number == kTimerNumber) {
        uint64_t value = 0;
        [[maybe_unused]] const ssize_t size = read(timer_.get(), &value, sizeof value);
        armed_us_ = kNever;
      } else if (listeners_.contains(number)) {
        accept = any = true;
      } else {
        ready_.push_back(number);
        any = true;
      }
    }
    if (accept) {
      AcceptAll();
    }
    return any;
  }

  void ArmTimer() {
    const int64_t now_us = clock_.NowMicros();
    const int64_t next_us = std::min(NextEventMicros(), now_us + kLongestWaitMicros);
    if (next_us >= armed_us_ && armed_us_ > now_us) {
      return;  // it will ring earlier, and that does no harm
    }
    armed_us_ = next_us;
    const int64_t wait_us = std::max<int64_t>(next_us - now_us, 1);
    itimerspec spec{};
    spec.it_value.tv_sec = wait_us / 1'000'000;
    spec.it_value.tv_nsec = wait_us % 1'000'000 * 1000;
    timerfd_settime(timer_.get(), 0, &spec, nullptr);
  }

  // What this thread left for itself does not wake it.
  [[nodiscard]] bool Idle() {
    MutexLock lock(mutex_);
    return functions_.empty() && wakes_->empty();
  }

  [[nodiscard]] bool stopping() {
    MutexLock lock(mutex_);
    return stopping_;
  }

  void Run() {
    thread_id_.store(std::this_thread::get_id());
    while (!stopping()) {
      const bool any = Cycle();
      if (!any) {
        ArmTimer();
      }
      Wait(/*may_wait=*/!any && Idle());
    }
    Stop();
    thread_id_.store({});
  }

  void Stop() {
    std::vector<std::function<void()>> functions;
    {
      MutexLock lock(mutex_);
      functions.swap(functions_);
    }
    for (const auto& function : functions) {
      function();  // what they connect is ended below, with its callback
    }
    const Error closed = Err(ErrorCode::kUnavailable, "the endpoint was closed");
    for (const auto& [number, connection] : connections_) {
      connection->Abort(closed);
    }
    connections_.clear();
    listeners_.clear();
    RunTimers(clock_.NowMicros());
    timers_.clear();
    wakes_->Close();
  }

  const EndpointOptions options_;
  const Clock& clock_;
  StreamHandler* const handler_;
  const std::shared_ptr<ReceivePool> pool_;
  std::shared_ptr<WakeList> wakes_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  const WakeFd wake_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};

  // The endpoint's thread only.
  std::map<uint64_t, std::shared_ptr<ConnectionImpl>> connections_;
  std::map<uint64_t, std::shared_ptr<FileDescriptor>> listeners_;
  std::multimap<int64_t, std::shared_ptr<std::function<void()>>> timers_;
  std::vector<uint64_t> ready_;
  uint64_t next_number_ = kFirstNumber;
  int64_t accept_again_us_ = kNever;
  int64_t armed_us_ = kNever;  // what the timer is set to
  int64_t complain_again_us_ = std::numeric_limits<int64_t>::min();
  uint64_t unsaid_ = 0;  // complaints since the last one that was logged

  mutable Mutex mutex_;
  EndpointStats stats_ KVIK_GUARDED_BY(mutex_);
  bool stopping_ KVIK_GUARDED_BY(mutex_) = false;
  Hello hello_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> functions_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::thread> resolvers_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::Create(EndpointOptions options, const Clock& clock,
                                                   StreamHandler* handler) {
  KVIK_TRY(Session::CheckLimits(options.limits));
  std::vector<std::byte> hello;
  KVIK_TRY(EncodeHello(options.hello, hello));
  auto endpoint = std::make_unique<EndpointImpl>(std::move(options), clock, handler);
  KVIK_TRY(endpoint->Start());
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

}  // namespace kvik::transfer
