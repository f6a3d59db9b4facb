// SPDX-License-Identifier: Apache-2.0
// A call is an ObjectCall: what is to be sent, and the sink of its stream. It may wait for a
// connection, be cancelled at any time, and ends exactly once: by its stream, or, if it never got
// one, by FailEarly.
#include "transfer/object_client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <utility>

#include "base/mutex.h"
#include "transfer/object_stream.h"

namespace kvik::transfer {
namespace {

constexpr size_t kMaxFoundBytes = size_t{16} << 20;

class ObjectCall final : public PutHandle, public std::enable_shared_from_this<ObjectCall> {
 public:
  ObjectCall(Endpoint& endpoint, OpenOptions options, SharedBytes request)
      : endpoint_(endpoint), options_(options), request_(std::move(request)) {}

  // Before the call is begun.
  void SetSink(std::shared_ptr<StreamSink> sink) {
    MutexLock lock(mutex_);
    sink_ = std::move(sink);
  }
  [[nodiscard]] int64_t deadline_us() const { return options_.deadline_us; }

  // On the endpoint's thread, so that no answer can come before the stream is in its place.
  void Begin(const std::shared_ptr<Connection>& connection) {
    if (!endpoint_.RunAt(0, [self = shared_from_this(), connection] { self->Open(*connection); })) {
      FailEarly(Err(ErrorCode::kUnavailable, "the endpoint is closed"));
    }
  }

  void Open(Connection& connection) KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<StreamSink> sink;
    {
      MutexLock lock(mutex_);
      sink = std::move(sink_);
    }
    if (sink == nullptr) {
      return;  // cancelled, or too late
    }
    std::shared_ptr<Stream> stream = connection.Open(options_, request_, std::move(sink));
    bool cancelled = false;
    {
      MutexLock lock(mutex_);
      stream_ = stream;
      cancelled = cancelled_;
    }
    if (cancelled) {
      stream->Cancel(Cancelled());
    }
  }

  // Sinks are called by the endpoint's thread, as long as there is one.
  void FailSoon(const Error& error) {
    if (!endpoint_.RunAt(0, [self = shared_from_this(), error] { self->FailEarly(error); })) {
      FailEarly(error);
    }
  }

  void FailEarly(const Error& error) KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<StreamSink> sink;
    {
      MutexLock lock(mutex_);
      sink = std::move(sink_);
    }
    if (sink != nullptr) {
      sink->OnEnd(error, StreamStats{});
    }
  }

  void CancelWith(const Error& error) KVIK_EXCLUDES(mutex_) {
    if (const auto stream = this->stream()) {
      stream->Cancel(error);
    }
  }

  void Cancel() override {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      stream = stream_;
    }
    if (stream != nullptr) {
      stream->Cancel(Cancelled());
    } else {
      FailSoon(Cancelled());
    }
  }

  SendResult Append(SharedBytes bytes) override {
    const auto stream = this->stream();
    if (stream == nullptr) {
      return SendResult::kEnded;
    }
    const size_t size_bytes = bytes.size_bytes();
    Message message;
    message.kind = static_cast<uint8_t>(ObjectMessage::kBytes);
    message.bytes = std::move(bytes);
    const SendResult result = stream->Send(std::move(message));
    if (result == SendResult::kTaken) {
      appended_bytes_.fetch_add(size_bytes);
    }
    return result;
  }

  void Commit() override {
    if (const auto stream = this->stream()) {
      Message message = MakeMessage(ObjectMessage::kEnd, NumberPayload(appended_bytes_.load()));
      message.last = true;
      stream->SendAlways(std::move(message));
    }
  }

  void Finish() {
    if (const auto stream = this->stream()) {
      stream->Finish();
    }
  }

 private:
  static Error Cancelled() { return Err(ErrorCode::kUnavailable, "cancelled"); }

  [[nodiscard]] std::shared_ptr<Stream> stream() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return stream_;
  }

  Endpoint& endpoint_;
  const OpenOptions options_;
  const SharedBytes request_;
  std::atomic<uint64_t> appended_bytes_{0};
  Mutex mutex_;
  std::shared_ptr<StreamSink> sink_ KVIK_GUARDED_BY(mutex_);  // until the stream has it
  std::shared_ptr<Stream> stream_ KVIK_GUARDED_BY(mutex_);
  bool cancelled_ KVIK_GUARDED_BY(mutex_) = false;
};

