// SPDX-License-Identifier: Apache-2.0
#include "store/disk_scan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"

namespace kvik::store {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

// Whether the record lies within the file.
bool Fits(const RecordInfo& info, uint64_t file_bytes) {
  // The padding behind the last record is not always written.
  return info.payload_offset() + info.payload_bytes <= file_bytes;
}

// The offset of the next record header at or behind `from`; file_bytes when there is none.
Result<uint64_t> NextRecord(File& file, uint64_t segment_id, uint64_t from, uint64_t file_bytes) {
  std::vector<std::byte> block(
      static_cast<size_t>(std::min<uint64_t>(kReadBytes, file_bytes - std::min(from, file_bytes))));
  while (from < file_bytes) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(kReadBytes, file_bytes - from));
    KVIK_ASSIGN(const size_t n, file.ReadAt(from, std::span(block).first(want)));
    for (size_t at = 0; at + kDiskAlignment <= n; at += kDiskAlignment) {
      const auto info =
          DecodeRecordHeader(std::span(block).subspan(at, kDiskAlignment), segment_id, from + at);
      if (info && Fits(*info, file_bytes)) {
        return from + at;
      }
    }
    if (n < want) {
      break;
    }
    from += want;
  }
  return file_bytes;
}

// The description of a record; nullptr when it is damaged.
Result<std::shared_ptr<const ObjectMeta>> ReadMeta(File& file, const RecordInfo& info) {
  std::vector<std::byte> bytes(info.meta_bytes);
  if (const auto read = ReadAllAt(file, info.offset + kDiskAlignment, bytes); !read) {
    if (read.error().code != ErrorCode::kCorrupt) {
      return read.error();
    }
    return std::shared_ptr<const ObjectMeta>();
  }
  if (Crc32c(bytes) != info.meta_crc) {
    return std::shared_ptr<const ObjectMeta>();
  }
  auto meta = DecodeMeta(bytes);
  if (!meta) {
    return std::shared_ptr<const ObjectMeta>();
  }
  return std::shared_ptr<const ObjectMeta>(std::make_shared<const ObjectMeta>(std::move(*meta)));
}

}  // namespace

Result<void> VerifyRecord(File& file, const RecordInfo& info) {
  uint64_t left = info.meta_bytes + info.payload_bytes;
  std::vector<std::byte> block(static_cast<size_t>(std::min<uint64_t>(kReadBytes, left)));
  uint64_t offset = info.offset + kDiskAlignment;
  uint32_t crc = 0;
  while (left > 0) {
    const auto part = std::span(block).first(std::min<uint64_t>(kReadBytes, left));
    KVIK_TRY(ReadAllAt(file, offset, part));
    crc = Crc32c(part, crc);
    offset += part.size();
    left -= part.size();
  }
  if (crc != info.payload_crc) {
    return Err(ErrorCode::kCorrupt, "the bytes of an object on disk fail their checksum");
  }
  return {};
}

Result<SegmentScan> ScanSegment(File& file, uint64_t segment_id) {
  SegmentScan scan;
  KVIK_ASSIGN(scan.file_bytes, file.SizeBytes());
  RecordHeader header;
  KVIK_ASSIGN(const size_t header_bytes, file.ReadAt(0, header));
  const auto id = DecodeSegmentHeader(std::span(header).first(header_bytes));
  if (!id && id.error().code == ErrorCode::kUnsupported) {
    return id.error();
  }
  if (!id || *id != segment_id) {
    // Records say themselves where they belong.
    ++scan.corrupt;
    scan.dropped_bytes += std::min<uint64_t>(kDiskAlignment, scan.file_bytes);
  }
  uint64_t offset = kDiskAlignment;
  while (offset < scan.file_bytes) {
    KVIK_ASSIGN(const size_t n, file.ReadAt(offset, header));
    const auto info = DecodeRecordHeader(std::span(header).first(n), segment_id, offset);
    if (!info || !Fits(*info, scan.file_bytes)) {
      KVIK_ASSIGN(const uint64_t next,
                  NextRecord(file, segment_id, offset + kDiskAlignment, scan.file_bytes));
      scan.dropped_bytes += next - offset;
      if (next == scan.file_bytes) {
        scan.torn = true;
      } else {
        ++scan.corrupt;
      }
      offset = next;
      continue;
    }
    if (info->type == RecordType::kEnd) {
      scan.finished = true;
      break;
    }
    const bool dead = std::memcmp(header.data() + kRecordStateOffset, kRecordDead.data(),
                                  kRecordDead.size()) == 0;
    if (info->live) {
      KVIK_ASSIGN(auto meta, ReadMeta(file, *info));
      if (meta != nullptr) {
        scan.records.push_back({*info, std::move(meta)});
      } else {
        ++scan.corrupt;
        scan.dropped_bytes += info->record_bytes();
      }
    } else if (!dead) {
      ++scan.corrupt;  // neither word: nobody knows whether it counts
      scan.dropped_bytes += info->record_bytes();
    }
    offset += info->record_bytes();
  }
  if (scan.finished) {
    return scan;
  }
  std::vector<ScannedRecord> intact;
  for (ScannedRecord& record : scan.records) {
    const auto verified = VerifyRecord(file, record.info);
    if (!verified && verified.error().code != ErrorCode::kCorrupt) {
      return verified.error();
    }
    ++scan.verified;
    if (verified) {
      intact.push_back(std::move(record));
    } else {
      ++scan.corrupt;
      scan.dropped_bytes += record.info.record_bytes();
    }
  }
  scan.records = std::move(intact);
  return scan;
}

}  // namespace kvik::store
