// SPDX-License-Identifier: Apache-2.0
#include "server/openai_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace kvik::server {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; what OpenAI and vLLM print for impossible tokens.
constexpr float kLowestLogprob = -9999.0F;

// Token pieces may be parts of characters: those bytes are printed as U+FFFD.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

float Clamp(float logprob) { return logprob >= kLowestLogprob ? logprob : kLowestLogprob; }

Json TokenEntry(const text::Tokenizer& tokenizer, TokenId id, float logprob) {
  const std::string_view piece = tokenizer.Piece(id);
  Json bytes = Json::array();
  for (const char c : piece) {
    bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  }
  Json entry;
  entry["token"] = std::string(piece);
  entry["logprob"] = Clamp(logprob);
  entry["bytes"] = std::move(bytes);
  return entry;
}

Json ChatLogprobs(const text::Tokenizer& tokenizer,
                  const std::vector<engine::TokenOutput>& tokens) {
  Json content = Json::array();
  for (const engine::TokenOutput& token : tokens) {
    Json entry = TokenEntry(tokenizer, token.token, token.logprob);
    Json top = Json::array();
    for (const engine::TokenLogprob& alternative : token.top) {
      top.push_back(TokenEntry(tokenizer, alternative.token, alternative.logprob));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  Json logprobs;
  logprobs["content"] = std::move(content);
  return logprobs;
}

Json CompletionLogprobs(const text::Tokenizer& tokenizer,
                        const std::vector<engine::TokenOutput>& tokens, int32_t text_offset) {
  Json logprobs;
  Json offsets = Json::array();
  Json token_logprobs = Json::array();
  Json pieces = Json::array();
  Json tops = Json::array();
  for (const engine::TokenOutput& token : tokens) {
    const std::string piece(tokenizer.Piece(token.token));
    offsets.push_back(text_offset);
    text_offset += static_cast<int32_t>(piece.size());
    token_logprobs.push_back(Clamp(token.logprob));
    pieces.push_back(piece);
    Json top = Json::object();
    for (const engine::TokenLogprob& alternative : token.top) {
      top[std::string(tokenizer.Piece(alternative.token))] = Clamp(alternative.logprob);
    }
    top[piece] = Clamp(token.logprob);
    tops.push_back(std::move(top));
  }
  logprobs["text_offset"] = std::move(offsets);
  logprobs["token_logprobs"] = std::move(token_logprobs);
  logprobs["tokens"] = std::move(pieces);
  logprobs["top_logprobs"] = std::move(tops);
  return logprobs;
}

Json FinishJson(const std::optional<ChoiceFinish>& finish) {
  if (!finish) {
    return nullptr;
  }
  return *finish == ChoiceFinish::kStop ? "stop" : "length";
}

Json StopReasonJson(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) {
    return *text;
  }
  if (const auto* token = std::get_if<TokenId>(&reason)) {
    return *token;
  }
  return nullptr;
}

Json UsageJson(const ReplyUsage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  // Whatever did not have to be computed, as vLLM counts.
  json["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens + usage.external_tokens;
  return json;
}

double Ms(int64_t us) { return static_cast<double>(us) / 1000; }

// How the KV that came from elsewhere came here.
Json TransferJson(const kv::TransferReport& report) {
  Json json;
  json["profile"] = report.profile;
  json["source"] = report.tier;
  json["wire_bytes"] = report.wire_bytes;
  json["raw_bytes"] = report.raw_bytes;
  json["ratio"] =
      report.wire_bytes > 0
          ? Json(static_cast<double>(report.raw_bytes) / static_cast<double>(report.wire_bytes))
          : Json();
  json["predicted_ms"] = Ms(report.predicted_us);
  json["observed_ms"] = Ms(report.observed_us);
  json["why"] = report.why;
  return json;
}

// Where the time went. Stages of a transfer run at the same time, so the sum may be more than the
// latency.
Json BreakdownJson(const KvReport& report) {
  const engine::Timing& timing = report.timing;
  Json json;
  json["queue"] = Ms(timing.scheduled_us - timing.submitted_us);
  json["prefill"] = Ms(timing.first_token_us - timing.scheduled_us);
  json["decode"] = Ms(timing.finished_us - timing.first_token_us);
  if (report.transfer != nullptr) {
    json["remote_prefill"] = Ms(report.transfer->prefill_us);
    json["compress"] = Ms(report.transfer->encode_us);
    json["wire"] = Ms(report.transfer->wire_us);
    json["decompress"] = Ms(report.transfer->decode_us);
  }
  return json;
}

// What only kvik has to tell: how the reused KV lay in the prompt, where it came from, what it is
// worth and what that took.
Json KvikJson(const ReplyUsage& usage, const KvReport& report) {
  Json json;
  json["segments"] = usage.cached_segments;
  json["prefix_tokens"] = usage.prefix_tokens;
  Json tokens;
  tokens["computed"] = usage.prompt_tokens - usage.cached_tokens - usage.external_tokens;
  tokens["local_cache"] = usage.cached_tokens;
  tokens["external"] = usage.external_tokens;
  json["prompt_tokens_by_source"] = std::move(tokens);
  json["quality"] = report.quality;
  const engine::Timing& timing = report.timing;
  if (timing.first_token_us != 0) {
    json["ttft_ms"] = Ms(timing.first_token_us - timing.submitted_us);
    json["latency_ms"] = Ms(timing.finished_us - timing.submitted_us);
    json["breakdown_ms"] = BreakdownJson(report);
  }
  if (report.transfer != nullptr) {
    json["transfer"] = TransferJson(*report.transfer);
  }
  return json;
}

Json ParamsJson(const TransferFields& params) {
  Json json;
  json["do_remote_prefill"] = params.do_remote_prefill;
  json["do_remote_decode"] = params.do_remote_decode;
  json["remote_host"] = params.remote_host;
  json["remote_port"] = params.remote_port;
  json["remote_engine_id"] = params.remote_engine_id;
  json["remote_request_id"] = params.remote_request_id;
  return json;
}

// What a reply ends with.
void AddReport(Json& json, const ReplyUsage& usage, const KvReport& report) {
  json["kvik"] = KvikJson(usage, report);
  if (report.params) {
    json["kv_transfer_params"] = ParamsJson(*report.params);
  }
}

Json HeadJson(const ReplyHead& head, const char* object) {
  Json json;
  json["id"] = head.id;
  json["object"] = object;
  json["created"] = head.created_s;
  json["model"] = head.model;
  json["system_fingerprint"] = head.fingerprint;
  return json;
}

Json ChunkJson(ReplyKind kind, const ReplyHead& head, const text::Tokenizer& tokenizer,
               int32_t num_logprobs, const ReplyChoice& choice,
               const std::optional<ReplyUsage>& usage) {
  const bool chat = kind == ReplyKind::kChat;
  Json json = HeadJson(head, chat ? "chat.completion.chunk" : "text_completion");
  Json entry;
  entry["index"] = choice.index;
  if (chat) {
    entry["delta"]["content"] = choice.delta.text;
  } else {
    entry["text"] = choice.delta.text;
  }
  if (num_logprobs >= 0 && !choice.delta.tokens.empty()) {
    entry["logprobs"] =
        chat ? ChatLogprobs(tokenizer, choice.delta.tokens)
             : CompletionLogprobs(tokenizer, choice.delta.tokens, choice.text_offset);
  } else {
    entry["logprobs"] = nullptr;
  }
  entry["finish_reason"] = FinishJson(choice.delta.finish);
  if (choice.delta.finish) {
    entry["stop_reason"] = StopReasonJson(choice.delta.stop_reason);
  }
  json["choices"] = Json::array({std::move(entry)});
  if (usage) {
    json["usage"] = UsageJson(*usage);
  }
  return json;
}

Json CardJson(const ModelCard& card) {
  Json json;
  json["id"] = card.id;
  json["object"] = "model";
  json["created"] = card.created_s;
  json["owned_by"] = "kvik";
  json["root"] = card.root;
  json["max_model_len"] = card.max_model_len;
  return json;
}

}  // namespace

ReplyFormatter::ReplyFormatter(ReplyKind kind, ReplyHead head, const text::Tokenizer& tokenizer,
                               int32_t num_logprobs)
    : kind_(kind), head_(std::move(head)), tokenizer_(tokenizer), num_logprobs_(num_logprobs) {}

std::string ReplyFormatter::Full(const std::vector<ReplyChoice>& choices, const ReplyUsage& usage,
                                 const KvReport& report) const {
  const bool chat = kind_ == ReplyKind::kChat;
  Json json = HeadJson(head_, chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (const ReplyChoice& choice : choices) {
    Json entry;
    entry["index"] = choice.index;
    if (chat) {
      entry["message"]["role"] = "assistant";
      entry["message"]["content"] = choice.delta.text;
    } else {
      entry["text"] = choice.delta.text;
    }
    entry["logprobs"] =
        num_logprobs_ < 0 ? Json()
        : chat            ? ChatLogprobs(tokenizer_, choice.delta.tokens)
                          : CompletionLogprobs(tokenizer_, choice.delta.tokens, choice.text_offset);
    entry["finish_reason"] = FinishJson(choice.delta.finish);
    entry["stop_reason"] = StopReasonJson(choice.delta.stop_reason);
    list.push_back(std::move(entry));
  }
  json["choices"] = std::move(list);
  json["usage"] = UsageJson(usage);
  AddReport(json, usage, report);
  return Dump(json);
}

std::string ReplyFormatter::RoleChunk(int32_t index, const std::optional<ReplyUsage>& usage) const {
  Json json = HeadJson(head_, "chat.completion.chunk");
  Json entry;
  entry["index"] = index;
  entry["delta"]["role"] = "assistant";
  entry["delta"]["content"] = "";
  entry["logprobs"] = nullptr;
  entry["finish_reason"] = nullptr;
  json["choices"] = Json::array({std::move(entry)});
  if (usage) {
    json["usage"] = UsageJson(*usage);
  }
  return Dump(json);
}

std::string ReplyFormatter::Chunk(const ReplyChoice& choice,
                                  const std::optional<ReplyUsage>& usage) const {
  return Dump(ChunkJson(kind_, head_, tokenizer_, num_logprobs_, choice, usage));
}

std::string ReplyFormatter::LastChunk(const ReplyChoice& choice,
                                      const std::optional<ReplyUsage>& usage,
                                      const ReplyUsage& total, const KvReport& report) const {
  Json json = ChunkJson(kind_, head_, tokenizer_, num_logprobs_, choice, usage);
  AddReport(json, total, report);
  return Dump(json);
}

std::string ReplyFormatter::UsageChunk(const ReplyUsage& usage, const KvReport& report) const {
  Json json =
      HeadJson(head_, kind_ == ReplyKind::kChat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array();
  json["usage"] = UsageJson(usage);
  AddReport(json, usage, report);
  return Dump(json);
}

std::string FormatModel(const ModelCard& card) { return Dump(CardJson(card)); }

std::string FormatModelList(const std::vector<ModelCard>& cards) {
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const ModelCard& card : cards) {
    json["data"].push_back(CardJson(card));
  }
  return Dump(json);
}

std::string FormatTokens(const std::vector<TokenId>& tokens, int32_t max_model_len,
                         const text::Tokenizer* spell) {
  Json json;
  json["count"] = tokens.size();
  json["max_model_len"] = max_model_len;
  json["tokens"] = tokens;
  if (spell == nullptr) {
    json["token_strs"] = nullptr;
  } else {
    json["token_strs"] = Json::array();
    for (const TokenId token : tokens) {
      json["token_strs"].push_back(std::string(spell->Spelling(token)));
    }
  }
  return Dump(json);
}

std::string FormatDetokenized(const std::string& text) {
  Json json;
  json["prompt"] = text;
  return Dump(json);
}

std::string FormatBlocks(const std::vector<uint64_t>& block_hashes, int32_t block_size_tokens,
                         size_t num_tokens) {
  Json json;
  json["num_tokens"] = num_tokens;
  json["block_size"] = block_size_tokens;
  json["block_hashes"] = block_hashes;
  return Dump(json);
}

std::string FormatHealth(const HealthFacts& facts) {
  Json json;
  json["status"] = facts.draining ? "draining" : "ok";
  json["role"] = facts.role;
  if (!facts.engine_id.empty()) {
    json["engine_id"] = facts.engine_id;
  }
  if (facts.events) {
    Json& events = json["kv_events"];
    events["endpoint"] = facts.events->endpoint;
    if (!facts.events->replay_endpoint.empty()) {
      events["replay_endpoint"] = facts.events->replay_endpoint;
    }
    events["topic"] = facts.events->topic;
  }
  if (facts.kv_port != 0) {
    json["kv"]["host"] = facts.kv_host;
    json["kv"]["port"] = facts.kv_port;
  }
  return Dump(json);
}

std::string FormatVersion(const std::string& version) {
  Json json;
  json["version"] = version;
  return Dump(json);
}

}  // namespace kvik::server