// What all sinks do with messages that make no sense: end the stream, and let nothing more through.
class CallSink : public StreamSink {
 public:
  explicit CallSink(std::shared_ptr<ObjectCall> call) : call_(std::move(call)) {}

  void OnMessage(Message message) final {
    if (fault_) {
      return;
    }
    const Result<void> taken = Take(std::move(message));
    if (!taken) {
      fault_ = taken.error();
      call_->CancelWith(*fault_);
    }
  }
  void OnWritable() override {}
  void OnEnd(const Result<void>& outcome, const StreamStats& stats) final {
    End(fault_ ? Result<void>(*fault_) : outcome, stats);
  }

 protected:
  virtual Result<void> Take(Message message) = 0;
  virtual void End(const Result<void>& outcome, const StreamStats& stats) = 0;

  static Error Unexpected(const Message& message) {
    return Err(ErrorCode::kCorrupt, "a message of kind %d where none may come", message.kind);
  }
  static Error NoAnswer() {
    return Err(ErrorCode::kCorrupt, "the peer ended a call without an answer");
  }

  const std::shared_ptr<ObjectCall> call_;

 private:
  std::optional<Error> fault_;
};

// Calls with one answer that is decoded as a whole.
template <typename T>
class AnswerSink final : public CallSink {
 public:
  using Decode = std::function<Result<T>(SharedBytes)>;
  using Done = std::function<void(Result<T>)>;
  AnswerSink(std::shared_ptr<ObjectCall> call, size_t max_bytes, Decode decode, Done done)
      : CallSink(std::move(call)),
        whole_(max_bytes),
        decode_(std::move(decode)),
        done_(std::move(done)) {}

 protected:
  Result<void> Take(Message message) override {
    if (static_cast<ObjectMessage>(message.kind) != ObjectMessage::kAnswer || answer_) {
      return Unexpected(message);
    }
    KVIK_ASSIGN(std::optional<SharedBytes> bytes, whole_.Add(std::move(message)));
    if (bytes) {
      KVIK_ASSIGN(answer_, decode_(std::move(*bytes)));
    }
    return {};
  }
  void End(const Result<void>& outcome, const StreamStats& /*stats*/) override {
    if (!outcome) {
      done_(outcome.error());
    } else if (answer_) {
      done_(std::move(*answer_));
    } else {
      done_(NoAnswer());
    }
  }

 private:
  MessageAssembler whole_;
  const Decode decode_;
  const Done done_;
  std::optional<T> answer_;
};

class GetStreamSink final : public CallSink {
 public:
  GetStreamSink(std::shared_ptr<ObjectCall> call, std::vector<kv::ObjectKey> keys,
                std::shared_ptr<GetSink> sink)
      : CallSink(std::move(call)),
        keys_(std::move(keys)),
        objects_(keys_.size()),
        sink_(std::move(sink)) {}

 protected:
  Result<void> Take(Message message) override {
    if (message.bytes.empty() && message.last) {
      return {};
    }
    const size_t index = message.tag;
    if (index >= objects_.size() || objects_[index].ended) {
      return Err(ErrorCode::kCorrupt, "bytes of object %zu, which is not expected", index);
    }
    Object& object = objects_[index];
    switch (static_cast<ObjectMessage>(message.kind)) {
      case ObjectMessage::kBegin: {
        KVIK_ASSIGN(const kv::ObjectInfo info, DecodeObjectInfo(message.bytes.span()));
        if (object.begun || info.key != keys_[index]) {
          return Err(ErrorCode::kCorrupt, "another object than was asked for");
        }
        object.begun = true;
        sink_->OnObject(index, info);
        return {};
      }
      case ObjectMessage::kBytes:
        object.bytes += message.bytes.size_bytes();
        if (!object.begun || object.bytes > kMaxObjectBytes) {
          return Err(ErrorCode::kCorrupt, "bytes of an object that has not begun or has no end");
        }
        sink_->OnBytes(index, std::move(message.bytes));
        return {};
      case ObjectMessage::kEnd: {
        KVIK_ASSIGN(const auto end, DecodeObjectEnd(message.bytes.span()));
        const auto& [total_bytes, times] = end;
        if (!object.begun || total_bytes != object.bytes) {
          return Err(ErrorCode::kCorrupt, "an object of %llu bytes of which %llu came",
                     static_cast<unsigned long long>(total_bytes),
                     static_cast<unsigned long long>(object.bytes));
        }
        object.ended = true;
        if (times.waited_us > 0 || times.encode_us > 0) {
          sink_->OnObjectTimes(index, times);
        }
        sink_->OnObjectEnd(index, Result<void>());
        return {};
      }
      case ObjectMessage::kFailed: {
        KVIK_ASSIGN(const Reason reason, DecodeReason(message.bytes.span()));
        object.ended = true;
        sink_->OnObjectEnd(index, reason.error);
        return {};
      }
      default:
        return Unexpected(message);
    }
  }

