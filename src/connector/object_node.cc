// SPDX-License-Identifier: Apache-2.0
#include "connector/object_node.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "connector/load_choice.h"
#include "connector/object_head.h"
#include "connector/store_source.h"

namespace kvik::connector {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;

// One stored object on its way to a peer.
class StoredProducer final : public ObjectProducer {
 public:
  StoredProducer(store::ReadLease lease, store::Buffer bytes, kv::ObjectInfo info, size_t index,
                 std::shared_ptr<transfer::GetReply> reply,
                 std::function<void(bool ok, uint64_t sent_bytes)> done)
      : lease_(std::move(lease)),
        bytes_(bytes.owner(), bytes.bytes()),
        info_(info),
        index_(index),
        reply_(std::move(reply)),
        done_(std::move(done)) {}

  void Start() {
    reply_->Begin(index_, info_);
    OnRoom();
  }

  void OnRoom() override KVIK_EXCLUDES(mutex_) {
    bool over = false;
    bool ok = false;
    {
      MutexLock lock(mutex_);
      while (!over_) {
        if (at_ == bytes_.size_bytes()) {
          over_ = over = true;
          // What a lease no longer covers may not count, however far the reader came.
          const auto holds = lease_.has_value() ? lease_->Check() : Result<void>();
          if (holds.has_value()) {
            ok = true;
            reply_->End(index_, {});
          } else {
            reply_->Fail(index_, holds.error());
          }
          break;
        }
        const size_t size = std::min(kPieceBytes, bytes_.size_bytes() - at_);
        const auto sent = reply_->Append(index_, bytes_.Slice(at_, size));
        if (sent == transfer::SendResult::kFull) {
          break;
        }
        if (sent == transfer::SendResult::kEnded) {
          over_ = over = true;
          break;
        }
        at_ += size;
      }
      if (over) {
        LetGo();
      }
    }
    if (over) {
      done_(ok, at_);
    }
  }

  void Stop() override KVIK_EXCLUDES(mutex_) {
    bool over = false;
    {
      MutexLock lock(mutex_);
      over = !std::exchange(over_, true);
      LetGo();
    }
    if (over) {
      done_(false, at_);
    }
  }

 private:
  void LetGo() KVIK_REQUIRES(mutex_) {
    lease_.reset();
    bytes_ = {};
  }

  Mutex mutex_;
  std::optional<store::ReadLease> lease_ KVIK_GUARDED_BY(mutex_);
  transfer::SharedBytes bytes_ KVIK_GUARDED_BY(mutex_);
  size_t at_ = 0;
  bool over_ KVIK_GUARDED_BY(mutex_) = false;
  const kv::ObjectInfo info_;
  const size_t index_;
  const std::shared_ptr<transfer::GetReply> reply_;
  const std::function<void(bool, uint64_t)> done_;
};

// A Get of several objects: passes on what the reply's listener hears.
class GetCall final : public transfer::ReplyListener, public std::enable_shared_from_this<GetCall> {
 public:
  GetCall(std::shared_ptr<transfer::GetReply> reply, size_t objects)
      : reply_(std::move(reply)), left_(objects) {}

  void Add(std::shared_ptr<ObjectProducer> producer) KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!ended_) {
        producers_.push_back(producer);
        return;
      }
    }
    producer->Stop();
  }
  // One of the objects has ended or failed.
  void Finished() KVIK_EXCLUDES(mutex_) {
    bool last = false;
    {
      MutexLock lock(mutex_);
      last = --left_ == 0;
    }
    if (last) {
      reply_->Finish();
    }
  }

  void OnRoom() override KVIK_EXCLUDES(mutex_) {
    for (const auto& producer : Producers()) {
      producer->OnRoom();
    }
  }
  void OnEnd(const Result<void>& /*outcome*/) override KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ended_ = true;
    }
    for (const auto& producer : Producers()) {
      producer->Stop();
    }
    MutexLock lock(mutex_);
    producers_.clear();
  }

 private:
  std::vector<std::shared_ptr<ObjectProducer>> Producers() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return producers_;
  }

  const std::shared_ptr<transfer::GetReply> reply_;
  Mutex mutex_;
  std::vector<std::shared_ptr<ObjectProducer>> producers_ KVIK_GUARDED_BY(mutex_);
  size_t left_ KVIK_GUARDED_BY(mutex_);
  bool ended_ KVIK_GUARDED_BY(mutex_) = false;
};

// An object that a peer puts here.
class PutCall final : public transfer::PutReceiver, public std::enable_shared_from_this<PutCall> {
 public:
  PutCall(store::Store& store, IoPool& io, transfer::PutRequest request,
          std::shared_ptr<transfer::PutReply> reply,
          std::function<void(bool ok, uint64_t bytes)> count)
      : store_(store),
        io_(io),
        request_(std::move(request)),
        reply_(std::move(reply)),
        count_(std::move(count)) {}

