// SPDX-License-Identifier: Apache-2.0
#include "control/decision.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/format.h"

namespace kvik::control {
namespace {

using Json = nlohmann::ordered_json;

const char* ChoiceName(Choice choice) {
  switch (choice) {
    case Choice::kFastest:
      return "fastest";
    case Choice::kExplored:
      return "explored";
    case Choice::kNoneInTime:
      return "none_in_time";
  }
  return "";
}

std::string Milliseconds(double us) { return Format("%.1f ms", us / 1e3); }

double BytesPerS(const Question& question) { return 1e6 / question.us_per_byte; }

}  // namespace

DecisionRing::DecisionRing(size_t capacity) : records_(capacity) { KVIK_CHECK(capacity >= 1); }

DecisionRecord& DecisionRing::Add(uint64_t id) {
  last_id_ = id;
  DecisionRecord& record = records_[id % records_.size()];
  record = DecisionRecord();
  record.decision.id = id;
  return record;
}

const DecisionRecord* DecisionRing::Find(uint64_t id) const {
  const DecisionRecord& record = records_[id % records_.size()];
  return id != 0 && record.decision.id == id ? &record : nullptr;
}

DecisionRecord* DecisionRing::Find(uint64_t id) {
  return const_cast<DecisionRecord*>(std::as_const(*this).Find(id));
}

std::vector<DecisionRecord> DecisionRing::Last(size_t limit) const {
  const uint64_t count = std::min<uint64_t>({limit, records_.size(), last_id_});
  std::vector<DecisionRecord> last;
  for (uint64_t id = last_id_ - count + 1; id <= last_id_; ++id) {
    last.push_back(*Find(id));
  }
  return last;
}

std::string WhyText(const DecisionRecord& record, const ArmTable& table) {
  const Question& question = record.question;
  const Decision& decision = record.decision;
  std::string text =
      Format("%s: %s expected for %.2f MB at %.1f MB/s", table.arm(decision.arm).name.c_str(),
             Milliseconds(decision.expected_us).c_str(), question.raw_bytes / 1e6,
             BytesPerS(question) / 1e6);
  switch (decision.choice) {
    case Choice::kFastest:
      text += Format(", the fastest of %d", static_cast<int>(record.considered));
      break;
    case Choice::kExplored:
      text += ", to see what it takes now";
      break;
    case Choice::kNoneInTime:
      text += ", the fastest although none is expected in time";
      break;
  }
  if (question.slo_us > 0) {
    text += Format(" (%s of %s go to other things)", Milliseconds(question.other_us).c_str(),
                   Milliseconds(static_cast<double>(question.slo_us)).c_str());
  }
  int shown = 0;
  for (uint8_t i = 0; i < record.num_candidates && shown < 2; ++i) {
    const CandidateRecord& candidate = record.candidates[i];
    if (candidate.arm != decision.arm && candidate.arm != kRawArm) {
      text += Format("; %s %s%s", table.arm(candidate.arm).name.c_str(),
                     Milliseconds(candidate.expected_us).c_str(),
                     candidate.cooling ? " (late too often)" : "");
      ++shown;
    }
  }
  if (decision.arm != kRawArm && record.raw_us >= 0) {
    text += "; raw " + Milliseconds(record.raw_us);
  }
  if (record.observed) {
    text += Format("; took %s%s", Milliseconds(record.observation.path_us).c_str(),
                   record.observation.in_time ? "" : ", late");
  }
  return text;
}

std::string WhyJson(const DecisionRecord& record, const ArmTable& table) {
  const Question& question = record.question;
  const Decision& decision = record.decision;
  const auto name = [&](int32_t arm) { return table.arm(arm).name; };
  Json json;
  json["id"] = decision.id;
  json["request"] = question.request;
  json["time_us"] = question.now_us;
  json["profile"] = name(decision.arm);
  json["choice"] = ChoiceName(decision.choice);
  json["workload"] = table.workloads()[static_cast<size_t>(question.workload)];
  json["q_min"] = question.quality.allow_lossy ? Json(question.quality.q_min) : Json("exact");
  json["tokens"] = question.tokens;
  json["raw_bytes"] = question.raw_bytes;
  json["bytes_per_s"] = BytesPerS(question);
  json["predicted_us"] = decision.predicted_us;
  json["expected_us"] = decision.expected_us;
  if (question.slo_us > 0) {
    json["slo_us"] = question.slo_us;
    json["other_us"] = question.other_us;
  }
  json["envelope"] = name(record.envelope_arm);
  if (record.raw_us >= 0) {
    json["raw_us"] = record.raw_us;
  }
  json["considered"] = record.considered;
  Json& candidates = json["candidates"] = Json::array();
  for (uint8_t i = 0; i < record.num_candidates; ++i) {
    const CandidateRecord& candidate = record.candidates[i];
    Json item = {{"profile", name(candidate.arm)},
                 {"predicted_us", candidate.predicted_us},
                 {"expected_us", candidate.expected_us}};
    if (candidate.cooling) {
      item["cooling"] = true;
    }
    candidates.push_back(std::move(item));
  }
  if (record.observed) {
    const Observation& seen = record.observation;
    json["observed"] = {{"path_us", seen.path_us},
                        {"in_time", seen.in_time},
                        {"encode_us", seen.encode_us},
                        {"wire_us", seen.wire_us},
                        {"decode_us", seen.decode_us}};
  }
  return json.dump();
}

}  // namespace kvik::control