  void End(const Result<void>& outcome, const StreamStats& stats) override {
    Result<void> result = outcome;
    for (size_t index = 0; index < objects_.size(); ++index) {
      if (!objects_[index].ended) {
        if (result) {
          result = NoAnswer();
        }
        objects_[index].ended = true;
        sink_->OnObjectEnd(index, result.error());
      }
    }
    sink_->OnDone(result, stats);
  }

 private:
  struct Object {
    bool begun = false;
    bool ended = false;
    uint64_t bytes = 0;
  };
  const std::vector<kv::ObjectKey> keys_;
  std::vector<Object> objects_;
  const std::shared_ptr<GetSink> sink_;
};

class PutStreamSink final : public CallSink {
 public:
  PutStreamSink(std::shared_ptr<ObjectCall> call, std::shared_ptr<PutSink> sink)
      : CallSink(std::move(call)), sink_(std::move(sink)) {}
  void OnWritable() override { sink_->OnWritable(); }

 protected:
  Result<void> Take(Message message) override {
    const auto kind = static_cast<ObjectMessage>(message.kind);
    if (kind == ObjectMessage::kAnswer && !answered_) {
      PayloadReader reader(message.bytes.span());
      const auto value = reader.Get<uint8_t>();
      KVIK_TRY(reader.Done("the answer to a put"));
      const auto answer = static_cast<PutAnswer>(value);
      if (answer != PutAnswer::kGo && answer != PutAnswer::kHave) {
        return Unexpected(message);
      }
      answered_ = true;
      done_ = answer == PutAnswer::kHave;
      sink_->OnAnswer(answer, call_);
      if (answer == PutAnswer::kHave) {
        call_->Finish();
      }
      return {};
    }
    if (kind == ObjectMessage::kDone && answered_ && !done_) {
      done_ = true;
      return {};
    }
    return Unexpected(message);
  }
  void End(const Result<void>& outcome, const StreamStats& stats) override {
    sink_->OnDone(outcome && !done_ ? Result<void>(NoAnswer()) : outcome, stats);
  }

 private:
  const std::shared_ptr<PutSink> sink_;
  bool answered_ = false;
  bool done_ = false;
};

// ---------------------------------------------------------------- the connection to the peer

// Shared with callbacks, which may come after the client is gone.
class PeerLink final : public std::enable_shared_from_this<PeerLink> {
 public:
  PeerLink(Endpoint& endpoint, ObjectClient::Options options)
      : endpoint_(endpoint), options_(std::move(options)), pause_us_(options_.first_pause_us) {}

