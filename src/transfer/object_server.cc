// SPDX-License-Identifier: Apache-2.0
// Per stream there are two objects: the *sink*, which the connection holds and which hears what the
// peer sends, and the *reply*, which the handler holds. Both share a state with what has to be
// known on both sides: whether the stream is over, and who is to be told. A reply that is dropped
// early cancels the stream; the end of the stream leaves the reply without effect.
#include "transfer/object_server.h"

#include <atomic>
#include <utility>

#include "base/mutex.h"
#include "transfer/object_stream.h"

namespace kvik::transfer {
namespace {

// The common part of replies: answers at most once, and cancels the stream if never.
class ReplyBase {
 public:
  explicit ReplyBase(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ReplyBase(const ReplyBase&) = delete;
  ReplyBase& operator=(const ReplyBase&) = delete;
  ~ReplyBase() {
    if (!answered_.exchange(true)) {
      stream_->Cancel(Err(ErrorCode::kInternal, "the call was dropped without an answer"));
    }
  }

 protected:
  // Whether this is the first answer.
  bool Answer() { return !answered_.exchange(true); }
  void AnswerLast(ObjectMessage kind, SharedBytes bytes) {
    if (Answer()) {
      Message message;
      message.kind = static_cast<uint8_t>(kind);
      message.bytes = std::move(bytes);
      message.last = true;
      stream_->SendAlways(std::move(message));
    }
  }
  void AnswerError(Error error) {
    if (Answer()) {
      stream_->Cancel(std::move(error));
    }
  }

  const std::shared_ptr<Stream> stream_;

 private:
  std::atomic<bool> answered_{false};
};

// Of streams on which the peer sends nothing but its request, and whose end nobody waits for.
class QuietSink final : public StreamSink {
 public:
  void OnMessage(Message /*message*/) override {}
  void OnWritable() override {}
  void OnEnd(const Result<void>& /*outcome*/, const StreamStats& /*stats*/) override {}
};

class LookupReplyImpl final : public LookupReply, private ReplyBase {
 public:
  using ReplyBase::ReplyBase;
  void Found(std::span<const FoundObject> found) override {
    AnswerLast(ObjectMessage::kAnswer, SharedBytes::Own(Encode(found)));
  }
  void Fail(Error error) override { AnswerError(std::move(error)); }
};

class RemoveReplyImpl final : public RemoveReply, private ReplyBase {
 public:
  using ReplyBase::ReplyBase;
  void Removed(size_t count) override {
    AnswerLast(ObjectMessage::kAnswer, SharedBytes::Own(NumberPayload(uint64_t{count})));
  }
  void Fail(Error error) override { AnswerError(std::move(error)); }
};

class CallReplyImpl final : public CallReply, private ReplyBase {
 public:
  using ReplyBase::ReplyBase;
  void Answer(SharedBytes answer) override {
    if (answer.size_bytes() > kMaxAnswerBytes) {
      AnswerError(Err(ErrorCode::kInternal, "an answer of %zu bytes", answer.size_bytes()));
    } else {
      AnswerLast(ObjectMessage::kAnswer, std::move(answer));
    }
  }
  void Fail(Error error) override { AnswerError(std::move(error)); }
};

// ---------------------------------------------------------------- get

// Tells a listener of the end exactly once, whichever comes first.
class ListenerSlot {
 public:
  void Set(std::shared_ptr<ReplyListener> listener) KVIK_EXCLUDES(mutex_) {
    Result<void> outcome;
    {
      MutexLock lock(mutex_);
      if (!ended_) {
        listener_ = std::move(listener);
        return;
      }
      outcome = outcome_;
    }
    listener->OnEnd(outcome);
  }
  [[nodiscard]] std::shared_ptr<ReplyListener> Get() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return listener_;
  }
  void End(const Result<void>& outcome) KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<ReplyListener> listener;
    {
      MutexLock lock(mutex_);
      ended_ = true;
      outcome_ = outcome;
      listener = std::move(listener_);
    }
    if (listener != nullptr) {
      listener->OnEnd(outcome);
    }
  }
  [[nodiscard]] bool ended() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return ended_;
  }

