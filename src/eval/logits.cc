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

// The largest value is found in lanes that compilers turn into vectors, its place afterwards.
TokenId Argmax(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kLowest);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float logit = logits[i + lane];
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];
    }
  }
  for (; i < logits.size(); ++i) {
    lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  }
  const float largest = *std::max_element(lanes, lanes + kLanes);
  if (largest == kLowest) {
    return -1;
  }
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
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
  // Both sums in one pass: their additions wait for each other less than either alone.
  const auto largest = static_cast<double>(coded[static_cast<size_t>(out.top)]);
  double sum = 0;
  double expected_difference = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    const auto logit = static_cast<double>(coded[i]);
    sum += std::exp(logit - largest);
    expected_difference +=
        static_cast<double>(raw_probabilities[i]) * (static_cast<double>(raw[i]) - logit);
  }
  const double coded_log_sum = largest + std::log(sum);
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
