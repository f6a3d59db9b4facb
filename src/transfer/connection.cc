// SPDX-License-Identifier: Apache-2.0
#include "transfer/connection.h"

#include <algorithm>
#include <utility>

namespace kvik::transfer {
namespace {

// So that one busy connection leaves the others their turn.
constexpr int kMaxRounds = 8;
constexpr int kReadsPerRound = 8;

}  // namespace

// ---------------------------------------------------------------- WakeList

void WakeList::Wake(std::shared_ptr<ConnectionImpl> connection) {
  MutexLock lock(mutex_);
  if (signal_ == nullptr) {
    return;
  }
  woken_.push_back(std::move(connection));
  if (woken_.size() == 1) {
    signal_();
  }
}

std::vector<std::shared_ptr<ConnectionImpl>> WakeList::Take() {
  MutexLock lock(mutex_);
  return std::exchange(woken_, {});
}

void WakeList::Close() {
  std::vector<std::shared_ptr<ConnectionImpl>> woken;  // dropped outside the lock
  MutexLock lock(mutex_);
  signal_ = nullptr;
  woken.swap(woken_);
}

// ---------------------------------------------------------------- StreamImpl

class StreamImpl final : public Stream, public std::enable_shared_from_this<StreamImpl> {
 public:
  StreamImpl(std::shared_ptr<ConnectionImpl> owner, size_t send_buffer_bytes, bool finished)
      : connection(std::move(owner)),
        budget(std::make_shared<SendBudget>(send_buffer_bytes)),
        finished_(finished) {}

  SendResult Send(Message message) override {
    if (finished_.load() || ended.load()) {
      return SendResult::kEnded;
    }
    if (!budget->TryTake(MessageCost(message.bytes.size_bytes()))) {
      return ended.load() ? SendResult::kEnded : SendResult::kFull;
    }
    return PostMessage(std::move(message));
  }

  SendResult SendAlways(Message message) override {
    if (finished_.load() || ended.load()) {
      return SendResult::kEnded;
    }
    budget->Take(MessageCost(message.bytes.size_bytes()));
    return PostMessage(std::move(message));
  }

  void Finish() override {
    if (!finished_.exchange(true)) {
      ConnectionImpl::Command command;
      command.kind = ConnectionImpl::Command::Kind::kFinish;
      Post(command);
    }
  }

  void Cancel(Error error) override {
    if (!ended.load()) {
      ConnectionImpl::Command command;
      command.kind = ConnectionImpl::Command::Kind::kCancel;
      command.error = std::move(error);
      Post(command);
    }
  }

  const std::shared_ptr<ConnectionImpl> connection;
  const std::shared_ptr<SendBudget> budget;
  std::atomic<bool> ended{false};
  // The endpoint's thread only.
  std::shared_ptr<StreamSink> sink;
  uint32_t number = 0;

 private:
  SendResult PostMessage(Message message) {
    if (message.last) {
      finished_.store(true);
    }
    ConnectionImpl::Command command;
    command.kind = ConnectionImpl::Command::Kind::kSend;
    command.message = std::move(message);
    return Post(command) ? SendResult::kTaken : SendResult::kEnded;
  }

  bool Post(ConnectionImpl::Command& command) {
    command.stream = shared_from_this();
    return connection->Post(command);
  }