  // Begins the call on the connection, when there is one.
  void Start(const std::shared_ptr<ObjectCall>& call) KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<Connection> connection;
    std::optional<Error> error;
    bool dial = false;
    {
      MutexLock lock(mutex_);
      DropDead();
      if (closed_) {
        error = Err(ErrorCode::kUnavailable, "the client of %s was closed", Name());
      } else if (connection_ != nullptr) {
        connection = connection_;
      } else if (!connecting_ && endpoint_.clock().NowMicros() < next_attempt_us_) {
        error = last_error_.Wrap("not connected");
      } else {
        waiting_.push_back(call);
        dial = !connecting_;
        connecting_ = true;
      }
    }
    if (connection != nullptr) {
      call->Begin(connection);
    } else if (error) {
      call->FailSoon(*error);
    } else if (call->deadline_us() != kNever) {
      endpoint_.RunAt(call->deadline_us(), [call] {
        call->FailEarly(Err(ErrorCode::kTimeout, "the deadline passed before a connection"));
      });
    }
    if (dial) {
      Dial();
    }
  }

  void Warm() KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      DropDead();
      if (closed_ || connection_ != nullptr || connecting_ ||
          endpoint_.clock().NowMicros() < next_attempt_us_) {
        return;
      }
      connecting_ = true;
    }
    Dial();
  }

  void Close() KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<Connection> connection;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      connection = std::move(connection_);
    }
    if (connection != nullptr) {
      connection->Close(Err(ErrorCode::kUnavailable, "the client was closed"));
    }
  }

  [[nodiscard]] std::optional<Hello> peer() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    DropDead();
    return connection_ == nullptr ? std::nullopt : std::optional<Hello>(connection_->peer().hello);
  }

  [[nodiscard]] PeerStats stats() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    DropDead();
    PeerStats stats = past_;
    stats.connected = connection_ != nullptr;
    if (connection_ != nullptr) {
      Add(connection_->stats(), stats.connection);
    }
    return stats;
  }

 private:
  [[nodiscard]] const char* Name() const { return options_.address.c_str(); }

  static void Add(const ConnectionStats& from, ConnectionStats& to) {
    to.received_bytes += from.received_bytes;
    to.sent_bytes += from.sent_bytes;
    to.wire_bytes += from.wire_bytes;
    to.wire_us += from.wire_us;
    to.streams_total += from.streams_total;
    to.streams_failed += from.streams_failed;
    to.rtt_us = from.rtt_us != 0 ? from.rtt_us : to.rtt_us;
    to.open_streams = from.open_streams;
  }

  void DropDead() KVIK_REQUIRES(mutex_) {
    if (connection_ != nullptr && !connection_->alive()) {
      Add(connection_->stats(), past_.connection);
      past_.connection.open_streams = 0;
      connection_.reset();
    }
  }

  void Dial() {
    const int64_t deadline_us = endpoint_.clock().NowMicros() + options_.connect_timeout_us;
    Endpoint::Connected done = [self =
                                    shared_from_this()](Result<std::shared_ptr<Connection>> made) {
      self->OnConnected(std::move(made));
    };
    if (options_.dial) {
      options_.dial(deadline_us, std::move(done));
    } else {
      endpoint_.ConnectAsync(options_.address, deadline_us, std::move(done));
    }
  }

  void OnConnected(Result<std::shared_ptr<Connection>> made) KVIK_EXCLUDES(mutex_) {
    std::vector<std::shared_ptr<ObjectCall>> waiting;
    std::shared_ptr<Connection> connection;
    Error error;
    bool closed = false;
    {
      MutexLock lock(mutex_);
      connecting_ = false;
      waiting.swap(waiting_);
      closed = closed_;
      const int64_t now_us = endpoint_.clock().NowMicros();
      if (made) {
        connection = *made;
        connection_ = closed_ ? nullptr : connection;
        ++past_.connects;
        pause_us_ = options_.first_pause_us;
        // A peer that takes connections and drops them at once is not hammered.
        next_attempt_us_ = now_us + options_.first_pause_us;
        last_error_ = Err(ErrorCode::kUnavailable, "%s has dropped the connection", Name());
      } else {
        ++past_.failed_connects;
        next_attempt_us_ = now_us + pause_us_;
        pause_us_ = std::min(2 * pause_us_, options_.longest_pause_us);
        error = made.error();
        last_error_ = error;
      }
    }
    for (const auto& call : waiting) {
      if (connection != nullptr && !closed) {
        call->Begin(connection);
      } else {
        call->FailEarly(
            connection == nullptr ? error : Err(ErrorCode::kUnavailable, "the client was closed"));
      }
    }
    if (connection != nullptr && closed) {
      connection->Close(Err(ErrorCode::kUnavailable, "the client was closed"));
    }
  }

  Endpoint& endpoint_;
  const ObjectClient::Options options_;
  Mutex mutex_;
  std::shared_ptr<Connection> connection_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ObjectCall>> waiting_ KVIK_GUARDED_BY(mutex_);
  PeerStats past_ KVIK_GUARDED_BY(mutex_);
  Error last_error_ KVIK_GUARDED_BY(mutex_);
  int64_t next_attempt_us_ KVIK_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::min();
  int64_t pause_us_ KVIK_GUARDED_BY(mutex_);
  bool connecting_ KVIK_GUARDED_BY(mutex_) = false;
  bool closed_ KVIK_GUARDED_BY(mutex_) = false;
};

