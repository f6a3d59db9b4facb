// SPDX-License-Identifier: Apache-2.0
#include "server/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_parse.h"
#include "server/kvik_fields.h"
#include "server/request_fields.h"

namespace kvik::server {
namespace {

constexpr size_t kMaxSaltBytes = 4096;
constexpr size_t kMaxStopBytes = 4096;

ApiResult<Json> ParseObject(std::string_view body) {
  Result<Json> json =
      ParseJson<Json>(body, {.max_nesting = kMaxJsonNesting, .max_members = kMaxJsonMembers});
  ApiError error;
  if (!json) {
    error.message = "The request body " + json.error().message + ".";
    return error;
  }
  if (!json->is_object()) {
    error.message =
        std::string("The request body must be a JSON object, not ") + json->type_name() + ".";
    return error;
  }
  return *std::move(json);
}

void ReadStop(Fields& fields, GenerationParams& params) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) {
    return;
  }
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!list.is_array() || list.size() > kMaxStopStrings) {
    fields.Fail("stop", "must be a string or a list of at most " + std::to_string(kMaxStopStrings) +
                            " strings");
    return;
  }
  for (const Json& element : list) {
    if (!element.is_string() || element.get_ref<const std::string&>().empty() ||
        element.get_ref<const std::string&>().size() > kMaxStopBytes) {
      fields.Fail("stop", "every stop must be a string of 1 to " + std::to_string(kMaxStopBytes) +
                              " bytes, not " + Quote(element));
      return;
    }
    params.stop.push_back(element.get<std::string>());
  }
}

void ReadLogitBias(Fields& fields, GenerationParams& params) {
  const Json* bias = fields.Find("logit_bias");
  if (bias == nullptr) {
    return;
  }
  if (!bias->is_object()) {
    fields.Fail("logit_bias", "must be an object from token ids to numbers, not " + Quote(*bias));
    return;
  }
  for (const auto& [key, value] : bias->items()) {
    int64_t id = 0;
    bool is_id = !key.empty() && key.size() <= 10;
    for (const char c : key) {
      is_id = is_id && c >= '0' && c <= '9';
      id = id * 10 + (c - '0');
    }
    if (!is_id || id > std::numeric_limits<TokenId>::max()) {
      fields.Fail("logit_bias", "'" + key.substr(0, 40) + "' is not a token id");
      return;
    }
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= 100)) {
      fields.Fail("logit_bias", "the bias of token " + key +
                                    " must be a number in [-100, 100], not " + Quote(value));
      return;
    }
    params.sampling.logit_bias.emplace_back(static_cast<TokenId>(id), value.get<float>());
  }
}

void ReadSeed(Fields& fields, GenerationParams& params) {
  const Json* seed = fields.Find("seed");
  if (seed == nullptr) {
    return;
  }
  if (seed->is_number_unsigned()) {
    params.sampling.seed = seed->get<uint64_t>();
  } else if (seed->is_number_integer()) {
    params.sampling.seed = static_cast<uint64_t>(seed->get<int64_t>());
  } else {
    fields.Fail("seed", "must be an integer of 64 bits, not " + Quote(*seed));
  }
}

void ReadStreamOptions(Fields& fields, GenerationParams& params) {
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) {
    return;
  }
  if (!options->is_object()) {
    fields.Fail("stream_options", "must be an object, not " + Quote(*options));
    return;
  }
  if (!params.stream) {
    fields.Fail("stream_options", "needs 'stream': true");
    return;
  }
  Fields inner(*options, "stream_options.");
  params.include_usage = inner.Bool("include_usage", false);
  params.continuous_usage_stats = inner.Bool("continuous_usage_stats", false);
  fields.Adopt(inner);
}

