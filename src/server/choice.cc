// SPDX-License-Identifier: Apache-2.0
#include "server/choice.h"

#include <algorithm>

#include "base/check.h"

namespace kvik::server {

Choice::Choice(const text::Tokenizer& tokenizer, const GenerationParams& params)
    : tokenizer_(&tokenizer),
      detokenizer_(tokenizer, {.skip_special = params.skip_special_tokens, .at_text_start = false}),
      stops_(params.stop, params.include_stop_str_in_output),
      stop_texts_(params.stop),
      stop_token_ids_(params.stop_token_ids),
      min_tokens_(params.min_tokens),
      include_stop_(params.include_stop_str_in_output) {}

void Choice::Finish(ChoiceDelta& delta, ChoiceFinish finish) {
  delta.finish = finish;
  finished_ = true;
}

bool Choice::CheckStopString(ChoiceDelta& delta) {
  if (!stops_.stopped()) {
    return false;
  }
  delta.stop_reason = stop_texts_[*stops_.matched()];
  Finish(delta, ChoiceFinish::kStop);
  return true;
}

ChoiceDelta Choice::Push(const engine::RequestOutput& output) {
  KVIK_CHECK(!finished_);
  ChoiceDelta delta;
  const bool by_token = output.finish == engine::FinishReason::kStop;
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const engine::TokenOutput& token = output.tokens[i];
    ++completion_tokens_;
    delta.tokens.push_back(token);
    const bool is_stop_token = by_token && i + 1 == output.tokens.size();
    if (is_stop_token && !include_stop_) {
      break;
    }
    const std::string text = detokenizer_.Push(token.token);
    // Before min_tokens nothing may stop the text, so it is certain as it comes.
    delta.text += completion_tokens_ <= min_tokens_ ? text : stops_.Push(text);
    if (CheckStopString(delta)) {
      return delta;
    }
  }
  if (!output.finish) {
    return delta;
  }
  delta.text += stops_.Push(detokenizer_.Flush());
  if (CheckStopString(delta)) {
    return delta;
  }
  delta.text += stops_.Flush();
  if (by_token && !output.tokens.empty()) {
    const TokenId last = output.tokens.back().token;
    if (std::find(stop_token_ids_.begin(), stop_token_ids_.end(), last) != stop_token_ids_.end() &&
        !tokenizer_->IsEnd(last)) {
      delta.stop_reason = last;
    }
  }
  Finish(delta, by_token ? ChoiceFinish::kStop : ChoiceFinish::kLength);
  return delta;
}

}  // namespace kvik::server
