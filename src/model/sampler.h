// SPDX-License-Identifier: Apache-2.0
// model/sampler.h: from logits to the next token.
//
// Order of operations: penalties (repetition, then frequency and presence), logit bias, banned
// tokens; greedy (temperature below 1e-5) stops here; then temperature, top-k, top-p, min-p, and
// one draw. NaN counts as minus infinity. Ties are broken by the lowest token id everywhere, so a
// result never depends on the order in which a sort visits equal values.
//
// Randomness is counter-based: the draw for output position n is a pure function of (seed, n).
// Preemption, batching and restarts therefore cannot change what a request says.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "model/sampling_params.h"

namespace kvik::model {

// kInvalidInput names the parameter that is out of range, not finite, or (logit_bias) not a token.
Result<void> ValidateSamplingParams(const SamplingParams& params, int32_t vocab_size);

// What the penalties of one request have to know: which tokens its prompt holds and how often
// each was generated. Empty and free of cost when no penalty is on. Thread-compatible.
class PenaltyState {
 public:
  PenaltyState(const SamplingParams& params, std::span<const TokenId> prompt);
  // The token that was sampled (or forced) next.
  void AddOutput(TokenId token);

  struct Counts {
    bool in_prompt = false;
    int32_t in_output = 0;
  };
  [[nodiscard]] const std::unordered_map<TokenId, Counts>& counts() const { return counts_; }

 private:
  bool active_;
  std::unordered_map<TokenId, Counts> counts_;
};

struct TokenScore {
  TokenId token = 0;
  float logprob = 0;
};

struct SampledToken {
  TokenId token = 0;
  // Natural logarithms of the softmax of the *raw* logits, before penalties, bias and temperature
  // (as vLLM's default "raw_logprobs"). Set when num_logprobs >= 0.
  float logprob = 0;
  std::vector<TokenScore> top;  // num_logprobs most probable ones, descending, ties by id
};

// Owns the scratch for one vocabulary. Thread-compatible; one instance serves any number of
// requests in turn.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // Draws the token for `output_position` (0 = the first generated one). `banned` tokens are never
  // drawn (stop tokens before min_new_tokens). `logits` has vocab_size entries.
  // REQUIRES: ValidateSamplingParams(params) succeeded; not every token is banned.
  [[nodiscard]] SampledToken Sample(std::span<const float> logits, const SamplingParams& params,
                                    const PenaltyState& penalties, std::span<const TokenId> banned,
                                    uint64_t seed, int64_t output_position);

  // Log-probabilities only: those of `token` and of the num_logprobs most probable ones, as
  // Sample reports them. For forced tokens and for scoring prompts.
  [[nodiscard]] SampledToken Score(std::span<const float> logits, TokenId token,
                                   int32_t num_logprobs);

 private:
  struct Candidate {
    float logit;
    TokenId token;
  };
  void Adjust(std::span<const float> logits, const SamplingParams& params,
              const PenaltyState& penalties, std::span<const TokenId> banned);
  void KeepTop(std::span<const float> logits, size_t count);
  [[nodiscard]] TokenId DrawFromAll(std::span<const float> logits, float temperature, double u);
  [[nodiscard]] TokenId DrawTruncated(std::span<const float> logits, const SamplingParams& params,
                                      double u);
  void KeepNucleus(std::span<const float> logits, float temperature, float top_p);

  int32_t vocab_size_;
  std::vector<float> adjusted_;        // [vocab_size] logits after penalties and bias
  std::vector<float> weights_;         // [vocab_size] exp((logit - max) / temperature)
  std::vector<Candidate> candidates_;  // [<= vocab_size] kept tokens, best first
};

}  // namespace kvik::model
