// SPDX-License-Identifier: Apache-2.0
#include "kv/retention.h"

#include <string>

namespace kvik::kv {
namespace {

Result<void> CheckPriority(const std::string& field, int32_t priority) {
  if (priority < 0 || priority > kMaxPriority) {
    return Err(ErrorCode::kInvalidInput, "%s is %d: between 0 and %d", field.c_str(), priority,
               kMaxPriority);
  }
  return {};
}

Result<void> CheckDuration(const std::string& field, int64_t duration_us) {
  if (duration_us < 1) {
    return Err(ErrorCode::kInvalidInput, "%s is %lld us: more than 0", field.c_str(),
               static_cast<long long>(duration_us));
  }
  return {};
}

}  // namespace

Result<void> ValidateRetention(const Retention& retention) {
  if (retention.ranges.size() > kMaxRetentionRanges) {
    return Err(ErrorCode::kInvalidInput, "ranges are %zu: at most %zu", retention.ranges.size(),
               kMaxRetentionRanges);
  }
  for (size_t i = 0; i < retention.ranges.size(); ++i) {
    const RetentionRange& range = retention.ranges[i];
    const std::string at = "ranges[" + std::to_string(i) + "].";
    if (range.start_token < 0) {
      return Err(ErrorCode::kInvalidInput, "%sstart is %d: at least 0", at.c_str(),
                 range.start_token);
    }
    if (range.end_token <= range.start_token) {
      return Err(ErrorCode::kInvalidInput, "%send is %d: more than start (%d)", at.c_str(),
                 range.end_token, range.start_token);
    }
    KVIK_TRY(CheckPriority(at + "priority", range.priority));
    KVIK_TRY(CheckDuration(at + "duration", range.duration_us));
  }
  KVIK_TRY(CheckPriority("decode_priority", retention.decode_priority));
  return CheckDuration("decode_duration", retention.decode_duration_us);
}

}  // namespace kvik::kv