class ObjectClientImpl final : public ObjectClient {
 public:
  ObjectClientImpl(Endpoint& endpoint, Options options)
      : endpoint_(endpoint), link_(std::make_shared<PeerLink>(endpoint, std::move(options))) {}
  ~ObjectClientImpl() override { link_->Close(); }

  void Warm() override { link_->Warm(); }
  [[nodiscard]] std::optional<Hello> peer() const override { return link_->peer(); }
  [[nodiscard]] PeerStats stats() const override { return link_->stats(); }

  std::shared_ptr<CallHandle> Lookup(const LookupRequest& request, int64_t deadline_us,
                                     Found done) override {
    auto shared = std::make_shared<const LookupRequest>(request);
    return Ask<std::vector<FoundObject>>(
        Method::kLookup, Encode(request), deadline_us, kMaxFoundBytes,
        [shared](const SharedBytes& bytes) { return DecodeFoundObjects(bytes.span(), *shared); },
        std::move(done));
  }

  std::shared_ptr<CallHandle> Get(const GetRequest& request, int64_t deadline_us,
                                  std::shared_ptr<GetSink> sink, uint8_t priority) override {
    return Begin(Method::kGet, Encode(request), deadline_us, priority, true,
                 [&](const std::shared_ptr<ObjectCall>& call) {
                   return std::make_shared<GetStreamSink>(call, request.keys, std::move(sink));
                 });
  }

  std::shared_ptr<PutHandle> Put(const PutRequest& request, int64_t deadline_us,
                                 std::shared_ptr<PutSink> sink, uint8_t priority) override {
    return Begin(Method::kPut, Encode(request), deadline_us, priority, false,
                 [&](const std::shared_ptr<ObjectCall>& call) {
                   return std::make_shared<PutStreamSink>(call, std::move(sink));
                 });
  }

  std::shared_ptr<CallHandle> Remove(const RemoveRequest& request, int64_t deadline_us,
                                     Removed done) override {
    return Ask<size_t>(
        Method::kRemove, Encode(request), deadline_us, sizeof(uint64_t),
        [](const SharedBytes& bytes) -> Result<size_t> {
          PayloadReader reader(bytes.span());
          const auto count = reader.Get<uint64_t>();
          KVIK_TRY(reader.Done("the answer to a remove"));
          return size_t{count};
        },
        std::move(done));
  }

  std::shared_ptr<CallHandle> Call(uint16_t number, SharedBytes request, int64_t deadline_us,
                                   Answered done) override {
    auto call = MakeCall(static_cast<uint16_t>(static_cast<uint16_t>(Method::kFirstCall) + number),
                         std::move(request), deadline_us, OpenOptions().priority, true);
    call->SetSink(std::make_shared<AnswerSink<SharedBytes>>(
        call, kMaxAnswerBytes, [](SharedBytes bytes) -> Result<SharedBytes> { return bytes; },
        std::move(done)));
    link_->Start(call);
    return call;
  }

 private:
  std::shared_ptr<ObjectCall> MakeCall(uint16_t method, SharedBytes request, int64_t deadline_us,
                                       uint8_t priority, bool request_only) {
    OpenOptions options;
    options.method = method;
    options.deadline_us = deadline_us;
    options.priority = priority;
    options.request_only = request_only;
    return std::make_shared<ObjectCall>(endpoint_, options, std::move(request));
  }

  template <typename MakeSink>
  std::shared_ptr<ObjectCall> Begin(Method method, Result<Payload> request, int64_t deadline_us,
                                    uint8_t priority, bool request_only, MakeSink make_sink) {
    std::optional<Error> error;
    SharedBytes bytes;
    if (request) {
      bytes = SharedBytes::Own(std::move(*request));
    } else {
      error = request.error();
    }
    auto call = MakeCall(static_cast<uint16_t>(method), std::move(bytes), deadline_us, priority,
                         request_only);
    call->SetSink(make_sink(call));
    if (error) {
      call->FailSoon(*error);
    } else {
      link_->Start(call);
    }
    return call;
  }

