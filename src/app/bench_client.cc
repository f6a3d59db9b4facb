// SPDX-License-Identifier: Apache-2.0
#include "app/bench_client.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json_parse.h"
#include "server/http.h"
#include "server/sse.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;
using workload::RequestRecord;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What a server sent; null if it is not a JSON object.
Json ParseObject(std::string_view text) {
  Result<Json> json = ParseJson<Json>(text, {.max_members = 4096});
  return json && json->is_object() ? *std::move(json) : Json();
}

// Null when there is no such member, or `json` has no members. Other servers may answer anything.
const Json& Member(const Json& json, const char* key) {
  static const Json kNull;
  const auto it = json.find(key);
  return it == json.end() ? kNull : *it;
}

std::optional<int32_t> Integer(const Json& json) {
  return json.is_number_integer() ? std::optional(json.get<int32_t>()) : std::nullopt;
}

// The message of an OpenAI error body, or the body.
std::string ErrorText(const server::HttpReply& reply) {
  const Json json = ParseObject(reply.body);
  const Json& message = Member(Member(json, "error"), "message");
  return "HTTP " + std::to_string(reply.status) + ": " +
         (message.is_string() ? message.get<std::string>() : reply.body.substr(0, 200));
}

Result<std::vector<TokenId>> TokenIds(const Json& list) {
  std::vector<TokenId> ids;
  if (!list.is_array()) {
    return Err(ErrorCode::kUnavailable, "the server's token ids are not a list");
  }
  for (const Json& id : list) {
    if (!id.is_number_integer()) {
      return Err(ErrorCode::kUnavailable, "one of the server's token ids is not a number");
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

// Takes the events of one streamed answer.
class AnswerReader {
 public:
  AnswerReader(const Clock& clock, int64_t planned_us, RequestRecord& record)
      : clock_(clock), record_(record), planned_us_(planned_us) {}

  void OnBytes(std::string_view bytes) {
    for (const std::string& data : parser_.Push(bytes)) {
      if (data == "[DONE]") {
        done_ = true;
        continue;
      }
      const Json chunk = ParseObject(data);
      if (!chunk.is_object()) {
        record_.error = "a chunk of the stream is not JSON";
      } else {
        OnChunk(chunk);
      }
    }
  }
  void Finish() {
    record_.end_us = clock_.NowMicros() - planned_us_;
    if (record_.error.empty() && !done_) {
      record_.error = "the stream ended before [DONE]";
    }
    if (record_.first_token_us == 0) {
      record_.first_token_us = record_.end_us;  // an answer without text
    }
  }

 private:
  void OnChunk(const Json& chunk) {
    if (chunk.contains("error")) {
      record_.error = Dump(chunk["error"]).substr(0, 200);
      return;
    }
    if (const Json& choices = Member(chunk, "choices"); choices.is_array() && !choices.empty()) {
      const Json& chat_text = Member(Member(choices[0], "delta"), "content");
      const Json& text = chat_text.is_string() ? chat_text : Member(choices[0], "text");
      if (text.is_string() && !text.get_ref<const std::string&>().empty()) {
        OnText(text.get_ref<const std::string&>());
      }
      if (const Result<std::vector<TokenId>> ids = TokenIds(Member(choices[0], "token_ids"))) {
        record_.token_ids.insert(record_.token_ids.end(), ids->begin(), ids->end());
      }
      OnLogprobs(Member(choices[0], "logprobs"));
    }
    if (const Json& usage = Member(chunk, "usage"); usage.is_object()) {
      record_.prompt_tokens = Integer(Member(usage, "prompt_tokens")).value_or(0);
      record_.completion_tokens = Integer(Member(usage, "completion_tokens")).value_or(0);
      record_.cached_tokens =
          Integer(Member(Member(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    if (const Json& kvik = Member(chunk, "kvik"); kvik.is_object()) {
      record_.cached_segments = Integer(Member(kvik, "segments"));
      record_.prefix_tokens = Integer(Member(kvik, "prefix_tokens"));
    }
  }
  // Chat completions have a list of objects, text completions one of numbers.
  void OnLogprobs(const Json& logprobs) {
    for (const Json& entry : Member(logprobs, "content")) {
      if (const Json& logprob = Member(entry, "logprob"); logprob.is_number()) {
        record_.logprobs.push_back(logprob.get<double>());
      }
    }
    for (const Json& logprob : Member(logprobs, "token_logprobs")) {
      if (logprob.is_number()) {
        record_.logprobs.push_back(logprob.get<double>());
      }
    }
  }
  void OnText(const std::string& text) {
    const int64_t now_us = clock_.NowMicros() - planned_us_;
    if (record_.first_token_us == 0) {
      record_.first_token_us = now_us;
    } else {
      record_.gaps_us.push_back(now_us - last_text_us_);
    }
    last_text_us_ = now_us;
    record_.text += text;
  }

  const Clock& clock_;
  RequestRecord& record_;
  const int64_t planned_us_;
  server::SseParser parser_;
  int64_t last_text_us_ = 0;
  bool done_ = false;
};

}  // namespace

struct BenchClient::Impl {
  BenchTarget target;
  std::unique_ptr<server::HttpClient> http;

  [[nodiscard]] Json Body(const BenchRequest& request) const {
    Json body;
    body["model"] = target.model;
    if (const auto* messages =
            std::get_if<std::vector<workload::PlannedMessage>>(&request.prompt)) {
      Json& list = body["messages"] = Json::array();
      for (const workload::PlannedMessage& message : *messages) {
        list.push_back({{"role", message.role}, {"content", message.content}});
      }
    } else if (const auto* tokens = std::get_if<std::vector<TokenId>>(&request.prompt)) {
      body["prompt"] = *tokens;
    } else {
      body["prompt"] = std::get<std::string>(request.prompt);
    }
    body["max_tokens"] =
        request.forced.empty() ? request.max_tokens : static_cast<int32_t>(request.forced.size());
    body["temperature"] = 0;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (!request.cache_salt.empty()) {
      body["cache_salt"] = request.cache_salt;
    }
    if (target.ask_for_logprobs) {
      if (body.contains("messages")) {
        body["logprobs"] = true;
      } else {
        body["logprobs"] = 0;  // those of the tokens themselves
      }
    }
    if (target.ask_for_token_ids) {
      body["return_token_ids"] = true;
    }
    if (target.kvik_fields) {
      Json kvik = Json::object();
      if (!request.session.empty()) {
        kvik["session"] = request.session;
      }
      if (request.will_continue) {
        kvik["will_continue"] = *request.will_continue;
      }
      if (!request.forced.empty()) {
        kvik["forced_token_ids"] = request.forced;
      }
      body["kvik"] = std::move(kvik);
    }
    return body;
  }

  // A small request that is not streamed, with one more field.
  Result<server::HttpReply> Probe(const char* field, Json value) {
    Json body = {{"model", target.model}, {"prompt", "a"}, {"max_tokens", 1}, {"temperature", 0}};
    body[field] = std::move(value);
    return http->Post("/v1/completions", Dump(body));
  }
};

BenchClient::BenchClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BenchClient::~BenchClient() = default;

Result<std::unique_ptr<BenchClient>> BenchClient::Create(BenchTarget target) {
  auto impl = std::make_unique<Impl>();
  KVIK_ASSIGN(impl->http,
              server::HttpClient::Create(target.base_url, target.api_key, target.timeout_s));
  impl->target = std::move(target);
  return std::unique_ptr<BenchClient>(new BenchClient(std::move(impl)));
}

void BenchClient::Call(const BenchRequest& request, const Clock& clock, int64_t planned_us,
                       RequestRecord& record) {
  const bool chat = std::holds_alternative<std::vector<workload::PlannedMessage>>(request.prompt);
  const std::string body = Dump(impl_->Body(request));
  AnswerReader reader(clock, planned_us, record);
  const Result<server::HttpReply> reply = impl_->http->PostStreaming(
      chat ? "/v1/chat/completions" : "/v1/completions", body, [&](std::string_view bytes) {
        reader.OnBytes(bytes);
        return true;
      });
  if (!reply) {
    record.error = reply.error().message;
  } else if (reply->status != 200) {
    record.error = ErrorText(*reply);
  }
  reader.Finish();
}

Result<std::string> BenchClient::FirstModel() {
  KVIK_ASSIGN(const server::HttpReply reply, impl_->http->Get("/v1/models"));
  if (reply.status != 200) {
    return Err(ErrorCode::kUnavailable, "/v1/models: %s", ErrorText(reply).c_str());
  }
  const Json json = ParseObject(reply.body);
  const Json& models = Member(json, "data");
  if (!models.is_array() || models.empty() || !Member(models[0], "id").is_string()) {
    return Err(ErrorCode::kUnavailable, "/v1/models lists no model; name one with --model");
  }
  return Member(models[0], "id").get<std::string>();
}

Result<std::vector<TokenId>> BenchClient::Tokenize(const std::string& text) {
  const Json body = {
      {"model", impl_->target.model}, {"prompt", text}, {"add_special_tokens", false}};
  KVIK_ASSIGN(const server::HttpReply reply, impl_->http->Post("/tokenize", Dump(body)));
  if (reply.status != 200) {
    return Err(ErrorCode::kUnavailable, "/tokenize: %s", ErrorText(reply).c_str());
  }
  return TokenIds(Member(ParseObject(reply.body), "tokens"));
}

Result<bool> BenchClient::KnowsForcedTokens() {
  KVIK_ASSIGN(const server::HttpReply reply,
              impl_->Probe("kvik", {{"forced_token_ids", Json::array({-1})}}));
  return reply.status == 400 && ErrorText(reply).find("forced_token_ids") != std::string::npos;
}

Result<bool> BenchClient::TellsTokenIds() {
  KVIK_ASSIGN(const server::HttpReply reply, impl_->Probe("return_token_ids", true));
  const Json json = reply.status == 200 ? ParseObject(reply.body) : Json();
  const Json& choices = Member(json, "choices");
  return choices.is_array() && !choices.empty() && Member(choices[0], "token_ids").is_array();
}

}  // namespace kvik::app
