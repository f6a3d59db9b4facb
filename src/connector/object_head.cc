// SPDX-License-Identifier: Apache-2.0
#include "connector/object_head.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/crc32c.h"

namespace kvik::connector {
namespace {

static_assert(std::endian::native == std::endian::little, "heads are little-endian");

constexpr uint32_t kMagic = 0x004F764BU;  // "KvO", then the version
constexpr uint8_t kVersion = 1;

// Up to the hashes of the blocks.
struct FixedHead {
  uint32_t magic;
  uint32_t crc;  // of everything behind it, up to the last hash
  uint32_t num_blocks;
  float q;
  uint8_t lossy;
  std::array<uint8_t, 7> zero;
  uint64_t numerics;
  uint64_t profile_hash;
  std::array<uint8_t, 16> domain;
  std::array<uint8_t, 32> parent;
};
static_assert(sizeof(FixedHead) == 88 && std::is_trivially_copyable_v<FixedHead>);
static_assert(sizeof(kv::BlockHash) == 32);
constexpr size_t kCrcEnd = 8;

}  // namespace

Result<void> ObjectHead::CheckIs(const kv::ObjectKey& asked,
                                 std::span<const kv::BlockHash> asked_blocks) const {
  if (!(key == asked)) {
    return Err(ErrorCode::kCorrupt, "an object of another %s",
               !(key.last_block.content.hash == asked.last_block.content.hash)       ? "block"
               : !(key.last_block.content.domain == asked.last_block.content.domain) ? "domain"
               : key.profile_hash != asked.profile_hash                              ? "profile"
                                                                                     : "numerics");
  }
  if (!std::equal(blocks.begin(), blocks.end(), asked_blocks.begin(), asked_blocks.end())) {
    return Err(ErrorCode::kCorrupt, "an object of %zu blocks that are not the %zu asked for",
               blocks.size(), asked_blocks.size());
  }
  return {};
}

size_t HeadBytes(size_t num_blocks) {
  return sizeof(FixedHead) + num_blocks * sizeof(kv::BlockHash);
}

void AppendHead(const ObjectHead& head, std::vector<std::byte>& out) {
  KVIK_CHECK(!head.blocks.empty() && head.blocks.size() <= kMaxHeadBlocks &&
             head.blocks.back() == head.key.last_block.content.hash);
  KVIK_CHECK(head.source.q >= 0.0F && head.source.q <= 1.0F);
  FixedHead fixed = {};
  fixed.magic = kMagic | uint32_t{kVersion} << 24;
  fixed.num_blocks = static_cast<uint32_t>(head.blocks.size());
  fixed.q = head.source.q;
  fixed.lossy = head.source.fidelity == kv::Fidelity::kLossy ? 1 : 0;
  fixed.numerics = head.key.last_block.numerics.value;
  fixed.profile_hash = head.key.profile_hash;
  fixed.domain = head.key.last_block.content.domain.bytes;
  fixed.parent = head.parent.bytes;
  const size_t begin = out.size();
  const size_t size = HeadBytes(head.blocks.size());
  out.resize(begin + size);
  std::byte* const at = out.data() + begin;
  std::memcpy(at, &fixed, sizeof fixed);
  std::memcpy(at + sizeof fixed, head.blocks.data(), size - sizeof fixed);
  const uint32_t crc = Crc32c({at + kCrcEnd, size - kCrcEnd});
  std::memcpy(at + offsetof(FixedHead, crc), &crc, sizeof crc);
}

Result<std::optional<ReadHead>> ReadObjectHead(std::span<const std::byte> bytes) {
  const std::optional<ReadHead> more;
  FixedHead fixed = {};
  if (bytes.size() < sizeof fixed.magic) {
    return more;
  }
  std::memcpy(&fixed.magic, bytes.data(), sizeof fixed.magic);
  if ((fixed.magic & 0xFFFFFFU) != kMagic) {
    return Err(ErrorCode::kCorrupt, "an object should start here, not %08x", fixed.magic);
  }
  if (fixed.magic >> 24 != kVersion) {
    return Err(ErrorCode::kUnsupported, "an object of version %u; this build reads version %u",
               fixed.magic >> 24, kVersion);
  }
  if (bytes.size() < sizeof fixed) {
    return more;
  }
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.num_blocks == 0 || fixed.num_blocks > kMaxHeadBlocks) {
    return Err(ErrorCode::kCorrupt, "an object of %u blocks; 1 to %zu are possible",
               fixed.num_blocks, kMaxHeadBlocks);
  }
  const size_t size = HeadBytes(fixed.num_blocks);
  if (bytes.size() < size) {
    return more;
  }
  if (Crc32c(bytes.subspan(kCrcEnd, size - kCrcEnd)) != fixed.crc) {
    return Err(ErrorCode::kCorrupt, "the CRC of the object's head does not match");
  }
  if (!(fixed.q >= 0.0F && fixed.q <= 1.0F) || fixed.lossy > 1 ||
      fixed.zero != decltype(fixed.zero){}) {
    return Err(ErrorCode::kCorrupt, "an object's head with fidelity %u and quality %g", fixed.lossy,
               static_cast<double>(fixed.q));
  }
  ReadHead read;
  read.size_bytes = size;
  ObjectHead& head = read.head;
  head.blocks.resize(fixed.num_blocks);
  std::memcpy(head.blocks.data(), bytes.data() + sizeof fixed, size - sizeof fixed);
  head.key.last_block.content.hash = head.blocks.back();
  head.key.last_block.content.domain.bytes = fixed.domain;
  head.key.last_block.numerics.value = fixed.numerics;
  head.key.profile_hash = fixed.profile_hash;
  head.parent.bytes = fixed.parent;
  head.source = {fixed.lossy != 0 ? kv::Fidelity::kLossy : kv::Fidelity::kExact, fixed.q};
  return std::optional(std::move(read));
}

}  // namespace kvik::connector
