// SPDX-License-Identifier: Apache-2.0
#include "workload/plan_trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "kv/block_hasher.h"

namespace kvik::workload {
namespace {

static_assert(sizeof(TokenId) == kTextBytesPerToken);

constexpr uint64_t kOwnAnswer = 0x616E73776572;  // a kind of content

// Tokens as bytes, kTextBytesPerToken of each.
std::string BytesOf(std::span<const TokenRun> runs) {
  static const std::vector<TokenId> alphabet = [] {
    std::vector<TokenId> ids(1 << 16);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }();
  std::vector<TokenId> tokens;
  for (const TokenRun& run : runs) {
    AppendTokens(run, alphabet, tokens);
  }
  std::string bytes(tokens.size() * kTextBytesPerToken, '\0');
  std::memcpy(bytes.data(), tokens.data(), bytes.size());
  return bytes;
}

std::string AnswerOf(const PlannedCall& call, uint64_t session, uint64_t number) {
  if (const auto* text = std::get_if<std::string>(&call.output)) {
    return *text;
  }
  const auto* run = std::get_if<TokenRun>(&call.output);
  const TokenRun own{ContentOf(session, kOwnAnswer, number), call.max_tokens};
  return BytesOf(std::span(run != nullptr ? run : &own, 1));
}

int32_t TokensOf(const std::string& bytes) {
  const size_t tokens = bytes.size() / kTextBytesPerToken;
  KVIK_CHECK(tokens <= size_t{std::numeric_limits<int32_t>::max()});
  return static_cast<int32_t>(tokens);
}

// The conversation of one session as bytes.
class Conversation {
 public:
  // Takes in what the call says; what was said before stays, if the call only adds to it.
  void Say(const PlannedPrompt& prompt) {
    if (const auto* messages = std::get_if<std::vector<PlannedMessage>>(&prompt)) {
      for (const PlannedMessage& message : *messages) {
        bytes_ += message.role + "\n" + message.content + "\n";
      }
    } else if (const auto* runs = std::get_if<std::vector<TokenRun>>(&prompt)) {
      bytes_ = BytesOf(*runs);
    } else {
      bytes_ = std::get<std::string>(prompt);
    }
  }
  void Answer(const std::string& bytes) { bytes_ += bytes; }

  [[nodiscard]] int32_t tokens() const { return TokensOf(bytes_); }
  // Of full blocks; each names its whole prefix.
  [[nodiscard]] std::vector<uint64_t> Blocks(int32_t block_size_tokens) const {
    std::vector<TokenId> tokens(bytes_.size() / kTextBytesPerToken);
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(&tokens[i], &bytes_[i * kTextBytesPerToken], kTextBytesPerToken);
    }
    kv::HashChain chain(kv::ExtraKeys{}, block_size_tokens);
    chain.Extend(kv::BlockHasher(kv::HashOptions{}), tokens);
    std::vector<uint64_t> blocks;
    for (const kv::ContentKey& key : chain.keys()) {
      blocks.push_back(key.Digest());
    }
    return blocks;
  }

 private:
  std::string bytes_;
};

}  // namespace

Trace TraceOf(const LoadPlan& plan, std::span<const double> starts_s, int32_t block_size_tokens) {
  KVIK_CHECK(starts_s.size() == plan.sessions.size() && block_size_tokens >= 1);
  Trace trace;
  trace.block_size_tokens = block_size_tokens;
  for (size_t s = 0; s < plan.sessions.size(); ++s) {
    Conversation conversation;
    const int64_t start_us = std::llround(starts_s[s] * 1e6);
    int64_t at_us = start_us;
    const std::vector<PlannedCall>& calls = plan.sessions[s].calls;
    for (size_t c = 0; c < calls.size(); ++c) {
      const PlannedCall& call = calls[c];
      TraceRequest request;
      if (c > 0) {
        // A pause counts from the answer, but no call comes before its own time.
        const int64_t not_before_us = start_us + std::llround(call.not_before_s * 1e6);
        const int64_t next_us =
            std::max<int64_t>(at_us + std::llround(call.gap_s * 1e6), not_before_us);
        request.gap_us = next_us - at_us;
        at_us = next_us;
      }
      conversation.Say(call.prompt);
      request.arrival_us = at_us;
      request.input_tokens = conversation.tokens();
      request.blocks = conversation.Blocks(block_size_tokens);
      const std::string answer = AnswerOf(call, s, c);
      conversation.Answer(answer);
      request.output_tokens = TokensOf(answer);
      request.session = static_cast<int64_t>(s);
      request.turn = static_cast<int32_t>(c) + 1;
      request.tool_call = call.calls_tool;
      request.tool = call.tool;
      trace.requests.push_back(std::move(request));
    }
  }
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_us < b.arrival_us; });
  return trace;
}

}  // namespace kvik::workload
