// SPDX-License-Identifier: Apache-2.0
#include "app/recorded_outputs.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_parse.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;

bool IsIds(const Json& list) {
  return list.is_array() && std::all_of(list.begin(), list.end(),
                                        [](const Json& id) { return id.is_number_integer(); });
}

bool IsNumbers(const Json& list) {
  return list.is_array() &&
         std::all_of(list.begin(), list.end(), [](const Json& item) { return item.is_number(); });
}

bool IsAnswer(const Json& json) {
  return json.is_object() && json.contains("text") && json["text"].is_string() &&
         json.contains("session") && json["session"].is_number_integer() && json.contains("turn") &&
         json["turn"].is_number_integer() &&
         (!json.contains("token_ids") || IsIds(json["token_ids"])) &&
         (!json.contains("logprobs") || IsNumbers(json["logprobs"]));
}

}  // namespace

Result<RecordedOutputs> RecordedOutputs::Load(const std::string& path) {
  RecordedOutputs recorded;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const Result<Json> json = ParseJson<Json>(line, {.max_nesting = 4, .max_members = 64});
    if (!json || !IsAnswer(*json)) {
      return Err(ErrorCode::kInvalidInput, "%s:%d: not a recorded answer; remove the file",
                 path.c_str(), number);
    }
    Answer& answer =
        recorded.answers_[{(*json)["session"].get<int32_t>(), (*json)["turn"].get<int32_t>()}];
    answer.text = (*json)["text"].get<std::string>();
    if (json->contains("token_ids")) {
      answer.tokens = (*json)["token_ids"].get<std::vector<TokenId>>();
    }
    if (json->contains("logprobs")) {
      answer.logprobs = (*json)["logprobs"].get<std::vector<double>>();
    }
  }
  return recorded;
}

Result<void> RecordedOutputs::Save(const std::string& path,
                                   const std::vector<workload::RequestRecord>& records) {
  std::ofstream file(path);
  for (const workload::RequestRecord& record : records) {
    Json json = {{"session", record.session}, {"turn", record.turn}, {"text", record.text}};
    if (!record.token_ids.empty()) {
      json["token_ids"] = record.token_ids;
    }
    if (!record.logprobs.empty()) {
      json["logprobs"] = record.logprobs;
    }
    file << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  file.flush();
  if (!file) {
    return Err(ErrorCode::kUnavailable, "cannot write %s", path.c_str());
  }
  return {};
}

int32_t RecordedOutputs::CountDifferences(
    const std::vector<workload::RequestRecord>& records) const {
  int32_t same = 0;
  for (const workload::RequestRecord& record : records) {
    const auto it = answers_.find({record.session, record.turn});
    if (it == answers_.end() || it->second.text != record.text) {
      continue;
    }
    const std::vector<double>& logprobs = it->second.logprobs;
    same += logprobs.empty() || record.logprobs.empty() || logprobs == record.logprobs ? 1 : 0;
  }
  return static_cast<int32_t>(std::max(answers_.size(), records.size())) - same;
}

Result<ForcedOutputs> RecordedOutputs::TokenIds() const {
  ForcedOutputs forced;
  for (const auto& [call, answer] : answers_) {
    if (answer.tokens.empty() && !answer.text.empty()) {
      return Err(ErrorCode::kInvalidInput,
                 "session %d turn %d was recorded without token ids; record again with --outputs",
                 call.first, call.second);
    }
    forced[call] = answer.tokens;
  }
  return forced;
}

}  // namespace kvik::app
