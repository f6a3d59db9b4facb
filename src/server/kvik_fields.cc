// SPDX-License-Identifier: Apache-2.0
#include "server/kvik_fields.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/fnv.h"
#include "server/request_fields.h"

namespace kvik::server {
namespace {

// A name or a number; never 0.
uint64_t ReadSession(Fields& fields, const Json& session) {
  constexpr size_t kMaxSessionBytes = 256;
  if (const auto number = session.is_number() ? AsInteger(session) : std::nullopt) {
    return ReadSession(fields, Json(std::to_string(*number)));
  }
  if (!session.is_string() || session.get_ref<const std::string&>().empty() ||
      session.get_ref<const std::string&>().size() > kMaxSessionBytes) {
    fields.Fail("session", "must be an integer or a string of 1 to " +
                               std::to_string(kMaxSessionBytes) + " bytes, not " + Quote(session));
    return 0;
  }
  const uint64_t hash = Fnv1a(session.get_ref<const std::string&>());
  return hash == 0 ? 1 : hash;
}

// An unknown name in an object that only kvik has is an error.
void CheckNames(Fields& fields, const Json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      continue;
    }
    std::string list;
    for (const std::string_view one : known) {
      list += (list.empty() ? "" : ", ") + std::string(one);
    }
    fields.Fail(name.substr(0, 40), "is not known; known are " + list);
  }
}

// A duration in milliseconds; for good without one.
int64_t ReadDurationUs(Fields& fields, const char* name) {
  constexpr int64_t kYearMs = int64_t{366} * 24 * 3600 * 1000;
  const std::optional<int64_t> ms = fields.OptionalInt(name, 1, kYearMs);
  return ms ? *ms * 1000 : kv::kForGood;
}

kv::RetentionRange ReadRange(Fields& fields, const Json& object) {
  constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();
  CheckNames(fields, object, {"start", "end", "priority", "duration_ms"});
  kv::RetentionRange range;
  range.start_token = fields.Int32("start", 0, 0, kInt32Max);
  range.end_token = fields.Int32("end", kInt32Max, 1, kInt32Max);
  if (range.end_token <= range.start_token) {
    fields.Fail("end", "must be more than start");
  }
  if (fields.Find("priority") == nullptr) {
    fields.Fail("priority", "is required");
  }
  range.priority = fields.Int32("priority", kv::kDefaultPriority, 0, kv::kMaxPriority);
  range.duration_us = ReadDurationUs(fields, "duration_ms");
  return range;
}

std::shared_ptr<const kv::Retention> ReadRetention(Fields& fields, const Json& object) {
  if (!object.is_object()) {
    fields.Fail("retention", "must be an object, not " + Quote(object));
    return nullptr;
  }
  const std::string prefix = "kvik.retention.";
  Fields inner(object, prefix);
  CheckNames(inner, object, {"ranges", "decode_priority", "decode_duration_ms"});
  kv::Retention retention;
  if (const Json* ranges = inner.Find("ranges")) {
    if (!ranges->is_array() || ranges->size() > kv::kMaxRetentionRanges) {
      inner.Fail("ranges", "must be a list of at most " + std::to_string(kv::kMaxRetentionRanges) +
                               " objects");
    } else {
      for (size_t i = 0; i < ranges->size(); ++i) {
        const std::string name = "ranges[" + std::to_string(i) + "]";
        if (!(*ranges)[i].is_object()) {
          inner.Fail(name, "must be an object, not " + Quote((*ranges)[i]));
          break;
        }
        Fields range((*ranges)[i], prefix + name + ".");
        retention.ranges.push_back(ReadRange(range, (*ranges)[i]));
        inner.Adopt(range);
      }
    }
  }
  retention.decode_priority =
      inner.Int32("decode_priority", kv::kDefaultPriority, 0, kv::kMaxPriority);
  retention.decode_duration_us = ReadDurationUs(inner, "decode_duration_ms");
  fields.Adopt(inner);
  return std::make_shared<const kv::Retention>(std::move(retention));
}

// A time in milliseconds; 0 without one.
int64_t ReadSloUs(Fields& fields, const char* name) {
  return std::llround(static_cast<double>(fields.Find(name) == nullptr
                                              ? 0
                                              : fields.Float(name, 0, kMinSloMs, kMaxSloMs)) *
                      1000);
}

}  // namespace

void ReadKvik(Fields& fields, GenerationParams& params) {
  const Json* kvik = fields.Find("kvik");
  if (kvik == nullptr) {
    return;
  }
  if (!kvik->is_object()) {
    fields.Fail("kvik", "must be an object, not " + Quote(*kvik));
    return;
  }
  Fields inner(*kvik, "kvik.");
  CheckNames(inner, *kvik,
             {"session", "will_continue", "retention", "forced_token_ids", "workload",
              "slo_ttft_ms", "slo_ms", "quality"});
  if (const Json* session = inner.Find("session")) {
    params.session = ReadSession(inner, *session);
  }
  if (inner.Find("will_continue") != nullptr) {
    params.will_continue = inner.Bool("will_continue", false);
  }
  if (const Json* retention = inner.Find("retention")) {
    params.retention = ReadRetention(inner, *retention);
  }
  if (const Json* forced = inner.Find("forced_token_ids")) {
    params.forced_tokens = inner.TokenIds("forced_token_ids", *forced);
    const size_t count = params.forced_tokens.size();
    if (params.max_tokens && count > static_cast<size_t>(*params.max_tokens)) {
      inner.Fail("forced_token_ids",
                 "has " + std::to_string(count) + " tokens, more than max_tokens");
    } else if (!params.max_tokens && count > 0) {
      params.max_tokens = static_cast<int32_t>(count);
    }
  }
  KvParams& kv = params.kv;
  if (inner.Find("workload") != nullptr) {
    kv.workload = inner.String("workload", kMaxWorkloadBytes);
    if (kv.workload.empty()) {
      inner.Fail("workload", "must not be empty");
    }
  }
  kv.slo_ttft_us = ReadSloUs(inner, "slo_ttft_ms");
  kv.slo_us = ReadSloUs(inner, "slo_ms");
  if (inner.Find("quality") != nullptr) {
    kv.quality = inner.Float("quality", 1, 0, 1);
  }
  fields.Adopt(inner);
}

void ReadTransferParams(Fields& fields, GenerationParams& params) {
  const Json* object = fields.Find("kv_transfer_params");
  if (object == nullptr) {
    return;
  }
  if (!object->is_object()) {
    fields.Fail("kv_transfer_params", "must be an object, not " + Quote(*object));
    return;
  }
  Fields inner(*object, "kv_transfer_params.");
  TransferFields transfer;
  transfer.do_remote_prefill = inner.Bool("do_remote_prefill", false);
  transfer.do_remote_decode = inner.Bool("do_remote_decode", false);
  transfer.remote_host = inner.String("remote_host", kMaxTransferTextBytes);
  transfer.remote_port = inner.Int32("remote_port", 0, 1, 65535);
  transfer.remote_engine_id = inner.String("remote_engine_id", kMaxTransferTextBytes);
  transfer.remote_request_id = inner.String("remote_request_id", kMaxTransferTextBytes);
  if (transfer.do_remote_prefill && transfer.remote_host.empty()) {
    inner.Fail("remote_host", "is required with do_remote_prefill");
  } else if (transfer.do_remote_prefill && transfer.remote_port == 0) {
    inner.Fail("remote_port", "is required with do_remote_prefill");
  }
  fields.Adopt(inner);
  params.kv.transfer = std::move(transfer);
}

}  // namespace kvik::server