 private:
  Mutex mutex_;
  std::shared_ptr<ReplyListener> listener_ KVIK_GUARDED_BY(mutex_);
  bool ended_ KVIK_GUARDED_BY(mutex_) = false;
  Result<void> outcome_ KVIK_GUARDED_BY(mutex_);
};

class GetStream final : public StreamSink {
 public:
  explicit GetStream(std::shared_ptr<ListenerSlot> slot) : slot_(std::move(slot)) {}
  void OnMessage(Message /*message*/) override {}
  void OnWritable() override {
    if (const auto listener = slot_->Get()) {
      listener->OnRoom();
    }
  }
  void OnEnd(const Result<void>& outcome, const StreamStats& /*stats*/) override {
    slot_->End(outcome);
  }

 private:
  const std::shared_ptr<ListenerSlot> slot_;
};

class GetReplyImpl final : public GetReply {
 public:
  GetReplyImpl(std::shared_ptr<Stream> stream, std::shared_ptr<ListenerSlot> slot, size_t objects)
      : stream_(std::move(stream)), slot_(std::move(slot)), sent_bytes_(objects) {}
  ~GetReplyImpl() override {
    if (!finished_.load()) {
      stream_->Cancel(Err(ErrorCode::kInternal, "the call was dropped without an answer"));
    }
  }

  void SetListener(std::shared_ptr<ReplyListener> listener) override {
    slot_->Set(std::move(listener));
  }
  void Begin(size_t index, const kv::ObjectInfo& info) override {
    SendSmall(ObjectMessage::kBegin, index, Encode(info));
  }
  SendResult Append(size_t index, SharedBytes bytes) override {
    KVIK_CHECK(index < sent_bytes_.size());
    const size_t size_bytes = bytes.size_bytes();
    Message message;
    message.kind = static_cast<uint8_t>(ObjectMessage::kBytes);
    message.tag = static_cast<uint32_t>(index);
    message.bytes = std::move(bytes);
    const SendResult result = stream_->Send(std::move(message));
    if (result == SendResult::kTaken) {
      sent_bytes_[index].fetch_add(size_bytes);
    }
    return result;
  }
  void End(size_t index, const ObjectTimes& times) override {
    KVIK_CHECK(index < sent_bytes_.size());
    SendSmall(ObjectMessage::kEnd, index, EncodeObjectEnd(sent_bytes_[index].load(), times));
  }
  void Fail(size_t index, Error error) override {
    SendSmall(ObjectMessage::kFailed, index, EncodeReason(error));
  }
  void Finish() override {
    if (!finished_.exchange(true)) {
      stream_->Finish();
    }
  }
  void Cancel(Error error) override {
    if (!finished_.exchange(true)) {
      stream_->Cancel(std::move(error));
    }
  }
  [[nodiscard]] bool ended() const override { return slot_->ended(); }

 private:
  void SendSmall(ObjectMessage kind, size_t index, std::vector<std::byte> payload) {
    KVIK_CHECK(index < sent_bytes_.size());
    Message message = MakeMessage(kind, std::move(payload));
    message.tag = static_cast<uint32_t>(index);
    stream_->SendAlways(std::move(message));
  }

  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<ListenerSlot> slot_;
  std::vector<std::atomic<uint64_t>> sent_bytes_;  // [objects]
  std::atomic<bool> finished_{false};
};

// ---------------------------------------------------------------- put

