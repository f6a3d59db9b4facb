// SPDX-License-Identifier: Apache-2.0
// transfer/connection.h: a session on a channel, for users on any thread.
//
// Users leave commands in an inbox; the endpoint's thread takes them out, drives session and
// channel and calls sinks. So only it ever touches the protocol, and whatever users do inside a
// callback is a command like any other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "transfer/session.h"
#include "transfer/stream.h"

namespace kvik::transfer {

class ConnectionImpl;

// Connections with something in their inboxes. Outlives the endpoint, because messages that are
// dropped late still return their credit. Thread-safe.
class WakeList {
 public:
  // `signal` interrupts the endpoint's waiting.
  explicit WakeList(std::function<void()> signal) : signal_(std::move(signal)) {}
  void Wake(std::shared_ptr<ConnectionImpl> connection);
  [[nodiscard]] std::vector<std::shared_ptr<ConnectionImpl>> Take();
  [[nodiscard]] bool empty() {
    MutexLock lock(mutex_);
    return woken_.empty();
  }
  // The endpoint is gone: wake-ups have no effect from now on.
  void Close();

 private:
  Mutex mutex_;
  std::function<void()> signal_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ConnectionImpl>> woken_ KVIK_GUARDED_BY(mutex_);
};

class StreamImpl;

class ConnectionImpl final : public Connection,
                             private SessionEvents,
                             public std::enable_shared_from_this<ConnectionImpl> {
 public:
  struct Parts {
    uint64_t number = 0;
    std::unique_ptr<ByteChannel> channel;
    bool connecting = false;
    int64_t deadline_us = kNever;  // of the handshake
    Endpoint::Connected done;      // may be empty
    StreamHandler* handler = nullptr;
    std::shared_ptr<WakeList> wakes;
    std::shared_ptr<ReceivePool> pool;
  };
  static std::shared_ptr<ConnectionImpl> Create(const Session::Options& options, const Clock& clock,
                                                Parts parts);

  // --- Users.
  [[nodiscard]] const Peer& peer() const override { return peer_; }
  std::shared_ptr<Stream> Open(const OpenOptions& options, SharedBytes request,
                               std::shared_ptr<StreamSink> sink) override;
  [[nodiscard]] bool alive() const override { return alive_.load(); }
  [[nodiscard]] ConnectionStats stats() const override;
  void Drain(const std::string& reason) override;
  void Close(Error error) override;

  // --- The endpoint's thread.
  // Does what can be done now; whether anything was done. Wakes itself when there is more.
  bool Poll();
  [[nodiscard]] int64_t NextEventMicros();
  // Everything has ended, everybody has heard of it.
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] bool connecting() const { return connecting_; }  // this side made it
  [[nodiscard]] bool greeted() const { return connected_; }      // the peer's hello was taken
  [[nodiscard]] const Error& failure() const { return failure_; }
  [[nodiscard]] int fd() const { return channel_->fd(); }
  [[nodiscard]] uint64_t number() const { return peer_.connection; }
  // Ends it now, without waiting until the peer has read why.
  void Abort(const Error& error);

 private:
  friend class StreamImpl;
  struct Command {
    enum class Kind { kOpen, kSend, kFinish, kCancel, kCredit, kDrain, kClose };
    Kind kind = Kind::kSend;
    std::shared_ptr<StreamImpl> stream;
    uint32_t number = 0;  // kCredit
    Message message;      // kSend; kOpen: the request
    OpenOptions options;
    Error error;
  };

  ConnectionImpl(const Session::Options& options, const Clock& clock, Parts parts);
  void Start(const Session::Options& options, bool connecting,
             const std::shared_ptr<ReceivePool>& pool);
  // False: the connection is over, and the command was not taken.
  bool Post(Command& command);
  bool RunCommands();
  void Run(Command& command);
  bool ReadSome();
  bool WriteSome();
  void Finish();

  void OnHello(const Hello& peer) override;
  std::shared_ptr<SendBudget> OnOpened(uint32_t stream, uint16_t method, int64_t deadline_us,
                                       bool request_only, SharedBytes request) override;
  void OnMessage(uint32_t stream, Message message) override;
  void OnWritable(uint32_t stream) override;
  void OnEnded(uint32_t stream, const Result<void>& outcome, const StreamStats& stats) override;

  const Clock& clock_;
  const size_t send_buffer_bytes_;
  const int64_t deadline_us_;
  const bool connecting_;
  StreamHandler* const handler_;
  const std::shared_ptr<WakeList> wakes_;
  std::atomic<bool> alive_{false};

  // The endpoint's thread only; peer_ is constant after the handshake.
  Peer peer_;
  std::unique_ptr<ByteChannel> channel_;
  std::unique_ptr<Session> session_;
  Endpoint::Connected done_;
  std::map<uint32_t, std::shared_ptr<StreamImpl>> streams_;
  std::shared_ptr<StreamImpl> opening_;  // by Session::Open, which may end it at once
  Error failure_;
  bool connected_ = false;
  bool channel_dead_ = false;
  bool finished_ = false;

  mutable Mutex mutex_;
  std::vector<Command> inbox_ KVIK_GUARDED_BY(mutex_);
  bool closed_ KVIK_GUARDED_BY(mutex_) = false;
  ConnectionStats stats_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::transfer