  void OnBytes(transfer::SharedBytes bytes) override {
    received_ += bytes.size_bytes();
    if (failed_) {
      return;
    }
    std::span<const std::byte> rest = bytes.span();
    if (!described_) {
      front_.insert(front_.end(), rest.begin(), rest.end());
      auto read = ReadObjectHead(front_);
      if (!read.has_value()) {
        Fail(read.error());
        return;
      }
      if (!read->has_value()) {
        return;
      }
      if (const auto begun = Begin(std::move((*read)->head)); !begun.has_value()) {
        Fail(begun.error());
        return;
      }
      rest = front_;
    }
    if (put_.has_value()) {
      const std::span<std::byte> room = put_->bytes();
      if (rest.size() > room.size() - at_) {
        Fail(Err(ErrorCode::kInvalidInput, "more bytes came than were announced"));
        return;
      }
      std::copy(rest.begin(), rest.end(), room.begin() + static_cast<ptrdiff_t>(at_));
      at_ += rest.size();
    }
    front_ = {};
  }

  void OnCommit(uint64_t /*size_bytes*/) override {
    if (failed_) {
      return;
    }
    if (!described_ || (put_.has_value() && at_ != put_->bytes().size())) {
      Fail(Err(ErrorCode::kInvalidInput, "fewer bytes came than were announced"));
      return;
    }
    if (!put_.has_value()) {
      over_ = true;  // it was here already
      count_(true, received_);
      reply_->Done();
      return;
    }
    // Publishing may evict, which takes locks of the store.
    const bool posted = io_.Post([self = shared_from_this()] {
      const auto stored = self->store_.Commit(std::move(*self->put_));
      self->count_(stored.has_value(), self->received_);
      if (stored.has_value()) {
        self->reply_->Done();
      } else {
        self->reply_->Fail(stored.error());
      }
    });
    over_ = true;
    if (!posted) {
      reply_->Fail(Err(ErrorCode::kUnavailable, "shutting down"));
    }
  }

  void OnEnd(const Result<void>& /*outcome*/) override {
    if (!over_ && !failed_) {
      failed_ = true;
      put_.reset();  // drops what came
      count_(false, received_);
    }
  }

 private:
  Result<void> Begin(ObjectHead head) {
    described_ = true;
    const kv::ObjectInfo& info = request_.info;
    if (!(head.key == info.key) || static_cast<int32_t>(head.blocks.size()) != info.num_blocks) {
      return Err(ErrorCode::kInvalidInput, "the head is not that of the object");
    }
    store::ObjectMeta meta;
    meta.key = ToStoreKey(info.key, store::TenantId::FromName(request_.tenant));
    meta.quality = WorseOf(info.quality, head.source);
    meta.parent = head.parent;
    meta.blocks = std::move(head.blocks);
    meta.ttl_us = request_.ttl_us;
    KVIK_ASSIGN(put_, store_.BeginPut(meta, info.size_bytes));
    return {};
  }

  void Fail(const Error& error) {
    failed_ = true;
    put_.reset();
    count_(false, received_);
    reply_->Fail(error);
  }

  store::Store& store_;
  IoPool& io_;
  const transfer::PutRequest request_;
  const std::shared_ptr<transfer::PutReply> reply_;
  const std::function<void(bool, uint64_t)> count_;
  // Of the endpoint's thread, until the commit is handed over.
  std::vector<std::byte> front_;
  bool described_ = false;
  bool failed_ = false;
  bool over_ = false;
  std::optional<store::PendingPut> put_;  // nullopt: it is here already
  size_t at_ = 0;
  uint64_t received_ = 0;
};

class NodeImpl final : public ObjectNode {
 public:
  NodeImpl(ObjectNodeOptions options, store::Store* store, const Clock& clock)
      : options_(std::move(options)),
        store_(store),
        shared_(std::make_shared<Shared>()),
        io_(options_.io_threads, clock) {}
  ~NodeImpl() override { io_.Stop(); }

  void SetLive(std::shared_ptr<LiveCache> live) override {
    MutexLock lock(shared_->mutex);
    shared_->live = std::move(live);
  }
  ObjectNodeCounters counters() const override {
    MutexLock lock(shared_->mutex);
    return shared_->counters;
  }
  bool RunDue() override { return io_.RunDue(); }

