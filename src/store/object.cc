// SPDX-License-Identifier: Apache-2.0
#include "store/object.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "base/fnv.h"

namespace kvik::store {
namespace {

static_assert(std::endian::native == std::endian::little, "descriptions are little-endian");

constexpr uint32_t kMetaVersion = 1;

// Mixes a word of any quality into a uniform one.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// The description as it is written, before the hashes of its blocks.
struct FixedMeta {
  uint32_t version;
  uint32_t num_blocks;
  std::array<uint8_t, 32> hash;
  std::array<uint8_t, 16> domain;
  uint64_t numerics;
  uint64_t profile_hash;
  uint64_t tenant;
  int64_t ttl_us;
  float q;
  uint8_t lossy;
  std::array<uint8_t, 3> zero;
  std::array<uint8_t, 32> parent;
};
static_assert(sizeof(FixedMeta) == 128 && std::is_trivially_copyable_v<FixedMeta>);
static_assert(sizeof(kv::BlockHash) == 32);

}  // namespace

TenantId TenantId::FromName(std::string_view name) {
  return TenantId{name.empty() ? 0 : Fnv1a(name)};
}

uint64_t ObjectKey::Digest() const {
  return Mix(block.content.Digest() + 0x9E3779B97F4A7C15ULL * profile_hash + block.numerics.value +
             Mix(tenant.value));
}

const char* TierKindName(TierKind kind) {
  switch (kind) {
    case TierKind::kMemory:
      return "memory";
    case TierKind::kDisk:
      return "disk";
    case TierKind::kRemote:
      return "remote";
    case TierKind::kRedis:
      return "redis";
  }
  return "unknown";
}

Result<void> ObjectMeta::Check() const {
  if (blocks.empty() || blocks.size() > kMaxObjectBlocks) {
    return Err(ErrorCode::kInvalidInput, "an object has 1 to %zu blocks, not %zu", kMaxObjectBlocks,
               blocks.size());
  }
  if (blocks.back() != key.block.content.hash) {
    return Err(ErrorCode::kInvalidInput, "an object is named by its last block");
  }
  if (!(quality.q >= 0.0F && quality.q <= 1.0F)) {
    return Err(ErrorCode::kInvalidInput, "an object's q is within [0, 1]");
  }
  if (ttl_us < 0) {
    return Err(ErrorCode::kInvalidInput, "an object's time to live is negative");
  }
  return {};
}

std::vector<size_t> Matching(const std::vector<const ObjectMeta*>& metas,
                             const RemoveFilter& filter) {
  std::vector<size_t> candidates;
  for (size_t i = 0; i < metas.size(); ++i) {
    const ObjectKey& key = metas[i]->key;
    if ((!filter.tenant || key.tenant == *filter.tenant) &&
        (!filter.domain || key.block.content.domain == *filter.domain)) {
      candidates.push_back(i);
    }
  }
  if (!filter.prefix) {
    return candidates;
  }
  const auto digest = [](const kv::BlockHash& hash) {
    uint64_t value = 0;
    std::memcpy(&value, hash.bytes.data(), sizeof value);
    return static_cast<size_t>(value);
  };
  std::unordered_multimap<kv::BlockHash, size_t, decltype(digest)> children(0, digest);
  std::unordered_set<kv::BlockHash, decltype(digest)> doomed(0, digest);
  std::vector<bool> taken(metas.size(), false);
  std::vector<size_t> matching;
  const auto take = [&](size_t i, const kv::BlockHash& from) {
    if (taken[i]) {
      return;
    }
    taken[i] = true;
    matching.push_back(i);
    // What descends from a block of this object at or behind `from` goes too.
    const auto& blocks = metas[i]->blocks;
    auto at = std::find(blocks.begin(), blocks.end(), from);
    if (at == blocks.end()) {
      at = blocks.begin();
    }
    doomed.insert(at, blocks.end());
  };
  doomed.insert(*filter.prefix);
  for (const size_t i : candidates) {
    children.emplace(metas[i]->parent, i);
    const auto& blocks = metas[i]->blocks;
    if (std::find(blocks.begin(), blocks.end(), *filter.prefix) != blocks.end()) {
      take(i, *filter.prefix);
    }
  }
  std::vector<kv::BlockHash> open(doomed.begin(), doomed.end());
  while (!open.empty()) {
    const kv::BlockHash parent = open.back();
    open.pop_back();
    const auto [begin, end] = children.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      if (!taken[child->second]) {
        take(child->second, metas[child->second]->blocks.front());
        const auto& blocks = metas[child->second]->blocks;
        open.insert(open.end(), blocks.begin(), blocks.end());
      }
    }
  }
  std::sort(matching.begin(), matching.end());
  return matching;
}

