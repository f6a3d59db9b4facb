// SPDX-License-Identifier: Apache-2.0
#include "store/disk_format.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "store/object.h"

namespace kvik::store {
namespace {

constexpr uint32_t kVersion = 1;
constexpr std::array<char, 8> kSegmentMagic = {'K', 'V', 'I', 'K', 'S', 'E', 'G', '\n'};
constexpr std::array<char, 4> kRecordMagic = {'K', 'V', 'R', '1'};
constexpr size_t kMaxMetaBytes = 128 + kMaxObjectBlocks * 32;

struct RawSegmentHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t zero;
  uint64_t segment_id;
  std::array<uint8_t, 36> reserved;
  uint32_t crc;  // of what precedes
};
static_assert(sizeof(RawSegmentHeader) == kDiskAlignment);

struct RawRecordHeader {
  std::array<char, 4> magic;
  uint8_t type;
  std::array<uint8_t, 3> zero;
  uint64_t segment_id;
  uint64_t offset;
  uint64_t payload_bytes;
  uint32_t meta_bytes;
  uint32_t meta_crc;
  uint32_t payload_crc;
  std::array<uint8_t, 12> reserved;
  uint32_t crc;  // of what precedes
  std::array<std::byte, 4> state;
};
static_assert(sizeof(RawRecordHeader) == kDiskAlignment);
static_assert(offsetof(RawRecordHeader, state) == kRecordStateOffset);

template <typename Raw>
uint32_t CrcOf(const Raw& raw) {
  return Crc32c({reinterpret_cast<const std::byte*>(&raw), offsetof(Raw, crc)});
}

template <typename Raw>
std::array<std::byte, kDiskAlignment> BytesOf(const Raw& raw) {
  std::array<std::byte, kDiskAlignment> bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

}  // namespace

SegmentHeader EncodeSegmentHeader(uint64_t segment_id) {
  RawSegmentHeader raw = {};
  raw.magic = kSegmentMagic;
  raw.version = kVersion;
  raw.segment_id = segment_id;
  raw.crc = CrcOf(raw);
  return BytesOf(raw);
}

Result<uint64_t> DecodeSegmentHeader(std::span<const std::byte> bytes) {
  RawSegmentHeader raw = {};
  if (bytes.size() < sizeof raw) {
    return Err(ErrorCode::kCorrupt, "a segment has no header");
  }
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kSegmentMagic || raw.crc != CrcOf(raw)) {
    return Err(ErrorCode::kCorrupt, "the header of a segment is damaged");
  }
  if (raw.version != kVersion) {
    return Err(ErrorCode::kUnsupported, "a segment has version %u, this build knows %u",
               raw.version, kVersion);
  }
  return raw.segment_id;
}

RecordHeader EncodeRecordHeader(const RecordInfo& info) {
  RawRecordHeader raw = {};
  raw.magic = kRecordMagic;
  raw.type = static_cast<uint8_t>(info.type);
  raw.segment_id = info.segment_id;
  raw.offset = info.offset;
  raw.payload_bytes = info.payload_bytes;
  raw.meta_bytes = info.meta_bytes;
  raw.meta_crc = info.meta_crc;
  raw.payload_crc = info.payload_crc;
  raw.crc = CrcOf(raw);
  raw.state = info.live ? kRecordLive : kRecordDead;
  return BytesOf(raw);
}

std::optional<RecordInfo> DecodeRecordHeader(std::span<const std::byte> bytes, uint64_t segment_id,
                                             uint64_t offset) {
  RawRecordHeader raw = {};
  if (bytes.size() < sizeof raw) {
    return std::nullopt;
  }
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kRecordMagic || raw.crc != CrcOf(raw) || raw.segment_id != segment_id ||
      raw.offset != offset || raw.meta_bytes > kMaxMetaBytes ||
      raw.payload_bytes > kMaxObjectBytes ||
      (raw.type != static_cast<uint8_t>(RecordType::kObject) &&
       raw.type != static_cast<uint8_t>(RecordType::kEnd))) {
    return std::nullopt;
  }
  RecordInfo info;
  info.type = static_cast<RecordType>(raw.type);
  info.segment_id = raw.segment_id;
  info.offset = raw.offset;
  info.meta_bytes = raw.meta_bytes;
  info.meta_crc = raw.meta_crc;
  info.payload_bytes = raw.payload_bytes;
  info.payload_crc = raw.payload_crc;
  info.live = raw.state == kRecordLive;
  return info;
}

}  // namespace kvik::store