  void Lookup(const transfer::CallContext& context, transfer::LookupRequest request,
              std::shared_ptr<transfer::LookupReply> reply) override {
    const auto live = Count([](ObjectNodeCounters& c) { ++c.lookups; });
    struct Answer {
      Mutex mutex;
      int left KVIK_GUARDED_BY(mutex) = 0;
      std::vector<transfer::FoundObject> found KVIK_GUARDED_BY(mutex);
    };
    auto answer = std::make_shared<Answer>();
    {
      MutexLock lock(answer->mutex);
      answer->left = (store_ != nullptr ? 1 : 0) + (live != nullptr ? 1 : 0);
    }
    const auto add = [answer, reply](std::vector<transfer::FoundObject> found) {
      MutexLock lock(answer->mutex);
      answer->found.insert(answer->found.end(), found.begin(), found.end());
      if (--answer->left == 0) {
        reply->Found(answer->found);
      }
    };
    if (store_ == nullptr && live == nullptr) {
      reply->Found({});
      return;
    }
    auto shared_request = std::make_shared<const transfer::LookupRequest>(std::move(request));
    if (store_ != nullptr) {
      const bool posted = io_.Post([this, shared_request, deadline = context.deadline_us, add] {
        add(LookUpStore(*shared_request, deadline));
      });
      if (!posted) {
        add({});
      }
    }
    if (live != nullptr) {
      live->Lookup(context, *shared_request, add);
    }
  }

  void Get(const transfer::CallContext& context, transfer::GetRequest request,
           std::shared_ptr<transfer::GetReply> reply) override {
    const auto live =
        Count([&](ObjectNodeCounters& c) { c.gets += static_cast<int64_t>(request.keys.size()); });
    if (request.keys.empty()) {
      reply->Finish();
      return;
    }
    auto call = std::make_shared<GetCall>(reply, request.keys.size());
    reply->SetListener(call);
    const store::TenantId tenant = store::TenantId::FromName(request.tenant);
    for (size_t i = 0; i < request.keys.size(); ++i) {
      const Asked asked{request.keys[i], static_cast<int32_t>(request.NumBlocks(i)), i};
      if (store_ == nullptr) {
        GetLive(context, asked, reply, call, live,
                Err(ErrorCode::kNotFound, "nothing is stored here"));
        continue;
      }
      const bool posted = io_.Post([this, context, asked, tenant, reply, call, live] {
        GetStored(context, asked, tenant, reply, call, live);
      });
      if (!posted) {
        reply->Fail(i, Err(ErrorCode::kUnavailable, "shutting down"));
        call->Finished();
      }
    }
  }

  void Put(const transfer::CallContext& /*context*/, transfer::PutRequest request,
           std::shared_ptr<transfer::PutReply> reply) override {
    if (store_ == nullptr) {
      reply->Fail(Err(ErrorCode::kUnsupported, "this node stores nothing"));
      return;
    }
    if (request.size_is_bound || request.info.size_bytes > options_.max_put_bytes ||
        request.info.num_blocks < 1) {
      reply->Fail(Err(ErrorCode::kInvalidInput, "objects of %llu bytes, of a known size, are taken",
                      static_cast<unsigned long long>(options_.max_put_bytes)));
      return;
    }
    const auto count = [shared = shared_](bool ok, uint64_t bytes) {
      MutexLock lock(shared->mutex);
      ++(ok ? shared->counters.puts : shared->counters.put_failures);
      shared->counters.received_bytes += bytes;
    };
    auto receiver = std::make_shared<PutCall>(*store_, io_, std::move(request), reply, count);
    reply->Answer(transfer::PutAnswer::kGo, std::move(receiver));
  }

  void Remove(const transfer::CallContext& context, transfer::RemoveRequest request,
              std::shared_ptr<transfer::RemoveReply> reply) override {
    if (store_ == nullptr) {
      reply->Removed(0);
      return;
    }
    const bool posted = io_.Post([this, request, reply, deadline = context.deadline_us] {
      std::vector<store::ObjectKey> keys;
      for (const kv::ObjectKey& key : request.keys) {
        keys.push_back(ToStoreKey(key, store::TenantId::FromName(request.tenant)));
      }
      const auto removed = store_->Remove(keys, deadline);
      if (removed.has_value()) {
        reply->Removed(static_cast<size_t>(*removed));
      } else {
        reply->Fail(removed.error());
      }
    });
    if (!posted) {
      reply->Fail(Err(ErrorCode::kUnavailable, "shutting down"));
    }
  }

  void Call(const transfer::CallContext& context, uint16_t number, transfer::SharedBytes request,
            std::shared_ptr<transfer::CallReply> reply) override {
    if (number == kProbeCall) {
      uint32_t bytes = 0;
      if (request.size_bytes() == sizeof(bytes)) {
        std::memcpy(&bytes, request.span().data(), sizeof(bytes));
      }
      if (bytes == 0 || bytes > kMaxProbeBytes) {
        reply->Fail(Err(ErrorCode::kInvalidInput, "a probe of 1 to %u bytes", kMaxProbeBytes));
      } else {
        reply->Answer(transfer::SharedBytes::Own(std::vector<std::byte>(bytes)));
      }
      return;
    }
    if (!options_.call) {
      reply->Fail(Err(ErrorCode::kUnsupported, "call %u is not answered here", number));
      return;
    }
    options_.call(context, number, std::move(request), std::move(reply));
  }

