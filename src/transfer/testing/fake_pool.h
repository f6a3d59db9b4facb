// SPDX-License-Identifier: Apache-2.0
// transfer/testing/fake_pool.h: a handler with objects in memory, for tests and benchmarks of the
// object protocol.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transfer/object_server.h"

namespace kvik::transfer::testing {

// A key that differs with `number`.
inline kv::ObjectKey KeyOf(uint64_t number, uint64_t profile = 7) {
  kv::ObjectKey key;
  std::memcpy(key.last_block.content.hash.bytes.data(), &number, sizeof number);
  key.last_block.content.domain.bytes[0] = 1;
  key.last_block.numerics.value = 99;
  key.profile_hash = profile;
  return key;
}

// Bytes that differ with `number`, and at every offset.
inline std::vector<std::byte> BytesOf(uint64_t number, size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  uint64_t state = number * 0x9E3779B97F4A7C15ULL + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

// Thread-safe.
class FakePool : public ObjectHandler {
 public:
  void Store(const kv::ObjectInfo& info, std::vector<std::byte> bytes) {
    MutexLock lock(mutex_);
    kv::ObjectInfo stored = info;
    stored.size_bytes = bytes.size();
    objects_[info.key] = {stored, SharedBytes::Own(std::move(bytes))};
  }
  void Store(uint64_t number, size_t size_bytes) {
    kv::ObjectInfo info;
    info.key = KeyOf(number);
    info.num_blocks = 16;
    Store(info, BytesOf(number, size_bytes));
  }
  [[nodiscard]] size_t size() {
    MutexLock lock(mutex_);
    return objects_.size();
  }

  void Lookup(const CallContext& /*context*/, LookupRequest request,
              std::shared_ptr<LookupReply> reply) override {
    std::vector<FoundObject> found;
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < request.hashes.size(); ++i) {
      for (const auto& [key, object] : objects_) {
        if (key.last_block.content == kv::ContentKey{request.hashes[i], request.domain}) {
          found.push_back(FoundObject{i, object.info});
        }
      }
    }
    reply->Found(found);
  }

  void Get(const CallContext& /*context*/, GetRequest request,
           std::shared_ptr<GetReply> reply) override {
    auto job = std::make_shared<GetJob>();
    job->reply = std::move(reply);
    {
      MutexLock lock(mutex_);
      for (const kv::ObjectKey& key : request.keys) {
        const auto it = objects_.find(key);
        job->objects.push_back(it == objects_.end() ? std::nullopt
                                                    : std::optional<Object>(it->second));
      }
    }
    job->reply->SetListener(job);
    job->Run();
  }

  void Put(const CallContext& /*context*/, PutRequest request,
           std::shared_ptr<PutReply> reply) override {
    {
      MutexLock lock(mutex_);
      if (objects_.contains(request.info.key)) {
        reply->Answer(PutAnswer::kHave, nullptr);
        return;
      }
    }
    auto job = std::make_shared<PutJob>();
    job->pool = this;
    job->info = request.info;
    job->bytes.reserve(std::min<size_t>(request.info.size_bytes, size_t{64} << 20));
    job->reply = reply;
    reply->Answer(PutAnswer::kGo, job);
  }

  void Remove(const CallContext& /*context*/, RemoveRequest request,
              std::shared_ptr<RemoveReply> reply) override {
    size_t removed = 0;
    MutexLock lock(mutex_);
    for (const kv::ObjectKey& key : request.keys) {
      removed += objects_.erase(key);
    }
    reply->Removed(removed);
  }

  // Answers with what was asked.
  void Call(const CallContext& /*context*/, uint16_t number, SharedBytes request,
            std::shared_ptr<CallReply> reply) override {
    if (number == 404) {
      reply->Fail(Err(ErrorCode::kNotFound, "no such call"));
    } else if (number != 500) {  // is dropped
      reply->Answer(std::move(request));
    }
  }
  void OnPeerConnected(const Peer& /*peer*/) override {
    MutexLock lock(mutex_);
    ++peers_;
  }
  void OnPeerGone(const Peer& /*peer*/, const Error& /*error*/) override {
    MutexLock lock(mutex_);
    --peers_;
  }
  [[nodiscard]] int peers() {
    MutexLock lock(mutex_);
    return peers_;
  }

 private:
  struct Object {
    kv::ObjectInfo info;
    SharedBytes bytes;
  };

  // Sends object after object, as long as there is room.
  struct GetJob final : public ReplyListener, public std::enable_shared_from_this<GetJob> {
    std::shared_ptr<GetReply> reply;
    std::vector<std::optional<Object>> objects;
    size_t next = 0;

    void Run() {
      for (; next < objects.size(); ++next) {
        if (!objects[next]) {
          reply->Fail(next, Err(ErrorCode::kNotFound, "not here"));
          continue;
        }
        if (!begun) {
          reply->Begin(next, objects[next]->info);
          begun = true;
        }
        if (!objects[next]->bytes.empty() &&
            reply->Append(next, objects[next]->bytes) != SendResult::kTaken) {
          return;
        }
        reply->End(next, {});
        begun = false;
      }
      reply->Finish();
    }
    void OnRoom() override { Run(); }
    void OnEnd(const Result<void>& /*outcome*/) override {
      objects.clear();
      next = 0;
    }
    bool begun = false;
  };

  struct PutJob final : public PutReceiver {
    FakePool* pool = nullptr;
    kv::ObjectInfo info;
    std::shared_ptr<PutReply> reply;
    std::vector<std::byte> bytes;
    void OnBytes(SharedBytes part) override {
      bytes.insert(bytes.end(), part.span().begin(), part.span().end());
    }
    void OnCommit(uint64_t /*size_bytes*/) override {
      pool->Store(info, std::move(bytes));
      reply->Done();
    }
    void OnEnd(const Result<void>& /*outcome*/) override { reply.reset(); }
  };

  Mutex mutex_;
  std::unordered_map<kv::ObjectKey, Object, kv::ObjectKeyHash> objects_ KVIK_GUARDED_BY(mutex_);
  int peers_ KVIK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvik::transfer::testing
