// SPDX-License-Identifier: Apache-2.0
// store/disk_format.h: how segment files look. All numbers are little-endian.
//
//   segment   header, then records, each at a multiple of kDiskAlignment
//   header    magic, version, segment id, CRC                             (kDiskAlignment bytes)
//   record    record header, description, bytes, padding
//   end       a record header without either: the segment was finished in order
//
// A record says which segment and which offset it was written for, so that what a disk puts
// elsewhere is not taken for what belongs there. Pure: no file is touched here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"

namespace kvik::store {

constexpr size_t kDiskAlignment = 64;

using SegmentHeader = std::array<std::byte, kDiskAlignment>;
using RecordHeader = std::array<std::byte, kDiskAlignment>;

enum class RecordType : uint8_t { kObject = 1, kEnd = 2 };

// The word that is rewritten in place: 4 bytes at this offset within a record. Not under the CRC.
constexpr size_t kRecordStateOffset = 60;
constexpr std::array<std::byte, 4> kRecordLive = {std::byte{'L'}, std::byte{'I'}, std::byte{'V'},
                                                  std::byte{'E'}};
constexpr std::array<std::byte, 4> kRecordDead = {std::byte{'D'}, std::byte{'E'}, std::byte{'A'},
                                                  std::byte{'D'}};

struct RecordInfo {
  RecordType type = RecordType::kObject;
  uint64_t segment_id = 0;
  uint64_t offset = 0;  // of the record in its file
  uint32_t meta_bytes = 0;
  uint32_t meta_crc = 0;
  uint64_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // of the description and then the bytes: the two belong together
  bool live = true;

  // With padding.
  [[nodiscard]] uint64_t record_bytes() const {
    const uint64_t bytes = kDiskAlignment + meta_bytes + payload_bytes;
    return (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
  }
  [[nodiscard]] uint64_t payload_offset() const { return offset + kDiskAlignment + meta_bytes; }
};

SegmentHeader EncodeSegmentHeader(uint64_t segment_id);
// The segment's id. kCorrupt; kUnsupported: written by a newer build.
Result<uint64_t> DecodeSegmentHeader(std::span<const std::byte> bytes);

RecordHeader EncodeRecordHeader(const RecordInfo& info);
// nullopt when these are not the first bytes of a record of this segment and offset, or when it
// claims more than any record has.
std::optional<RecordInfo> DecodeRecordHeader(std::span<const std::byte> bytes, uint64_t segment_id,
                                             uint64_t offset);

}  // namespace kvik::store