GenerationParams ReadGenerationParams(Fields& fields) {
  constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();
  GenerationParams params;
  params.model = fields.String("model", 4096);
  model::SamplingParams& sampling = params.sampling;
  sampling.temperature = fields.Float("temperature", 1.0F, 0.0F, 100.0F);
  sampling.top_p = fields.Float("top_p", 1.0F, 0.0F, 1.0F, /*above_low=*/true);
  sampling.top_k = fields.Int32("top_k", 0, -1, kInt32Max);
  sampling.min_p = fields.Float("min_p", 0.0F, 0.0F, 1.0F);
  sampling.repetition_penalty =
      fields.Float("repetition_penalty", 1.0F, 0.0F, 100.0F, /*above_low=*/true);
  sampling.presence_penalty = fields.Float("presence_penalty", 0.0F, -2.0F, 2.0F);
  sampling.frequency_penalty = fields.Float("frequency_penalty", 0.0F, -2.0F, 2.0F);
  ReadLogitBias(fields, params);
  ReadSeed(fields, params);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const std::optional<int64_t> max = fields.OptionalInt(name, 1, kInt32Max)) {
      params.max_tokens = static_cast<int32_t>(*max);
    }
  }
  params.min_tokens = fields.Int32("min_tokens", 0, 0, kInt32Max);
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    fields.Fail("min_tokens", "is more than max_tokens");
  }
  params.n = fields.Int32("n", 1, 1, kMaxChoices);
  ReadStop(fields, params);
  if (const Json* ids = fields.Find("stop_token_ids")) {
    params.stop_token_ids = fields.TokenIds("stop_token_ids", *ids);
  }
  params.ignore_eos = fields.Bool("ignore_eos", false);
  params.skip_special_tokens = fields.Bool("skip_special_tokens", true);
  params.include_stop_str_in_output = fields.Bool("include_stop_str_in_output", false);
  params.stream = fields.Bool("stream", false);
  ReadStreamOptions(fields, params);
  params.priority = fields.Int32("priority", 0, std::numeric_limits<int32_t>::min(), kInt32Max);
  params.cache_salt = fields.String("cache_salt", kMaxSaltBytes);
  if (fields.Find("cache_salt") != nullptr && params.cache_salt.empty()) {
    fields.Fail("cache_salt", "must not be empty");
  }
  ReadKvik(fields, params);
  ReadTransferParams(fields, params);
  for (const char* name :
       {"prompt_logprobs", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "bad_words", "allowed_token_ids", "truncate_prompt_tokens",
        "logits_processors", "thinking_token_budget"}) {
    fields.Reject(name);
  }
  fields.Reject("use_beam_search", "is not supported", false);
  fields.Reject("return_token_ids", "is not supported", false);
  if (const Json* format = fields.Find("response_format")) {
    if (!format->is_object() || !format->contains("type") || !(*format)["type"].is_string()) {
      fields.Fail("response_format", "must be an object with a 'type'");
    } else if ((*format)["type"] != "text") {
      Fields inner(*format, "response_format.");
      inner.Reject("type", "other than 'text' is not supported");
      fields.Adopt(inner);
    }
  }
  return params;
}

void CheckContentParts(Fields& fields, const std::string& where, const Json& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string at = where + "[" + std::to_string(i) + "]";
    const Json& part = parts[i];
    if (part.is_string()) {
      continue;
    }
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      fields.Fail(at, "must be a string or an object with a 'type', not " + Quote(part));
      return;
    }
    if (part["type"] != "text") {
      fields.Fail(at + ".type",
                  Quote(part["type"]) + " is not supported: the model reads text only");
      return;
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      fields.Fail(at + ".text", "must be a string");
      return;
    }
  }
}

