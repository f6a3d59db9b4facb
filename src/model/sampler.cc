// SPDX-License-Identifier: Apache-2.0
// Sampling runs once per generated token over the whole vocabulary, between two steps of the
// engine, so its passes over the logits are written for the vectoriser: independent lanes,
// no branches, no library calls. All arithmetic is plain float and double in a fixed order: a
// draw is the same on every host.
#include "model/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace kvik::model {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 16;
constexpr uint64_t kSamplerStream = 0x73616D706C65ULL;
// Up to here the best tokens are found by insertion in one pass, above by partial sorting.
constexpr size_t kInsertionLimit = 128;
// A lower temperature would overflow its inverse; it leaves one token anyway.
constexpr float kGreedyTemperature = 1e-5F;

// exp(x) for x <= 0, relative error below 2e-7; exactly 0 below -87, for minus infinity and NaN.
inline float ExpNonPositive(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x >= -87.0F ? x : -87.0F;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto exponent = static_cast<uint32_t>(std::bit_cast<int32_t>(shifted) << 23);
  const float scaled = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
  return x >= -87.0F ? scaled : 0.0F;
}

// The largest value; NaN counts as minus infinity.
float MaxOf(std::span<const float> values) {
  std::array<float, kLanes> best;
  best.fill(kMinusInfinity);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float v = values[i + lane];
      best[lane] = v > best[lane] ? v : best[lane];
    }
  }
  float max = kMinusInfinity;
  for (; i < values.size(); ++i) {
    max = values[i] > max ? values[i] : max;
  }
  for (const float v : best) {
    max = v > max ? v : max;
  }
  return max;
}

// Lowest id among the largest logits.
TokenId ArgMax(std::span<const float> logits) {
  const float max = MaxOf(logits);
  const auto it = std::find(logits.begin(), logits.end(), max);
  return it == logits.end() ? 0 : static_cast<TokenId>(it - logits.begin());
}

// weights[i] = exp((logits[i] - max) * scale), 0 for NaN. Returns their sum.
double Exponentiate(std::span<const float> logits, float max, float scale,
                    std::span<float> weights) {
  const float* in = logits.data();
  float* out = weights.data();
  const size_t size = logits.size();
  for (size_t i = 0; i < size; ++i) {
    out[i] = ExpNonPositive((in[i] - max) * scale);
  }
  std::array<double, kLanes> sums = {};
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(out[i + lane]);
    }
  }
  double sum = 0;
  for (; i < size; ++i) {
    sum += static_cast<double>(out[i]);
  }
  for (const double lane : sums) {
    sum += lane;
  }
  return sum;
}

Error OutOfRange(const char* field, double value, const char* range) {
  return Err(ErrorCode::kInvalidInput, "%s: %g is not in %s", field, value, range);
}

}  // namespace

Result<void> ValidateSamplingParams(const SamplingParams& p, int32_t vocab_size) {
  if (!(p.temperature >= 0.0F && p.temperature <= 100.0F)) {
    return OutOfRange("temperature", p.temperature, "[0, 100]");
  }
  if (p.top_k < -1) {
    return OutOfRange("top_k", p.top_k, "[-1, vocabulary size]");
  }
  if (!(p.top_p > 0.0F && p.top_p <= 1.0F)) {
    return OutOfRange("top_p", p.top_p, "(0, 1]");
  }
  if (!(p.min_p >= 0.0F && p.min_p <= 1.0F)) {
    return OutOfRange("min_p", p.min_p, "[0, 1]");
  }
  if (!(p.repetition_penalty > 0.0F && p.repetition_penalty <= 100.0F)) {
    return OutOfRange("repetition_penalty", p.repetition_penalty, "(0, 100]");
  }
  if (!(p.presence_penalty >= -2.0F && p.presence_penalty <= 2.0F)) {
    return OutOfRange("presence_penalty", p.presence_penalty, "[-2, 2]");
  }
  if (!(p.frequency_penalty >= -2.0F && p.frequency_penalty <= 2.0F)) {
    return OutOfRange("frequency_penalty", p.frequency_penalty, "[-2, 2]");
  }
  if (p.num_logprobs < -1 || p.num_logprobs > vocab_size) {
    return OutOfRange("logprobs", p.num_logprobs, "[0, vocabulary size]");
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return Err(ErrorCode::kInvalidInput, "logit_bias: token %d is not in [0, %d)", token,
                 vocab_size);
    }
    if (!(bias >= -100.0F && bias <= 100.0F)) {
      return OutOfRange("logit_bias", bias, "[-100, 100]");
    }
  }
  return {};
}