  std::atomic<bool> finished_;
};

// ---------------------------------------------------------------- users

std::shared_ptr<ConnectionImpl> ConnectionImpl::Create(const Session::Options& options,
                                                       const Clock& clock, Parts parts) {
  const bool connecting = parts.connecting;
  const std::shared_ptr<ReceivePool> pool = parts.pool;
  std::shared_ptr<ConnectionImpl> connection(new ConnectionImpl(options, clock, std::move(parts)));
  connection->Start(options, connecting, pool);
  return connection;
}

ConnectionImpl::ConnectionImpl(const Session::Options& options, const Clock& clock, Parts parts)
    : clock_(clock),
      send_buffer_bytes_(options.limits.send_buffer_bytes),
      deadline_us_(parts.deadline_us),
      connecting_(parts.connecting),
      handler_(parts.handler),
      wakes_(std::move(parts.wakes)),
      channel_(std::move(parts.channel)),
      done_(std::move(parts.done)) {
  peer_.connection = parts.number;
  peer_.address = channel_->PeerName();
}

void ConnectionImpl::Start(const Session::Options& options, bool connecting,
                           const std::shared_ptr<ReceivePool>& pool) {
  const std::weak_ptr<ConnectionImpl> weak = weak_from_this();
  SessionEvents& events = *this;
  session_ = std::make_unique<Session>(
      options, connecting, clock_, pool,
      [weak](uint32_t stream) {
        if (const auto connection = weak.lock()) {
          Command command;
          command.kind = Command::Kind::kCredit;
          command.number = stream;
          connection->Post(command);
        }
      },
      events);
  channel_->SetWake([weak, wakes = wakes_] {
    if (auto connection = weak.lock()) {
      wakes->Wake(std::move(connection));
    }
  });
  wakes_->Wake(shared_from_this());
}

std::shared_ptr<Stream> ConnectionImpl::Open(const OpenOptions& options, SharedBytes request,
                                             std::shared_ptr<StreamSink> sink) {
  auto stream =
      std::make_shared<StreamImpl>(shared_from_this(), send_buffer_bytes_, options.request_only);
  stream->sink = std::move(sink);
  Command command;
  command.kind = Command::Kind::kOpen;
  command.stream = stream;
  command.options = options;
  command.message.bytes = std::move(request);
  if (!Post(command)) {
    // Nobody else will tell: the connection's thread is through with it.
    stream->ended.store(true);
    StreamStats stats;
    stats.opened_us = clock_.NowMicros();
    stream->sink->OnEnd(
        Err(ErrorCode::kUnavailable, "the connection to %s is gone", peer_.address.c_str()), stats);
    stream->sink.reset();
  }
  return stream;
}

ConnectionStats ConnectionImpl::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void ConnectionImpl::Drain(const std::string& reason) {
  Command command;
  command.kind = Command::Kind::kDrain;
  command.error.message = reason;
  Post(command);
}

void ConnectionImpl::Close(Error error) {
  Command command;
  command.kind = Command::Kind::kClose;
  command.error = std::move(error);
  Post(command);
}

bool ConnectionImpl::Post(Command& command) {
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return false;
    }
    inbox_.push_back(std::move(command));
    if (inbox_.size() > 1) {
      return true;  // whoever left the first one has woken
    }
  }
  wakes_->Wake(shared_from_this());
  return true;
}

// ---------------------------------------------------------------- the endpoint's thread

bool ConnectionImpl::RunCommands() {
  std::vector<Command> commands;
  {
    MutexLock lock(mutex_);
    commands.swap(inbox_);
  }
  for (Command& command : commands) {
    Run(command);
  }
  return !commands.empty();
}

void ConnectionImpl::Run(Command& command) {
  switch (command.kind) {
    case Command::Kind::kOpen: {
      opening_ = command.stream;
      const uint32_t number =
          session_->Open(command.options, std::move(command.message.bytes), command.stream->budget);
      if (opening_ != nullptr) {
        opening_->number = number;
        streams_[number] = std::move(opening_);
        opening_.reset();
      }
      break;
    }
    case Command::Kind::kSend:
      session_->Send(command.stream->number, std::move(command.message));
      break;
    case Command::Kind::kFinish:
      session_->Finish(command.stream->number);
      break;
    case Command::Kind::kCancel:
      session_->Cancel(command.stream->number, command.error);
      break;
    case Command::Kind::kCredit:
      session_->CreditReturned(command.number);
      break;
    case Command::Kind::kDrain:
      session_->Drain(command.error.message);
      break;
    case Command::Kind::kClose:
      if (!session_->failed()) {
        failure_ = command.error;
        session_->Fail(command.error);
      }
      break;
  }
}

bool ConnectionImpl::ReadSome() {
  bool any = false;
  for (int i = 0; i < kReadsPerRound && !session_->failed(); ++i) {
    const Result<size_t> size = channel_->Read(session_->ReadParts());
    if (!size) {
      channel_dead_ = true;
      session_->Fail(size.error());
      failure_ = size.error();
      return true;
    }
    if (*size == 0) {
      break;
    }
    any = true;
    const Result<void> received = session_->Received(*size);
    if (!received) {
      failure_ = received.error().Wrap(peer_.address);
    }
  }
  return any;
}

bool ConnectionImpl::WriteSome() {
  bool any = false;
  while (!channel_dead_) {
    const auto parts = session_->WriteParts(channel_->BacklogBytes() > 0);
    if (parts.empty()) {
      break;
    }
    const Result<size_t> size = channel_->Write(parts);
    if (!size) {
      channel_dead_ = true;
      if (!session_->failed()) {
        failure_ = size.error();
        session_->Fail(size.error());
      }
      return true;
    }
    if (*size == 0) {
      break;
    }
    any = true;
    session_->Written(*size);
  }
  return any;
}

