// SPDX-License-Identifier: Apache-2.0
// engine/testing/requests.h: requests to a FakeExecutor, and what they must say.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "engine/request.h"
#include "engine/testing/fake_executor.h"
#include "model/sampler.h"

namespace kvik::engine {

constexpr int32_t kVocab = 97;

inline std::vector<TokenId> RandomPrompt(Rng& rng, int32_t num_tokens) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(rng.Below(kVocab));
  }
  return tokens;
}

inline Request Greedy(std::vector<TokenId> prompt, int32_t max_new_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0;
  return request;
}

// Everything a request's sink was told.
struct Received {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::optional<FinishReason> finish;
  std::optional<Error> error;
  Usage usage;
  Timing timing;
  std::shared_ptr<const kv::TransferReport> transfer;

  void Add(const RequestOutput& output) {
    KVIK_CHECK(!finish, "an output after the last one");
    for (const TokenOutput& token : output.tokens) {
      tokens.push_back(token.token);
      logprobs.push_back(token.logprob);
    }
    finish = output.finish;
    error = output.error;
    usage = output.usage;
    timing = output.timing;
    transfer = output.transfer;
  }
};

// What the request says alone, without cache, scheduler or batch. REQUIRES: a seed or greedy.
inline Received Solo(const Request& request) {
  Received received;
  model::Sampler sampler(kVocab);
  model::PenaltyState penalties(request.sampling, request.prompt);
  std::vector<TokenId> tokens = request.prompt;
  while (!received.finish) {
    const auto n = static_cast<int32_t>(received.tokens.size());
    const bool early = n < request.min_new_tokens;
    const auto sampled =
        sampler.Sample(FakeExecutor::ReferenceLogits(tokens, kVocab), request.sampling, penalties,
                       early ? request.stop_token_ids : std::vector<TokenId>(),
                       request.sampling.seed.value_or(0), n);
    penalties.AddOutput(sampled.token);
    tokens.push_back(sampled.token);
    received.tokens.push_back(sampled.token);
    received.logprobs.push_back(sampled.logprob);
    const auto& stops = request.stop_token_ids;
    if (!early && std::find(stops.begin(), stops.end(), sampled.token) != stops.end()) {
      received.finish = FinishReason::kStop;
    } else if (n + 1 == request.max_new_tokens) {
      received.finish = FinishReason::kLength;
    }
  }
  return received;
}

}  // namespace kvik::engine
