// SPDX-License-Identifier: Apache-2.0
#include "server/openai_request.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fnv.h"
#include "base/json_parse.h"

namespace kvik::server {
namespace {

// Ordered: templates print tools and arguments in the client's order.
using Json = nlohmann::ordered_json;

constexpr size_t kMaxSaltBytes = 4096;
constexpr size_t kMaxStopBytes = 4096;

ApiError BadField(std::string param, const std::string& what) {
  ApiError error;
  error.message = "Invalid value for '" + param + "': " + what;
  error.param = std::move(param);
  return error;
}

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

// An integer, or a float that is one (16.0).
std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? std::numeric_limits<int64_t>::max()
               : static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::fabs(number) < 9e15) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

std::string Quote(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) {
    text = text.substr(0, 60) + "...";
  }
  return text;
}

// Reads the members of one object. The first mistake sticks; readers after it give defaults, so a
// parser is a list of fields with one check at its end.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] const ApiError& error() const { return *error_; }

  void Fail(const std::string& name, const std::string& what) {
    if (!error_) {
      error_ = BadField(prefix_ + name, what);
    }
  }
  void Adopt(const Fields& other) {
    if (!error_ && other.error_) {
      error_ = other.error_;
    }
  }

  // nullptr when absent or null.
  [[nodiscard]] const Json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  bool Bool(const char* name, bool default_value) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return default_value;
    }
    if (!value->is_boolean()) {
      Fail(name, "must be true or false, not " + Quote(*value));
      return default_value;
    }
    return value->get<bool>();
  }

  std::optional<int64_t> OptionalInt(const char* name, int64_t low, int64_t high) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    const std::optional<int64_t> number = AsInteger(*value);
    if (!number) {
      Fail(name, "must be an integer, not " + Quote(*value));
    } else if (*number < low || *number > high) {
      Fail(name, "must be between " + std::to_string(low) + " and " + std::to_string(high) +
                     ", not " + Quote(*value));
      return std::nullopt;
    }
    return number;
  }
  int64_t Int(const char* name, int64_t default_value, int64_t low, int64_t high) {
    return OptionalInt(name, low, high).value_or(default_value);
  }
  int32_t Int32(const char* name, int32_t default_value, int32_t low, int32_t high) {
    return static_cast<int32_t>(Int(name, default_value, low, high));
  }

  // In [low, high], or (low, high] with `above_low`.
  float Float(const char* name, float default_value, float low, float high,
              bool above_low = false) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return default_value;
    }
    if (!value->is_number()) {
      Fail(name, "must be a number, not " + Quote(*value));
      return default_value;
    }
    const auto number = value->get<double>();
    if (!(above_low ? number > low : number >= low) || !(number <= high)) {
      Fail(name, std::string("must be ") + (above_low ? "above " : "at least ") + Quote(Json(low)) +
                     " and at most " + Quote(Json(high)) + ", not " + Quote(*value));
      return default_value;
    }
    return static_cast<float>(number);
  }

  std::string String(const char* name, size_t max_bytes) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return {};
    }
    if (!value->is_string()) {
      Fail(name, "must be a string, not " + Quote(*value));
      return {};
    }
    const auto& text = value->get_ref<const std::string&>();
    if (text.size() > max_bytes) {
      Fail(name, "is longer than " + std::to_string(max_bytes) + " bytes");
      return {};
    }
    return text;
  }

  // A list of token ids; `what` names the elements in messages.
  std::vector<TokenId> TokenIds(const std::string& name, const Json& list) {
    std::vector<TokenId> ids;
    if (!list.is_array()) {
      Fail(name, "must be a list of token ids, not " + Quote(list));
      return ids;
    }
    ids.reserve(list.size());
    for (const Json& element : list) {
      const std::optional<int64_t> id =
          element.is_number_integer() ? AsInteger(element) : std::nullopt;
      if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
        Fail(name,
             "element " + std::to_string(ids.size()) + " is not a token id: " + Quote(element));
        return {};
      }
      ids.push_back(static_cast<TokenId>(*id));
    }
    return ids;
  }

  // Fields that are known and not done. Absent, null and `harmless` pass.
  void Reject(const char* name, const char* why = "is not supported",
              const Json& harmless = nullptr) {
    const Json* value = Find(name);
    if (value != nullptr && *value != harmless) {
      if (!error_) {
        error_ = ApiError();
        error_->message = "'" + prefix_ + name + "' " + why + ".";
        error_->param = prefix_ + name;
        error_->code = "unsupported_parameter";
      }
    }
  }

  text::JinjaValue ToJinja(const std::string& name, const Json& value) {
    Result<text::JinjaValue> converted = text::JinjaValue::FromJson(value.dump());
    if (!converted) {
      Fail(name, converted.error().message);
      return {};
    }
    return std::move(converted).value();
  }

 private:
  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

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

// Unlike elsewhere an unknown name is an error: nobody else has an object of this name.
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
  CheckNames(inner, *kvik, {"session", "will_continue", "retention", "forced_token_ids"});
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
  for (const char* name :
       {"prompt_logprobs", "kv_transfer_params", "structured_outputs", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "bad_words", "allowed_token_ids",
        "truncate_prompt_tokens", "logits_processors", "thinking_token_budget"}) {
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