PenaltyState::PenaltyState(const SamplingParams& params, std::span<const TokenId> prompt)
    : active_(params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
              params.frequency_penalty != 0.0F) {
  if (params.repetition_penalty != 1.0F) {
    for (const TokenId token : prompt) {
      counts_[token].in_prompt = true;
    }
  }
}

void PenaltyState::AddOutput(TokenId token) {
  if (active_) {
    ++counts_[token].in_output;
  }
}

Sampler::Sampler(int32_t vocab_size) : vocab_size_(vocab_size) {
  KVIK_CHECK(vocab_size > 0);
  weights_.resize(static_cast<size_t>(vocab_size));
}

void Sampler::Adjust(std::span<const float> logits, const SamplingParams& params,
                     const PenaltyState& penalties, std::span<const TokenId> banned) {
  adjusted_.assign(logits.begin(), logits.end());
  for (float& v : adjusted_) {
    v = v == v ? v : kMinusInfinity;
    v = v > FLT_MAX ? FLT_MAX : v;
  }
  const auto in_vocab = [&](TokenId token) { return token >= 0 && token < vocab_size_; };
  for (const auto& [token, counts] : penalties.counts()) {
    if (!in_vocab(token)) {
      continue;
    }
    float& v = adjusted_[static_cast<size_t>(token)];
    v = v > 0 ? v / params.repetition_penalty : v * params.repetition_penalty;
    if (counts.in_output > 0) {
      v -= params.frequency_penalty * static_cast<float>(counts.in_output);
      v -= params.presence_penalty;
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    adjusted_[static_cast<size_t>(token)] += bias;
  }
  for (const TokenId token : banned) {
    if (in_vocab(token)) {
      adjusted_[static_cast<size_t>(token)] = kMinusInfinity;
    }
  }
}

// candidates_ = the `count` largest logits above minus infinity, descending, ties by id.
void Sampler::KeepTop(std::span<const float> logits, size_t count) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  candidates_.clear();
  if (count <= kInsertionLimit) {
    float bar = kMinusInfinity;  // what a newcomer must exceed: ids come in ascending order
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > bar) {
        const Candidate newcomer{logits[i], static_cast<TokenId>(i)};
        if (candidates_.size() == count) {
          candidates_.pop_back();
        }
        candidates_.insert(
            std::upper_bound(candidates_.begin(), candidates_.end(), newcomer, better), newcomer);
        if (candidates_.size() == count) {
          bar = candidates_.back().logit;
        }
      }
    }
    return;
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kMinusInfinity) {
      candidates_.push_back(Candidate{logits[i], static_cast<TokenId>(i)});
    }
  }
  const auto middle =
      candidates_.begin() + static_cast<std::ptrdiff_t>(std::min(count, candidates_.size()));
  std::partial_sort(candidates_.begin(), middle, candidates_.end(), better);
  candidates_.erase(middle, candidates_.end());
}

TokenId Sampler::DrawFromAll(std::span<const float> logits, float temperature, double u) {
  const double total = Exponentiate(logits, MaxOf(logits), 1.0F / temperature, weights_);
  const double target = u * total;
  double sum = 0;
  TokenId last = 0;  // rounding may leave the target just above the sum
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0) {
      sum += static_cast<double>(weights_[i]);
      last = static_cast<TokenId>(i);
      if (sum > target) {
        break;
      }
    }
  }
  return last;
}