std::vector<std::byte> EncodeMeta(const ObjectMeta& meta) {
  FixedMeta fixed = {};
  fixed.version = kMetaVersion;
  fixed.num_blocks = static_cast<uint32_t>(meta.blocks.size());
  fixed.hash = meta.key.block.content.hash.bytes;
  fixed.domain = meta.key.block.content.domain.bytes;
  fixed.numerics = meta.key.block.numerics.value;
  fixed.profile_hash = meta.key.profile_hash;
  fixed.tenant = meta.key.tenant.value;
  fixed.ttl_us = meta.ttl_us;
  fixed.q = meta.quality.q;
  fixed.lossy = meta.quality.fidelity == kv::Fidelity::kLossy ? 1 : 0;
  fixed.parent = meta.parent.bytes;
  // The last block's hash is the key's: not written twice.
  const size_t hashes_bytes = (meta.blocks.size() - 1) * sizeof(kv::BlockHash);
  std::vector<std::byte> bytes(sizeof fixed + hashes_bytes);
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  if (hashes_bytes != 0) {
    std::memcpy(bytes.data() + sizeof fixed, meta.blocks.data(), hashes_bytes);
  }
  return bytes;
}

Result<ObjectMeta> DecodeMeta(std::span<const std::byte> bytes) {
  FixedMeta fixed = {};
  if (bytes.size() < sizeof fixed) {
    return Err(ErrorCode::kCorrupt, "the description of an object has %zu bytes", bytes.size());
  }
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.version != kMetaVersion) {
    return Err(ErrorCode::kUnsupported,
               "the description of an object has version %u, this build knows %u", fixed.version,
               kMetaVersion);
  }
  if (fixed.num_blocks == 0 || fixed.num_blocks > kMaxObjectBlocks || fixed.lossy > 1) {
    return Err(ErrorCode::kCorrupt, "the description of an object claims %u blocks, fidelity %u",
               fixed.num_blocks, fixed.lossy);
  }
  const size_t hashes_bytes = (fixed.num_blocks - 1) * sizeof(kv::BlockHash);
  if (bytes.size() != sizeof fixed + hashes_bytes) {
    return Err(ErrorCode::kCorrupt, "the description of an object of %u blocks has %zu bytes",
               fixed.num_blocks, bytes.size());
  }
  ObjectMeta meta;
  meta.key.block.content.hash.bytes = fixed.hash;
  meta.key.block.content.domain.bytes = fixed.domain;
  meta.key.block.numerics.value = fixed.numerics;
  meta.key.profile_hash = fixed.profile_hash;
  meta.key.tenant.value = fixed.tenant;
  meta.ttl_us = fixed.ttl_us;
  meta.quality.q = fixed.q;
  meta.quality.fidelity = fixed.lossy != 0 ? kv::Fidelity::kLossy : kv::Fidelity::kExact;
  meta.parent.bytes = fixed.parent;
  meta.blocks.resize(fixed.num_blocks);
  if (hashes_bytes != 0) {
    std::memcpy(meta.blocks.data(), bytes.data() + sizeof fixed, hashes_bytes);
  }
  meta.blocks.back().bytes = fixed.hash;
  if (const auto checked = meta.Check(); !checked) {
    return Err(ErrorCode::kCorrupt, "%s", checked.error().message.c_str());
  }
  return meta;
}

}  // namespace kvik::store