text::JinjaValue ReadMessages(Fields& fields) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) {
    fields.Fail("messages", "is required");
    return {};
  }
  if (!messages->is_array() || messages->empty()) {
    fields.Fail("messages", "must be a list of at least one message");
    return {};
  }
  Json copy = *messages;
  for (size_t i = 0; i < copy.size(); ++i) {
    const std::string at = "messages[" + std::to_string(i) + "]";
    Json& message = copy[i];
    if (!message.is_object()) {
      fields.Fail(at, "must be an object, not " + Quote(message));
      return {};
    }
    if (!message.contains("role") || !message["role"].is_string() ||
        message["role"].get_ref<const std::string&>().empty()) {
      fields.Fail(at + ".role", "must be a string such as 'user'");
      return {};
    }
    const auto content = message.find("content");
    if (content == message.end() || content->is_null()) {
      // An assistant may have called tools only; everybody else has to say something.
      if (message["role"] != "assistant") {
        fields.Fail(at + ".content", "is required");
        return {};
      }
      if (content == message.end()) {
        message["content"] = nullptr;
      }
    } else if (content->is_array()) {
      CheckContentParts(fields, at + ".content", *content);
      for (Json& part : *content) {
        if (part.is_string()) {
          part = Json{{"type", "text"}, {"text", part}};
        }
      }
    } else if (!content->is_string()) {
      fields.Fail(at + ".content",
                  "must be a string or a list of text parts, not " + Quote(*content));
      return {};
    }
  }
  if (fields.failed()) {
    return {};
  }
  return fields.ToJinja("messages", copy);
}

ChatPrompt ReadChatPrompt(Fields& fields) {
  ChatPrompt chat;
  chat.messages = ReadMessages(fields);
  for (const auto& [name, target] :
       {std::pair{"tools", &chat.tools}, std::pair{"documents", &chat.documents}}) {
    const Json* list = fields.Find(name);
    if (list == nullptr || (list->is_array() && list->empty())) {
      continue;
    }
    bool objects = list->is_array();
    if (objects) {
      for (const Json& element : *list) {
        objects = objects && element.is_object();
      }
    }
    if (!objects) {
      fields.Fail(name, "must be a list of objects");
      continue;
    }
    *target = fields.ToJinja(name, *list);
  }
  if (const Json* kwargs = fields.Find("chat_template_kwargs")) {
    if (!kwargs->is_object()) {
      fields.Fail("chat_template_kwargs", "must be an object, not " + Quote(*kwargs));
    } else {
      chat.kwargs = fields.ToJinja("chat_template_kwargs", *kwargs);
    }
  }
  chat.continue_final_message = fields.Bool("continue_final_message", false);
  chat.add_generation_prompt = fields.Bool("add_generation_prompt", !chat.continue_final_message);
  if (chat.continue_final_message && chat.add_generation_prompt) {
    fields.Fail("continue_final_message", "excludes 'add_generation_prompt': true");
  }
  if (fields.Find("add_special_tokens") != nullptr) {
    chat.add_special_tokens = fields.Bool("add_special_tokens", false);
  }
  fields.Reject("chat_template",
                "is not taken from requests: start the server with --chat-template");
  return chat;
}

PromptInput TokenPrompt(Fields& fields, const Json& list) {
  return fields.TokenIds("prompt", list);
}

std::vector<PromptInput> ReadPrompts(Fields& fields) {
  std::vector<PromptInput> prompts;
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) {
    fields.Fail("prompt", "is required");
    return prompts;
  }
  if (prompt->is_string()) {
    prompts.emplace_back(prompt->get<std::string>());
    return prompts;
  }
  if (!prompt->is_array() || prompt->empty()) {
    fields.Fail("prompt",
                "must be a string, a list of strings, a list of token ids, or a list of "
                "such lists; and not empty");
    return prompts;
  }
  if (prompt->front().is_number()) {
    prompts.push_back(TokenPrompt(fields, *prompt));
    return prompts;
  }
  if (prompt->size() > kMaxChoices) {
    fields.Fail("prompt", "has more than " + std::to_string(kMaxChoices) + " prompts");
    return prompts;
  }
  for (const Json& element : *prompt) {
    if (element.is_string()) {
      prompts.emplace_back(element.get<std::string>());
    } else if (element.is_array()) {
      prompts.push_back(TokenPrompt(fields, element));
    } else {
      fields.Fail("prompt",
                  "every prompt must be a string or a list of token ids, not " + Quote(element));
      break;
    }
  }
  return prompts;
}

}  // namespace

