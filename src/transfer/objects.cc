// SPDX-License-Identifier: Apache-2.0
#include "transfer/objects.h"

#include <cmath>
#include <cstring>

#include "transfer/payload.h"

namespace kvik::transfer {
namespace {

constexpr size_t kKeyBytes = 32 + 16 + 8 + 8;
constexpr size_t kFactsBytes = 4 + 1 + 1 + 4 + 8 + 8;
constexpr size_t kFoundBytes = 4 + 8 + 8 + kFactsBytes;
constexpr int32_t kMaxBlocks = 1 << 20;

template <typename Array>
void GetArray(PayloadReader& reader, Array& array) {
  const auto bytes = reader.GetBytes(array.size());
  if (!bytes.empty()) {
    std::memcpy(array.data(), bytes.data(), array.size());
  }
}

// A day: whoever says more is damaged.
constexpr int64_t kLongestTimeUs = 86'400'000'000;

void PutKey(PayloadWriter& writer, const kv::ObjectKey& key) {
  writer.PutBytes(std::as_bytes(std::span(key.last_block.content.hash.bytes)));
  writer.PutBytes(std::as_bytes(std::span(key.last_block.content.domain.bytes)));
  writer.Put(key.last_block.numerics.value);
  writer.Put(key.profile_hash);
}

kv::ObjectKey GetKey(PayloadReader& reader) {
  kv::ObjectKey key;
  GetArray(reader, key.last_block.content.hash.bytes);
  GetArray(reader, key.last_block.content.domain.bytes);
  key.last_block.numerics.value = reader.Get<uint64_t>();
  key.profile_hash = reader.Get<uint64_t>();
  return key;
}

// Everything of an ObjectInfo but the key.
void PutFacts(PayloadWriter& writer, const kv::ObjectInfo& info) {
  writer.Put(info.num_blocks);
  writer.Put(static_cast<uint8_t>(info.quality.fidelity == kv::Fidelity::kLossy ? 1 : 0));
  writer.Put(static_cast<uint8_t>(info.tier));
  writer.Put(info.quality.q);
  writer.Put(info.size_bytes);
  writer.Put(info.ready_in_us);
}

void GetFacts(PayloadReader& reader, kv::ObjectInfo& info) {
  info.num_blocks = reader.Get<int32_t>();
  const bool lossy = reader.GetBool();
  const auto tier = reader.Get<uint8_t>();
  info.quality.q = reader.Get<float>();
  info.size_bytes = reader.Get<uint64_t>();
  info.ready_in_us = reader.Get<int64_t>();
  if (info.num_blocks < 0 || info.num_blocks > kMaxBlocks ||
      tier > static_cast<uint8_t>(kv::ObjectTier::kRemote) || !(info.quality.q >= 0) ||
      !(info.quality.q <= 1) || info.size_bytes > kMaxObjectBytes || info.ready_in_us < 0) {
    reader.Fail();
    return;
  }
  info.quality.fidelity = lossy ? kv::Fidelity::kLossy : kv::Fidelity::kExact;
  info.tier = static_cast<kv::ObjectTier>(tier);
}

Result<void> CheckTenant(const std::string& tenant) {
  if (tenant.size() > kMaxTenantBytes) {
    return Err(ErrorCode::kInvalidInput, "a tenant's name has at most %zu bytes", kMaxTenantBytes);
  }
  return {};
}

Result<void> CheckCount(size_t count, size_t max_count, const char* what) {
  if (count > max_count) {
    return Err(ErrorCode::kInvalidInput, "%zu %s in one request; %zu are the most", count, what,
               max_count);
  }
  return {};
}

// What requests about objects begin with; room for 4 bytes more a key.
template <typename Request>
Result<Payload> TenantAndKeys(const Request& request) {
  KVIK_TRY(CheckTenant(request.tenant));
  KVIK_TRY(CheckCount(request.keys.size(), kMaxGetObjects, "objects"));
  Payload payload;
  payload.reserve(64 + request.tenant.size() + (kKeyBytes + 4) * request.keys.size());
  PayloadWriter writer(payload);
  writer.PutText(request.tenant);
  writer.Put(static_cast<uint32_t>(request.keys.size()));
  for (const kv::ObjectKey& key : request.keys) {
    PutKey(writer, key);
  }
  return payload;
}

template <typename Request>
Request GetTenantAndKeys(PayloadReader& reader) {
  Request request;
  request.tenant = reader.GetText(kMaxTenantBytes);
  request.keys.resize(reader.GetCount(kMaxGetObjects, kKeyBytes));
  for (kv::ObjectKey& key : request.keys) {
    key = GetKey(reader);
  }
  return request;
}

}  // namespace

Result<Payload> Encode(const LookupRequest& request) {
  KVIK_TRY(CheckTenant(request.tenant));
  KVIK_TRY(CheckCount(request.hashes.size(), kMaxLookupHashes, "block hashes"));
  Payload payload;
  payload.reserve(64 + request.tenant.size() + 32 * request.hashes.size());
  PayloadWriter writer(payload);
  writer.PutBytes(std::as_bytes(std::span(request.domain.bytes)));
  writer.Put(request.numerics.value);
  writer.Put(static_cast<uint8_t>(request.quality.allow_lossy ? 1 : 0));
  writer.Put(request.quality.q_min);
  writer.Put(static_cast<uint8_t>(request.include_live ? 1 : 0));
  writer.PutText(request.tenant);
  writer.Put(static_cast<uint32_t>(request.hashes.size()));
  for (const kv::BlockHash& hash : request.hashes) {
    writer.PutBytes(std::as_bytes(std::span(hash.bytes)));
  }
  return payload;
}

Result<LookupRequest> DecodeLookupRequest(std::span<const std::byte> bytes) {
  PayloadReader reader(bytes);
  LookupRequest request;
  GetArray(reader, request.domain.bytes);
  request.numerics.value = reader.Get<uint64_t>();
  request.quality.allow_lossy = reader.GetBool();
  request.quality.q_min = reader.Get<float>();
  if (!(request.quality.q_min >= 0)) {
    reader.Fail();
  }
  request.include_live = reader.GetBool();
  request.tenant = reader.GetText(kMaxTenantBytes);
  request.hashes.resize(reader.GetCount(kMaxLookupHashes, sizeof(kv::BlockHash)));
  for (kv::BlockHash& hash : request.hashes) {
    GetArray(reader, hash.bytes);
  }
  KVIK_TRY(reader.Done("a lookup"));
  return request;
}

Result<Payload> Encode(const GetRequest& request) {
  KVIK_ASSIGN(Payload payload, TenantAndKeys(request));
  PayloadWriter writer(payload);
  for (size_t i = 0; i < request.keys.size(); ++i) {
    writer.Put(request.NumBlocks(i));
  }
  return payload;
}

Result<GetRequest> DecodeGetRequest(std::span<const std::byte> bytes) {
  PayloadReader reader(bytes);
  auto request = GetTenantAndKeys<GetRequest>(reader);
  request.num_blocks.resize(request.keys.size());
  for (uint32_t& blocks : request.num_blocks) {
    blocks = reader.Get<uint32_t>();
    if (blocks > static_cast<uint32_t>(kMaxBlocks)) {
      reader.Fail();
    }
  }
  KVIK_TRY(reader.Done("a get"));
  return request;
}

Result<Payload> Encode(const RemoveRequest& request) { return TenantAndKeys(request); }

Result<RemoveRequest> DecodeRemoveRequest(std::span<const std::byte> bytes) {
  PayloadReader reader(bytes);
  auto request = GetTenantAndKeys<RemoveRequest>(reader);
  KVIK_TRY(reader.Done("a removal"));
  return request;
}

Result<Payload> Encode(const PutRequest& request) {
  KVIK_TRY(CheckTenant(request.tenant));
  if (request.info.size_bytes > kMaxObjectBytes || request.ttl_us < 0) {
    return Err(ErrorCode::kInvalidInput, "an object of %llu bytes, or a negative time to live",
               static_cast<unsigned long long>(request.info.size_bytes));
  }
  Payload payload = Encode(request.info);
  PayloadWriter writer(payload);
  writer.Put(static_cast<uint8_t>(request.size_is_bound ? 1 : 0));
  writer.Put(static_cast<uint8_t>(request.pin ? 1 : 0));
  writer.Put(request.ttl_us);
  writer.PutText(request.tenant);
  return payload;
}

Result<PutRequest> DecodePutRequest(std::span<const std::byte> bytes) {
  PayloadReader reader(bytes);
  PutRequest request;
  request.info.key = GetKey(reader);
  GetFacts(reader, request.info);
  request.size_is_bound = reader.GetBool();
  request.pin = reader.GetBool();
  request.ttl_us = reader.Get<int64_t>();
  if (request.ttl_us < 0) {
    reader.Fail();
  }
  request.tenant = reader.GetText(kMaxTenantBytes);
  KVIK_TRY(reader.Done("a put"));
  return request;
}

Payload Encode(const kv::ObjectInfo& info) {
  Payload payload;
  PayloadWriter writer(payload);
  PutKey(writer, info.key);
  PutFacts(writer, info);
  return payload;
}

Result<kv::ObjectInfo> DecodeObjectInfo(std::span<const std::byte> bytes) {
  PayloadReader reader(bytes);
  kv::ObjectInfo info;
  info.key = GetKey(reader);
  GetFacts(reader, info);
  KVIK_TRY(reader.Done("an object's description"));
  return info;
}

Payload Encode(std::span<const FoundObject> found) {
  Payload payload;
  payload.reserve(found.size() * kFoundBytes);
  PayloadWriter writer(payload);
  for (const FoundObject& object : found) {
    writer.Put(object.hash_index);
    writer.Put(object.info.key.last_block.numerics.value);
    writer.Put(object.info.key.profile_hash);
    PutFacts(writer, object.info);
  }
  return payload;
}

Result<std::vector<FoundObject>> DecodeFoundObjects(std::span<const std::byte> bytes,
                                                    const LookupRequest& request) {
  PayloadReader reader(bytes);
  std::vector<FoundObject> found(bytes.size() / kFoundBytes);
  for (FoundObject& object : found) {
    object.hash_index = reader.Get<uint32_t>();
    object.info.key.last_block.numerics.value = reader.Get<uint64_t>();
    object.info.key.profile_hash = reader.Get<uint64_t>();
    GetFacts(reader, object.info);
    if (object.hash_index >= request.hashes.size()) {
      return Err(ErrorCode::kCorrupt, "an answer to a hash that was not asked about");
    }
    object.info.key.last_block.content.hash = request.hashes[object.hash_index];
    object.info.key.last_block.content.domain = request.domain;
  }
  KVIK_TRY(reader.Done("found objects"));
  return found;
}

Payload EncodeObjectEnd(uint64_t size_bytes, const ObjectTimes& times) {
  Payload payload;
  PayloadWriter writer(payload);
  writer.Put(size_bytes);
  writer.Put(times.waited_us);
  writer.Put(times.encode_us);
  return payload;
}

Result<std::pair<uint64_t, ObjectTimes>> DecodeObjectEnd(std::span<const std::byte> bytes) {
  PayloadReader reader(bytes);
  const auto size_bytes = reader.Get<uint64_t>();
  ObjectTimes times;
  times.waited_us = reader.Get<int64_t>();
  times.encode_us = reader.Get<int64_t>();
  for (const int64_t us : {times.waited_us, times.encode_us}) {
    if (us < 0 || us > kLongestTimeUs) {
      reader.Fail();
    }
  }
  KVIK_TRY(reader.Done("the end of an object"));
  return std::pair(size_bytes, times);
}

}  // namespace kvik::transfer