class PutState {
 public:
  // False: the stream is over, and the receiver has heard so.
  bool Begin(std::shared_ptr<PutReceiver> receiver) KVIK_EXCLUDES(mutex_) {
    Result<void> outcome;
    {
      MutexLock lock(mutex_);
      if (!ended_) {
        receiver_ = std::move(receiver);
        return true;
      }
      outcome = outcome_;
    }
    receiver->OnEnd(outcome);
    return false;
  }
  [[nodiscard]] std::shared_ptr<PutReceiver> receiver() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return receiver_;
  }
  void End(const Result<void>& outcome) KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<PutReceiver> receiver;
    {
      MutexLock lock(mutex_);
      ended_ = true;
      outcome_ = outcome;
      receiver = std::move(receiver_);
    }
    if (receiver != nullptr) {
      receiver->OnEnd(outcome);
    }
  }

 private:
  Mutex mutex_;
  std::shared_ptr<PutReceiver> receiver_ KVIK_GUARDED_BY(mutex_);
  bool ended_ KVIK_GUARDED_BY(mutex_) = false;
  Result<void> outcome_ KVIK_GUARDED_BY(mutex_);
};

// Counts what comes and lets nothing through that was not announced.
class PutStream final : public StreamSink {
 public:
  PutStream(std::shared_ptr<Stream> stream, std::shared_ptr<PutState> state, uint64_t size_bytes,
            bool size_is_bound)
      : stream_(std::move(stream)),
        state_(std::move(state)),
        size_bytes_(size_bytes),
        size_is_bound_(size_is_bound) {}

  void OnMessage(Message message) override {
    if (refused_) {
      return;
    }
    const Result<void> taken = Take(std::move(message));
    if (!taken) {
      refused_ = true;
      stream_->Cancel(taken.error());
    }
  }
  void OnWritable() override {}
  void OnEnd(const Result<void>& outcome, const StreamStats& /*stats*/) override {
    state_->End(outcome);
  }

 private:
  Result<void> Take(Message message) {
    const std::shared_ptr<PutReceiver> receiver = state_->receiver();
    const auto kind = static_cast<ObjectMessage>(message.kind);
    if (receiver == nullptr || committed_) {
      // The end of this side may come without anything: the answer was kHave.
      return message.last && message.bytes.empty()
                 ? Result<void>()
                 : Err(ErrorCode::kCorrupt, "bytes of an object that were not asked for");
    }
    if (kind == ObjectMessage::kBytes && !message.last) {
      got_bytes_ += message.bytes.size_bytes();
      if (got_bytes_ > size_bytes_) {
        return Err(ErrorCode::kInvalidInput, "more than the %llu bytes that were announced",
                   static_cast<unsigned long long>(size_bytes_));
      }
      receiver->OnBytes(std::move(message.bytes));
      return {};
    }
    if (kind == ObjectMessage::kEnd && message.last) {
      PayloadReader reader(message.bytes.span());
      const auto total_bytes = reader.Get<uint64_t>();
      KVIK_TRY(reader.Done("a commit"));
      if (total_bytes != got_bytes_ || (!size_is_bound_ && total_bytes != size_bytes_)) {
        return Err(ErrorCode::kCorrupt, "a commit of %llu bytes after %llu of %llu",
                   static_cast<unsigned long long>(total_bytes),
                   static_cast<unsigned long long>(got_bytes_),
                   static_cast<unsigned long long>(size_bytes_));
      }
      committed_ = true;
      receiver->OnCommit(total_bytes);
      return {};
    }
    if (message.last) {
      return Err(ErrorCode::kUnavailable, "the sender gave the object up");
    }
    return Err(ErrorCode::kCorrupt, "a message of kind %d in a put", message.kind);
  }

  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<PutState> state_;
  const uint64_t size_bytes_;
  const bool size_is_bound_;
  uint64_t got_bytes_ = 0;
  bool committed_ = false;
  bool refused_ = false;
};

class PutReplyImpl final : public PutReply, private ReplyBase {
 public:
  PutReplyImpl(std::shared_ptr<Stream> stream, std::shared_ptr<PutState> state)
      : ReplyBase(std::move(stream)), state_(std::move(state)) {}

