// SPDX-License-Identifier: Apache-2.0
// store/disk_scan.h: what is in a segment file, whatever happened to it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "store/disk_format.h"
#include "store/file_system.h"
#include "store/object.h"

namespace kvik::store {

struct ScannedRecord {
  RecordInfo info;  // live
  std::shared_ptr<const ObjectMeta> meta;
};

struct SegmentScan {
  uint64_t file_bytes = 0;
  bool finished = false;               // ends as it was meant to
  bool torn = false;                   // ends in something that is no record
  std::vector<ScannedRecord> records;  // in order, only those that count
  int64_t verified = 0;                // records whose bytes were read and checked
  int64_t corrupt = 0;                 // damaged records, or regions of unknown content
  uint64_t dropped_bytes = 0;          // of damage and tail
};

// Reads the headers and descriptions of all records and, when the segment was not finished, all
// bytes too. Damage costs what is damaged: the search goes on behind it. kUnavailable when the
// file cannot be read, kUnsupported when a newer build wrote it.
Result<SegmentScan> ScanSegment(File& file, uint64_t segment_id);

// The CRC of a record's description and bytes, read from the file: kCorrupt unless it is the one
// that the record names.
Result<void> VerifyRecord(File& file, const RecordInfo& info);

}  // namespace kvik::store
