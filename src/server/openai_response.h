// SPDX-License-Identifier: Apache-2.0
// server/openai_response.h: native results to OpenAI's JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "engine/request.h"
#include "kv/connector.h"
#include "server/choice.h"
#include "server/kv_params.h"
#include "text/tokenizer.h"

namespace kvik::server {

enum class ReplyKind { kChat, kCompletion };

struct ReplyHead {
  std::string id;
  int64_t created_s = 0;  // since 1970
  std::string model;
  std::string fingerprint;
};

// Of all prompts and choices of a request together.
struct ReplyUsage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t prefix_tokens = 0;
  int32_t cached_segments = 0;
  int32_t external_tokens = 0;
};

// What the KV of a request was like, and how long things took: the `kvik` object of a reply.
struct KvReport {
  float quality = 1.0F;   // the least of all KV that the answer was computed from; 1 = exact
  engine::Timing timing;  // of the first choice
  // Of the first choice that KV was moved for; may be null.
  std::shared_ptr<const kv::TransferReport> transfer;
  // What to send to the server that decodes, when it is another one.
  std::optional<TransferFields> params;
};

struct ReplyChoice {
  int32_t index = 0;
  ChoiceDelta delta;        // the whole text, or what a chunk adds
  int32_t text_offset = 0;  // bytes of the choice before this delta; completions with logprobs
};

// Thread-compatible.
class ReplyFormatter {
 public:
  // `num_logprobs` as in SamplingParams. `tokenizer` must outlive it.
  ReplyFormatter(ReplyKind kind, ReplyHead head, const text::Tokenizer& tokenizer,
                 int32_t num_logprobs);

  // A reply that is not streamed.
  [[nodiscard]] std::string Full(const std::vector<ReplyChoice>& choices, const ReplyUsage& usage,
                                 const KvReport& report) const;

  // Chunks of a stream, without SSE's framing. Chat opens every choice with its role.
  [[nodiscard]] std::string RoleChunk(int32_t index, const std::optional<ReplyUsage>& usage) const;
  [[nodiscard]] std::string Chunk(const ReplyChoice& choice,
                                  const std::optional<ReplyUsage>& usage) const;
  // The last chunk with a choice.
  [[nodiscard]] std::string LastChunk(const ReplyChoice& choice,
                                      const std::optional<ReplyUsage>& usage,
                                      const ReplyUsage& total, const KvReport& report) const;
  // No choices, only the usage.
  [[nodiscard]] std::string UsageChunk(const ReplyUsage& usage, const KvReport& report) const;

 private:
  ReplyKind kind_;
  ReplyHead head_;
  const text::Tokenizer& tokenizer_;
  int32_t num_logprobs_;
};

struct ModelCard {
  std::string id;
  std::string root;  // where it was loaded from
  int64_t created_s = 0;
  int32_t max_model_len = 0;
};
std::string FormatModel(const ModelCard& card);
std::string FormatModelList(const std::vector<ModelCard>& cards);
std::string FormatTokens(const std::vector<TokenId>& tokens, int32_t max_model_len,
                         const text::Tokenizer* spell);
std::string FormatDetokenized(const std::string& text);
// Where events about blocks of KV are published (events/publisher.h).
struct EventsAddress {
  std::string endpoint;
  std::string replay_endpoint;  // empty: none
  std::string topic;
};
// What /health says, to routers too.
struct HealthFacts {
  bool draining = false;
  std::string role;
  std::string engine_id;  // another one after each start
  std::optional<EventsAddress> events;
  std::string kv_host;
  int32_t kv_port = 0;  // 0: peers get no KV here
};
// The blocks of a prompt of so many tokens.
std::string FormatBlocks(const std::vector<uint64_t>& block_hashes, int32_t block_size_tokens,
                         size_t num_tokens);
std::string FormatHealth(const HealthFacts& facts);
std::string FormatVersion(const std::string& version);

}  // namespace kvik::server
