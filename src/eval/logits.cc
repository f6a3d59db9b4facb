// SPDX-License-Identifier: Apache-2.0
#include "eval/logits.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.h"

namespace kvik::eval {
namespace {

double Bounded(double nats) { return nats < kWorstNats ? nats : kWorstNats; }  // also of NaN

double LogSum(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
  }
  return static_cast<double>(largest) + std::log(sum);
}

}  // namespace

TokenId Argmax(std::span<const float> logits) {
  TokenId best = -1;
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > largest) {
      largest = logits[i];
      best = static_cast<TokenId>(i);
    }
  }
  return best;
}

RawRow DescribeRow(std::span<const float> logits, std::span<float> probabilities) {
  KVIK_CHECK(probabilities.size() == logits.size());
  RawRow row;
  float first = -std::numeric_limits<float>::infinity();
  float second = first;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > first) {
      second = first;
      first = logits[i];
      row.top = static_cast<TokenId>(i);
    } else if (logits[i] > second) {
      second = logits[i];
    }
  }
  row.margin = first - second;
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double e = std::exp(static_cast<double>(logits[i]) - static_cast<double>(first));
    probabilities[i] = static_cast<float>(e);
    sum += e;
  }
  row.log_sum = static_cast<double>(first) + std::log(sum);
  const auto scale = static_cast<float>(1.0 / sum);
  for (float& p : probabilities) {
    p *= scale;
  }
  return row;
}

RowComparison CompareRow(std::span<const float> raw, std::span<const float> raw_probabilities,
                         const RawRow& raw_row, std::span<const float> coded, TokenId target) {
  KVIK_CHECK(raw.size() == coded.size() && raw.size() == raw_probabilities.size());
  KVIK_CHECK(target >= 0 && static_cast<size_t>(target) < coded.size());
  RowComparison out;
  out.top = Argmax(coded);
  if (out.top < 0) {
    return {.kl_nats = kWorstNats, .top = -1, .nll_nats = kWorstNats};
  }
  const double coded_log_sum = LogSum(coded, coded[static_cast<size_t>(out.top)]);
  double expected_difference = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    expected_difference += static_cast<double>(raw_probabilities[i]) *
                           (static_cast<double>(raw[i]) - static_cast<double>(coded[i]));
  }
  // Rounding can take a divergence of nothing below zero.
  const double kl = expected_difference - raw_row.log_sum + coded_log_sum;
  out.kl_nats = Bounded(kl < 0 ? 0 : kl);
  out.nll_nats = Bounded(coded_log_sum - static_cast<double>(coded[static_cast<size_t>(target)]));
  return out;
}

double RowNll(std::span<const float> logits, TokenId target) {
  const TokenId top = Argmax(logits);
  if (top < 0) {
    return kWorstNats;
  }
  return Bounded(LogSum(logits, logits[static_cast<size_t>(top)]) -
                 static_cast<double>(logits[static_cast<size_t>(target)]));
}

}  // namespace kvik::eval
