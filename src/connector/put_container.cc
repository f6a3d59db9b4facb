// SPDX-License-Identifier: Apache-2.0
#include "connector/put_container.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"

namespace kvik::connector {
namespace {

constexpr uint32_t kMagic = 0x0050764BU;  // "KvP", then the version
constexpr uint8_t kVersion = 1;
constexpr size_t kFixedBytes = 12;
constexpr size_t kCrcEnd = 8;

uint32_t LoadU32(std::span<const std::byte> bytes, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void StoreU32(std::vector<std::byte>& bytes, size_t at, uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

std::vector<std::byte> PutPrefix(const store::ObjectMeta& meta) {
  const std::vector<std::byte> description = store::EncodeMeta(meta);
  KVIK_CHECK(description.size() <= kMaxDescriptionBytes);
  std::vector<std::byte> out(kFixedBytes + description.size());
  std::copy(description.begin(), description.end(),
            out.begin() + static_cast<ptrdiff_t>(kFixedBytes));
  StoreU32(out, 0, kMagic | uint32_t{kVersion} << 24);
  StoreU32(out, 8, static_cast<uint32_t>(description.size()));
  StoreU32(out, 4, Crc32c(std::span<const std::byte>(out).subspan(kCrcEnd)));
  return out;
}

Result<std::optional<PutDescription>> ReadPutPrefix(std::span<const std::byte> bytes) {
  const std::optional<PutDescription> more;
  if (bytes.size() < kFixedBytes) {
    return more;
  }
  const uint32_t magic = LoadU32(bytes, 0);
  if ((magic & 0xFFFFFFU) != kMagic) {
    return Err(ErrorCode::kCorrupt, "not an object with its description: it starts with %08x",
               magic);
  }
  if (magic >> 24 != kVersion) {
    return Err(ErrorCode::kUnsupported, "a description of version %u; this build reads version %u",
               magic >> 24, kVersion);
  }
  const size_t size = LoadU32(bytes, 8);
  if (size > kMaxDescriptionBytes) {
    return Err(ErrorCode::kCorrupt, "a description of %zu bytes; at most %zu are taken", size,
               kMaxDescriptionBytes);
  }
  if (bytes.size() < kFixedBytes + size) {
    return more;
  }
  const auto covered = bytes.subspan(kCrcEnd, kFixedBytes - kCrcEnd + size);
  if (Crc32c(covered) != LoadU32(bytes, 4)) {
    return Err(ErrorCode::kCorrupt, "the description's CRC does not match its bytes");
  }
  PutDescription description;
  KVIK_ASSIGN(description.meta, store::DecodeMeta(bytes.subspan(kFixedBytes, size)));
  KVIK_TRY(description.meta.Check());
  description.prefix_bytes = kFixedBytes + size;
  return std::optional(std::move(description));
}

}  // namespace kvik::connector