  template <typename T>
  std::shared_ptr<CallHandle> Ask(Method method, Result<Payload> request, int64_t deadline_us,
                                  size_t max_bytes, typename AnswerSink<T>::Decode decode,
                                  typename AnswerSink<T>::Done done) {
    return Begin(method, std::move(request), deadline_us, OpenOptions().priority, true,
                 [&](const std::shared_ptr<ObjectCall>& call) {
                   return std::make_shared<AnswerSink<T>>(call, max_bytes, std::move(decode),
                                                          std::move(done));
                 });
  }

  Endpoint& endpoint_;
  const std::shared_ptr<PeerLink> link_;
};

// ---------------------------------------------------------------- for threads that may wait

// Starts a call that answers through a callback, and waits for the answer.
template <typename T, typename Begin>
Result<T> Wait(Begin begin) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> answer = promise->get_future();
  begin([promise](Result<T> result) { promise->set_value(std::move(result)); });
  return answer.get();
}

class CollectSink final : public GetSink {
 public:
  explicit CollectSink(std::function<void(Result<Payload>)> done) : done_(std::move(done)) {}
  void OnObject(size_t /*index*/, const kv::ObjectInfo& info) override {
    // An estimate at best, and the peer's word: a hint.
    bytes_.reserve(std::min<uint64_t>(info.size_bytes, uint64_t{4} << 20));
  }
  void OnBytes(size_t /*index*/, SharedBytes bytes) override {
    bytes_.insert(bytes_.end(), bytes.span().begin(), bytes.span().end());
  }
  void OnObjectEnd(size_t /*index*/, const Result<void>& outcome) override { outcome_ = outcome; }
  void OnDone(const Result<void>& outcome, const StreamStats& /*stats*/) override {
    if (!outcome) {
      done_(outcome.error());
    } else if (!outcome_) {
      done_(outcome_.error());
    } else {
      done_(std::move(bytes_));
    }
  }

 private:
  const std::function<void(Result<Payload>)> done_;
  Payload bytes_;
  Result<void> outcome_;
};

class SendSink final : public PutSink {
 public:
  SendSink(SharedBytes bytes, std::function<void(Result<void>)> done)
      : bytes_(std::move(bytes)), done_(std::move(done)) {}
  void OnAnswer(PutAnswer answer, const std::shared_ptr<PutHandle>& put) override {
    if (answer == PutAnswer::kGo) {
      put->Append(bytes_);  // the first on its stream: taken whole
      put->Commit();
    }
  }
  void OnWritable() override {}
  void OnDone(const Result<void>& outcome, const StreamStats& /*stats*/) override {
    done_(outcome);
  }

 private:
  const SharedBytes bytes_;
  const std::function<void(Result<void>)> done_;
};

}  // namespace

std::unique_ptr<ObjectClient> ObjectClient::Create(Endpoint& endpoint, Options options) {
  return std::make_unique<ObjectClientImpl>(endpoint, std::move(options));
}

Result<std::vector<FoundObject>> ObjectClient::LookupWait(const LookupRequest& request,
                                                          int64_t deadline_us) {
  return Wait<std::vector<FoundObject>>(
      [&](Found done) { Lookup(request, deadline_us, std::move(done)); });
}

Result<Payload> ObjectClient::GetWait(const kv::ObjectKey& key, int64_t deadline_us) {
  return Wait<Payload>([&](std::function<void(Result<Payload>)> done) {
    Get(GetRequest{{key}, {}}, deadline_us, std::make_shared<CollectSink>(std::move(done)));
  });
}

Result<void> ObjectClient::PutWait(const PutRequest& request, SharedBytes bytes,
                                   int64_t deadline_us) {
  return Wait<void>([&](std::function<void(Result<void>)> done) {
    Put(request, deadline_us, std::make_shared<SendSink>(std::move(bytes), std::move(done)));
  });
}

Result<size_t> ObjectClient::RemoveWait(const RemoveRequest& request, int64_t deadline_us) {
  return Wait<size_t>([&](Removed done) { Remove(request, deadline_us, std::move(done)); });
}

Result<SharedBytes> ObjectClient::CallWait(uint16_t number, SharedBytes request,
                                           int64_t deadline_us) {
  return Wait<SharedBytes>(
      [&](Answered done) { Call(number, std::move(request), deadline_us, std::move(done)); });
}

}  // namespace kvik::transfer