ApiResult<ChatCompletionRequest> ParseChatCompletionRequest(std::string_view body) {
  ApiResult<Json> json = ParseObject(body);
  if (Failed(json)) {
    return std::get<ApiError>(json);
  }
  Fields fields(std::get<Json>(json));
  ChatCompletionRequest request;
  request.params = ReadGenerationParams(fields);
  request.chat = ReadChatPrompt(fields);
  const bool logprobs = fields.Bool("logprobs", false);
  const std::optional<int64_t> top = fields.OptionalInt("top_logprobs", 0, kMaxLogprobs);
  if (top && *top > 0 && !logprobs) {
    fields.Fail("top_logprobs", "needs 'logprobs': true");
  }
  if (logprobs) {
    request.params.sampling.num_logprobs = static_cast<int32_t>(top.value_or(0));
  }
  if (const Json* choice = fields.Find("tool_choice"); choice != nullptr && *choice != "none") {
    fields.Reject("tool_choice", "other than 'none' and 'auto' is not supported", "auto");
  }
  for (const char* name : {"functions", "function_call", "audio", "prediction"}) {
    fields.Reject(name);
  }
  fields.Reject("modalities", "other than text is not supported", Json::array({"text"}));
  fields.Reject("echo", "is not supported here", false);
  if (fields.failed()) {
    return fields.error();
  }
  return request;
}

ApiResult<CompletionRequest> ParseCompletionRequest(std::string_view body) {
  ApiResult<Json> json = ParseObject(body);
  if (Failed(json)) {
    return std::get<ApiError>(json);
  }
  Fields fields(std::get<Json>(json));
  CompletionRequest request;
  request.params = ReadGenerationParams(fields);
  request.prompts = ReadPrompts(fields);
  if (const std::optional<int64_t> n = fields.OptionalInt("logprobs", 0, kMaxLogprobs)) {
    request.params.sampling.num_logprobs = static_cast<int32_t>(*n);
  }
  request.echo = fields.Bool("echo", false);
  if (request.echo && request.params.sampling.num_logprobs >= 0) {
    fields.Fail("echo",
                "cannot be combined with 'logprobs': log-probabilities of prompts are not "
                "computed");
  }
  request.add_special_tokens = fields.Bool("add_special_tokens", true);
  if (static_cast<int64_t>(request.prompts.size()) * request.params.n > kMaxChoices) {
    fields.Fail("n", "times the number of prompts is more than " + std::to_string(kMaxChoices));
  }
  fields.Reject("suffix", "is not supported", "");
  fields.Reject("best_of", "other than 'n' is not supported", Json(request.params.n));
  fields.Reject("prompt_embeds");
  if (fields.failed()) {
    return fields.error();
  }
  return request;
}

ApiResult<TokenizeRequest> ParseTokenizeRequest(std::string_view body) {
  ApiResult<Json> json = ParseObject(body);
  if (Failed(json)) {
    return std::get<ApiError>(json);
  }
  Fields fields(std::get<Json>(json));
  TokenizeRequest request;
  request.model = fields.String("model", 4096);
  request.return_token_strs = fields.Bool("return_token_strs", false);
  if (fields.Find("messages") != nullptr) {
    request.input = ReadChatPrompt(fields);
  } else {
    const Json* prompt = fields.Find("prompt");
    if (prompt == nullptr || !prompt->is_string()) {
      fields.Fail("prompt", "must be a string (or give 'messages')");
    } else {
      request.input = prompt->get<std::string>();
    }
    request.add_special_tokens = fields.Bool("add_special_tokens", true);
  }
  if (fields.failed()) {
    return fields.error();
  }
  return request;
}

ApiResult<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body) {
  ApiResult<Json> json = ParseObject(body);
  if (Failed(json)) {
    return std::get<ApiError>(json);
  }
  Fields fields(std::get<Json>(json));
  DetokenizeRequest request;
  request.model = fields.String("model", 4096);
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr) {
    fields.Fail("tokens", "is required");
  } else {
    request.tokens = fields.TokenIds("tokens", *tokens);
  }
  if (fields.failed()) {
    return fields.error();
  }
  return request;
}

}  // namespace kvik::server
