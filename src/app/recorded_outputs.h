// SPDX-License-Identifier: Apache-2.0
// app/recorded_outputs.h: the answers of a run, kept in a file: one JSON object a line, as in
// {"session": 0, "turn": 1, "text": "...", "token_ids": [...], "logprobs": [...]}; the last two
// where they are known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "app/load_runner.h"
#include "base/result.h"
#include "base/types.h"
#include "workload/load_report.h"

namespace kvik::app {

class RecordedOutputs {
 public:
  // kInvalidInput names the line that is not an answer.
  static Result<RecordedOutputs> Load(const std::string& path);
  // Writes texts, and token ids and log-probabilities where a record has them.
  static Result<void> Save(const std::string& path,
                           const std::vector<workload::RequestRecord>& records);

  // Answers that are missing on either side, whose text is not the same, or whose log-probabilities
  // are known on both sides and not the same to the last bit.
  [[nodiscard]] int32_t CountDifferences(const std::vector<workload::RequestRecord>& records) const;
  // kInvalidInput: an answer was recorded without its token ids. Answers without text force
  // nothing.
  [[nodiscard]] Result<ForcedOutputs> TokenIds() const;

 private:
  struct Answer {
    std::string text;
    std::vector<TokenId> tokens;
    std::vector<double> logprobs;
  };
  std::map<std::pair<int32_t, int32_t>, Answer> answers_;
};

}  // namespace kvik::app