  void Answer(PutAnswer answer, std::shared_ptr<PutReceiver> receiver) override {
    const auto payload = NumberPayload(static_cast<uint8_t>(answer));
    if (answer == PutAnswer::kHave) {
      AnswerLast(ObjectMessage::kAnswer, SharedBytes::Own(payload));
    } else {
      KVIK_CHECK(receiver != nullptr);
      if (state_->Begin(std::move(receiver))) {
        stream_->SendAlways(MakeMessage(ObjectMessage::kAnswer, payload));
      }
    }
  }
  void Done() override { AnswerLast(ObjectMessage::kDone, {}); }
  void Fail(Error error) override { AnswerError(std::move(error)); }

 private:
  const std::shared_ptr<PutState> state_;
};

// ---------------------------------------------------------------- the server

class ObjectServer final : public StreamHandler {
 public:
  explicit ObjectServer(ObjectHandler& handler) : handler_(handler) {}

  Result<std::shared_ptr<StreamSink>> OnStream(IncomingStream incoming) override {
    CallContext context;
    context.connection = incoming.connection;
    context.deadline_us = incoming.deadline_us;
    const std::span<const std::byte> request = incoming.request.span();
    const auto method = static_cast<Method>(incoming.method);
    if (incoming.request_only == (method == Method::kPut)) {
      return Err(ErrorCode::kCorrupt, "only a put sends more than its request");
    }
    switch (method) {
      case Method::kLookup: {
        KVIK_ASSIGN(LookupRequest lookup, DecodeLookupRequest(request));
        handler_.Lookup(context, std::move(lookup),
                        std::make_shared<LookupReplyImpl>(std::move(incoming.stream)));
        return Quiet();
      }
      case Method::kGet: {
        KVIK_ASSIGN(GetRequest get, DecodeGetRequest(request));
        auto slot = std::make_shared<ListenerSlot>();
        auto reply =
            std::make_shared<GetReplyImpl>(std::move(incoming.stream), slot, get.keys.size());
        handler_.Get(context, std::move(get), std::move(reply));
        return std::shared_ptr<StreamSink>(std::make_shared<GetStream>(std::move(slot)));
      }
      case Method::kPut: {
        KVIK_ASSIGN(PutRequest put, DecodePutRequest(request));
        auto state = std::make_shared<PutState>();
        auto sink = std::make_shared<PutStream>(incoming.stream, state, put.info.size_bytes,
                                                put.size_is_bound);
        handler_.Put(context, std::move(put),
                     std::make_shared<PutReplyImpl>(std::move(incoming.stream), state));
        return std::shared_ptr<StreamSink>(std::move(sink));
      }
      case Method::kRemove: {
        KVIK_ASSIGN(RemoveRequest remove, DecodeRemoveRequest(request));
        handler_.Remove(context, std::move(remove),
                        std::make_shared<RemoveReplyImpl>(std::move(incoming.stream)));
        return Quiet();
      }
      case Method::kFirstCall:
        break;
    }
    if (incoming.method < static_cast<uint16_t>(Method::kFirstCall)) {
      return Err(ErrorCode::kUnsupported, "method %d is not known here", incoming.method);
    }
    const auto number =
        static_cast<uint16_t>(incoming.method - static_cast<uint16_t>(Method::kFirstCall));
    handler_.Call(context, number, std::move(incoming.request),
                  std::make_shared<CallReplyImpl>(std::move(incoming.stream)));
    return Quiet();
  }

  void OnConnected(const std::shared_ptr<Connection>& connection) override {
    handler_.OnPeerConnected(connection->peer());
  }
  void OnDisconnected(const std::shared_ptr<Connection>& connection, const Error& error) override {
    handler_.OnPeerGone(connection->peer(), error);
  }

 private:
  Result<std::shared_ptr<StreamSink>> Quiet() {
    return std::shared_ptr<StreamSink>(std::make_shared<QuietSink>());
  }

  ObjectHandler& handler_;
};

}  // namespace

std::unique_ptr<StreamHandler> MakeObjectServer(ObjectHandler& handler) {
  return std::make_unique<ObjectServer>(handler);
}

}  // namespace kvik::transfer