bool ConnectionImpl::Poll() {
  if (finished_) {
    RunCommands();
    return false;
  }
  bool any = false;
  bool progress = true;
  for (int round = 0; round < kMaxRounds && progress; ++round) {
    progress = RunCommands();
    progress = ReadSome() || progress;
    if (!session_->failed()) {
      if (!connected_ && clock_.NowMicros() >= deadline_us_) {
        session_->Fail(
            Err(ErrorCode::kTimeout, "no connection to %s in time", peer_.address.c_str()));
      }
      const Result<void> ticked = session_->Tick();
      if (!ticked) {
        failure_ = ticked.error();
        progress = true;
      }
    }
    progress = WriteSome() || progress;
    any = any || progress;
  }
  {
    MutexLock lock(mutex_);
    stats_ = session_->stats();
  }
  if (session_->failed() && (channel_dead_ || session_->over())) {
    Finish();
    return true;
  }
  if (progress) {
    wakes_->Wake(shared_from_this());
  }
  return any;
}

int64_t ConnectionImpl::NextEventMicros() {
  if (finished_) {
    return kNever;
  }
  const int64_t next_us = std::min(session_->NextTickMicros(), channel_->NextEventMicros());
  return connected_ || session_->failed() ? next_us : std::min(next_us, deadline_us_);
}

void ConnectionImpl::Abort(const Error& error) {
  if (!finished_) {
    RunCommands();
    if (!session_->failed()) {
      failure_ = error;
      session_->Fail(error);
    }
    WriteSome();
    Finish();
  }
}

void ConnectionImpl::Finish() {
  finished_ = true;
  alive_.store(false);
  channel_->Close();
  std::vector<Command> late;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    late.swap(inbox_);
    stats_ = session_->stats();
  }
  for (Command& command : late) {
    Run(command);  // opens end at once, the rest concerns streams that are over
  }
  if (done_) {
    std::exchange(done_, nullptr)(failure_);
  }
  if (connected_ && handler_ != nullptr) {
    handler_->OnDisconnected(shared_from_this(), failure_);
  }
}

// ---------------------------------------------------------------- events of the session

void ConnectionImpl::OnHello(const Hello& peer) {
  peer_.hello = peer;
  connected_ = true;
  alive_.store(true);
  if (handler_ != nullptr) {
    handler_->OnConnected(shared_from_this());
  }
  if (done_) {
    std::exchange(done_, nullptr)(std::shared_ptr<Connection>(shared_from_this()));
  }
}

std::shared_ptr<SendBudget> ConnectionImpl::OnOpened(uint32_t stream, uint16_t method,
                                                     int64_t deadline_us, bool request_only,
                                                     SharedBytes request) {
  auto opened = std::make_shared<StreamImpl>(shared_from_this(), send_buffer_bytes_, false);
  opened->number = stream;
  streams_[stream] = opened;
  if (handler_ == nullptr) {
    opened->Cancel(Err(ErrorCode::kUnsupported, "this side answers nothing"));
    return opened->budget;
  }
  IncomingStream incoming;
  incoming.method = method;
  incoming.deadline_us = deadline_us;
  incoming.request = std::move(request);
  incoming.request_only = request_only;
  incoming.stream = opened;
  incoming.connection = shared_from_this();
  Result<std::shared_ptr<StreamSink>> sink = handler_->OnStream(std::move(incoming));
  if (sink) {
    opened->sink = std::move(*sink);
  } else {
    opened->Cancel(sink.error());
  }
  return opened->budget;
}

void ConnectionImpl::OnMessage(uint32_t stream, Message message) {
  const auto it = streams_.find(stream);
  if (it != streams_.end() && it->second->sink != nullptr) {
    it->second->sink->OnMessage(std::move(message));
  }
}

void ConnectionImpl::OnWritable(uint32_t stream) {
  const auto it = streams_.find(stream);
  if (it != streams_.end() && it->second->sink != nullptr) {
    it->second->sink->OnWritable();
  }
}

void ConnectionImpl::OnEnded(uint32_t stream, const Result<void>& outcome,
                             const StreamStats& stats) {
  std::shared_ptr<StreamImpl> ended;
  if (opening_ != nullptr) {
    ended = std::move(opening_);
    opening_.reset();
  } else {
    auto node = streams_.extract(stream);
    KVIK_CHECK(!node.empty());
    ended = std::move(node.mapped());
  }
  ended->ended.store(true);
  if (ended->sink != nullptr) {
    // Dropped here, on this thread and once: sinks and streams may hold each other.
    const std::shared_ptr<StreamSink> sink = std::move(ended->sink);
    sink->OnEnd(outcome, stats);
  }
}

}  // namespace kvik::transfer
