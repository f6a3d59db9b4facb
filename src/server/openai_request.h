// SPDX-License-Identifier: Apache-2.0
// server/openai_request.h: bodies of OpenAI requests, checked and turned into native types.
//
// Field names, defaults and extensions are OpenAI's and vLLM's. A field of the wrong type or out of
// range is an error that names it; a field kvik knows but does not do is an error, too; a field it
// does not know is ignored, and null means the default. Nothing here knows a model: limits that
// need one (vocabulary, context) are checked later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/types.h"
#include "kv/retention.h"
#include "model/sampling_params.h"
#include "server/api_error.h"
#include "server/kv_params.h"
#include "text/jinja_value.h"

namespace kvik::server {

// What chat and text completions share.
struct GenerationParams {
  std::string model;               // empty = whatever is served
  model::SamplingParams sampling;  // num_logprobs included
  std::optional<int32_t> max_tokens;
  int32_t min_tokens = 0;
  int32_t n = 1;
  std::vector<std::string> stop;  // none empty
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  bool stream = false;
  bool include_usage = false;           // a last chunk with the usage
  bool continuous_usage_stats = false;  // the usage so far in every chunk
  int32_t priority = 0;
  std::string cache_salt;
  // The "kvik" object: what only kvik understands.
  uint64_t session = 0;                            // of kvik.session; 0 = none
  std::optional<bool> will_continue;               // kvik.will_continue
  std::vector<TokenId> forced_tokens;              // kvik.forced_token_ids
  std::shared_ptr<const kv::Retention> retention;  // kvik.retention; null: none
  KvParams kv;                                     // kvik.quality and the like, kv_transfer_params
};

// What a chat template renders; of chat completions and of /tokenize with messages.
struct ChatPrompt {
  text::JinjaValue messages;   // a list of dicts with a role each
  text::JinjaValue tools;      // a list, or None
  text::JinjaValue documents;  // a list, or None
  text::JinjaValue kwargs;     // a dict, or None
  bool add_generation_prompt = true;
  bool continue_final_message = false;     // the last message is open: it is to be continued
  std::optional<bool> add_special_tokens;  // none = only if no template is there to do it
};

struct ChatCompletionRequest {
  GenerationParams params;
  ChatPrompt chat;
};

using PromptInput = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationParams params;
  std::vector<PromptInput> prompts;  // not empty
  bool echo = false;
  bool add_special_tokens = true;
};

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, ChatPrompt> input;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

// Bounds of a body whatever its fields.
constexpr int kMaxJsonNesting = 64;
constexpr size_t kMaxJsonMembers = 4096;  // of one object
constexpr int kMaxChoices = 128;          // n times prompts
constexpr int kMaxStopStrings = 64;
constexpr int kMaxLogprobs = 20;

ApiResult<ChatCompletionRequest> ParseChatCompletionRequest(std::string_view body);
ApiResult<CompletionRequest> ParseCompletionRequest(std::string_view body);
ApiResult<TokenizeRequest> ParseTokenizeRequest(std::string_view body);
ApiResult<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body);

}  // namespace kvik::server
