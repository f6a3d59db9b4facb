// SPDX-License-Identifier: Apache-2.0
// store/testing/made_objects.h: objects for tests whose bytes can be told from their key.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "store/object.h"
#include "store/tier.h"

namespace kvik::store::testing {

constexpr int kChunkBlocks = 4;

// Hash of block `index` of conversation `conversation`; index -1 is the root.
inline kv::BlockHash MadeHash(uint64_t conversation, int index) {
  kv::BlockHash hash;
  if (index >= 0) {
    Rng rng(conversation, static_cast<uint64_t>(index) + 1);
    for (size_t i = 0; i < hash.bytes.size(); i += 8) {
      const uint64_t word = rng.Next();
      std::memcpy(hash.bytes.data() + i, &word, 8);
    }
  }
  return hash;
}

inline kv::CacheDomain MadeDomain(uint8_t which) {
  kv::CacheDomain domain;
  domain.bytes[0] = which;
  return domain;
}

struct MadeObject {
  uint64_t conversation = 1;
  int chunk = 0;
  uint64_t profile = 0;
  TenantId tenant = {};
  int num_blocks = kChunkBlocks;  // less: a chunk that ends early
  int64_t ttl_us = 0;
  kv::BlockQuality quality = {};
  uint64_t numerics = 7;
  uint8_t domain = 1;
};

inline ObjectMeta MetaOf(const MadeObject& made) {
  ObjectMeta meta;
  const int first = made.chunk * kChunkBlocks;
  for (int i = 0; i < made.num_blocks; ++i) {
    meta.blocks.push_back(MadeHash(made.conversation, first + i));
  }
  meta.parent = MadeHash(made.conversation, first - 1);
  meta.key.block.content.hash = meta.blocks.back();
  meta.key.block.content.domain = MadeDomain(made.domain);
  meta.key.block.numerics.value = made.numerics;
  meta.key.profile_hash = made.profile;
  meta.key.tenant = made.tenant;
  meta.quality = made.quality;
  meta.ttl_us = made.ttl_us;
  return meta;
}

inline ObjectKey KeyOf(const MadeObject& made) { return MetaOf(made).key; }

// The bytes that an object of this key and size has.
inline std::vector<std::byte> MadeBytes(const ObjectKey& key, size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  Rng rng(key.Digest());
  for (size_t i = 0; i < size_bytes; i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size_bytes - i));
  }
  return bytes;
}

inline Object ObjectOf(const MadeObject& made, size_t size_bytes) {
  auto meta = std::make_shared<const ObjectMeta>(MetaOf(made));
  Buffer bytes = Buffer::CopyOf(MadeBytes(meta->key, size_bytes)).value();
  return Object{std::move(meta), std::move(bytes)};
}

// Whether the bytes are those of the key.
inline bool IsIntact(const ObjectKey& key, std::span<const std::byte> bytes) {
  const auto expected = MadeBytes(key, bytes.size());
  return bytes.empty() || std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

// What a request over blocks [0, num_blocks) of the conversation asks.
inline std::vector<kv::ContentKey> MadeRequest(uint64_t conversation, int num_blocks,
                                               uint8_t domain = 1) {
  std::vector<kv::ContentKey> keys;
  for (int i = 0; i < num_blocks; ++i) {
    keys.push_back({MadeHash(conversation, i), MadeDomain(domain)});
  }
  return keys;
}

inline BlockQuery QueryOf(const std::vector<kv::ContentKey>& keys, TenantId tenant = {},
                          uint64_t numerics = 7) {
  return BlockQuery{.blocks = keys, .numerics = {numerics}, .tenant = tenant};
}

// Single-key forms of the batches.
inline Result<void> PutOne(Tier& tier, const Object& object) {
  return tier.Put({&object, 1}, kNoDeadline).front();
}
inline Result<Object> GetOne(Tier& tier, const ObjectKey& key) {
  return std::move(tier.Get({&key, 1}, kNoDeadline).front());
}
inline bool Has(Tier& tier, const ObjectKey& key) {
  return tier.Exists({&key, 1}, kNoDeadline).value().front();
}

}  // namespace kvik::store::testing