  void OnPeerConnected(const transfer::Peer& peer) override {
    Count([](ObjectNodeCounters& c) { ++c.peers; });
    if (options_.on_peer_connected) {
      options_.on_peer_connected(peer);
    }
  }
  void OnPeerGone(const transfer::Peer& peer, const Error& error) override {
    Count([](ObjectNodeCounters& c) { --c.peers; });
    if (options_.on_peer_gone) {
      options_.on_peer_gone(peer, error);
    }
  }

 private:
  // Outlives the node for replies that end late.
  struct Shared {
    mutable Mutex mutex;
    std::shared_ptr<LiveCache> live KVIK_GUARDED_BY(mutex);
    ObjectNodeCounters counters KVIK_GUARDED_BY(mutex);
  };

  // One object of a Get.
  struct Asked {
    kv::ObjectKey key;
    int32_t num_blocks = 0;  // 0: any
    size_t index = 0;        // of the reply
  };

  template <typename Fn>
  std::shared_ptr<LiveCache> Count(Fn&& fn) {
    MutexLock lock(shared_->mutex);
    fn(shared_->counters);
    return shared_->live;
  }

  std::vector<transfer::FoundObject> LookUpStore(const transfer::LookupRequest& request,
                                                 int64_t deadline_us) {
    std::vector<kv::ContentKey> keys;
    for (const kv::BlockHash& hash : request.hashes) {
      keys.push_back({hash, request.domain});
    }
    const store::BlockQuery query{keys, request.numerics,
                                  store::TenantId::FromName(request.tenant)};
    std::vector<transfer::FoundObject> found;
    for (const store::FoundObject& object :
         store_->Lookup(query, request.quality, {.deadline_us = deadline_us}).objects) {
      found.push_back({static_cast<uint32_t>(object.last_block), FromStoreInfo(object.info)});
    }
    return found;
  }

  void GetStored(const transfer::CallContext& context, const Asked& asked, store::TenantId tenant,
                 const std::shared_ptr<transfer::GetReply>& reply,
                 const std::shared_ptr<GetCall>& call, const std::shared_ptr<LiveCache>& live) {
    const store::ObjectKey keys[] = {ToStoreKey(asked.key, tenant)};
    auto leases = store_->Read(keys, {.deadline_us = context.deadline_us});
    auto bytes =
        leases[0].has_value() ? leases[0]->bytes() : Result<store::Buffer>(leases[0].error());
    if (bytes.has_value() && asked.num_blocks != 0 &&
        leases[0]->meta().num_blocks() != asked.num_blocks) {
      bytes = Err(ErrorCode::kNotFound, "it is stored with %d blocks, asked for were %d",
                  leases[0]->meta().num_blocks(), asked.num_blocks);
    }
    if (!bytes.has_value()) {
      GetLive(context, asked, reply, call, live, bytes.error());
      return;
    }
    kv::ObjectInfo info;
    info.key = asked.key;
    info.num_blocks = leases[0]->meta().num_blocks();
    info.quality = leases[0]->meta().quality;
    info.size_bytes = bytes->size_bytes();
    auto producer = std::make_shared<StoredProducer>(
        std::move(leases[0]).value(), std::move(bytes).value(), info, asked.index, reply,
        [shared = shared_, call](bool ok, uint64_t sent) {
          {
            MutexLock lock(shared->mutex);
            shared->counters.get_misses += ok ? 0 : 1;
            shared->counters.sent_bytes += sent;
          }
          call->Finished();
        });
    call->Add(producer);
    producer->Start();
  }

  void GetLive(const transfer::CallContext& context, const Asked& asked,
               const std::shared_ptr<transfer::GetReply>& reply,
               const std::shared_ptr<GetCall>& call, const std::shared_ptr<LiveCache>& live,
               const Error& otherwise) {
    if (live == nullptr) {
      Count([](ObjectNodeCounters& c) { ++c.get_misses; });
      reply->Fail(asked.index, otherwise);
      call->Finished();
      return;
    }
    call->Add(live->Get(context, asked.key, asked.num_blocks, asked.index, reply,
                        [call] { call->Finished(); }));
  }

  const ObjectNodeOptions options_;
  store::Store* const store_;
  const std::shared_ptr<Shared> shared_;
  IoPool io_;
};

}  // namespace

std::unique_ptr<ObjectNode> ObjectNode::Create(ObjectNodeOptions options, store::Store* store,
                                               const Clock& clock) {
  return std::make_unique<NodeImpl>(std::move(options), store, clock);
}

}  // namespace kvik::connector
