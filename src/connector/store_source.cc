// SPDX-License-Identifier: Apache-2.0
#include "connector/store_source.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace kvik::connector {
namespace {

kv::ObjectTier ToTier(store::TierKind kind) {
  switch (kind) {
    case store::TierKind::kMemory:
      return kv::ObjectTier::kMemory;
    case store::TierKind::kDisk:
      return kv::ObjectTier::kDisk;
    case store::TierKind::kRemote:
    case store::TierKind::kRedis:
      return kv::ObjectTier::kRemote;
  }
  return kv::ObjectTier::kRemote;
}

class Cancelled final : public transfer::CallHandle {
 public:
  void Cancel() override { cancelled_ = true; }
  [[nodiscard]] bool cancelled() const { return cancelled_; }

 private:
  std::atomic<bool> cancelled_{false};
};

// Tells a sink that its only object is not coming.
void Refuse(transfer::GetSink& sink, const Error& error) {
  sink.OnObjectEnd(0, error);
  sink.OnDone(error, {});
}

}  // namespace

store::ObjectKey ToStoreKey(const kv::ObjectKey& key, store::TenantId tenant) {
  return {key.last_block, key.profile_hash, tenant};
}

kv::ObjectInfo FromStoreInfo(const store::ObjectInfo& info) {
  kv::ObjectInfo out;
  out.key = {info.key.block, info.key.profile_hash};
  out.num_blocks = info.num_blocks;
  out.quality = info.quality;
  out.size_bytes = info.size_bytes;
  out.tier = ToTier(info.tier);
  return out;
}

void StoreSource::Lookup(const transfer::LookupRequest& request, int64_t deadline_us, Found done) {
  auto shared = std::make_shared<Found>(std::move(done));
  const bool posted = io_.Post([this, request, deadline_us, shared] {
    std::vector<kv::ContentKey> keys;
    keys.reserve(request.hashes.size());
    for (const kv::BlockHash& hash : request.hashes) {
      keys.push_back({hash, request.domain});
    }
    const store::BlockQuery query{keys, request.numerics, tenant_};
    const store::LookupResult result =
        store_.Lookup(query, request.quality, {.deadline_us = deadline_us, .local_only = false});
    std::vector<transfer::FoundObject> found;
    for (const store::FoundObject& object : result.objects) {
      found.push_back({static_cast<uint32_t>(object.last_block), FromStoreInfo(object.info)});
    }
    (*shared)(std::move(found));
  });
  if (!posted) {
    (*shared)(Err(ErrorCode::kUnavailable, "shutting down"));
  }
}

std::shared_ptr<transfer::CallHandle> StoreSource::Get(const kv::ObjectKey& key,
                                                       int32_t /*num_blocks*/, int64_t deadline_us,
                                                       std::shared_ptr<transfer::GetSink> sink,
                                                       uint8_t /*priority*/) {
  auto handle = std::make_shared<Cancelled>();
  const bool posted = io_.Post([this, key, deadline_us, sink, handle] {
    if (handle->cancelled()) {
      Refuse(*sink, Err(ErrorCode::kUnavailable, "cancelled"));
      return;
    }
    transfer::StreamStats stats;
    stats.opened_us = clock_.NowMicros();
    if (stats.opened_us >= deadline_us) {
      Refuse(*sink, Err(ErrorCode::kTimeout, "the read did not begin in time"));
      return;
    }
    const store::ObjectKey keys[] = {ToStoreKey(key, tenant_)};
    auto leases = store_.Read(keys, {.deadline_us = deadline_us});
    if (!leases[0].has_value()) {
      Refuse(*sink, leases[0].error());
      return;
    }
    const store::ReadLease& lease = *leases[0];
    const auto bytes = lease.bytes();
    if (!bytes.has_value()) {
      Refuse(*sink, bytes.error());
      return;
    }
    stats.first_message_us = stats.last_message_us = clock_.NowMicros();
    stats.received_bytes = stats.wire_bytes = bytes->size_bytes();
    stats.wire_us = std::max<int64_t>(stats.last_message_us - stats.opened_us, 1);
    kv::ObjectInfo info;
    info.key = key;
    info.num_blocks = lease.meta().num_blocks();
    info.quality = lease.meta().quality;
    info.size_bytes = bytes->size_bytes();
    info.tier = ToTier(lease.tier());
    sink->OnObject(0, info);
    sink->OnBytes(0, transfer::SharedBytes(bytes->owner(), bytes->bytes()));
    sink->OnObjectEnd(0, {});
    sink->OnDone({}, stats);
  });
  if (!posted) {
    Refuse(*sink, Err(ErrorCode::kUnavailable, "shutting down"));
  }
  return handle;
}

void StoreSource::Discard(const kv::ObjectKey& key) {
  io_.Post([this, key] {
    const store::ObjectKey keys[] = {ToStoreKey(key, tenant_)};
    // Best effort: what cannot be removed fails again, and is counted again.
    static_cast<void>(store_.Remove(keys).has_value());
  });
}

bool StoreSource::Prefetch(std::span<const kv::ObjectKey> keys) {
  std::vector<store::ObjectKey> store_keys;
  store_keys.reserve(keys.size());
  for (const kv::ObjectKey& key : keys) {
    store_keys.push_back(ToStoreKey(key, tenant_));
  }
  return store_.Prefetch(store_keys);
}

void StoreSource::Put(NewObject object, int64_t /*deadline_us*/, Stored done) {
  auto shared = std::make_shared<std::pair<NewObject, Stored>>(std::move(object), std::move(done));
  const bool posted = put_io_.Post([this, shared] {
    const NewObject& put = shared->first;
    store::ObjectMeta meta;
    meta.key = ToStoreKey(put.info.key, tenant_);
    meta.quality = put.info.quality;
    meta.parent = put.parent;
    meta.blocks = put.blocks;
    // A copy of our own: the encoder's buffer has room at its end that the store would not count.
    auto bytes = store::Buffer::CopyOf(put.bytes.span());
    shared->second(bytes.has_value() ? store_.Put(meta, *bytes) : Result<void>(bytes.error()));
  });
  if (!posted) {
    shared->second(Err(ErrorCode::kUnavailable, "shutting down"));
  }
}

}  // namespace kvik::connector