// candidates_ = the fewest most probable tokens that hold `top_p` of the probability, at least one.
// Taken from all tokens, or from candidates_ when that is not empty.
void Sampler::KeepNucleus(std::span<const float> logits, float temperature, float top_p) {
  const bool from_all = candidates_.empty();
  const float max = from_all ? MaxOf(logits) : candidates_[0].logit;
  const float scale = 1.0F / temperature;
  const auto weight = [&](const Candidate& c) {
    return static_cast<double>(ExpNonPositive((c.logit - max) * scale));
  };
  double total = 0;
  if (from_all) {
    total = Exponentiate(logits, max, scale, weights_);
  } else {
    for (const Candidate& candidate : candidates_) {
      total += weight(candidate);
    }
  }
  // Probable tokens are few as a rule: look at some first, at more when they do not suffice.
  for (size_t count = kInsertionLimit;; count *= 8) {
    if (from_all) {
      KeepTop(logits, std::min(count, logits.size()));
    }
    double sum = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      sum += weight(candidates_[i]);
      if (sum >= static_cast<double>(top_p) * total) {
        candidates_.resize(i + 1);
        return;
      }
    }
    if (!from_all || count >= logits.size()) {
      return;  // all of them
    }
  }
}

TokenId Sampler::DrawTruncated(std::span<const float> logits, const SamplingParams& params,
                               double u) {
  candidates_.clear();
  if (params.top_k > 0 && params.top_k < vocab_size_) {
    KeepTop(logits, static_cast<size_t>(params.top_k));
  }
  if (params.top_p < 1.0F) {
    KeepNucleus(logits, params.temperature, params.top_p);
  }
  if (candidates_.empty()) {
    KeepTop(logits, logits.size());
  }
  const float max = candidates_[0].logit;
  const float scale = 1.0F / params.temperature;
  const auto weight = [&](const Candidate& c) { return ExpNonPositive((c.logit - max) * scale); };
  while (weight(candidates_.back()) < params.min_p && candidates_.size() > 1) {
    candidates_.pop_back();
  }
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    total += static_cast<double>(weight(candidate));
  }
  const double target = u * total;
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    sum += static_cast<double>(weight(candidate));
    if (sum > target) {
      return candidate.token;
    }
  }
  return candidates_.back().token;
}

SampledToken Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                             const PenaltyState& penalties, std::span<const TokenId> banned,
                             uint64_t seed, int64_t output_position) {
  KVIK_CHECK(logits.size() == static_cast<size_t>(vocab_size_));
  const bool untouched = penalties.counts().empty() && params.logit_bias.empty() && banned.empty();
  std::span<const float> adjusted = logits;
  if (!untouched) {
    Adjust(logits, params, penalties, banned);
    adjusted = adjusted_;
  }
  TokenId token = 0;
  const float max = MaxOf(adjusted);
  if (params.temperature < kGreedyTemperature || !(std::abs(max) <= FLT_MAX)) {
    // An infinite logit is certain; none above minus infinity leaves the first that is allowed.
    token = ArgMax(adjusted);
    for (token = max == kMinusInfinity ? 0 : token;
         std::find(banned.begin(), banned.end(), token) != banned.end(); ++token) {
    }
  } else {
    Rng rng(seed, kSamplerStream);
    rng.SeekTo(static_cast<uint64_t>(output_position));
    const double u = rng.Uniform();
    const bool truncated = (params.top_k > 0 && params.top_k < vocab_size_) ||
                           params.top_p < 1.0F || params.min_p > 0.0F;
    token = truncated ? DrawTruncated(adjusted, params, u)
                      : DrawFromAll(adjusted, params.temperature, u);
  }
  if (params.num_logprobs < 0) {
    return SampledToken{token, 0.0F, {}};
  }
  return Score(logits, token, params.num_logprobs);
}

SampledToken Sampler::Score(std::span<const float> logits, TokenId token, int32_t num_logprobs) {
  KVIK_CHECK(logits.size() == static_cast<size_t>(vocab_size_));
  KVIK_CHECK(token >= 0 && token < vocab_size_);
  const float max = MaxOf(logits);
  const double log_sum = std::log(Exponentiate(logits, max, 1.0F, weights_));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max) - log_sum);
  };
  SampledToken result{token, logprob(logits[static_cast<size_t>(token)]), {}};
  if (num_logprobs > 0) {
    KeepTop(logits, static_cast<size_t>(num_logprobs));
    for (const Candidate& candidate : candidates_) {
      result.top.push_back(TokenScore{candidate.token, logprob(candidate.logit)});
    }
  }
  return result;
}

}  // namespace kvik::model
