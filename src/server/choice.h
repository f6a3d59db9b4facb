// SPDX-License-Identifier: Apache-2.0
// server/choice.h: the text of one choice, made from tokens as they come.
//
// Decides what a client sees: characters are never cut, a stop string is never shown in part, and
// the tokens counted are those up to the one that completed the stop string, whatever the engine
// sampled beyond it before it heard of the stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "server/openai_request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace kvik::server {

enum class ChoiceFinish { kStop, kLength };

// What ended a choice: nothing worth naming (end of text, length), the stop string, or the id of a
// stop token.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

struct ChoiceDelta {
  std::string text;
  std::vector<engine::TokenOutput> tokens;  // counted with this delta
  std::optional<ChoiceFinish> finish;       // set once, in the last delta
  StopReason stop_reason;
};

// Owned by one thread.
class Choice {
 public:
  // `tokenizer` must outlive it.
  Choice(const text::Tokenizer& tokenizer, const GenerationParams& params);

  // REQUIRES: not finished; output.finish is not kError. After a delta with `finish` the engine's
  // request should be aborted unless output.finish was set.
  ChoiceDelta Push(const engine::RequestOutput& output);

  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] int32_t completion_tokens() const { return completion_tokens_; }

 private:
  void Finish(ChoiceDelta& delta, ChoiceFinish finish);
  bool CheckStopString(ChoiceDelta& delta);

  const text::Tokenizer* tokenizer_;
  text::Detokenizer detokenizer_;
  text::StopStrings stops_;
  std::vector<std::string> stop_texts_;
  std::vector<TokenId> stop_token_ids_;
  int32_t min_tokens_;
  bool include_stop_;
  int32_t completion_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace kvik::server
