// SPDX-License-Identifier: Apache-2.0
// store/object.h: what is stored and moved, and how it is named.
//
// An object is one encoding of one chunk: KV of all layers of consecutive blocks of a prefix. Its
// bytes are opaque here (a codec's frame stream). It is named by the hash of its *last* block,
// which implies every block before it, and by the profile that encoded it; several encodings of one
// chunk are several objects. Objects are immutable: equal keys, equal bytes.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/block_key.h"
#include "store/buffer.h"

namespace kvik::store {

// A namespace with its own quota: what one tenant stored, no other one finds. The default is the
// one that everybody shares who names none.
struct TenantId {
  uint64_t value = 0;
  // "" is the default tenant.
  static TenantId FromName(std::string_view name);
  friend auto operator<=>(const TenantId&, const TenantId&) = default;
};

struct ObjectKey {
  kv::BlockKey block;  // of the object's last block
  uint64_t profile_hash = 0;
  TenantId tenant;
  friend bool operator==(const ObjectKey&, const ObjectKey&) = default;

  // 64 uniform bits.
  [[nodiscard]] uint64_t Digest() const;
};
struct ObjectKeyHash {
  size_t operator()(const ObjectKey& key) const { return key.Digest(); }
};

enum class TierKind : uint8_t { kMemory = 0, kDisk = 1, kRemote = 2, kRedis = 3 };
// "memory", "disk", "remote", "redis": in messages, metrics and events.
const char* TierKindName(TierKind kind);

// What a lookup tells about an object.
struct ObjectInfo {
  ObjectKey key;
  int32_t num_blocks = 0;    // it covers blocks (last - num_blocks, last] of the request
  kv::BlockQuality quality;  // of these bytes: the pipeline's and what the KV was computed from
  uint64_t size_bytes = 0;   // of the encoded bytes, counted whole
  TierKind tier = TierKind::kMemory;  // the fastest that has it
};

constexpr size_t kMaxObjectBlocks = 4096;
constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 32;

// What the writer of an object says of it.
struct ObjectMeta {
  ObjectKey key;
  kv::BlockQuality quality;
  // The block before the first one; BlockHasher::root() when the object begins at position 0.
  kv::BlockHash parent;
  // All of its blocks in order: 1 to kMaxObjectBlocks, the last one is key.block.content.hash.
  std::vector<kv::BlockHash> blocks;
  int64_t ttl_us = 0;  // counted from the put, and anew from a restart; 0: no end

  [[nodiscard]] int32_t num_blocks() const { return static_cast<int32_t>(blocks.size()); }
  // kInvalidInput when a field contradicts what is said above.
  [[nodiscard]] Result<void> Check() const;
};

// Shares both parts: copying one copies no bytes.
struct Object {
  std::shared_ptr<const ObjectMeta> meta;  // never null in an argument or a result
  Buffer bytes;
};

// What to remove: all that is given must hold; nothing given is everything.
struct RemoveFilter {
  std::optional<TenantId> tenant;
  std::optional<kv::CacheDomain> domain;  // model, adapter and salt
  // Objects that hold this block or descend from it. Descent is known from the objects that are
  // there: it does not reach over a missing chunk (removing by domain or tenant does).
  std::optional<kv::BlockHash> prefix;
};

// Indices of the objects to remove among `metas`.
std::vector<size_t> Matching(const std::vector<const ObjectMeta*>& metas,
                             const RemoveFilter& filter);

// As bytes, for disks and wires: versioned, every length checked by the reader (kCorrupt,
// kUnsupported). Integrity is the container's: a CRC must cover them.
std::vector<std::byte> EncodeMeta(const ObjectMeta& meta);
Result<ObjectMeta> DecodeMeta(std::span<const std::byte> bytes);

}  // namespace kvik::store
